"""Policies and rankers that are compared on recorded spaces, and the sessions that replay them.

All go through the product's own session: batches, the ranker shared by all tasks, observing what
was measured. The only difference is that every task gets its batches in turn, so that curves of
different policies compare at equal numbers of trials, and nothing stops before all is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import lightgbm as lgb
import numpy as np

from autotune.records import Entry
from autotune.result import MeasureResult
from autotune.search.cost.features import NAMES
from autotune.search.cost.ranker import PARAMETERS, Array, Ranker
from autotune.search.policy import FIRST_BATCH, Candidate, MeasuredSchedule, SketchPolicy
from autotune.search.space import Rows, Sketch
from autotune.tuner import (
    BatchMeasured,
    Budget,
    Policy,
    ReplayMeasurer,
    Run,
    Scheduler,
    Session,
    TaskState,
    TuningTask,
)
from autotune.tuner.budget import TaskStop
from benchmarks.search_spaces import Space

BATCH = 16
_ANALYTIC = NAMES.index("analytic")
_MIN_SAMPLES = 24
_ASKS = 3
_BEST = 30
"""Relevance of the best of a task for `Ordering`."""
_RANKING = PARAMETERS | {"objective": "lambdarank", "label_gain": list(range(_BEST + 1))}

# --- rankers ----------------------------------------------------------------------------------


class AnalyticOnly(Ranker):
    """The analytical cost model: a ranker that never learns."""

    def train(self, n_first: int | None = None) -> None:
        """Learn nothing."""


class Chance(AnalyticOnly):
    """Knows nothing: another number for every candidate."""

    def predict(self, rows: Array) -> Array:
        """The same numbers for the same seed and as many rows."""
        return np.random.default_rng([self.seed, len(rows)]).random(len(rows))


class Scratch(Ranker):
    """Regresses log2 seconds: no cost model, neither as what is corrected nor as a feature."""

    def _features(self, chosen: list[int]) -> Array:
        return _without_analytic(super()._features(chosen))

    def predict(self, rows: Array) -> Array:
        """Estimated log2 seconds; 0 before anything is learnt."""
        return super().predict(_without_analytic(rows))


def _without_analytic(rows: Array) -> Array:
    rows = rows.copy()
    rows[..., _ANALYTIC] = 0.0
    return rows


class Ordering(Ranker):
    """LambdaRank (Burges 2010) by tasks; it starts from the cost model's order, as `Ranker` does.

    Relevance is the speed as a share of the best of the task. What it predicts orders the
    candidates of a task, but is no time.
    """

    def train(self, n_first: int | None = None) -> None:
        """Fit the first samples, by default all of them; too few teach nothing."""
        n = n_first or len(self._log2)
        self._due = 0
        if n < _MIN_SAMPLES:
            return
        order = np.argsort(self._tasks[:n], kind="stable")
        sizes = np.unique(self._tasks[:n], return_counts=True)[1]
        rows, log2 = self._features(list(range(n)))[order], np.array(self._log2[:n])[order]
        best = np.minimum.reduceat(log2, np.cumsum(sizes) - sizes)
        speed = np.exp2(np.repeat(best, sizes) - log2)
        estimate = rows[:, _ANALYTIC]
        data = lgb.Dataset(rows, label=np.rint(_BEST * speed), group=sizes, init_score=-estimate)
        parameters = _RANKING | {"seed": self.seed}
        self._booster = lgb.train(parameters, data, num_boost_round=min(120, 30 + n // 8))
        self._trained_on = n - self._n_taught

    def predict(self, rows: Array) -> Array:
        """A number that is lower for what is expected to be faster."""
        estimate: Array = rows[:, _ANALYTIC]
        promotion = super().predict(rows) - estimate  # what is learnt: a higher score ranks better
        return estimate - promotion


# --- policies ---------------------------------------------------------------------------------


class Unmeasured:
    """The candidates of a space that are left, in an order drawn at random."""

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        self._space = space
        self._left = [int(i) for i in rng.permutation(len(space.points))]
        candidates = (p.candidate for p in space.points)
        self._at = {(c.sketch, c.steps_json): i for i, c in enumerate(candidates)}

    def best(self, model: Ranker, n: int) -> list[Candidate]:
        """The `n` that the ranker likes best; among equals, chance decides."""
        order = np.argsort(model.predict(self._space.x[self._left]), kind="stable")
        return [self._space.points[self._left[int(i)]].candidate for i in order[:n]]

    def take(self, candidate: MeasuredSchedule) -> int:
        """Position of a candidate, which is not left any more."""
        at = self._at[candidate.sketch, candidate.steps_json]
        self._left.remove(at)
        return at


class Greedy:
    """What the ranker likes best of what is left; the first batch is as small as the product's."""

    def __init__(self, space: Space, model: Ranker, rng: np.random.Generator) -> None:
        self._space, self._model = space, model
        self._left = Unmeasured(space, rng)
        self._first = True

    def propose(self, n: int) -> list[Candidate]:
        """Up to `n` candidates."""
        return self._left.best(self._model, min(n, FIRST_BATCH) if self._first else n)

    def observe(self, results: Sequence[tuple[MeasuredSchedule, MeasureResult]]) -> None:
        """Pass on what was measured."""
        self._first = False
        for candidate, result in results:
            x = self._space.x[[self._left.take(candidate)]]
            if result.latency_s is not None:
                self._model.observe(self._space.task.key, x, np.array([result.latency_s]))


