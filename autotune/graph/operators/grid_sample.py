"""① Interpolation of an image at coordinates: GridSample from data, Interpolate from constants.

GridSample:

    place[n, i…] = coordinate along one dimension in pixels, clamped unless the padding is zeros
    cell[n, i…]  = its floor, the pixel at or before it
    y[n, i…, c]  = Σ over the corners of a cell of their weights · x[n, corner…, c]

Interpolate, which `resize` emits:

    y[…, i, …]   = Σ weight[i, t] · x[…, first[i] + t, …] over the taps t of every axis that changes

Formulas: ONNX operator reference. Both are defined on the stored layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from typing import TypeAlias

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import (
    FLOAT32,
    Layout,
    Operands,
    Operator,
    Scope,
    axes_of,
    inside,
    literal,
    optional,
    tensor,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Expr,
    Tensor,
    add,
    both,
    call,
    cast,
    idx,
    minimum,
    mul,
    select,
)

Tap: TypeAlias = tuple[Expr, Expr, Expr | None]
"""Weight and position of a pixel along one dimension, and whether it is part of the image."""
Table: TypeAlias = tuple[int, Tensor, Tensor | None]
"""An axis, the first pixel and the weights of every place along it."""
_ZERO, _ONE, _HALF = literal(0.0), literal(1.0), literal(0.5)


def _grid_sample(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[n, i…, c] = x[n, …, c] at the place that grid[n, i…] names, the last dimension first."""
    x, grid = tensor(operands, 0), tensor(operands, 1)
    *at, channel = axes_of((*grid.shape[:-1], x.shape[-1]))
    sizes = x.shape[1:-1]
    taps = []
    for d, size in enumerate(sizes):
        named = grid[(*at, idx(len(sizes) - 1 - d))]
        place = scope.compute("place", at, _place(node, named, size))
        taps.append(_taps(scope, node, place, at, size))
    corners = []
    for corner in product(*taps):
        weight = reduce(mul, (w for w, _, _ in corner))
        pixel: Expr = x[(at[0], *(i for _, i, _ in corner), channel)]
        seen = [s for _, _, s in corner if s is not None]
        pixel = select(reduce(both, seen), pixel, _ZERO) if seen else pixel  # it may be NaN
        corners.append(weight * pixel)
    return scope.compute("sample", (*at, channel), reduce(add, corners))


