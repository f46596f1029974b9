"""⑨ The task scheduler: next trials go to the task where they lower Σ weight·latency most.

After Ansor's task scheduler (Zheng et al., OSDI 2020, §6): the expected gain of a trial blends what
the last trials brought with an optimistic guess of what the next may bring. Three things are
different. The guess is limited by the gap to the roofline, `best - bound`; it shrinks with every
trial that brought nothing; and a task stops for good when it is at its bound, when nothing better
than noise has come for long, or when nothing is left to try, so that its trials go to the others.
Of two alternatives (a task and the parts that it replaces) the slower one gains nothing until it
has caught up, so it gets fewer trials, and none once it is clearly beaten.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from autotune.result import MeasureResult
from autotune.te.products import precision_of
from autotune.tuner.budget import TaskStop
from autotune.tuner.task import TuningTask

_PAST_SHARE = 0.2  # Ansor's alpha: how much the past slope counts against the optimistic guess
_AT_BOUND = 1.03  # within 3 % of the bound there is nothing left to find
_BROKEN = 0.95  # a latency this far below its bound shows that the peaks were measured too low
_WORTH_IT = 0.5  # of the gain of the task at hand: then another may be prepared meanwhile
_LITTLE = 0.02  # factor on the gain of a task that seems finished
_WINDOW = 3  # batches over which the past slope is taken
_INVALID_BATCHES = 4  # batches without any valid program after which a task is given up
_CONVERGED = 4  # times the patience without gain: the task is finished for good
_BEATEN = 1.1  # an alternative so many times slower than the other is given up …
_BEATEN_BATCHES = 3  # … after so many batches of every task of both
_NOTHING: Mapping[str, int] = MappingProxyType({})
_PEER_HEADROOM = 2.0  # Ansor's beta: no task is expected to beat its best peer's rate by more


@dataclass(slots=True)
class TaskState:
    """State of a task: a fold over its measurements, in log order.

    `curve[t]` is the best latency after t trials (inf before the first valid one). `last_gain` is
    the trial of the last improvement, counted from `gained_s`: small ones add up to one.
    """

    task: TuningTask
    curve: list[float] = field(default_factory=lambda: [float("inf")])
    first_s: float | None = None
    last_gain: int = 0
    gained_s: float = float("inf")
    exhausted: bool = False

    @property
    def n_trials(self) -> int:
        """Measured candidates, failed ones included."""
        return len(self.curve) - 1

    @property
    def best_s(self) -> float | None:
        """Lowest latency so far."""
        return self.curve[-1] if self.curve[-1] < float("inf") else None

    @property
    def stale(self) -> int:
        """Trials since the last improvement."""
        return self.n_trials - self.last_gain

    @property
    def at_bound(self) -> bool:
        """Whether nothing is left to gain."""
        bound, best = self.task.bound_s, self.best_s
        return bound is not None and best is not None and best <= bound * _AT_BOUND

    def add(self, result: MeasureResult) -> None:
        """Take one measurement into account."""
        latency, best = result.latency_s, self.curve[-1]
        if latency is not None and latency > 0 and latency < best:
            if latency < self.gained_s * (1 - result.noise):
                self.last_gain, self.gained_s = self.n_trials + 1, latency
            self.first_s = self.first_s or latency
            best = latency
        self.curve.append(best)


def _best_s(states: Iterable[TaskState]) -> float:
    """Seconds of several tasks together; infinite where one has no valid program."""
    return sum(s.curve[-1] for s in states)


class Scheduler:
    """Chooses tasks. Its state depends on the measurements alone, so a replayed log restores it."""

    def __init__(self, tasks: Sequence[TuningTask], batch: int, patience: int) -> None:
        self.states = {task.key: TaskState(task) for task in tasks}
        self._wholes: dict[str, list[TaskState]] = {}
        """The tasks that can replace a task, once for every time that it occurs in them."""
        for state in self.states.values():
            for part in state.task.parts:
                self._wholes.setdefault(part, []).append(state)
        self._precisions = {t.key: precision_of(t.dag) for t in tasks if t.parts}
        self._batch = batch
        self._patience = patience

    def next(
        self, in_flight: Mapping[str, int] = _NOTHING, without: Collection[str] = ()
    ) -> TaskState | None:
        """The task to work on; None when every task has stopped.

        Every task gets its first batch before any gets its second, the heaviest first. A task is
        expected to gain the less, the more of its candidates are `in_flight`, by key. `without`:
        tasks that have nothing more to try for now.
        """
        states = (s for key, s in self.states.items() if key not in without)
        return self._best_of([s for s in states if self.stopped(s) is None], in_flight)

    def after(self, state: TaskState) -> TaskState | None:
        """The task to work on after a batch of `state` that is being measured; None: undecided.

        Another one that promises much less is not worth a batch: `state` may well come again.
        """
        others = (s for s in self.states.values() if s is not state and self.stopped(s) is None)
        found = self._best_of(list(others))
        if found is None or found.n_trials == 0:
            return found
        return found if self.gain_s(found) >= _WORTH_IT * self.gain_s(state) else None

    def _best_of(
        self, open_states: list[TaskState], in_flight: Mapping[str, int] = _NOTHING
    ) -> TaskState | None:
        n_batches = {key: n / self._batch for key, n in in_flight.items()}
        untouched = [s for s in open_states if not s.n_trials and s.task.key not in n_batches]
        if untouched:
            return max(untouched, key=lambda s: s.task.weight * s.task.flops)

        def gain_s(state: TaskState) -> float:
            return self.gain_s(state) / (1.0 + n_batches.get(state.task.key, 0.0))

        return max(open_states, key=gain_s, default=None)

    def observe(self, key: str, results: Iterable[MeasureResult]) -> None:
        """Take measurements of a task into account."""
        for result in results:
            self.states[key].add(result)

    def exhaust(self, key: str) -> None:
        """The space of a task has no unmeasured candidate left."""
        self.states[key].exhausted = True

    def stopped(self, state: TaskState) -> TaskStop | None:
        """Reason for no more trials of a task, or None: a function of its measurements alone."""
        if state.best_s is None:
            gives_up = state.exhausted or state.n_trials >= _INVALID_BATCHES * self._batch
            return TaskStop.INVALID if gives_up else None
        if state.exhausted:
            return TaskStop.EXHAUSTED
        if state.at_bound and self._bounds_hold():
            return TaskStop.AT_BOUND
        if self._is_beaten(state):
            return TaskStop.BEATEN
        return TaskStop.NO_GAIN if state.stale >= _CONVERGED * self._patience else None

    def stops(self) -> dict[str, TaskStop]:
        """Reasons of the stopped tasks, by key."""
        found = {key: self.stopped(state) for key, state in self.states.items()}
        return {key: stop for key, stop in found.items() if stop is not None}

    def gain_s(self, state: TaskState) -> float:
        """Seconds of Σ weight·latency that one more trial is expected to save."""
        best = state.best_s
        if best is None:
            return state.task.weight * self._guess_s(state.task) / max(1, state.n_trials)
        past = self._past_slope(state, best)
        left = max(0.0, best - self._floor_s(state.task))
        future = left / (state.n_trials + state.stale)
        gain = self._open_weight(state) * min(left, _PAST_SHARE * past + (1 - _PAST_SHARE) * future)
        return gain * _LITTLE if state.stale >= self._patience else gain

    def _alternatives(self, whole: TaskState) -> tuple[list[TaskState], list[TaskState]]:
        """A task with parts, and its parts."""
        return [whole], [self.states[key] for key in whole.task.parts]

    def _open_weight(self, state: TaskState) -> float:
        """Calls that a gain of this task shortens; in part for an alternative that is behind."""
        if state.task.parts:
            ours, others = self._alternatives(state)
            return state.task.weight * self._chance(ours, others)
        weight = float(state.task.weight)
        for whole in self._wholes.get(state.task.key, []):
            others, ours = self._alternatives(whole)
            weight -= whole.task.weight * (1 - self._chance(ours, others))
        return max(0.0, weight)

    def _chance(self, ours: list[TaskState], others: list[TaskState]) -> float:
        """Share of the remaining gain on `ours` that counts after it has caught up."""
        behind = _best_s(ours) - _best_s(others)
        if not 0 < behind < math.inf:
            return 1.0
        left = sum(max(0.0, (s.best_s or 0.0) - self._floor_s(s.task)) for s in ours)
        return max(0.0, 1 - behind / left) if left else 0.0

    def _is_beaten(self, state: TaskState) -> bool:
        """Whether every call of this task has a clearly faster alternative."""
        if state.task.parts:
            return self._is_clear(*self._alternatives(state))
        wholes: dict[str, list[TaskState]] = {}
        for whole in self._wholes.get(state.task.key, []):
            wholes.setdefault(self._precisions[whole.task.key], []).append(whole)
        return any(self._beats(found, state) for found in wholes.values())

    def _beats(self, wholes: list[TaskState], state: TaskState) -> bool:
        """Whether these stand for all calls of a task, and each is clearly faster."""
        everywhere = math.isclose(sum(w.task.weight for w in wholes), state.task.weight)
        return everywhere and all(
            self._is_clear(ours, others) for others, ours in map(self._alternatives, wholes)
        )

    def _is_clear(self, ours: list[TaskState], others: list[TaskState]) -> bool:
        measured = min(s.n_trials for s in (*ours, *others)) >= _BEATEN_BATCHES * self._batch
        return measured and _best_s(ours) > _BEATEN * _best_s(others)

    def _bounds_hold(self) -> bool:
        """Whether no program was found that is faster than possible."""
        known = ((s.best_s, s.task.bound_s) for s in self.states.values())
        return not any(best and bound and best < _BROKEN * bound for best, bound in known)

    def _past_slope(self, state: TaskState, best: float) -> float:
        """Seconds that a trial saved on average over the last batches."""
        window = min(_WINDOW * self._batch, state.n_trials - 1)
        before = state.curve[-1 - window] if window else best
        if before == float("inf"):
            before = state.first_s or best
        return (before - best) / max(1, window)

    def _floor_s(self, task: TuningTask) -> float:
        """Seconds that a task may come down to: its bound, else the estimate from its best peer."""
        if task.bound_s is not None:
            return task.bound_s
        return self._guess_s(task) / _PEER_HEADROOM

    def _guess_s(self, task: TuningTask) -> float:
        """Seconds of a task that runs at the highest rate seen on any task."""
        rates = [s.task.flops / s.best_s for s in self.states.values() if s.best_s is not None]
        fastest = max(rates, default=1e9) or 1e9
        return task.flops / fastest
