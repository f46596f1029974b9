"""① Padded axes: the places of a length in tensors, and the constants at them.

    (3, 4, n, n) scores     Lengths(layout=(12, 1, 1), values={("real", "padded"): Values(…), …})

The places are *real* up to a length and *padded* behind it. One of the real ones is the *anchor*.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from autotune.graph.ir import Array, Shape
from autotune.te.value_ranges import ANYTHING, Values

Anchor: TypeAlias = Literal["first", "last", "all"]
"""Real places that are known not to be masked."""
Region: TypeAlias = Literal["anchor", "real", "padded"]
Regions: TypeAlias = tuple[Region, ...]
"""Position of an element along each padded axis of its tensor; `real` includes the anchor."""

REGIONS: tuple[Region, ...] = ("anchor", "real", "padded")
REAL: Region = "real"
_MOST_AXES = 3
"""Axes of lengths of one tensor, at most: 27 combinations of regions."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A tensor with axes of lengths, and the values that it has in each combination of regions.

    `layout`: the dense tensor is `layout[0] × n × layout[1] × n × …` elements, however it is
    shaped. `(size,)` without lengths.
    """

    layout: tuple[int, ...]
    values: Mapping[Regions, Values]

    @property
    def n_axes(self) -> int:
        """Number of axes of lengths."""
        return len(self.layout) - 1


Places: TypeAlias = tuple[int | None, ...]
"""For each dimension that is `outer × n × inner`, its inner part; None for others."""


class Refused(Exception):
    """Reason why a computation depends on padded places."""


@dataclass(frozen=True, slots=True)
class PaddedExtent:
    """Extents: `n` real places, `padded` of them and of padding."""

    n: int
    padded: int
    anchor: Anchor

    def range_of(self, region: Region) -> tuple[int, int]:
        """First and last place of a region."""
        if region == "padded":
            return self.n, self.padded - 1
        if region == "real":
            return 0, self.n - 1
        at = self.n - 1 if self.anchor == "last" else 0
        return at, at


def places_of(layout: tuple[int, ...], a: Shape, b: Shape, pair: PaddedExtent) -> Places | None:
    """Padded axes of a dense tensor of `layout`, from its shapes at both extents."""
    found: list[int | None] = []
    part, done = 0, 1
    if len(a) != len(b):
        return None
    for x, y in zip(a, b, strict=True):
        if x == y:
            found.append(None)
            done *= x
            continue
        outer = layout[part] // done
        if part + 1 == len(layout) or outer * done != layout[part] or x % (outer * pair.n):
            return None
        inner = x // (outer * pair.n)
        if outer * pair.padded * inner != y:
            return None
        found.append(inner)
        part, done = part + 1, inner
    return tuple(found) if (part, done) == (len(layout) - 1, layout[-1]) else None


def layout_of(places: Places, shape: Shape, n: int) -> tuple[int, ...]:
    """The layout of a dense tensor of `shape` with lengths at `places`."""
    parts = [1]
    for extent, inner in zip(shape, places, strict=True):
        if inner is None:
            parts[-1] *= extent
        else:
            parts[-1] *= extent // (n * inner)
            parts.append(inner)
    return tuple(parts)


def candidates(a: Shape, b: Shape, pair: PaddedExtent) -> Iterator[Places]:
    """All places where a tensor can have lengths, given its shapes at both extents."""
    options: list[list[int | None]] = []
    for x, y in zip(a, b, strict=True):
        if x == y:
            options.append([None])
            continue
        if x % pair.n or x // pair.n * pair.padded != y:
            raise Refused(f"it makes {y} of {pair.padded} places, and {x} of {pair.n}")
        whole = x // pair.n
        options.append([k for k in range(whole, 0, -1) if whole % k == 0])
    if sum(o != [None] for o in options) > _MOST_AXES:
        raise Refused("too many of its dimensions depend on the length")
    yield from itertools.product(*options)


def lengths_of_constant(a: Array, b: Array, pair: PaddedExtent) -> Lengths | None:
    """Lengths of a constant at both extents; None where one is no beginning of the other."""
    if a.shape == b.shape:
        return Lengths((a.size,), {(): _spread_of(b)}) if _have_same_bits(a, b) else None
    if a.ndim != b.ndim or a.dtype != b.dtype:
        return None
    try:
        for places in candidates(a.shape, b.shape, pair):
            whole = _with_lengths_apart(b, places, pair.padded)
            part = _with_lengths_apart(a, places, pair.n)
            layout = layout_of(places, a.shape, pair.n)
            axes = tuple(range(1, 2 * len(layout) - 1, 2))
            at = [slice(pair.n) if d in axes else slice(None) for d in range(whole.ndim)]
            if _have_same_bits(whole[tuple(at)], part):
                return Lengths(layout, _values_in_regions(whole, axes, pair))
    except Refused:
        return None
    return None


def _have_same_bits(a: Array, b: Array) -> bool:
    """Whether arrays of one shape are equal, NaN and zeros of both signs included."""
    one, other = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return a is b or (a.dtype == b.dtype and np.array_equal(one, other))


def _with_lengths_apart(array: Array, places: Places, extent: int) -> Array:
    """A constant as (layout[0], extent, layout[1], extent, …)."""
    parts = layout_of(places, array.shape, extent)
    shape = [x for part in parts for x in (part, extent)][:-1]
    return np.ascontiguousarray(array).reshape(shape)


def _values_in_regions(
    array: Array, axes: tuple[int, ...], pair: PaddedExtent
) -> dict[Regions, Values]:
    """Values of a constant in each combination of regions, whatever the number of real places."""
    others = tuple(d for d in range(array.ndim) if d not in axes)
    is_float = array.dtype.kind in "fV"
    has_nan: Array = np.asarray(np.isnan(array).any(axis=others)) if is_float else np.zeros(1, bool)
    numbers = array.astype(np.float64) if array.dtype.kind == "V" else array
    low, high = numbers.min(axis=others), numbers.max(axis=others)
    found: dict[Regions, Values] = {}
    for regions in itertools.product(REGIONS, repeat=len(axes)):
        where = _where(regions, array.shape[axes[0]], pair.anchor)
        if where.any():
            nan = is_float and bool(has_nan[where].any())
            least, most = float(low[where].min()), float(high[where].max())
            found[regions] = ANYTHING if nan else Values(least, most)
    return found


def _where(regions: Regions, extent: int, anchor: Anchor) -> Array:
    """The indices that can be in these regions together, for some number of real places."""
    grid = np.indices((extent,) * len(regions))
    least, most = np.ones_like(grid[0]), np.full_like(grid[0], extent - 1)
    found: Array = np.ones(least.shape, bool)
    for region, index in zip(regions, grid, strict=True):
        is_last = region == "anchor" and anchor == "last"
        if region == "real" or is_last:
            least = np.maximum(least, index + 1)
        if region == "padded" or is_last:
            most = np.minimum(most, index + is_last)
        if region == "anchor" and not is_last:
            found &= index == 0
    found &= least <= most
    return found


def _spread_of(array: Array) -> Values:
    """Bounds of a constant, those of a long one rounded up to powers of two, so that many agree."""
    if not array.size:
        return Values(0, 0)
    low, high = float(array.min()), float(array.max())
    if math.isnan(low) or math.isnan(high):
        return ANYTHING
    most = max(abs(low), abs(high))
    if array.size <= _FEW or not 0 < most < 1 << 30:
        return Values(low, high)
    power = 2.0 ** math.ceil(math.log2(most))
    return Values(-power if low < 0 else 0.0, power if high > 0 else 0.0)


_FEW = 64
