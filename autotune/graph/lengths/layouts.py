"""① Where the lengths of a tensor are: its dense elements as static parts and lengths, in order.

    (12·b, s, 64) of scores      layout  12 × b × 1 × s × 64
                                 dims    (12, b) (s) (64)

A Reshape keeps the layout. A dimension is split so that each of its parts is a number, or a length
that may have a static part inside: `b·12` with the batch outermost is one part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.graph.lengths.numbers import AffineExtent, Points, Vector, static

Dim: TypeAlias = tuple[AffineExtent, ...]
"""The parts of a dimension, outermost first; at most the first is static."""
Dims: TypeAlias = tuple[Dim, ...]
_MOST_LENGTHS = 3
"""Lengths in one dimension."""


@dataclass(frozen=True, slots=True)
class LengthLayout:
    """`parts[0]` × `lengths[0]` × `parts[1]` × …; the content of lengths is in the parts."""

    parts: tuple[int, ...]
    lengths: tuple[AffineExtent, ...] = ()


def layout_of(dims: Dims) -> LengthLayout:
    """The layout of a dense tensor."""
    parts, lengths = [1], []
    for part in (p for dim in dims for p in dim):
        if part.is_static:
            parts[-1] *= part.offset
        else:
            lengths.append(part.over(part.content))
            parts.append(part.content)
    return LengthLayout(tuple(parts), tuple(lengths))


def dims_of(layout: LengthLayout, shape: Sequence[Vector], points: Points) -> Dims | None:
    """The parts of the dimensions of a tensor that has a layout; None where it cannot have it.

    `shape`: its extents at the points.
    """
    lengths = [(length, points.vector(length)) for length in layout.lengths]
    inner, at, found = layout.parts[0], 0, []
    for extent in shape:
        dim: list[AffineExtent] = []
        left = extent
        while len(set(left)) > 1:
            if at == len(lengths):
                return None
            length, values = lengths[at]
            if any(n % (inner * v) for n, v in zip(left, values, strict=True)):
                return None
            if inner > 1 or dim:
                _grow(dim, inner)
            left = tuple(n // (inner * v) for n, v in zip(left, values, strict=True))
            dim.append(length)
            at, inner = at + 1, layout.parts[at + 1]
        if not left[0] or inner % left[0]:
            return None
        _grow(dim, left[0])
        inner //= left[0]
        found.append(tuple(dim))
    return tuple(found) if (inner, at) == (1, len(lengths)) else None


def _grow(dim: list[AffineExtent], n: int) -> None:
    """Put a static part inside of the last one."""
    if dim:
        dim[-1] = dim[-1].times(n)
    else:
        dim.append(static(n))


def splits_of(extent: Vector, atoms: Sequence[AffineExtent], points: Points) -> Iterator[Dim]:
    """All that a dimension may consist of, by its extents at the points; `atoms`: the lengths that
    a model has."""
    whole = points.affine(extent)
    if whole is not None and whole.is_static:
        yield (whole,)
        return
    if whole is not None and points.plain(extent) is None:  # places of an image, one behind another
        yield (whole,)
    common = math.gcd(*extent)
    for outer in sorted(_divisors(common)):
        for rest in _products(tuple(n // outer for n in extent), atoms, points, _MOST_LENGTHS):
            yield rest if outer == 1 else (static(outer), *rest)


def _products(
    extent: Vector, atoms: Sequence[AffineExtent], points: Points, most: int
) -> Iterator[Dim]:
    """`extent` as lengths, each with a static part inside."""
    whole = points.plain(extent)
    if whole is not None:
        yield (whole,)
        return
    for atom in atoms if most > 1 else ():
        values = points.vector(atom)
        if any(n % v for n, v in zip(extent, values, strict=True)):
            continue
        rest = tuple(n // v for n, v in zip(extent, values, strict=True))
        for inner in _divisors(math.gcd(*rest)):
            left = tuple(n // inner for n in rest)
            for other in _products(left, atoms, points, most - 1):
                yield (atom.times(inner), *other)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0] if n < 1 << 16 else [1, n]
