"""How near the untuned network is to its bound, by what was measured, or nothing said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.display.lines import in_turns_text, outlook_text, status_lines
from autotune.display.renderers import Plain
from autotune.display.view import View
from autotune.records import InTurns
from autotune.te.dag import ComputeDAG
from autotune.tuner import (
    Budget,
    DefaultsMeasured,
    Outlook,
    SessionStarted,
    Totals,
    TuningTask,
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


@pytest.mark.parametrize(("bound_s", "share"), [(1e-3, "50 %"), (1.96e-3, "98 %")])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_lines_table_and_json_tell_it_once_all_is_measured(
    bound_s: float, share: str, is_resumed: bool
) -> None:
    found = Outlook(2e-3, bound_s)
    started = SessionStarted("r", (), Budget(4), 0, 0.0, Totals(), found if is_resumed else None)
    events = [started] if is_resumed else [started, DefaultsMeasured(found)]
    lines: list[str] = []
    view, plain = View(), Plain(lines.append)
    for event in events:
        assert not lines
        plain.show(event)
        view.apply(event)
    assert lines == [outlook_text(found)]
    assert f", {share} of the speed that peak and bandwidth permit" in lines[0]
    assert ("may not pay" in lines[0]) is (share == "98 %")
    assert lines[0] in status_lines(view, 0.0)
    data = json.loads(json.dumps(event_to_json(events[-1])))["outlook"]
    assert data == {"untuned_s": 2e-3, "bound_s": bound_s, "left": pytest.approx(found.left)}
    assert event_to_json(replace(started, outlook=None))["outlook"] is None


def test_an_earlier_session_tells_what_it_gained() -> None:
    gained = InTurns(5e-3, 4e-3, 0.8, 0.79, 0.81, 12)
    event = SessionStarted("r", (), Budget(4), 0, 0.0, Totals(), None, gained)
    lines: list[str] = []
    Plain(lines.append).show(event)
    assert lines == [
        "an earlier session gained 1.250x: 5.000 ms untuned → 4.000 ms tuned, measured in turns"
    ]
    view = View()
    view.apply(event)
    assert lines[0] in status_lines(view, 0.0)
    assert event_to_json(event)["in_turns"]["ratio"] == 0.8


def test_the_network_in_turns_is_compared_with_its_bound() -> None:
    text = in_turns_text(InTurns(5e-3, 4e-3, 0.8, 0.79, 0.81, 12), 3e-3)
    assert text.endswith("; 75 % of the speed that peak and bandwidth permit")
