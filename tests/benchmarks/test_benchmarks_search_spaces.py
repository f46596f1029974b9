"""What a log spans: one point per program that today's space knows, and where the time went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.records import (
    End,
    Header,
    Log,
    MeasureRecord,
    Workload,
    read_log,
    write_log,
)
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Parallel, steps_text
from autotune.tuner import TuningTask
from benchmarks.search_spaces import Space, distinct, pool, seconds, space, spaces
from tests.benchmarks.search_small import DAG, TARGET, ok, recorded, small_space

HEADER = Header("r0", "", "", "", {}, TARGET, 1, 0, {}, {}, ((DAG.key, 1),))
TASK = TuningTask(DAG.key, DAG, 1, "gemm")


@pytest.fixture(scope="module")
def records() -> list[MeasureRecord]:
    return recorded()


def log_of(records: list[MeasureRecord]) -> Log:
    return Log((HEADER,), {DAG.key: Workload(DAG.key, DAG, "Gemm+Relu")}, tuple(records))


def of(records: list[MeasureRecord]) -> Space:
    return space(TASK, TARGET, 1, records)


def test_every_record_is_a_point_with_its_features_and_latency(
    records: list[MeasureRecord],
) -> None:
    found = of(records)
    assert len(found.points) == len(found.x) == len(found.latency_s) == len(records)
    latencies = {r.steps_json: r.result.latency_s for r in records}
    for p, latency_s in zip(found.points, found.latency_s, strict=True):
        assert latencies[steps_text(p.candidate.steps)] == latency_s
    assert found.best_s == min(found.latency_s)
    names = {p.candidate.sketch for p in found.points}
    assert sorted(i for n in names for i in found.of(n)) == list(range(len(records)))


def test_measurements_of_one_schedule_are_one_and_failures_stay(
    records: list[MeasureRecord],
) -> None:
    a, b, c, d = records[:4]
    again = replace(a, result=ok(100.0), final=True, sequence=90)
    crash = MeasureResult(MeasureStatus.RUN_CRASH)
    slow = MeasureResult(MeasureStatus.RUN_TIMEOUT)
    some = [a, b, c, d, again, replace(b, result=crash), replace(c, result=slow)]
    some[3] = replace(d, result=slow)
    found = distinct(some)
    assert [r.steps_json for r in found] == [r.steps_json for r in (a, b, c, d)]
    assert found[0].result.times_s == a.result.times_s + again.result.times_s
    assert [r.result.ok for r in found] == [True, False, True, False]
    assert np.isfinite(of(some).latency_s).sum() == 2


def test_what_the_space_does_not_know_is_left_out(records: list[MeasureRecord]) -> None:
    one = records[0]
    strange = [
        replace(one, sketch="of an earlier version"),
        replace(one, steps_json='[{"step":"quantum"}]'),
        replace(one, steps_json=steps_text((Parallel("e", 1),))),
    ]
    assert of(strange).points == ()
    assert len(of([*strange, *records[1:]]).points) == len(records) - 1


def test_tasks_are_chosen_by_size_machine_and_name(records: list[MeasureRecord]) -> None:
    n = len(records)
    assert [len(s.points) for s in spaces(log_of(records), n)] == [n]
    assert spaces(log_of(records), n + 1) == []
    assert spaces(log_of([replace(r, n_threads=2) for r in records]), 1) == []
    assert spaces(log_of([replace(r, target_key="x") for r in records]), 1) == []
    for wanted, n_tasks in (("relu", 1), (DAG.key[:5], 1), ("conv", 0)):
        assert len(spaces(log_of(records), 1, wanted)) == n_tasks


def test_pooled_logs_are_one_space(records: list[MeasureRecord]) -> None:
    both = pool([log_of(records[:30]), log_of(records[20:])])
    assert [len(s.points) for s in spaces(both, 1)] == [len(records)]


def test_a_small_space_has_several_structures() -> None:
    found = small_space()
    assert len({p.candidate.sketch for p in found.points}) == 3
    assert len(found.points) >= 40


@pytest.mark.parametrize("split", [None, {"search": 3.0, "model": 1.0, "build": 9.0}])
def test_where_the_time_went(
    records: list[MeasureRecord], split: dict[str, float] | None, tmp_path: Path
) -> None:
    path = tmp_path / "net.jsonl"
    end = replace(END, seconds=split or {})
    write_log(path, replace(log_of([*records, replace(records[0], final=True)]), ends=(end,)))
    found = seconds(path, read_log(path))
    assert (found.log, found.trials, found.elapsed) == ("net", len(records), 20.0)
    assert found.trials_per_s == len(records) / 20
    assert found.run == pytest.approx(0.2 * (len(records) + 1))
    assert (found.search, found.model) == ((3.0, 1.0) if split else (None, None))


END = End("r0", "time", 40, 20.0)
