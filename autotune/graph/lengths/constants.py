"""① What a constant is at all numbers, from its values at a few.

positions[512, 64]   the first rows of those at the most
arange(n) - n        the same, moved by a number that follows
relative[9 - n:]     rows behind a number that follows, as of a table around its middle
1 / n                one number
n · (0, 1, 2 …)      multiples of a number, as rows of flattened dimensions begin
1/2, 1/3 … 1/3, 1/2  the same but for elements at the end, as a window over a border makes them
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.dtypes import is_float
from autotune.graph.ir import Array, same
from autotune.graph.lengths.layouts import Dims, splits_of
from autotune.graph.lengths.numbers import AffineExtent, Points, Vector, static
from autotune.te.expr import Expr, Load, add, cast, compare, div, idx, mul, select, sub

_MOST_TRIED = 64
"""Ways of splitting the dimensions of one constant."""
_ENDS = (1, 2, 3, 4, 6, 8)
"""Elements at the end of a dimension that may differ from those in front of them."""
_MOST_PLACES = 4
"""Where a constant is looked for behind the beginning, of those with equal ends."""
_NONE = static(0)


@dataclass(frozen=True)
class LengthConstant:
    """A constant at all numbers: without `dims`, one of `values` at each point.

    Else elements of that at the most, those of the last `end` places of a length from its end,
    moved by `shift` (at the end by `end_shift`). Or those of `array`, which takes its place: `over`
    a length or, where they are integers, times it (and moved); or those behind `starts`, of which
    it has so many more that every place is inside.
    """

    dims: Dims | None
    values: tuple[float, ...] = ()
    over: AffineExtent | None = None
    array: Array | None = None
    shift: AffineExtent = _NONE
    end: int = 0
    end_shift: AffineExtent = _NONE
    starts: tuple[AffineExtent, ...] = ()

    def element(self, load: Load) -> Expr:
        """The element that a load of the constant at the most stands for."""
        if self.dims is None:
            return load
        found: Expr = load
        if self.over is not None:
            number = cast(load.tensor.dtype, self.over.expr)
            found = (div if is_float(load.tensor.dtype) else mul)(load, number)
        parts = [part for dim in self.dims for part in dim]
        if self.starts:
            pairs = zip(load.indices, self.starts, strict=True)
            found = Load(load.tensor, tuple(add(i, start.expr) for i, start in pairs))
        if self.end:
            extents = load.tensor.shape
            triples = list(zip(load.indices, parts, extents, strict=True))
            ends = [
                compare("ge", i, sub(part.expr, idx(self.end)))
                for i, part, _ in triples
                if not part.is_static
            ]
            at_end = iter(ends)
            indices = tuple(
                i
                if part.is_static
                else select(next(at_end), add(i, sub(idx(extent), part.expr)), i)
                for i, part, extent in triples
            )
            found = Load(load.tensor, indices)
            if self.end_shift != _NONE:
                moved = cast(load.tensor.dtype, self.end_shift.expr)
                found = add(found, select(ends[0], moved, cast(load.tensor.dtype, idx(0))))
        if self.shift != _NONE:
            found = add(found, cast(load.tensor.dtype, self.shift.expr))
        return found


def forms_of(
    arrays: Sequence[Array], shape: Sequence[Vector], atoms: Sequence[AffineExtent], points: Points
) -> Iterator[LengthConstant]:
    """All that a constant may be that has these values at the points, the plainest first."""
    first = arrays[0]
    if all(same(a, first) for a in arrays):
        yield LengthConstant(tuple((static(extent[0]),) for extent in shape))
        return
    if all(a.size and same(a, np.full_like(a, a.flat[0])) for a in arrays):
        yield LengthConstant(None, tuple(a.flat[0].item() for a in arrays))
        return
    options = [splits_of(extent, atoms, points) for extent in shape]
    every = list(itertools.islice(itertools.product(*options), _MOST_TRIED))
    is_found = False
    for dims in every:
        apart = _apart(arrays, dims, points)
        shift = _affine([_moved(*_shared(a, apart[0])) for a in apart], points)
        if shift is not None:
            is_found = True
            yield LengthConstant(dims, shift=shift)
    for dims in every if not is_found else ():
        apart = _apart(arrays, dims, points)
        yield from _over_lengths(apart, dims, atoms, points)
        yield from _times_lengths(apart, dims, atoms, points)
        yield from _with_ends(apart, dims, points)
        yield from _behind(apart, dims, points)


def _apart(arrays: Sequence[Array], dims: Dims, points: Points) -> list[Array]:
    parts = [part for dim in dims for part in dim]
    pairs = zip(arrays, points.at, strict=True)
    return [a.reshape([part.at(numbers) for part in parts]) for a, numbers in pairs]


def _over_lengths(
    arrays: Sequence[Array], dims: Dims, atoms: Sequence[AffineExtent], points: Points
) -> Iterator[LengthConstant]:
    """Numerators that are the same wherever a constant is one over a length."""
    if arrays[0].dtype.kind != "f" or not all(np.isfinite(a).all() for a in arrays):
        return
    kind = arrays[0].dtype.type
    for over in atoms:
        extents = points.vector(over)
        pairs = list(zip(arrays, extents, strict=True))
        tops = [(np.rint(2 * a.astype(np.float64) * n) / 2).astype(kind) for a, n in pairs]
        is_exact = all(same(t / kind(n), a) for t, (a, n) in zip(tops, pairs, strict=True))
        if is_exact and all(same(*_shared(t, tops[0])) for t in tops):
            yield LengthConstant(dims, over=over, array=tops[0])


def _times_lengths(
    arrays: Sequence[Array], dims: Dims, atoms: Sequence[AffineExtent], points: Points
) -> Iterator[LengthConstant]:
    """Factors that are the same wherever a constant is a multiple of a length, beside a shift."""
    if arrays[0].dtype.kind not in "iu" or not all(a.size for a in arrays):
        return
    firsts = [int(a.flat[0]) for a in arrays]
    shift = points.affine(firsts)
    moved = [a.astype(np.int64) - first for a, first in zip(arrays, firsts, strict=True)]
    for times in atoms if shift is not None else ():
        pairs = list(zip(moved, points.vector(times), strict=True))
        factors = [a // n for a, n in pairs]
        is_exact = all(same(f * n, a) for f, (a, n) in zip(factors, pairs, strict=True))
        if is_exact and all(same(*_shared(f, factors[0])) for f in factors):
            times_it = factors[0].astype(arrays[0].dtype)
            yield LengthConstant(dims, over=times, array=times_it, shift=shift or _NONE)


def _with_ends(arrays: Sequence[Array], dims: Dims, points: Points) -> Iterator[LengthConstant]:
    """The least end with which elements are the same."""
    parts = [part for dim in dims for part in dim]
    moving = [n for n, part in enumerate(parts) if not part.is_static]
    shortest = min((_least(parts[n]) for n in moving), default=0)
    for end in (e for e in _ENDS if 2 * e <= shortest):
        bodies = [_shared(*(_cut(a, moving, end) for a in (x, arrays[0]))) for x in arrays]
        if any(_moved(*pair) != 0 for pair in bodies):
            continue
        wholes = [_end_first(a, moving, end) for a in arrays]
        shifts = []
        for a, most in ((w, wholes[0]) for w in wholes):
            found = [_moved(x, y) for x, y in _ends(a, most, moving, end)]
            shifts.append(found[0] if len(set(found)) == 1 else None)
        shift = _affine(shifts, points)
        if shift is not None and (shift == _NONE or len(moving) == 1):
            yield LengthConstant(dims, end=end, end_shift=shift)
            return


def _behind(arrays: Sequence[Array], dims: Dims, points: Points) -> Iterator[LengthConstant]:
    """The dimension along which elements are those at the most, behind places that follow."""
    parts = [part for dim in dims for part in dim]
    for axis, part in enumerate(parts):
        if part.is_static:
            continue
        start = _affine([_place(a, arrays[0], axis) for a in arrays], points)
        if start is not None:
            starts = tuple(start if n == axis else _NONE for n in range(len(parts)))
            room = max(0, start.at(dict.fromkeys(points.most, 0)))
            widths = [(0, room if n == axis else 0) for n in range(len(parts))]
            yield LengthConstant(dims, array=np.pad(arrays[0], widths), starts=starts)


def _place(a: Array, most: Array, axis: int) -> int | None:
    """Where the elements of one array begin in those of another along a dimension."""
    most = most[tuple(slice(n) if d != axis else slice(None) for d, n in enumerate(a.shape))]
    rows, known = np.moveaxis(a, axis, 0), np.moveaxis(most, axis, 0)
    if not rows.size or rows.shape[1:] != known.shape[1:]:
        return None
    n = len(known) - len(rows) + 1
    if n < 1:
        return None
    ends = ((known[:n], rows[0]), (known[len(rows) - 1 :], rows[-1]))
    first, last = ((of == row).reshape(n, -1).all(1) for of, row in ends)
    places = (int(k) for k in np.flatnonzero(first & last)[:_MOST_PLACES])
    return next((k for k in places if same(rows, known[k : k + len(rows)])), None)


def _cut(a: Array, moving: Sequence[int], end: int) -> Array:
    """`a` without its ends."""
    return a[tuple(slice(n - end if d in moving else n) for d, n in enumerate(a.shape))]


def _end_first(a: Array, moving: Sequence[int], end: int) -> Array:
    """`a` with the ends of its lengths in front."""
    return np.roll(a, [end] * len(moving), list(moving))


def _ends(a: Array, most: Array, moving: Sequence[int], end: int) -> Iterator[tuple[Array, Array]]:
    """Pairs of the same elements of rolled arrays that are in the end of some dimension."""
    for which in itertools.product((False, True), repeat=len(moving)):
        if any(which):
            part: list[slice] = [slice(min(n, m)) for n, m in zip(a.shape, most.shape, strict=True)]
            for d, is_end in zip(moving, which, strict=True):
                part[d] = slice(end) if is_end else slice(end, min(a.shape[d], most.shape[d]))
            yield a[tuple(part)], most[tuple(part)]


def _least(part: AffineExtent) -> int:
    """The extent for numbers of 1."""
    return part.at({name: 1 for name, _ in part.factors})


def _affine(values: Sequence[int | None], points: Points) -> AffineExtent | None:
    known = [v for v in values if v is not None]
    return points.affine(known) if len(known) == len(values) else None


def _shared(a: Array, most: Array) -> tuple[Array, Array]:
    """The elements that both arrays have."""
    both = tuple(slice(min(pair)) for pair in zip(a.shape, most.shape, strict=True))
    return a[both], most[both]


def _moved(a: Array, most: Array) -> int | None:
    """By how much the elements of one array differ from those of the other."""
    if same(a, most):
        return 0
    if a.dtype.kind not in "iu":
        return None
    moved = a.astype(np.int64) - most.astype(np.int64)
    return None if (moved != moved.flat[0]).any() else int(moved.flat[0])
