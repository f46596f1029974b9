"""⑨ What a session has measured and spent: counters and records, live or replayed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from autotune.measure.result import MeasureStatus
from autotune.records.distill import best_records
from autotune.records.record import MeasureRecord


@dataclass(slots=True)
class Seconds:
    """Where the time of a run went: wall clock, but `build` and `run` summed over candidates."""

    search: float = 0.0
    measure: float = 0.0
    build: float = 0.0
    run: float = 0.0

    def split(self, model_s: float) -> dict[str, float]:
        """By name; of `search`, the `model_s` seconds of training that it holds are told apart."""
        return asdict(self) | {"search": max(0.0, self.search - model_s), "model": model_s}


@dataclass(slots=True)
class Ledger:
    """Everything measured in a session, by task. `n_live`: trials of this run alone."""

    by_task: dict[str, list[MeasureRecord]] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    statuses: Counter[MeasureStatus] = field(default_factory=Counter)
    n_trials: int = 0
    n_live: int = 0
    next_sequence: int = 0
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def add(self, records: Iterable[MeasureRecord], live: bool) -> None:
        """Book records. Finals are booked, but they are no trials."""
        for record in records:
            self.by_task.setdefault(record.workload, []).append(record)
            self._seen.add((record.workload, record.steps_json))
            self.next_sequence = max(self.next_sequence, record.sequence + 1)
            if not record.final:
                self.n_trials += 1
                self.n_live += live
                self.statuses[record.result.status] += 1
            if live:
                self.seconds.build += record.result.build_s
                self.seconds.run += record.result.run_s

    def has(self, task: str, steps_json: str) -> bool:
        """Whether a schedule of a task was measured."""
        return (task, steps_json) in self._seen

    def ranking(self, task: str) -> list[MeasureRecord]:
        """The valid records of a task, one per schedule, fastest first."""
        one_each = {r.steps_json: r for r in self.by_task.get(task, []) if r.result.latency_s}
        return sorted(one_each.values(), key=lambda r: r.result.latency_s or 0.0)

    def best_s(self, task: str) -> float | None:
        """Latency of what `distill` would choose."""
        for record in best_records(self.by_task.get(task, [])).values():
            return record.result.latency_s
        return None

    @property
    def failures(self) -> dict[str, int]:
        """How often each status other than ok came up, most frequent first."""
        return {s.value: n for s, n in self.statuses.most_common() if s is not MeasureStatus.OK}
