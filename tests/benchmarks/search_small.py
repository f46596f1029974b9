"""A small recorded space whose latencies are known: the cost model, times what it does not see."""

from __future__ import annotations

import numpy as np

from autotune.records import MeasureRecord
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import steps_text
from autotune.search.cost.analysis import analyse
from autotune.search.cost.features import NAMES, features
from autotune.search.cost.ranker import Array, Ranker
from autotune.search.sketch import generate_sketches
from autotune.target import parse_target
from autotune.te.dag import ComputeDAG
from autotune.tuner import TuningTask
from benchmarks.search_spaces import Space, space
from tests.schedule.small_dags import gemm

TARGET = parse_target("x86-64-v3")
DAG = gemm(128, 96, 64)


def ok(latency_s: float) -> MeasureResult:
    return MeasureResult(MeasureStatus.OK, (latency_s,) * 3, 0.1, 0.2, max_error=1e-6)


def truth(x: Array) -> Array:
    """log2 seconds of candidates with features `x`."""
    found: Array = x[:, NAMES.index("analytic")] + 4.0 * x[:, NAMES.index("loads_per_op")]
    return found


def recorded(dag: ComputeDAG = DAG, n: int = 40, n_structures: int = 3) -> list[MeasureRecord]:
    """About `n` records of a task, from so many structures."""
    found: list[MeasureRecord] = []
    sketches = generate_sketches(dag, TARGET)[:n_structures]
    for sketch in sketches:
        rows = sketch.sample(64 * n, np.random.default_rng(0))
        what = analyse(dag, sketch, rows, TARGET)
        log2 = truth(features(what, sketch, rows, TARGET, 1))
        first = np.unique(what.identity, axis=0, return_index=True)[1]
        for i in [int(i) for i in np.sort(first) if what.valid[i]][: -(-n // len(sketches))]:
            text, result = steps_text(sketch.bind(rows[i])), ok(float(np.exp2(log2[i])))
            place = "r0", len(found), dag.key, TARGET.key, 1
            found.append(MeasureRecord(*place, text, result, sketch.name))
    return found


def small_space(dag: ComputeDAG = DAG, n: int = 40) -> Space:
    return space(TuningTask(dag.key, dag, 1, "gemm"), TARGET, 1, recorded(dag, n))


class Truth(Ranker):
    """Knows what everything takes."""

    def train(self) -> None:
        pass

    def predict(self, rows: Array) -> Array:
        return truth(rows)
