"""⑥ A sketch is a schedule with holes; a candidate is a sketch and a row of numbers.

Populations are integer matrices `[n_candidates, n_parameters]` of positions in the domains of the
parameters, so sampling, mutation and crossover are array operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.schedule.replay import bind
from autotune.schedule.steps import Steps

Rows = NDArray[np.int64]
"""Positions in the domains, shape [n_candidates, n_parameters]."""


class Tag(StrEnum):
    """Properties of a loop structure; their values make up the names of sketches in logs."""

    CHANNELS_OUTSIDE = "channels>pixels"
    PIXELS_OUTSIDE = "pixels>channels"
    PANELS_OUTSIDE = "panels>tiles"
    TILES_OUTSIDE = "tiles>panels"
    K_BLOCKED = "k-blocked"
    WINDOW_UNROLLED = "window-unrolled"
    INLINED = "inlined"
    COPIED = "copied"
    COPIED_PANELS = "panels-copied"
    PER_K = "per-k"
    INTERLEAVED2 = "interleaved2"
    INTERLEAVED4 = "interleaved4"
    INTERLEAVED8 = "interleaved8"
    WINOGRAD2 = "winograd2"
    WINOGRAD4 = "winograd4"
    NARROW3 = "bf16x3"
    WHOLE_TERMS = "whole-terms"
    FLAT_TAPS = "flat-taps"
    WHOLE = "whole"
    BLOCKED = "blocked"
    SPLIT_K = "parts"
    FUSED_WINDOW = "chained"
    ATTENTION = "attended"
    ROWS = "rows"
    LANES = "lanes"
    GATHERED = "gathered"
    AS_READ = "as-read"
    RAGGED = "ragged"
    SCATTERED = "scattered"
    SCANNED = "scanned"
    DOT2 = "dot2"
    DOT4 = "dot4"
    MATRICES = "matrices"


ARITHMETIC = frozenset(
    {Tag.WINOGRAD2, Tag.WINOGRAD4, Tag.NARROW3, Tag.DOT2, Tag.DOT4, Tag.MATRICES}
)
"""Tags of structures by what their multiply-adds are."""


class Role(Enum):
    """Role of a hole in a sketch."""

    LANES = auto()
    """lanes of a vector"""
    VECTORS = auto()
    """unrolled vectors"""
    TILE = auto()
    """extent of a register tile along one axis"""
    TILES = auto()
    """tiles of a block along one axis"""
    BLOCK = auto()
    """terms of a reduction block"""
    UNROLL = auto()
    """unrolled steps of a reduction"""
    PREFETCH = auto()
    """distance at which a constant is prefetched, in bytes or NEXT_PANEL"""
    PREFETCH_CONSUMER = auto()
    """whether operands and results of the consumer are prefetched"""
    PREFETCH_NEXT_TILE = auto()
    """whether activations of the next tile are prefetched (NEXT_PANEL)"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A hole, the values that it may take in increasing order, and its role."""

    name: str
    domain: tuple[int, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Sketch:
    """A loop structure: steps with holes, the domain of every hole, and tags (see `Tag`).

    `is_foreign`: a rule of the user's has made it.
    """

    name: str
    steps: Steps
    parameters: tuple[Parameter, ...]
    tags: frozenset[str] = frozenset()
    is_foreign: bool = False

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

    def nearest(self, values: Mapping[str, NDArray[np.int64]], n: int) -> Rows:
        """`n` rows, whose holes have the values nearest to these, or their smallest ones."""
        out = np.zeros((n, len(self.parameters)), np.int64)
        for k, p in enumerate(self.parameters):
            if p.name in values:
                apart = np.abs(np.array(p.domain)[:, None] - values[p.name])
                out[:, k] = np.argmin(apart, axis=0)
        return out

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


def first_of_each(rows: Rows) -> NDArray[np.intp]:
    """Index of the first of equal rows, by a 64-bit hash, in the order of the hashes."""
    first: NDArray[np.intp] = np.unique(rows @ _factors(rows.shape[1]), return_index=True)[1]
    return first


@lru_cache(maxsize=256)
def _factors(n: int) -> Rows:
    return np.random.default_rng(0).integers(2**63, size=n, dtype=np.int64) | 1
