"""What is left to gain, told before the first trial: like compared with like, or nothing said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.display.lines import outlook_text, status_lines
from autotune.display.renderers import Plain
from autotune.display.view import View
from autotune.measure.peak import Peaks
from autotune.target import parse_target
from autotune.te.dag import ComputeDAG
from autotune.tuner import (
    Budget,
    Outlook,
    SessionStarted,
    Totals,
    TuningTask,
    clock_scale,
    event_to_json,
    outlook,
)


@pytest.fixture
def tasks(matmul_of: Callable[[int], ComputeDAG]) -> list[TuningTask]:
    """Two tasks and one that may replace a call of each."""
    a, b, whole = (matmul_of(n) for n in (32, 64, 96))
    return [
        TuningTask("a", a, 3, "A", 1e-3),
        TuningTask("b", b, 1, "B", 2e-3),
        TuningTask("c", whole, 1, "A+B", 2e-3, ("a", "b")),
    ]


def test_calls_count_as_often_as_they_are_made_and_chains_by_their_faster_alternative(
    tasks: list[TuningTask],
) -> None:
    plain = outlook([tasks[:2]], {"a": 2e-3, "b": 3e-3})
    assert plain is not None
    assert (plain.untuned_s, plain.bound_s) == (pytest.approx(9e-3), pytest.approx(5e-3))
    assert plain.left == pytest.approx(4 / 9)
    chained = outlook([tasks], {"a": 2e-3, "b": 3e-3, "c": 9e-3})
    assert chained is not None
    assert (chained.untuned_s, chained.bound_s) == (pytest.approx(9e-3), pytest.approx(4e-3))
    fused = outlook([tasks], {"a": 2e-3, "b": 3e-3, "c": 3e-3})
    assert fused is not None
    assert fused.untuned_s == pytest.approx(7e-3)


def test_an_estimate_below_the_bound_leaves_nothing_and_what_is_unknown_tells_nothing(
    tasks: list[TuningTask],
) -> None:
    found = outlook([tasks[:2]], {"a": 1e-9, "b": 1e-9})
    assert found is not None
    assert (found.left, found.is_little) == (pytest.approx(0), True)
    assert outlook([tasks[:2]], {"a": 1e-3}) is None
    assert outlook([[replace(tasks[0], bound_s=None)]], {"a": 1e-3}) is None
    assert outlook([()], {}) is None


def test_the_cost_model_speaks_of_the_clock_that_the_peak_was_measured_at() -> None:
    target = parse_target("znver3")
    core = target.core
    per_cycle = core.ports * target.lanes * 2
    half = Peaks(2 * per_cycle * core.clock_hz / 2, 1.0, 1.0, 0)
    assert clock_scale(target, 2, half) == pytest.approx(2)


@pytest.mark.parametrize(("bound_s", "is_little"), [(1e-3, False), (1.96e-3, True)])
def test_lines_table_and_json_tell_it_before_the_first_trial(
    bound_s: float, is_little: bool
) -> None:
    found = Outlook(2e-3, bound_s)
    event = SessionStarted("r", (), Budget(4), 0, 0.0, Totals(), found)
    lines: list[str] = []
    Plain(lines.append).show(event)
    assert lines == [outlook_text(found)]
    assert ("may not pay" in lines[0]) is is_little
    assert f"at most {2 if is_little else 50} % of the time is left" in lines[0]
    view = View()
    view.apply(event)
    assert lines[0] in status_lines(view, 0.0)
    data = json.loads(json.dumps(event_to_json(event)))["outlook"]
    assert data == {"untuned_s": 2e-3, "bound_s": bound_s, "left": pytest.approx(found.left)}
    assert event_to_json(replace(event, outlook=None))["outlook"] is None
