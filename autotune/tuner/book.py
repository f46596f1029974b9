"""⑨ What a run writes: each result is in the log before the ledger knows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from autotune.errors import AutotuneError
from autotune.records.record import End, MeasureRecord
from autotune.result import MeasureResult
from autotune.search.policy import Candidate
from autotune.tuner.ledger import Ledger
from autotune.tuner.protocols import NetworkWinner, Sink


@dataclass(frozen=True, slots=True)
class Run:
    """Fields that all records of a run share."""

    run_id: str
    target_key: str
    n_threads: int


@dataclass(slots=True)
class Book:
    """A log and the ledger of a session, written together. `numbers`: see `Session`."""

    run: Run
    sink: Sink
    ledger: Ledger
    elapsed_s: Callable[[], float]
    numbers: Iterator[int] | None = None

    def write(
        self, task: str, candidate: Candidate, result: MeasureResult, final: bool = False
    ) -> None:
        """A result of a candidate of a task."""
        default = self.ledger.defaults.get(task)
        is_default = default is not None and default.steps_json == candidate.steps_json
        record = MeasureRecord(
            run_id=self.run.run_id,
            sequence=self._next_number(),
            workload=task,
            target_key=self.run.target_key,
            n_threads=self.run.n_threads,
            steps_json=candidate.steps_json,
            result=result,
            sketch=candidate.sketch,
            elapsed_s=self.elapsed_s(),
            final=final,
            default_estimate_s=default.estimate_s if default and is_default else None,
        )
        self.sink.append([record])
        self.ledger.add([record], live=True)

    def write_winners(self, winners: Sequence[NetworkWinner]) -> None:
        """What tasks are to be in the network."""
        records = [
            replace(
                winner.record,
                run_id=self.run.run_id,
                sequence=self._next_number(),
                elapsed_s=self.elapsed_s(),
                final=True,
                in_network=winner.told,
            )
            for winner in winners
        ]
        self.sink.append(records)
        self.sink.sync()
        self.ledger.add(records, live=False)

    def write_end(self, end: End) -> None:
        """The end of the run, where it can be written: a full disk has been reported already."""
        with contextlib.suppress(AutotuneError):
            self.sink.append([end])
            self.sink.sync()

    def _next_number(self) -> int:
        if self.numbers is None:
            self.numbers = count(self.ledger.next_sequence)
        return next(self.numbers)
