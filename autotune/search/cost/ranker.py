"""⑥ The learned ranker: the residual of the analytical cost model.

LightGBM regresses log2(measured / estimated). An untrained ranker therefore equals the cost model,
a few dozen measurements correct it, and tasks of any size share one model. Samples are weighted by
their distance to the best of their task, because the search needs the order of good candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
_MIN_SAMPLES = 24
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
    _booster: lgb.Booster | None = None
    _n_taught: int = 0
    _trained_on: int = 0
    _due: int = 0
    """Number of samples to train on before the next prediction; 0: no new ones."""

    def teach(self, task: str, rows: Array, latency_s: Array) -> None:
        """Add measurements of earlier runs, as `observe`, but without training: see `train`."""
        for row, seconds in zip(rows, latency_s, strict=True):
            self._add(task, row, seconds)
        self._n_taught += len(rows)

    def observe(
        self,
        task: str,
        rows: NDArray[Any],
        latency_s: Array,
        featurise: Featurise | None = None,
    ) -> None:
        """Add measured candidates of a task: features [n, n_features] and seconds [n].

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
        return estimate + residual

    def train(self, n_first: int | None = None) -> None:
        """Fit the first samples, by default all of them; too few teach nothing."""
        n = n_first or len(self._log2)
        self._due = 0
        if n < _MIN_SAMPLES:
            return
        import lightgbm as lgb  # a third of a second, which an untuned network need not spend

        start = time.perf_counter()
        best: dict[str, float] = {}
        for task, value in zip(self._tasks[:n], self._log2[:n], strict=True):
            best[task] = min(value, best.get(task, value))
        chosen = np.linspace(0, n - 1, min(n, MOST_SAMPLES)).astype(int).tolist()
        rows = self._features(chosen)
        log2 = np.array([self._log2[i] for i in chosen])
        behind = log2 - np.array([best[self._tasks[i]] for i in chosen])
        data = lgb.Dataset(
            rows,
            label=log2 - rows[:, _ANALYTIC],
            weight=np.exp2(-behind),
            feature_name=[n.replace(" ", "_").replace(">", "_") for n in NAMES],
        )
        parameters = PARAMETERS | {"seed": self.seed}
        self._booster = lgb.train(parameters, data, num_boost_round=min(120, 30 + n // 8))
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
        self, task: str, row: NDArray[Any], seconds: float, featurise: Featurise | None = None
    ) -> None:
        self._rows.append(row)
        self._featurise.append(featurise)
        self._log2.append(float(np.log2(seconds)))
        self._tasks.append(task)
