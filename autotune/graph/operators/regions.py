"""① Bilinear samples at places that data decide: regions of interest, deformed windows.

RoiAlign, on the stored layout:

    place[r, i, s]  = begin[r] + size[r] / n · (i + (s + ½) / samples), along each dimension
    y[r, i, j, c]   = mean over the samples s, t of x[batch[r], place, place, c]

DeformedColumns, which DeformConv is a product with, in ONNX's order:

    place[n, g, k, i, j] = i·stride - pad + k·dilation + offset[n, g, k, i, j]
    y[n, c, k, i, j]     = mask[n, g(c), k, i, j] · x[n, c, place, place], 0 outside of the image

Formulas: ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from autotune.graph.ir import Node, Shape, TensorType
from autotune.graph.operators.definition import (
    FLOAT32,
    Layout,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    inside,
    literal,
    optional,
    tensor,
    typed,
)
from autotune.graph.operators.grid_sample import clamped, is_seen
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Expr,
    Load,
    Reduce,
    Tensor,
    add,
    call,
    cast,
    idx,
    maximum,
    select,
)

_ONE, _ZERO, _HALF = literal(1.0), literal(0.0), literal(0.5)


@dataclass(frozen=True, slots=True)
class _Tap:
    """A pixel along one dimension, its weight, and whether it counts."""

    weight: Expr
    pixel: Expr
    seen: Expr


# --- regions of interest ------------------------------------------------------------------------


def _roi_align(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[r, i, j, c] of the regions [r, 4] of x[n, h, w, c], each in one of the batch."""
    x, regions, batch = (tensor(operands, n) for n in range(3))
    r, *at, c = axes_of(shape)
    ratio = node.attrs["sampling_ratio"]
    samples = (Axis("sh", ratio), Axis("sw", ratio))
    taps = [
        _region_taps(scope, node, regions, (r, at[d], samples[d]), (1 - d, x.shape[1 + d]))
        for d in (0, 1)
    ]
    image = inside(cast(INDEX, batch[(r,)]), x.shape[0])
    corners = []
    for rows, columns in product(*taps):
        pixel: Expr = x[(image, rows.pixel, columns.pixel, c)]
        value = rows.weight * columns.weight * pixel
        corners.append(select(rows.seen & columns.seen, value, _ZERO))
    if node.attrs.get("mode", "avg") == "max":
        return scope.compute("max", (r, *at, c), Reduce("max", reduce(maximum, corners), samples))
    total = scope.compute("sum", (r, *at, c), Reduce("sum", reduce(add, corners), samples))
    own = total[(r, *at, c)]
    return scope.compute("mean", (r, *at, c), own * literal(1 / ratio**2))


def _region_taps(
    scope: Scope,
    node: Node,
    regions: Tensor,
    at: tuple[Axis, Axis, Axis],
    dimension: tuple[int, int],
) -> list[_Tap]:
    """Both pixels around every sample; `at`: region, bin, sample; `dimension`: column, extent."""
    r, i, s = at
    column, size = dimension
    is_half = node.attrs.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = literal(node.attrs.get("spatial_scale", 1.0))

    def edge(n: int) -> Expr:
        found = regions[(r, idx(n))] * scale
        return found - 0.5 if is_half else found

    length = edge(column + 2) - edge(column)
    step = (length if is_half else maximum(_ONE, length)) * literal(1 / i.extent)
    within = (cast("float32", s.var) + 0.5) * literal(1 / s.extent)
    place = scope.compute("place", at, edge(column) + step * (cast("float32", i.var) + within))
    here = place[at]
    seen = (here >= -1) & (here <= literal(size))
    moved = clamped(here, 0, size - 1)
    first = call("floor", moved)
    cell = scope.compute("cell", at, cast("int64", first))
    behind = moved - first
    return [
        _Tap(weight, inside(cast(INDEX, cell[at]) + k, size), seen)
        for k, weight in enumerate((1 - behind, behind))
    ]


def _check_samples(rw: Rewriter) -> None:
    if rw.kind(0).dtype != "float32":
        raise rw.refuse(f"type {rw.kind(0).dtype}")
    if rw.attr("sampling_ratio", 0) < 1:
        reason = "sampling_ratio 0: the sizes of the regions decide how many points are read"
        raise rw.refuse(reason)


# --- deformed windows ---------------------------------------------------------------------------


def _deformed(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[n, c, k, i, j] of x[n, c, h, w], offsets [n, g, k, 2, i, j] and a mask [n, g, k, i, j]."""
    x, offsets, mask = tensor(operands, 0), tensor(operands, 1), optional(operands, 2)
    n, c, k, i, j = axes_of(shape)
    g = Axis("part", offsets.shape[1])
    group = c // (x.shape[1] // g.extent)
    width = node.attrs["kernel_shape"][1]
    within = (k // width, k % width)
    taps = []
    for d, (axis, tap) in enumerate(zip((i, j), within, strict=True)):
        stride, dilation, pad = (node.attrs[a][d] for a in ("strides", "dilations", "pads"))
        base = axis * stride + (tap * dilation - pad)
        offset = offsets[(n, g, k, idx(d), i, j)]
        place = scope.compute("place", (n, g, k, i, j), cast("float32", base) + offset)
        at = (n.var, group, k.var, i.var, j.var)
        taps.append(_window_taps(scope, place, (n, g, k, i, j), at, x.shape[2 + d]))
    corners = []
    for rows, columns in product(*taps):
        pixel = select(rows.seen & columns.seen, _at(x, n, c, rows, columns), _ZERO)
        corners.append(rows.weight * columns.weight * pixel)
    total = reduce(add, corners)
    if mask is not None:
        total = total * mask[(n.var, group, k.var, i.var, j.var)]
    return scope.compute("columns", (n, c, k, i, j), total)


def _at(x: Tensor, n: Axis, c: Axis, rows: _Tap, columns: _Tap) -> Load:
    return x[(n, c, rows.pixel, columns.pixel)]


def _window_taps(
    scope: Scope, place: Tensor, axes: Sequence[Axis], at: Sequence[Expr], size: int
) -> list[_Tap]:
    """Both pixels around a place along a dimension; those outside of the image are zero."""
    moved = scope.compute("within", axes, clamped(place[tuple(axes)], -1, size))
    cell = scope.compute("cell", axes, cast("int64", call("floor", moved[tuple(axes)])))
    here = moved[tuple(at)]
    first = call("floor", here)
    behind = here - first
    return [
        _Tap(
            weight,
            inside(cast(INDEX, cell[tuple(at)]) + k, size),
            is_seen(first + literal(k), size),
        )
        for k, weight in enumerate((1 - behind, behind))
    ]


def _deformed_type(rw: Rewriter) -> Types:
    x, offsets = (rw.types[name].shape for name in rw.node.inputs[:2])
    return [TensorType((*x[:2], offsets[2], *offsets[4:]), rw.kind(0).dtype)]


OPERATORS: Mapping[str, Operator] = {
    "RoiAlign": Operator(define=_roi_align, layout=Layout.SPATIAL, resolve=_check_samples),
    "DeformedColumns": Operator(define=_deformed, dtypes=FLOAT32, typing=typed(own=_deformed_type)),
}
