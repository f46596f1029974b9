"""Figures of a small log whose numbers are known, and what is said of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.codec import from_json, to_json
from autotune.errors import LogMismatch
from autotune.records import write_log
from autotune.reporting.comparison import compared
from autotune.reporting.figures import SearchFigures, figures_of
from autotune.reporting.report import SearchReport
from autotune.schedule.steps import Split
from autotune.target import Target
from tests.reporting.small_log import OUTER, VECTORS, SmallLog


@pytest.fixture
def small(any_target: Target) -> SmallLog:
    found = SmallLog(any_target)
    found.add_all()
    return found


@pytest.fixture
def figures(small: SmallLog) -> SearchFigures:
    return figures_of(small.log(), "small.jsonl")


def test_figures_are_those_of_the_records(figures: SearchFigures) -> None:
    assert (figures.n_trials, figures.n_runs, figures.stopped) == (6, 1, "trials")
    assert figures.untuned_s == pytest.approx(3 * 4e-6 + 40e-6)
    assert figures.tuned_s == pytest.approx(3 * 1e-6 + 10e-6)
    assert figures.ratio == pytest.approx(52 / 13)
    first, second = figures.tasks
    assert (first.untuned_s, first.tuned_s, first.n_trials, first.n_failed) == (4e-6, 1e-6, 3, 1)
    assert (first.binds, second.binds) == ("weights", "arithmetic")
    assert first.share_of_bound == pytest.approx(0.128)
    assert second.gflops == pytest.approx(2 * 64**3 / 10e-6 * 1e-9)
    assert (first.stop, second.stop, first.structure) == ("at_bound", "budget", "tiled")
    assert "vectorize" in first.loops
    assert [p.best_s for p in second.progress] == [40e-6, 10e-6, 10e-6]
    assert [p.n_trials for p in second.progress] == [1, 2, 3]
    assert [(f.status, f.n, f.tasks, f.example) for f in figures.failures] == [
        ("run_crash", 1, (0,), "b|c")
    ]
    assert [c.tuned_s for c in figures.calls] == pytest.approx([3e-6, 10e-6])
    assert (figures.predictions[0].predicted_s, figures.predictions[0].measured_s) == (2e-6, 4e-6)
    assert len(figures.predictions) == 5


def test_the_network_goes_from_untuned_to_tuned_as_records_come(figures: SearchFigures) -> None:
    """What has not been measured yet counts with its default program."""
    micro = [round(1e6 * p.latency_s, 6) for p in figures.progress]
    assert micro == [52, 52, 52, 52, 43, 13, 13]
    assert [p.elapsed_s for p in figures.progress] == [0, 10, 20, 30, 40, 50, 60]


def test_figures_survive_json(figures: SearchFigures) -> None:
    data = json.loads(json.dumps(to_json(figures)))
    assert from_json(SearchFigures, data) == figures


def test_without_an_end_there_are_no_bounds_and_it_is_said(small: SmallLog) -> None:
    found = figures_of(small.log(reason="none"), "small.jsonl")
    assert found.tasks[0].share_of_bound is None
    assert found.stopped == ""
    text = SearchReport(found).markdown()
    assert "no end of a run" in text
    assert "### Roofline" not in text


def test_records_of_other_machines_are_left_out(small: SmallLog) -> None:
    small.records.append(replace(small.records[3], target_key="other", sequence=9))
    found = figures_of(small.log(), "small.jsonl")
    assert found.n_trials == 6
    assert any("1 record of other CPUs" in note for note in found.notes)


def test_two_searches_are_compared_task_by_task(
    small: SmallLog, figures: SearchFigures, any_target: Target
) -> None:
    small.records[3] = replace(
        small.records[3], result=replace(small.records[3].result, times_s=(2e-6,) * 5)
    )
    before = figures_of(small.log(), "before.jsonl")
    found = compared(figures, before)
    assert [t.ratio for t in found.tasks] == pytest.approx([0.5, 1.0])
    assert [t.is_alike for t in found.tasks] == [False, True]
    assert (found.before_s, found.after_s) == pytest.approx((16e-6, 13e-6))
    text = SearchReport(figures, other=before, comparison=found).markdown()
    assert "16.00 µs in before.jsonl → 13.00 µs in small.jsonl (×0.812)" in text
    assert "1 are faster, 0 slower, 1 the same" in text
    other = SmallLog(any_target, (17, 65))
    other.add(0, (), 1e-6)
    with pytest.raises(LogMismatch, match="no measured task in common"):
        compared(figures, figures_of(other.log(reason="none"), "other.jsonl"))


def test_a_log_without_header_or_computations_is_refused(small: SmallLog) -> None:
    log = small.log()
    for broken in (replace(log, headers=()), replace(log, workloads={})):
        with pytest.raises(LogMismatch, match=r"lost|lacks"):
            figures_of(broken, "small.jsonl")


def test_markdown(figures: SearchFigures, golden: Callable[[str, str], None]) -> None:
    golden("reporting/small.md", SearchReport(figures).markdown())


@pytest.mark.parametrize("_", range(6))
def test_damaged_logs_are_reported_or_refused(
    small: SmallLog, tmp_path: Path, rng: np.random.Generator, _: int
) -> None:
    """Never by another error."""
    path = tmp_path / "a.jsonl"
    write_log(path, small.log())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    odd = [None, 0, -1, 1e308, "", "\ud800\x1b[2J<b>", [], {}, math.pi, True]
    for _round in range(20):
        damaged = [dict(line) for line in lines if rng.random() > 0.1]
        for line in damaged:
            inner = [line, *(v for v in line.values() if isinstance(v, dict))]
            place = dict(inner[rng.integers(len(inner))])
            if rng.random() < 0.3 and place:
                name = list(place)[rng.integers(len(place))]
                target = next(d for d in inner if d == place)
                target[name] = odd[rng.integers(len(odd))]
        path.write_text("".join(json.dumps(line) + "\n" for line in damaged))
        with suppress(LogMismatch):
            report = autotune.report(path)
            report.markdown().encode()
            json.dumps(report.to_json())


def test_choices_that_mattered_are_told_with_what_others_take(any_target: Target) -> None:
    """Of a step beside those of its structure, of the structure beside all; not what all chose."""
    small = SmallLog(any_target)
    small.add(0, VECTORS, 1e-6)
    for n, seconds in ((2, 3e-6), (4, 1.5e-6), (16, 4e-6)):
        small.add(0, (Split("c", "j", (n,), "shift"), *VECTORS[1:]), seconds)
    for n, seconds in ((2, 5e-6), (4, 2e-6), (8, 6e-6)):
        small.add(0, (Split("c", "i", (n,), "shift"),), seconds, sketch="rows")
    small.add(0, OUTER, "run_crash", sketch="rows")
    (choices, others) = (task.choices for task in figures_of(small.log(), "small").tasks)
    told = [(c.text, round(c.ratio, 6), c.n_others) for c in choices]
    assert told == [("structure tiled", 2.0, 3), ("split c.j 8", 1.5, 3)]
    assert others == ()


def test_nodes_of_the_file_have_the_tasks_that_the_log_has(any_target: Target) -> None:
    small = SmallLog(any_target)
    small.add_all()
    nodes = figures_of(small.log(), "small").nodes
    assert [(node.name, node.tasks) for node in nodes] == [
        ("<0>", (0,)), ("<1>", (0,)), ("<2>", (0,)), ("last", (1,)),
    ]  # fmt: skip
