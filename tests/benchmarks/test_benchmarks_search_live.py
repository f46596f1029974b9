"""Policies compared live: who won after how many trials, and how near to the best known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Parallel, Steps, steps_text
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.tuner import TuningTask
from benchmarks.search_live import BATCH, Found, Place, fastest, places, policies, search, table


class MadeUp:
    """Seconds that only depend on the length of the text of a schedule and its characters."""

    waited_s = 0.0

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterator[MeasureResult]:
        if meanwhile is not None:
            meanwhile()
        for steps in candidates:
            seconds = 1e-6 * sum(steps_text(steps).encode())
            yield MeasureResult(MeasureStatus.OK, (seconds,) * 4)

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        return list(self.stream(dag, candidates))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["random", "cost model only", "full"])
def test_every_task_gets_its_trials_and_the_winner_is_the_fastest_so_far(
    matmul_of: Callable[[int], ComputeDAG], any_target: Target, policy: str
) -> None:
    tasks = [TuningTask(dag.key, dag, 1) for dag in map(matmul_of, (32, 48))]
    policy_of = policies(any_target, 1, seed=0, trials=20)[policy]
    records = search(policy_of, tasks, 20, MadeUp())
    counts = {t.key: sum(r.workload == t.key for r in records) for t in tasks}
    assert all(20 <= n < 20 + BATCH for n in counts.values())
    found = fastest(policy, 0, records, (8, 20))
    assert [(f.task, f.trials) for f in found] == [
        (key, n) for key in dict.fromkeys(r.workload for r in records) for n in (8, 20)
    ]
    for f in found:
        mine = [r for r in records if r.workload == f.task][: f.trials]
        mine.sort(key=lambda r: r.result.latency_s or 0.0)
        assert f.finalists == tuple(r.steps for r in mine[:4])


def test_places_are_ratios_to_the_best_of_the_task(
    matmul_of: Callable[[int], ComputeDAG], any_target: Target
) -> None:
    dag = matmul_of(32)
    task = TuningTask(dag.key, dag, 1)
    records = search(policies(any_target, 1, 0, 8)["random"], [task], 8, MadeUp())
    some = [Found("random", n, task.key, 8, (r.steps,)) for n, r in enumerate(records)]
    ratios = [p.ratio for p in places(some, task, MadeUp())]
    assert min(ratios) == 1.0
    assert ratios == [
        (r.result.latency_s or 0.0) / min(x.result.latency_s or 0.0 for x in records)
        for r in records
    ]


def test_the_table_of_places(golden: Callable[[str, str], None]) -> None:
    ratios = {("random", 8): 1.8, ("random", 32): 1.3, ("full", 8): 1.12, ("full", 32): 1.02}
    found = [
        Place(Found(policy, seed, task, n, ()), ratio + 0.05 * (task == "b"))
        for (policy, n), ratio in ratios.items()
        for task in "ab"
        for seed in range(3)
    ]
    found.append(Place(Found("full", 1000, "a", 128, ()), 1.0))
    golden("benchmarks/search_live.md", table(found) + "\n")


def test_one_half_of_the_repeats_chooses_and_the_other_judges() -> None:
    """The second program was lucky in the repeats that choose: what it is worth counts."""
    dag = ComputeDAG((), ())
    task = TuningTask("1", dag, 1)
    a, b = (Parallel("c", 1),), (Parallel("c", 2),)

    class Lucky(MadeUp):
        def measure_interleaved(
            self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
        ) -> list[MeasureResult]:
            times = {a: (1.0, 1.0, 1.0, 1.0), b: (0.9, 1.2, 0.9, 1.2)}
            return [MeasureResult(MeasureStatus.OK, times[c]) for c in candidates]

    found = [Found("full", 0, "1", 8, (a, b)), Found("random", 0, "1", 8, (a,))]
    assert [p.ratio for p in places(found, task, Lucky())] == [1.2, 1.0]
