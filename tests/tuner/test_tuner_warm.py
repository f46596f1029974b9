"""Warm start: earlier measurements train the ranker, the best schedules are measured first."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from autotune.records import Log, MeasureRecord, Workload
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Parallel, Split, steps_text
from autotune.search.cost.analysis import analyse
from autotune.search.cost.analytic import analytic_seconds
from autotune.search.cost.features import NAMES, features
from autotune.search.cost.ranker import Ranker
from autotune.search.sketch import generate_sketches
from autotune.target import Target
from autotune.tuner.warm import first_candidates, teach, usable_records
from tests.schedule.small_dags import gemm

DAG = gemm(128, 96, 64)


def ok(latency_s: float) -> MeasureResult:
    return MeasureResult(MeasureStatus.OK, (latency_s,) * 3, max_error=1e-6)


def record(n: int, latency_s: float, target: Target) -> MeasureRecord:
    text = steps_text((Parallel("c", n),))
    return MeasureRecord("r0", n, DAG.key, target.key, 1, text, ok(latency_s), "made up")


@pytest.fixture
def measured(any_target: Target) -> list[MeasureRecord]:
    """Measurements of one structure whose latencies differ systematically from the cost model."""
    sketch = generate_sketches(DAG, any_target)[0]
    rows = sketch.sample(800, np.random.default_rng(0))
    found = analyse(DAG, sketch, rows, any_target)
    chain = features(found, sketch, rows, any_target, 1)[:, NAMES.index("chain")]
    seconds = analytic_seconds(found, any_target, 1) * np.exp2(0.5 * chain)
    return [
        replace(
            record(n, float(seconds[n]), any_target),
            steps_json=steps_text(sketch.bind(rows[n])),
            sketch=sketch.name,
        )
        for n in map(int, np.flatnonzero(found.valid))
    ]


def test_a_taught_ranker_knows_what_the_cost_model_misses(
    measured: list[MeasureRecord], any_target: Target
) -> None:
    sketch = generate_sketches(DAG, any_target)[0]
    rows = sketch.sample(300, np.random.default_rng(1))
    found = analyse(DAG, sketch, rows, any_target)
    x = features(found, sketch, rows, any_target, 1)[found.valid]
    truth = x[:, NAMES.index("analytic")] + 0.5 * x[:, NAMES.index("chain")]
    ranker = Ranker(0)
    before = np.corrcoef(ranker.predict(x), truth)[0, 1]
    assert teach(ranker, DAG, measured, any_target) == len(measured)
    assert np.corrcoef(ranker.predict(x), truth)[0, 1] == before
    ranker.train()
    assert np.corrcoef(ranker.predict(x), truth)[0, 1] > max(before, 0.95)


def test_what_the_present_space_does_not_know_teaches_nothing(
    measured: list[MeasureRecord], any_target: Target
) -> None:
    one = measured[0]
    strange = json.dumps([{"step": "quantum", "stage": "c"}])
    odd = [
        replace(one, sketch="of an earlier version"),
        replace(one, steps_json=strange),
        replace(one, steps_json=steps_text((Split("c", "i", (4,)),))),
        replace(one, final=True),
    ]
    assert teach(Ranker(0), DAG, odd, any_target) == 0
    assert teach(Ranker(0), DAG, [*odd, one], any_target) == 1


def test_what_was_taught_does_not_delay_learning_from_this_run() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, len(NAMES)))
    ranker = Ranker(0)
    ranker.teach("old", x[:200], np.full(200, 1e-3))
    ranker.train()
    taught = ranker.predict(x[200:])
    ranker.observe("new", x[200:223], np.full(23, 1e-3))
    np.testing.assert_array_equal(ranker.predict(x[200:]), taught)
    ranker.observe("new", x[223:224], np.full(1, 1e-3))
    assert not np.array_equal(ranker.predict(x[200:]), taught)


def test_the_best_few_schedules_come_first_and_unsafe_ones_never(any_target: Target) -> None:
    records = [record(n, 1e-3 / (1 + n), any_target) for n in range(8)]
    crash = replace(records[7], result=MeasureResult(MeasureStatus.RUN_CRASH))
    inaccurate = replace(records[6], result=replace(ok(1e-9), max_error=1e-3).within(5e-5))
    unknown = replace(records[0], steps_json='[{"step":"quantum"}]', result=ok(1e-9))
    first = first_candidates([*records, crash, inaccurate, unknown])
    assert [c.steps for c in first] == [(Parallel("c", n),) for n in (5, 4, 3, 2)]
    assert {c.sketch for c in first} == {"made up"}


def test_only_valid_records_of_the_same_machine_are_used(any_target: Target) -> None:
    one = record(0, 1e-3, any_target)
    others = [
        replace(one, target_key="other"),
        replace(one, n_threads=2),
        replace(one, workload="unknown"),
        replace(one, result=MeasureResult(MeasureStatus.RUN_TIMEOUT)),
    ]
    log = Log(workloads={DAG.key: Workload(DAG.key, DAG)}, records=(*others, one))
    assert usable_records(log, any_target, 1) == [one]


def test_a_few_samples_train_nothing(measured: list[MeasureRecord], any_target: Target) -> None:
    ranker = Ranker(0)
    teach(ranker, DAG, measured[:5], any_target)
    ranker.train()
    assert ranker.train_s == 0.0
