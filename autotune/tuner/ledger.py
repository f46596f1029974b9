"""⑨ Ledger of a session: counters of its measurements and time, live or replayed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from autotune.records.distill import chosen_of, ranked_records
from autotune.records.record import MeasureRecord
from autotune.result import MeasureStatus
from autotune.tuner.totals import TaskTimes


@dataclass(slots=True)
class Seconds:
    """Time of a run by activity: wall clock, but `build` and `run` summed over candidates."""

    search: float = 0.0
    measure: float = 0.0
    build: float = 0.0
    run: float = 0.0

    def split(self, model_s: float) -> dict[str, float]:
        """By name; seconds of training (`model_s`) are subtracted from `search`."""
        return asdict(self) | {"search": max(0.0, self.search - model_s), "model": model_s}


@dataclass(slots=True)
class Default:
    """The default program of a task, and its latency by the analytical cost model."""

    steps_json: str
    estimate_s: float | None


@dataclass(slots=True)
class Ledger:
    """Everything measured in a session, by task. `n_live`: trials of this run alone.

    `defaults`: the default programs that are known, measured or not.
    """

    by_task: dict[str, list[MeasureRecord]] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    statuses: Counter[MeasureStatus] = field(default_factory=Counter)
    n_trials: int = 0
    n_live: int = 0
    next_sequence: int = 0
    defaults: dict[str, Default] = field(default_factory=dict)
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _times: dict[str, TaskTimes] = field(default_factory=dict)

    def add(self, records: Iterable[MeasureRecord], live: bool) -> None:
        """Book records. Finals are booked, but they are no trials."""
        for record in records:
            self.by_task.setdefault(record.workload, []).append(record)
            self._times.pop(record.workload, None)
            self._seen.add((record.workload, record.steps_json))
            is_rejected = record.result.status is MeasureStatus.INACCURATE
            if record.default_estimate_s is not None and not is_rejected:
                default = Default(record.steps_json, record.default_estimate_s)
                self.defaults[record.workload] = default
            self.next_sequence = max(self.next_sequence, record.sequence + 1)
            if not record.final:
                self.n_trials += 1
                self.n_live += live
                self.statuses[record.result.status] += 1
            if live:
                self.seconds.build += record.result.build_s
                self.seconds.run += record.result.run_s

    def book_default(self, task: str, default: Default) -> None:
        """Remember the default program of a task, whether it has been measured or will be."""
        self.defaults[task] = default
        self._times.pop(task, None)

    def has(self, task: str, steps_json: str) -> bool:
        """Whether a schedule of a task was measured."""
        return (task, steps_json) in self._seen

    def ranking(self, task: str) -> list[MeasureRecord]:
        """The valid records of a task, one per schedule, fastest first."""
        alone = (r for r in self.by_task.get(task, []) if r.result.latency_s and r.is_alone)
        one_each = {r.steps_json: r for r in alone}
        return sorted(one_each.values(), key=lambda r: r.result.latency_s or 0.0)

    def times(self, task: str) -> TaskTimes:
        """Latencies of the default program and of the choice of `distill`."""
        if task not in self._times:
            self._times[task] = self._pooled(task)
        return self._times[task]

    def _pooled(self, task: str) -> TaskTimes:
        default = self.defaults.get(task)
        estimate_s = default.estimate_s if default else None
        for ranked in ranked_records(self.by_task.get(task, [])).values():
            own = [r for r in ranked if default and r.steps_json == default.steps_json]
            untuned_s = own[0].result.latency_s if own else None
            best = chosen_of(ranked)
            is_taken = best.in_network.is_taken if best.in_network else None
            return TaskTimes(untuned_s, best.result.latency_s, estimate_s, is_taken)
        return TaskTimes(estimate_s=estimate_s)

    @property
    def failures(self) -> dict[str, int]:
        """Number of results by status other than ok, most frequent first."""
        return {s.value: n for s, n in self.statuses.most_common() if s is not MeasureStatus.OK}
