"""⑨ Interfaces of search, measurement, model and log, as a session uses them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from autotune.measure.protocols import Built
from autotune.records.record import Entry, InNetwork, MeasureRecord
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.search.policy import Candidate, MeasuredSchedule
from autotune.te.dag import ComputeDAG

if TYPE_CHECKING:
    from autotune.tuner.events import Event


class Policy(Protocol):
    """Proposes candidates of one task and learns from their results."""

    def propose(self, n: int) -> Sequence[Candidate]:
        """Up to `n` unmeasured candidates, the most promising first; none: space exhausted."""
        ...

    def observe(self, results: Sequence[tuple[MeasuredSchedule, MeasureResult]]) -> None:
        """Learn from measurements; a resumed session replays the log through this."""
        ...


class CandidateMeasurer(Protocol):
    """Builds, checks and times candidates. A failed one has a status; nothing is raised for it.

    With one slot, a batch is measured while its results are iterated. With several, batches begin
    when they are given, and `first_done` tells whose results are there.
    """

    @property
    def n_slots(self) -> int:
        """Batches that it can have at a time; may change as machines come and go."""
        ...

    def first_done(self, batches: Sequence[Iterable[Any]], waits: bool = True) -> int | None:
        """Index of one whose results are there; None after a moment in which there was none, or at
        once where nobody `waits`.

        Raises WorkerError where the machine cannot be reached.
        """
        ...

    @property
    def waited_s(self) -> float:
        """Seconds in which measuring had to wait for `meanwhile`."""
        ...

    @property
    def built_s(self) -> float:
        """Seconds in which candidates were built, where nothing is measured meanwhile."""
        ...

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterable[MeasureResult | Built]:
        """One result per candidate, in order, each as soon as it is there; it may tell before how
        many are built.

        `best_s`: the best latency so far; candidates that are far slower are stopped early.
        `meanwhile`: work while nothing can be run yet; called once.
        """
        ...

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> Iterable[MeasureResult]:
        """Time finalists in turns, `rounds` repeats each."""
        ...


@dataclass(frozen=True)
class NetworkWinner:
    """What a task is to be in the network: `record` as it was measured alone, and how it won."""

    task: str
    record: MeasureRecord
    told: InNetwork


Finals: TypeAlias = "Callable[[float], Generator[Event, None, Sequence[NetworkWinner]]]"
"""Tries finalists in the compiled network for so many seconds; gives what won."""


class LearnedModel(Protocol):
    """The learned model that the policies of a session share."""

    @property
    def train_s(self) -> float:
        """Seconds spent on training, which happens inside `Policy.propose`."""
        ...


class Sink(Protocol):
    """Sink of records; `records.Journal` in a real session."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries so that they survive the death of this process."""
        ...

    def sync(self) -> None:
        """Wait until everything written survives the death of the machine."""
        ...
