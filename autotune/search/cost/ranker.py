"""⑥ The learned ranker: the residual of the analytical cost model.

LightGBM regresses log2(measured / estimated), less what that is for the whole task: the search
needs the order of the candidates of a task, and what the cost model misjudges of all of them would
be most of what there is to learn. An untrained ranker therefore equals the cost model, a few dozen
measurements correct it, and tasks of any size share one model. Samples are weighted by their
distance to the best of their task, because the order of good candidates matters.

What was taught of other tasks has to earn its place: as long as nothing else is known, it corrects
the cost model by so much as orders tasks best that were left out, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.search.cost.features import NAMES

if TYPE_CHECKING:
    import lightgbm as lgb

Array = NDArray[np.float64]
Featurise: TypeAlias = Callable[[NDArray[Any]], Array]
"""Rows [n, …] of one kind to their features [n, n_features]."""
_ANALYTIC = NAMES.index("analytic")
_DISTINCT = 1.02
"""Candidates whose latencies are closer than that have no order: repeats differ by as much."""
_MIN_SAMPLES = 24
OTHER_TASK, OTHER_CPU = 0.3, 0.1
"""Weights of a sample of another task, and of one that another CPU measured, beside those of the
tasks of a session: of 0, 0.03, 0.1, 0.3 and 1 those that order candidates best when a session has
8 to 32 trials of each task."""
_SHARES, _EARNED = (0.5, 1.0), 0.01
"""Parts of a correction that was taught, of which one is taken where it orders so many more pairs
of candidates rightly than the cost model does."""
_FOLDS = 5
MOST_SAMPLES = 1 << 14
"""Of more than these, as many are trained on, evenly spread over time."""
PARAMETERS = {
    "objective": "regression",
    "num_leaves": 24,
    "learning_rate": 0.12,
    "min_data_in_leaf": 4,
    "feature_fraction": 0.8,
    "lambda_l2": 1.0,
    "verbose": -1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,  # more threads contend with the builders for cores
}
CAREFUL = PARAMETERS | {
    "num_leaves": 8,
    "learning_rate": 0.06,
    "min_data_in_leaf": 20,
    "lambda_l2": 10.0,
}
"""Where all samples are of other tasks."""
_CAREFUL_ROUNDS = 100


@cache
def is_learnable() -> bool:
    """Whether LightGBM is installed; else the ranker stays the cost model."""
    return find_spec("lightgbm") is not None


def notes_of_ranker() -> tuple[str, ...]:
    """What a session tells where nothing can be learnt."""
    text = "candidates are ranked by the cost model alone: LightGBM is not installed"
    return () if is_learnable() else (f"{text} (pip install lightgbm)",)


@dataclass
class Ranker:
    """Shared by all tasks of a run; deterministic for a given sequence of observations."""

    seed: int
    train_s: float = 0.0
    _rows: list[NDArray[Any]] = field(default_factory=list)
    _featurise: list[Featurise | None] = field(default_factory=list)
    """Featuriser of each row; None: the row holds features."""
    _log2: list[float] = field(default_factory=list)
    _tasks: list[str] = field(default_factory=list)
    _weights: list[float] = field(default_factory=list)
    _booster: lgb.Booster | None = None
    _share: float = 1.0
    """Part of the prediction of `_booster` that counts."""
    _n_taught: int = 0
    _trained_on: int = 0
    _due: int = 0
    """Number of samples to train on before the next prediction; 0: no new ones."""

    def teach(self, task: str, rows: Array, latency_s: Array, weight: float = 1.0) -> None:
        """Add measurements of earlier runs, as `observe`, but without training: see `train`.

        `weight`: 1 of the tasks that are searched, else `OTHER_TASK` or `OTHER_CPU`.
        """
        for row, seconds in zip(rows, latency_s, strict=True):
            self._add(task, row, seconds, weight=weight)
        self._n_taught += len(rows)

    def observe(
        self,
        task: str,
        rows: NDArray[Any],
        latency_s: Array,
        featurise: Featurise | None = None,
    ) -> None:
        """Add measured candidates of a task: features [n, n_features] and seconds [n]. `task`: the
        name of those that compare.

        Whenever enough is new, training is due: on what was known then, so how the samples were
        batched makes no difference, but not before a prediction, so a long log is trained on once.
        With `featurise`, rows become features when they are trained on, many at a time.
        """
        for row, seconds in zip(rows, latency_s, strict=True):
            self._add(task, row, seconds, featurise)
            n = len(self._log2) - self._n_taught
            if n >= _MIN_SAMPLES and n >= 1.15 * self._trained_on:
                self._trained_on, self._due = n, len(self._log2)

    @property
    def is_trained(self) -> bool:
        """Whether `predict` differs from the feature "analytic"."""
        return self._booster is not None or self._due > 0

    def predict(self, rows: Array) -> Array:
        """Estimated log2 seconds, shape [n]."""
        if self._due:
            self.train(self._due)
        estimate: Array = rows[:, _ANALYTIC]
        if self._booster is None or not len(rows):
            return estimate
        residual = np.asarray(self._booster.predict(rows, num_threads=1), np.float64)
        return estimate + self._share * residual

    def train(self, n_first: int | None = None) -> None:
        """Fit the first samples, by default all of them; too few teach nothing."""
        n = n_first or len(self._log2)
        self._due = 0
        if n < _MIN_SAMPLES or not is_learnable():
            return
        start = time.perf_counter()
        best: dict[str, float] = {}
        for task, value in zip(self._tasks[:n], self._log2[:n], strict=True):
            best[task] = min(value, best.get(task, value))
        chosen = np.linspace(0, n - 1, min(n, MOST_SAMPLES)).astype(int).tolist()
        rows = self._features(chosen)
        log2 = np.array([self._log2[i] for i in chosen])
        behind = log2 - np.array([best[self._tasks[i]] for i in chosen])
        known = np.array([self._weights[i] for i in chosen])
        weights = np.exp2(-behind) * known / known.max()
        groups = np.unique([self._tasks[i] for i in chosen], return_inverse=True)[1]
        samples = Samples(rows, log2, weights, groups)
        if (known == 1.0).any():
            self._share = 1.0
            self._booster = samples.fit(PARAMETERS, min(120, 30 + n // 8), self.seed)
        else:
            self._share = samples.earned_share(self.seed)
            self._booster = samples.fit(CAREFUL, _CAREFUL_ROUNDS, self.seed)
        self._trained_on = n - self._n_taught
        self.train_s += time.perf_counter() - start

    def _features(self, chosen: list[int]) -> Array:
        """Features of these samples, shape [n, n_features]; made now of rows that have none."""
        waiting: dict[Featurise, list[int]] = {}
        for i in chosen:
            make = self._featurise[i]
            if make is not None:
                waiting.setdefault(make, []).append(i)
        for make, samples in waiting.items():
            made = make(np.stack([self._rows[i] for i in samples]))
            for i, x in zip(samples, made, strict=True):
                self._rows[i], self._featurise[i] = x, None
        return np.stack([self._rows[i] for i in chosen])

    def _add(
        self,
        task: str,
        row: NDArray[Any],
        seconds: float,
        featurise: Featurise | None = None,
        weight: float = 1.0,
    ) -> None:
        self._rows.append(row)
        self._featurise.append(featurise)
        self._log2.append(float(np.log2(seconds)))
        self._tasks.append(task)
        self._weights.append(weight)


@dataclass(frozen=True, slots=True)
class Samples:
    """What is trained on: features [n, n_features], log2 seconds, weights, numbers of tasks [n]."""

    rows: Array
    log2: Array
    weights: Array
    task: NDArray[np.intp]

    def fit(self, parameters: dict[str, Any], n_rounds: int, seed: int) -> lgb.Booster:
        """A model of the residuals of candidates beside those of their task, plus the mean."""
        import lightgbm as lgb  # a third of a second, which an untuned network need not spend

        residual = self.log2 - self.rows[:, _ANALYTIC]
        total = np.bincount(self.task, self.weights)
        of_task = np.bincount(self.task, self.weights * residual) / np.where(total, total, 1.0)
        data = lgb.Dataset(
            self.rows,
            label=residual - of_task[self.task] + np.average(residual, weights=self.weights),
            weight=self.weights,
            feature_name=[n.replace(" ", "_").replace(">", "_") for n in NAMES],
        )
        return lgb.train(parameters | {"seed": seed}, data, num_boost_round=n_rounds)

    def earned_share(self, seed: int) -> float:
        """The part of a correction that orders tasks best which it was not trained on."""
        residual = np.zeros(len(self.log2))
        for fold in range(_FOLDS):
            is_out = self.task % _FOLDS == fold
            if is_out.any() and not is_out.all():
                model = self.some(~is_out).fit(CAREFUL, _CAREFUL_ROUNDS, seed)
                residual[is_out] = model.predict(self.rows[is_out], num_threads=1)
        least = self._ordered(np.zeros(len(residual))) + _EARNED
        found = {share: self._ordered(share * residual) for share in _SHARES}
        best = max(found, key=lambda share: found[share])
        return best if found[best] >= least else 0.0

    def some(self, which: NDArray[np.bool_]) -> Samples:
        """Some of the samples."""
        return Samples(self.rows[which], self.log2[which], self.weights[which], self.task[which])

    def _ordered(self, correction: Array) -> float:
        """Share of pairs of candidates in the right order, on average over the tasks."""
        scores, n_tasks = self.rows[:, _ANALYTIC] + correction, int(self.task.max()) + 1
        of_tasks = (np.flatnonzero(self.task == k) for k in range(n_tasks))
        shares = [ordered_pairs(scores[at], self.log2[at]) for at in of_tasks]
        known = [share for share in shares if not np.isnan(share)]
        return float(np.mean(known)) if known else 0.0


def ordered_pairs(scores: Array, log2: Array) -> float:
    """Share of pairs of clearly different log2 seconds that scores order rightly.

    Equal scores count ½; nan where there is no such pair.
    """
    i, j = np.triu_indices(len(scores), 1)
    slower = log2[i] - log2[j]
    told = np.sign(scores[i] - scores[j]) * np.sign(slower)
    clear = np.abs(slower) > np.log2(_DISTINCT)
    return float(np.mean((1 + told[clear]) / 2)) if clear.any() else np.nan