class RecordedPolicy(SketchPolicy):
    """The product's policy, which finds nothing but what was recorded.

    Which structures are looked into, the first batch, exploration and the limit on lookalikes are
    its own; the population of a structure is what was recorded of it. When it wants nothing more
    of that, the rest follows in the ranker's order.
    """

    def __init__(self, space: Space, model: Ranker, rng: np.random.Generator) -> None:
        super().__init__(space.task.dag, space.target, space.n_threads, model, rng)
        self._space = space
        self._left = Unmeasured(space, rng)
        self._of = {name: space.of(name) for name in self.sketches}
        self.sketches = {n: s for n, s in self.sketches.items() if self._of[n]}

    def propose(self, n: int) -> list[Candidate]:
        """Up to `n` recorded candidates that are not measured yet."""
        asked = (super(RecordedPolicy, self).propose(n) for _ in range(_ASKS))
        return next(filter(None, asked), None) or self._left.best(self.model, n)

    def observe(self, results: Sequence[tuple[MeasuredSchedule, MeasureResult]]) -> None:
        """Learn from measurements."""
        super().observe(results)
        for candidate, _ in results:
            self._left.take(candidate)

    def _score(self, sketch: Sketch, rows: Rows) -> tuple[Rows, Array, Rows]:
        """All recorded rows of a structure, whichever were asked for."""
        of = self._of[sketch.name]
        scores = self.model.predict(self._space.x[of])
        order = np.argsort(scores, kind="stable")
        points = [self._space.points[of[int(i)]] for i in order]
        found = np.stack([p.row for p in points]), np.stack([p.identity for p in points])
        return found[0], scores[order], found[1]


# --- sessions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A policy and the ranker that it uses."""

    ranker: type[Ranker]
    policy: Callable[[Space, Ranker, np.random.Generator], Policy]


KINDS = {
    "random": Kind(Chance, Greedy),
    "cost model only": Kind(AnalyticOnly, Greedy),
    "ranker only": Kind(Scratch, Greedy),
    "cost model + LambdaRank": Kind(Ordering, Greedy),
    "cost model + regression": Kind(Ranker, Greedy),
    "full": Kind(Ranker, RecordedPolicy),
}
RANKERS: dict[str, type[Ranker]] = {
    "random": Chance,
    "cost model only": AnalyticOnly,
    "ranker only": Scratch,
    "cost model + LambdaRank": Ordering,
    "cost model + regression": Ranker,
}


class InTurns(Scheduler):
    """Every task gets as many batches as any other, until nothing is left of it."""

    def next(
        self, in_flight: Mapping[str, int] = MappingProxyType({}), without: Collection[str] = ()
    ) -> TaskState | None:
        """The open task with the fewest trials, those in flight included."""
        open_states = (s for key, s in self.states.items() if key not in without)
        left = [s for s in open_states if self.stopped(s) is None]
        return min(left, key=lambda s: s.n_trials + in_flight.get(s.task.key, 0), default=None)

    def after(self, state: TaskState) -> TaskState | None:
        """The open one with the fewest trials of the others."""
        left = [s for s in self.states.values() if s is not state and self.stopped(s) is None]
        return min(left, key=lambda s: s.n_trials, default=None)

    def stopped(self, state: TaskState) -> TaskStop | None:
        """No task stops for any other reason."""
        return TaskStop.EXHAUSTED if state.exhausted else None


class Nowhere:
    """A sink for what is known already."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Forget entries."""

    def sync(self) -> None:
        """Nothing is left to write."""


Batches = list[tuple[float, ...]]
"""Latencies in seconds as they were measured, infinite for failures."""


def replay(spaces: Sequence[Space], kind: Kind, seed: int) -> dict[str, Batches]:
    """A session over recorded spaces of one machine until all of them is measured; by task key."""
    tasks = [s.task for s in spaces]
    ranker = kind.ranker(seed)
    of = {s.task.key: s for s in spaces}

    def policy_of(task: TuningTask) -> Policy:
        rng = np.random.default_rng([seed, int(task.key, 16)])
        return kind.policy(of[task.key], ranker, rng)

    session = Session(
        run=Run("replay", spaces[0].target.key, spaces[0].n_threads),
        tasks=tasks,
        policy_of=policy_of,
        measurer=ReplayMeasurer(p.record for s in spaces for p in s.points),
        sink=Nowhere(),
        budget=Budget(),
        scheduler=InTurns(tasks, BATCH, patience=1),
        clock=lambda: 0.0,
        batch=BATCH,
        finals=False,
    )
    found: dict[str, Batches] = {task.key: [] for task in tasks}
    for event in session.events():
        if isinstance(event, BatchMeasured):
            found[event.task].append(tuple(r.latency_s or np.inf for r in event.results))
    return found
