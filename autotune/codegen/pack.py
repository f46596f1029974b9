"""⑤ Store a constant in the order in which a kernel reads it: `packed[axes] = source[indices]`.

    indices  →  affine pieces: boxes of the axes in which every index is c₀ + Σ cₐ·a
    piece    →  the sub-boxes that lie inside the source, each one strided copy

`min(o·32, 968) + v` is affine but for the last `o`; `k // 64` and `k mod 64` are affine for 64
values of `k` at a time. So hundreds of megabytes take few calls of NumPy, each over large blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.errors import CodegenError
from autotune.loopir.nodes import Packing
from autotune.te.access import index_values
from autotune.te.arith import Linear, linear
from autotune.te.expr import Axis, Expr, Var, variables

Array = NDArray[Any]
Grid = NDArray[np.int64]
Box = tuple[tuple[int, int], ...]
"""Half-open range per axis."""


@dataclass(frozen=True, slots=True)
class _Index:
    """One index of the source in a box: `const` + Σ `coefs[a]`·(value of axis a)."""

    const: int
    coefs: tuple[int, ...]
    extent: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box in which all indices are affine."""

    box: Box
    indices: tuple[_Index, ...]


def pack(packing: Packing, source: Array, out: Array | None = None) -> Array:
    """The packed constant, of the packing's shape: freshly allocated and aligned, or `out`.

    `out` must be contiguous, and zero where the packing reads outside the source.
    """
    values = np.ascontiguousarray(source).reshape(packing.source.shape)
    target = aligned(packing.packed.shape, packing.packed.dtype) if out is None else out
    view = target.reshape([a.extent for a in packing.axes])
    for piece in _pieces(packing):
        for box in _inside(piece):
            _copy(replace(piece, box=box), values, view)
    return target


def _copy(piece: _Piece, source: Array, target: Array) -> None:
    """One strided copy; every index is inside the source."""
    starts = [low for low, _ in piece.box]
    strides = [0] * len(starts)
    offset = 0
    for index, stride in zip(piece.indices, source.strides, strict=True):
        inside = sum(c * s for c, s in zip(index.coefs, starts, strict=True))
        offset += stride * (index.const + inside)
        strides = [s + c * stride for s, c in zip(strides, index.coefs, strict=True)]
    shape = [high - low for low, high in piece.box]
    # checks that no element lies outside the source
    view: Array = np.ndarray(shape, source.dtype, source, offset, strides)
    np.copyto(target[tuple(slice(*r) for r in piece.box)], view)


# --- the part of an affine box that lies inside the source ------------------------------------


def _inside(piece: _Piece) -> Iterator[Box]:
    """Disjoint boxes that together hold every point of `piece` whose indices are all inside."""
    if any(low >= high for low, high in piece.box):
        return
    for index in piece.indices:
        low, high = _reach(index, piece.box)
        if high < 0 or low >= index.extent:
            return
        if low < 0 or high >= index.extent:
            yield from _clipped(piece, index)
            return
    yield piece.box


def _clipped(piece: _Piece, index: _Index) -> Iterator[Box]:
    """Divide the axis with the largest step of `index` into its inner range and single values."""
    axis = max(range(len(piece.box)), key=lambda a: _step(index, piece.box, a))
    begin, end = piece.box[axis]
    first, last = _safe(index, piece.box, axis)
    if first < last:
        yield from _inside(_with_range(piece, axis, (first, last)))
    else:
        first = last = begin
    for value in itertools.chain(range(begin, first), range(last, end)):
        yield from _inside(_with_range(piece, axis, (value, value + 1)))


