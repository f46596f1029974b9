"""A killed and resumed search with the real policies and ranker goes on as if never killed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from autotune.records import Entry, Log, MeasureRecord
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps, steps_text
from autotune.search.cost.ranker import Ranker
from autotune.search.defaults import default_candidate
from autotune.search.policy import Candidate, SketchPolicy
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.tuner import Budget, Run, Scheduler, Session, TuningTask


class MadeUpMeasurer:
    """A latency for every schedule that has nothing to do with the machine; a few fail."""

    waited_s = built_s = 0.0
    n_slots = 1

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Iterator[MeasureResult]:
        meanwhile()
        for steps in candidates:
            number = zlib.crc32(steps_text(steps).encode()) % 1000
            if number < 50:
                yield MeasureResult(MeasureStatus.RUN_TIMEOUT)
            else:
                yield MeasureResult(MeasureStatus.OK, (1e-7 * (100 + number),) * 3)

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        return list(self.stream(dag, candidates))


@dataclass
class ListSink:
    records: list[MeasureRecord] = field(default_factory=list)

    def append(self, entries: Sequence[Entry]) -> None:
        self.records += [e for e in entries if isinstance(e, MeasureRecord)]

    def sync(self) -> None:
        pass


@cache
def default_of(dag: ComputeDAG, target: Target) -> Candidate:
    return default_candidate(dag, target, 1)


def tune(
    dags: Sequence[ComputeDAG], target: Target, n_trials: int, before: Sequence[MeasureRecord] = ()
) -> list[MeasureRecord]:
    """Records of a session of `n_trials`, the replayed ones first."""
    tasks = [TuningTask(dag.key, dag, 1 + i) for i, dag in enumerate(dags)]
    ranker = Ranker(0)

    def policy_of(task: TuningTask) -> SketchPolicy:
        return SketchPolicy(task.dag, target, 1, ranker, np.random.default_rng(int(task.key, 16)))

    sink = ListSink(list(before))
    session = Session(
        run=Run("r", target.key, 1),
        tasks=tasks,
        policy_of=policy_of,
        measurer=MadeUpMeasurer(),
        sink=sink,
        budget=Budget(trials=n_trials),
        scheduler=Scheduler(tasks, batch=8, patience=32),
        clock=lambda: 0.0,
        batch=8,
        default=lambda task: default_of(task.dag, target),
        finals=False,
    )
    session.replay(Log(records=tuple(before)))
    list(session.events())
    return sink.records


@cache
def uninterrupted(
    dags: tuple[ComputeDAG, ...], target: Target, n_trials: int
) -> list[MeasureRecord]:
    return tune(dags, target, n_trials)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("n_before_kill", [16, 32])
def test_a_resumed_search_proposes_what_it_would_have_proposed(
    matmul_of: Callable[[int], ComputeDAG], any_target: Target, n_before_kill: int
) -> None:
    dags = (matmul_of(64), matmul_of(96))
    whole = uninterrupted(dags, any_target, 40)
    resumed = tune(dags, any_target, 40, whole[:n_before_kill])
    assert len(whole) == 40
    assert resumed == whole
    defaults = {dag.key: default_of(dag, any_target).steps_json for dag in dags}
    first = {r.workload: r for r in reversed(whole)}
    assert {key: r.steps_json for key, r in first.items()} == defaults
    assert sum(r.default_estimate_s is not None for r in whole) == 2


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("n_before_kill", [16, 40])
def test_a_task_that_came_several_times_in_a_row_goes_on(
    matmul_of: Callable[[int], ComputeDAG], any_target: Target, n_before_kill: int
) -> None:
    dags = (matmul_of(96), matmul_of(24))
    whole = uninterrupted(dags, any_target, 48)
    keys = [r.workload for r in whole[::8]]
    assert any(a == b for a, b in pairwise(keys))
    assert tune(dags, any_target, 48, whole[:n_before_kill]) == whole


@pytest.mark.slow
@pytest.mark.parametrize("n_before_kill", [5, 21])
def test_a_resumed_search_measures_nothing_twice(
    matmul_of: Callable[[int], ComputeDAG], any_target: Target, n_before_kill: int
) -> None:
    """Killed within a batch, too."""
    dags = (matmul_of(64), matmul_of(96))
    whole = uninterrupted(dags, any_target, 40)
    resumed = tune(dags, any_target, 40, whole[:n_before_kill])
    assert resumed[:n_before_kill] == whole[:n_before_kill]
    assert len({(r.workload, r.steps_json) for r in resumed}) == len(resumed) == 40
