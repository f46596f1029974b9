"""⑨ Batches in the slots of a measurer: they begin, and are taken as their results come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autotune.measure.protocols import Built
from autotune.result import MeasureResult
from autotune.search.policy import Candidate
from autotune.tuner.bound import believed
from autotune.tuner.ledger import Seconds
from autotune.tuner.protocols import CandidateMeasurer
from autotune.tuner.scheduler import TaskState

_FINAL_ROUNDS = 10
"""Repeats of each finalist."""


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """Candidates of a task that a slot of the measurer has; `results` come as it is iterated."""

    state: TaskState
    candidates: Sequence[Candidate]
    results: Iterable[MeasureResult | Built]
    begun_s: float

    @property
    def key(self) -> str:
        """Of the task."""
        return self.state.task.key

    def believed(self) -> Iterator[MeasureResult | Built]:
        """The results, without times that no machine can reach."""
        bound_s = self.state.task.bound_s
        return (one if isinstance(one, Built) else believed(one, bound_s) for one in self.results)


@dataclass(slots=True)
class Slots:
    """The batches that a measurer has now. `seconds`: where time of waiting is booked."""

    measurer: CandidateMeasurer
    clock: Callable[[], float]
    seconds: Seconds
    batches: list[SlotBatch] = field(default_factory=list)

    @property
    def is_alone(self) -> bool:
        """Whether there is one slot, whose batch is measured when it is iterated."""
        return self.measurer.n_slots == 1

    @property
    def n_free(self) -> int:
        """Slots without a batch."""
        return max(0, self.measurer.n_slots - len(self.batches))

    def candidates(self) -> Counter[str]:
        """Candidates that are being measured, by task."""
        found = Counter[str]()
        for batch in self.batches:
            found[batch.key] += len(batch.candidates)
        return found

    def texts(self, key: str) -> set[str]:
        """Steps of the candidates of a task that are being measured."""
        return {c.steps_json for b in self.batches if b.key == key for c in b.candidates}

    def begin(
        self, state: TaskState, candidates: list[Candidate], meanwhile: Callable[[], None]
    ) -> None:
        """Give a batch to the measurer; `meanwhile`: work while the only slot builds."""
        begin = self.clock()
        steps = [c.steps for c in candidates]
        ahead = meanwhile if self.is_alone else None
        results = self.measurer.stream(state.task.dag, steps, state.best_s, ahead)
        self.batches.append(SlotBatch(state, candidates, results, begin))

    def begin_in_turns(self, state: TaskState, candidates: list[Candidate]) -> None:
        """Give finalists to the measurer, which times them in turns."""
        begin = self.clock()
        steps = [c.steps for c in candidates]
        results = self.measurer.measure_interleaved(state.task.dag, steps, _FINAL_ROUNDS)
        self.batches.append(SlotBatch(state, candidates, results, begin))

    def next_done(self, stop: Callable[[], bool]) -> Generator[None, None, SlotBatch | None]:
        """The batch whose results come next; None where an end is asked for before they come."""
        begin = self.clock()
        found: int | None = 0
        while self.measurer.n_slots > 1:
            found = self.measurer.first_done([b.results for b in self.batches])
            if found is not None or stop():
                break
            yield None
        self.seconds.measure += self.clock() - begin
        return None if found is None else self.batches.pop(found)

    def done_already(self) -> SlotBatch | None:
        """A batch whose results are there now; with one slot, none is before it is asked for."""
        if self.is_alone or not self.batches:
            return None
        found = self.measurer.first_done([b.results for b in self.batches], waits=False)
        return None if found is None else self.batches.pop(found)