def _safe(index: _Index, box: Box, axis: int) -> tuple[int, int]:
    """Range of `axis` in which `index` is inside whatever the other axes are; may be empty."""
    coef = index.coefs[axis]
    begin, end = box[axis]
    fixed = tuple((0, 1) if a == axis else r for a, r in enumerate(box))
    low, high = _reach(index, fixed)
    slack = index.extent - 1 - high
    # 0 ≤ low + coef·a and coef·a ≤ slack
    first, last = (-(low // coef), slack // coef) if coef > 0 else (-(slack // -coef), low // -coef)
    return max(begin, first), min(end, last + 1)


def _with_range(piece: _Piece, axis: int, limits: tuple[int, int]) -> _Piece:
    return replace(piece, box=(*piece.box[:axis], limits, *piece.box[axis + 1 :]))


def _step(index: _Index, box: Box, axis: int) -> int:
    low, high = box[axis]
    return abs(index.coefs[axis]) if high - low > 1 else -1


def _reach(index: _Index, box: Box) -> tuple[int, int]:
    """Smallest and largest value of `index` in `box`."""
    low = high = index.const
    for coef, (begin, end) in zip(index.coefs, box, strict=True):
        ends = (coef * begin, coef * (end - 1))
        low, high = low + min(ends), high + max(ends)
    return low, high


# --- from indices to affine pieces ------------------------------------------------------------


def _pieces(packing: Packing) -> Iterator[_Piece]:
    ranges = {a.name: (0, a.extent - 1) for a in packing.axes}
    forms = [linear(e, ranges) for e in packing.indices]
    extents = packing.source.shape
    indices = tuple(
        _Index(form.const, tuple(form.coefficient(a.name) for a in packing.axes), n)
        for form, n in zip(forms, extents, strict=True)
    )
    whole = _Piece(tuple((0, a.extent) for a in packing.axes), indices)
    return _divide(whole, [_opaque(form, packing.axes) for form in forms])


def _opaque(form: Linear, axes: tuple[Axis, ...]) -> Grid:
    """Values of the non-linear part of an index: one dimension per axis, 1 long where unused."""
    values: dict[str, Grid] = {}
    for n, axis in enumerate(axes):
        shape = [1] * len(axes)
        shape[n] = axis.extent
        values[axis.name] = np.arange(axis.extent).reshape(shape)
    total: Grid = np.zeros([1] * len(axes), np.int64)
    for atom, coef in form.terms:
        if not isinstance(atom, Var):
            if not variables(atom) <= values.keys():
                raise CodegenError(f"a packing may use its axes only, found {atom}")
            total = total + coef * _evaluate(atom, values)
    return total


def _divide(piece: _Piece, grids: list[Grid]) -> Iterator[_Piece]:
    """Cut `piece` until every grid is a single number, which its index then holds."""
    axes = [a for a in range(len(piece.box)) if any(g.shape[a] > 1 for g in grids)]
    if not axes:
        yield _shifted(piece, [int(g.item()) for g in grids])
        return
    for axis in axes:
        steps = _steps(grids, axis)
        if steps is not None:
            break
    else:
        axis = min(axes, key=lambda a: max(g.shape[a] for g in grids))
        steps = None
    for begin, end in _runs(steps, max(g.shape[axis] for g in grids)):
        slopes = [0] * len(grids) if steps is None or end - begin == 1 else steps[begin]
        part = _sloped(_with_range(piece, axis, (begin, end)), axis, begin, slopes)
        yield from _divide(part, [_at(g, axis, begin) for g in grids])


def _steps(grids: list[Grid], axis: int) -> list[list[int]] | None:
    """Per step along `axis` the change of every grid, or None if another axis has a say in it."""
    columns: list[Grid] = []
    count = max(g.shape[axis] for g in grids) - 1
    for grid in grids:
        if grid.shape[axis] == 1:
            columns.append(np.zeros(count, np.int64))
            continue
        change = np.moveaxis(np.diff(grid, axis=axis), axis, 0).reshape(count, -1)
        if (change != change[:, :1]).any():
            return None
        columns.append(change[:, 0])
    table: list[list[int]] = np.stack(columns, axis=1).tolist()
    return table


def _runs(steps: list[list[int]] | None, extent: int) -> Iterator[tuple[int, int]]:
    """Longest ranges of equal steps; single values when `steps` is None."""
    begin = 0
    while begin < extent:
        end = begin + 1
        if steps is not None:
            while end < extent and steps[end - 1] == steps[begin]:
                end += 1
        yield begin, end
        begin = end


def _sloped(piece: _Piece, axis: int, begin: int, slopes: list[int]) -> _Piece:
    """Add `slope`·(axis - begin) to every index."""
    indices = []
    for index, slope in zip(piece.indices, slopes, strict=True):
        coefs = tuple(c + slope * (a == axis) for a, c in enumerate(index.coefs))
        indices.append(replace(index, const=index.const - slope * begin, coefs=coefs))
    return replace(piece, indices=tuple(indices))


def _shifted(piece: _Piece, offsets: list[int]) -> _Piece:
    pairs = zip(piece.indices, offsets, strict=True)
    return replace(piece, indices=tuple(replace(i, const=i.const + o) for i, o in pairs))


def _at(grid: Grid, axis: int, value: int) -> Grid:
    return grid if grid.shape[axis] == 1 else np.take(grid, [value], axis=axis)


def _evaluate(e: Expr, values: dict[str, Grid]) -> Grid:
    try:
        return index_values(e, values)
    except TypeError as error:
        raise CodegenError(str(error)) from error
