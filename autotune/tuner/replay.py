"""⑨ A measurer that answers from a log, for tests that neither compile nor time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from autotune.records.record import MeasureRecord
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps, steps_text
from autotune.te.dag import ComputeDAG


class ReplayMeasurer:
    """Answers with the recorded result of a schedule; a run error for one never recorded."""

    waited_s = built_s = 0.0
    n_slots = 1

    def __init__(self, records: Iterable[MeasureRecord]) -> None:
        self._results = {(r.workload, r.steps_json): r.result for r in records}

    def first_done(
        self, batches: Sequence[Iterable[MeasureResult]], waits: bool = True
    ) -> int | None:
        """The first: it is answered when it is iterated."""
        return 0

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterator[MeasureResult]:
        """One recorded result per candidate, in order, after `meanwhile`."""
        if meanwhile is not None:
            meanwhile()
        missing = MeasureResult(MeasureStatus.RUN_ERROR, error="not in the replayed log")
        for steps in candidates:
            yield self._results.get((dag.key, steps_text(steps)), missing)

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        """The same results once more."""
        return list(self.stream(dag, candidates))
