"""⑥ The learned ranker: what the analytic draft misses.

LightGBM regresses log2(measured / draft), so an untrained ranker is the draft itself, a few dozen
measurements already correct it, and tasks of any size share one model. A sample weighs more the
nearer it is to the best of its task: order among the good is what counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from autotune.search.features import FEATURE_VERSION, NAMES

Array = NDArray[np.float64]
_DRAFT = NAMES.index("draft")
_MIN_SAMPLES = 24
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
}


@dataclass
class Ranker:
    """Shared by all tasks of a run; deterministic for a given sequence of observations."""

    seed: int
    n_jobs: int
    version: int = FEATURE_VERSION
    train_s: float = 0.0
    _rows: list[Array] = field(default_factory=list)
    _log2: list[float] = field(default_factory=list)
    _tasks: list[str] = field(default_factory=list)
    _booster: lgb.Booster | None = None
    _n_taught: int = 0
    _trained_on: int = 0
    _due: int = 0
    """How many samples to train on before the next prediction; 0: none that are new."""

    def teach(self, task: str, rows: Array, latency_s: Array) -> None:
        """Add what earlier runs measured, as `observe` does, but without training: see `train`."""
        for row, seconds in zip(rows, latency_s, strict=True):
            self._add(task, row, seconds)
        self._n_taught += len(rows)

    def observe(self, task: str, rows: Array, latency_s: Array) -> None:
        """Add measured candidates of a task: features [n, n_features] and seconds [n].

        Whenever enough is new, training is due: on what was known then, so how the samples were
        batched makes no difference, but not before somebody asks, so a long log is trained on once.
        """
        for row, seconds in zip(rows, latency_s, strict=True):
            self._add(task, row, seconds)
            n = len(self._log2) - self._n_taught
            if n >= _MIN_SAMPLES and n >= 1.15 * self._trained_on:
                self._trained_on, self._due = n, len(self._log2)

    def predict(self, rows: Array) -> Array:
        """Estimated log2 seconds, shape [n]."""
        if self._due:
            self.train(self._due)
        draft: Array = rows[:, _DRAFT]
        if self._booster is None or not len(rows):
            return draft
        residual = np.asarray(self._booster.predict(rows, num_threads=self.n_jobs), np.float64)
        return draft + residual

    def train(self, n_first: int | None = None) -> None:
        """Fit the first samples, by default all of them; too few teach nothing."""
        n = n_first or len(self._log2)
        self._due = 0
        if n < _MIN_SAMPLES:
            return
        start = time.perf_counter()
        rows, log2, tasks = np.stack(self._rows[:n]), np.array(self._log2[:n]), self._tasks[:n]
        best: dict[str, float] = {}
        for task, value in zip(tasks, log2, strict=True):
            best[task] = min(value, best.get(task, value))
        behind = log2 - np.array([best[t] for t in tasks])
        data = lgb.Dataset(
            rows,
            label=log2 - rows[:, _DRAFT],
            weight=np.exp2(-behind),
            feature_name=[n.replace(" ", "_").replace(">", "_") for n in NAMES],
        )
        parameters = PARAMETERS | {"seed": self.seed, "num_threads": self.n_jobs}
        self._booster = lgb.train(parameters, data, num_boost_round=min(120, 30 + n // 8))
        self._trained_on = n - self._n_taught
        self.train_s += time.perf_counter() - start

    def _add(self, task: str, row: Array, seconds: float) -> None:
        self._rows.append(row)
        self._log2.append(float(np.log2(seconds)))
        self._tasks.append(task)
