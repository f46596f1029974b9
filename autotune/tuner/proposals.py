"""⑨ What to measure next: a task, and candidates of it that nobody has measured.

Candidates come from a task's default program, from earlier logs, from drafts and from its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from autotune.search.policy import Candidate
from autotune.tuner.ledger import Default, Ledger
from autotune.tuner.protocols import Policy
from autotune.tuner.scheduler import Scheduler, TaskState
from autotune.tuner.slots import Slots
from autotune.tuner.task import TuningTask

_MAX_ASKS = 3  # proposals of nothing new after which a task's space counts as exhausted
_ONE_TASK = 0.35  # of the slots may be filled by one proposal

Choice: TypeAlias = tuple[TaskState | None, list[Candidate]]


@dataclass(slots=True)
class Proposals:
    """Tasks and new candidates of them. `policy_of`, `default`, `first`, `drafted`: see `Session`.

    `room`: candidates for which the budget has room, of a number of batches, when some are built
    before them.
    """

    policy_of: Callable[[TuningTask], Policy]
    scheduler: Scheduler
    ledger: Ledger
    slots: Slots
    clock: Callable[[], float]
    room: Callable[[int, int], int]
    default: Callable[[TuningTask], Candidate | None]
    first: Mapping[str, Sequence[Candidate]]
    drafted: Mapping[str, Sequence[Candidate]]
    _policies: dict[str, Policy] = field(default_factory=dict)
    _defaults: dict[str, Candidate | None] = field(default_factory=dict)
    _ahead: Choice | None = None

    def choose(self) -> Choice:
        """The task to work on, and new candidates of it: those chosen in advance, if any.

        A task whose batches in flight are all that there is to try is passed over.
        """
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return ahead
        begin = self.clock()
        flying = self.slots.candidates()
        passed: set[str] = set()
        while True:
            state = self.scheduler.next(flying, passed)
            candidates = self._ask(state, flying.total(), self._n_batches()) if state else []
            if state is None or candidates or not flying[state.task.key]:
                break
            passed.add(state.task.key)
        self.ledger.seconds.search += self.clock() - begin
        return state, candidates

    def look_ahead(self, state: TaskState, n_building: int) -> None:
        """Choose the next task, while the builders work on candidates of `state`."""
        after = self.scheduler.after(state)
        self._ahead = (after, self._ask(after, n_building)) if after else None

    def policy(self, task: TuningTask) -> Policy:
        """The policy of a task, made when it is first needed."""
        if task.key not in self._policies:
            self._policies[task.key] = self.policy_of(task)
        return self._policies[task.key]

    def _n_batches(self) -> int:
        """Batches of one proposal: more where the search is slower than the machines.

        A proposal takes about as long however many candidates are taken of it, and slots become
        free meanwhile. Some of those are left to other tasks.
        """
        return max(1, min(self.slots.n_free, round(_ONE_TASK * self.slots.measurer.n_slots)))

    def _ask(self, state: TaskState, n_building: int = 0, n_batches: int = 1) -> list[Candidate]:
        """New candidates of a task, as many as there is room for after `n_building` more."""
        n = self.room(n_batches, n_building)
        key = state.task.key
        drafted = self.drafted.get(key, ()) if state.n_trials == 0 else ()
        before_all = (*self._default(state.task), *self.first.get(key, ()), *drafted)
        found = self._unmeasured(state, before_all)
        if drafted and found:
            return list(found.values())[:n]
        n_known = self.slots.candidates()[key]
        for _ in range(_MAX_ASKS if len(found) < n else 0):
            proposed = self.policy(state.task).propose(n + n_known)
            fresh = self._unmeasured(state, proposed)
            found |= fresh
            if fresh or not proposed:
                break
        return list(found.values())[:n]

    def _default(self, task: TuningTask) -> list[Candidate]:
        """The default program of a task, unless the log knows it already."""
        if task.key not in self._defaults and task.key not in self.ledger.defaults:
            found = self._defaults[task.key] = self.default(task)
            if found is not None:
                default = Default(found.steps_json, found.predicted_s)
                self.ledger.book_default(task.key, default)
        candidate = self._defaults.get(task.key)
        return [candidate] if candidate else []

    def _unmeasured(self, state: TaskState, some: Sequence[Candidate]) -> dict[str, Candidate]:
        """Candidates by the text of their steps, without those that were or are being measured."""
        key = state.task.key
        flying = self.slots.texts(key)
        texts = [(c.steps_json, c) for c in some]
        return {t: c for t, c in texts if t not in flying and not self.ledger.has(key, t)}