def _interpolate(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Σ weight[i, t] · x[…, first[i] + t, …] along each of `node.attrs["axes"]`.

    Operands: x, and for every axis `first` and `weight`, which is left out where it is one tap.
    """
    x = tensor(operands, 0)
    tables = [
        (axis, tensor(operands, 1 + 2 * n), optional(operands, 2 + 2 * n))
        for n, axis in enumerate(node.attrs["axes"])
    ]
    extents = {axis: first.shape[0] for axis, first, _ in tables}
    axes = axes_of([extents.get(n, extent) for n, extent in enumerate(x.shape)])
    return scope.compute("sample", axes, _interpolated(x, axes, tables, {}))


def _interpolated(
    x: Tensor, axes: Sequence[Axis], tables: Sequence[Table], pixels: Mapping[int, Expr]
) -> Expr:
    """The sum over the taps of `tables`; `pixels` are the positions along the other axes."""
    if not tables:
        return x[tuple(pixels.get(n, a.var) for n, a in enumerate(axes))]
    (n, first, weight), *rest = tables
    total: Expr | None = None
    for t in range(weight.shape[1] if weight else 1):
        pixel = inside(cast(INDEX, first[axes[n]]) + t, x.shape[n])
        term = _interpolated(x, axes, rest, {**pixels, n: pixel})
        term = weight[axes[n], idx(t)] * term if weight else term
        total = total + term if total else term
    assert total is not None
    return total


def _place(node: Node, named: Expr, size: int) -> Expr:
    """A coordinate in [-1, 1] in pixels, at most a few outside of the image.

    Cubic taps find the border themselves: a place beyond it has weights for pixels inside."""
    is_aligned = bool(node.attrs.get("align_corners", 0))
    scaled = (named + 1) * literal((size - 1) / 2 if is_aligned else size / 2)
    place = scaled if is_aligned else scaled - 0.5
    padding = node.attrs.get("padding_mode", "zeros")
    is_cubic = node.attrs.get("mode") == "cubic"
    if padding == "reflection":
        place = _mirrored(node, place, size)
    if is_cubic:
        return clamped(place, -3, size + 2)
    return clamped(place, -1, size) if padding == "zeros" else clamped(place, 0, size - 1)


def _mirrored(node: Node, place: Expr, size: int) -> Expr:
    """`place` reflected into the image, which ends at centres or at edges of its pixels."""
    is_aligned = bool(node.attrs.get("align_corners", 0))
    return _reflected(place, 0.0 if is_aligned else -0.5, size - 1 if is_aligned else size)


def _reflected(place: Expr, low: float, span: float) -> Expr:
    """`place` reflected into the interval [low, low + span]."""
    if not span:
        return _ZERO
    there_and_back = literal(2 * span)
    length = call("abs", place - literal(low))
    turns = call("floor", length / there_and_back)
    rest = length - turns * there_and_back
    return literal(low) + minimum(rest, there_and_back - rest)


def clamped(place: Expr, low: int, high: int) -> Expr:
    """`place` clamped to [low, high]; NaN becomes `low`, because an index is computed from it."""
    above = select(place > literal(low), place, literal(low))
    return minimum(above, literal(high))


def _taps(scope: Scope, node: Node, place: Tensor, at: Sequence[Axis], size: int) -> list[Tap]:
    """The pixels around a place along one dimension."""
    here = place[tuple(at)]
    mode, padding = node.attrs.get("mode"), node.attrs.get("padding_mode", "zeros")
    first = call("round" if mode == "nearest" else "floor", here)
    cell = scope.compute("cell", at, cast("int64", first))
    behind = here - first
    weights: tuple[Expr, ...] = (1 - behind, behind)
    if mode != "linear":
        weights = _cubic(behind) if mode == "cubic" else (_ONE,)
    taps: list[Tap] = []
    for k, weight in enumerate(weights, -1 if mode == "cubic" else 0):
        named = first + literal(k)
        pixel = cast(INDEX, cell[tuple(at)]) + k
        if mode == "cubic" and padding == "reflection":
            turned = scope.compute("cell", at, cast("int64", _mirrored(node, named, size)))
            pixel = cast(INDEX, turned[tuple(at)])
        seen = is_seen(named, size) if padding == "zeros" else None
        taps.append((weight, inside(pixel, size), seen))
    return taps


def _cubic(x: Expr) -> tuple[Expr, ...]:
    """Weights of the pixels at -1, 0, 1 and 2 for a place x in [0, 1) (Keys, 1981; a = -0.75)."""
    a = -0.75

    def horner(t: Expr, *coefficients: float) -> Expr:
        total: Expr = literal(coefficients[0])
        for value in coefficients[1:]:
            total = total * t + literal(value)
        return total

    def near(t: Expr) -> Expr:
        return horner(t, a + 2, -(a + 3), 0.0, 1.0)

    def far(t: Expr) -> Expr:
        return horner(t, a, -5 * a, 8 * a, -4 * a)

    return far(x + 1), near(x), near(1 - x), far(2 - x)


def is_seen(pixel: Expr, size: int) -> Expr:
    """Whether a place of a pixel, a whole float, is one of the image."""
    return (pixel >= 0) & (pixel <= literal(size - 1))


def _named_mode(rw: Rewriter) -> None:
    """Attribute `mode` by the name that it has from opset 20 on."""
    mode = rw.attr("mode", "linear")
    rw.again(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


OPERATORS: Mapping[str, Operator] = {
    "GridSample": Operator(
        define=_grid_sample, dtypes=FLOAT32, layout=Layout.SPATIAL, resolve=_named_mode
    ),
    "Interpolate": Operator(define=_interpolate),
}
