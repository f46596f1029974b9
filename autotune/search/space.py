"""⑥ A sketch is a schedule with holes; a candidate is a sketch and a row of numbers.

Populations are integer matrices `[n_candidates, n_parameters]` of positions in the domains of the
parameters, so sampling, mutation and crossover are array operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.schedule.replay import bind
from autotune.schedule.steps import Steps

Rows = NDArray[np.int64]
"""Positions in the domains, shape [n_candidates, n_parameters]."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A hole and the values that it may take, in increasing order."""

    name: str
    domain: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A loop structure: steps with holes, and the domain of every hole."""

    name: str
    steps: Steps
    parameters: tuple[Parameter, ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(np.prod([len(p.domain) for p in self.parameters], dtype=object))

    def values(self, rows: Rows) -> dict[str, NDArray[np.int64]]:
        """Value of every hole for every row: arrays of shape [n_candidates]."""
        return {
            p.name: np.asarray(p.domain, dtype=np.int64)[rows[:, k]]
            for k, p in enumerate(self.parameters)
        }

    def bind(self, row: Rows) -> Steps:
        """The concrete schedule of one row, shape [n_parameters]."""
        holes = {p.name: p.domain[int(i)] for p, i in zip(self.parameters, row, strict=True)}
        return bind(self.steps, holes)

    def sample(self, n: int, rng: np.random.Generator) -> Rows:
        """`n` rows, uniform over the domains."""
        sizes = [len(p.domain) for p in self.parameters]
        if not sizes:
            return np.zeros((min(n, 1), 0), np.int64)
        return rng.integers(0, sizes, size=(n, len(sizes)))

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row with one or two parameters changed: to a neighbour or to anything."""
        out = rows.copy()
        if not self.parameters:
            return out
        sizes = np.array([len(p.domain) for p in self.parameters])
        n = len(rows)
        for _ in range(1 + int(rng.random() < 0.5)):
            which = rng.integers(0, len(sizes), n)
            near = out[np.arange(n), which] + rng.choice([-2, -1, 1, 2], n)
            far = rng.integers(0, sizes[which])
            new = np.where(rng.random(n) < 0.6, near, far)
            out[np.arange(n), which] = np.clip(new, 0, sizes[which] - 1)
        return out

    def cross(self, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """Uniform crossover of two populations of one size."""
        return np.where(rng.random(a.shape) < 0.5, a, b)
