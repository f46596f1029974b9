"""① Resize: weighted sums along each axis with constant weights; nearest by integer factors stays.

    Resize(x) -> Interpolate(x, first, weight, …)   along axes with few taps per result
               | MatMul(W, x)                       along other axes;  W[out, in]
               | Cast(Resize(Cast(x)))              of integers, in float32

Every result has a coordinate in the source; its neighbours there are weighted by a kernel: a
triangle ('linear') or Keys' cubic. Antialiasing widens the kernel when an axis shrinks. Results
outside of a cropped source ('tf_crop_and_resize') are a constant. Formulas: ONNX operator
reference, and its reference implementation for `align_corners`. Runs on the stored layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from autotune.dtypes import is_float
from autotune.graph.ir import Array, Node, Shape, float_array, to_last
from autotune.graph.limits import check_constant
from autotune.graph.operators.definition import (
    Fusion,
    Layout,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    tensor,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Tensor, binary, idx

_RADIUS = {"linear": 1, "cubic": 2}
_MOST_TAPS = 64
"""Most taps of all axes together, which are written out one by one."""
_DENSE = 80
"""Multiplications of a matrix product per tap below which it is preferred, if rows are single
elements: the product is vectorised, while taps are gathered element by element."""
_LARGE_MATRIX = 1 << 22
"""Elements of a matrix above which taps are preferred."""


@dataclass(frozen=True)
class _Axis:
    """Results along an axis: weights[out, n] of the n sources from first[out] on.

    Positions outside of the source are clamped and have weight 0.
    """

    size: int
    first: Array
    weights: Array
    inside: Array
    """Whether a result lies inside of a cropped source, [out]."""

    @property
    def n_taps(self) -> int:
        """Taps per result."""
        return int(self.weights.shape[1])

    @property
    def out(self) -> int:
        """The extent of the result."""
        return len(self.first)

    @property
    def is_repetition(self) -> bool:
        """Whether every element is repeated the same number of times."""
        factor = self.out // self.size
        in_turn = factor * self.size == self.out and self.n_taps == 1 and self.inside.all()
        return bool(in_turn and np.array_equal(self.first, np.arange(self.out) // factor))

    def matrix(self) -> Array:
        """The weights of all sources, [out, size]."""
        found: Array = np.zeros((self.out, self.size))
        columns = np.clip(self.first[:, None] + np.arange(self.n_taps), 0, self.size - 1)
        np.add.at(found, (np.arange(self.out)[:, None], columns), self.weights)
        return found


def _resize(rw: Rewriter) -> None:
    """Rewrite one Resize; see the module."""
    shape, out, dtype = rw.kind(0).shape, rw.type.shape, rw.type.dtype
    crops = rw.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    copied = shape == out and rw.attr("nearest_mode") == "simple"
    changed = [a for a in range(len(out)) if crops or shape[a] != out[a] or _scale(rw, a) != 1]
    axes = {a: _interpolation(rw, a) for a in changed if not copied}
    if all(axis.is_repetition for axis in axes.values()):
        rw.result("Resize", rw.input(0))
        return
    mode = rw.attr("mode", "nearest")
    if is_float(dtype) or mode == "nearest":
        rw.returns(_resized(rw, axes, rw.input(0)))
        return
    # without their fraction, as in ONNX Runtime; the standard says nothing
    if mode != "linear" or rw.attr("antialias", 0):
        raise rw.refuse("integers, cubic or antialiased")
    rw.result("Cast", _resized(rw, axes, rw("Cast", rw.input(0), to="float32")), to=dtype)


def _resized(rw: Rewriter, axes: Mapping[int, _Axis], x: str) -> str:
    """The sums, and where they lie outside of a cropped source the extrapolation value."""
    y, dtype = _interpolated(rw, axes, x), rw.types[x].dtype
    if all(axis.inside.all() for axis in axes.values()):
        return y
    inside: Array = np.ones((1,) * len(rw.type.shape), bool)
    for at, axis in axes.items():
        inside = inside & axis.inside.reshape([-1 if n == at else 1 for n in range(inside.ndim)])
    value = np.array([rw.attr("extrapolation_value", 0.0)], dtype)
    return rw("Where", rw.array(inside), y, rw.array(value))


def _interpolated(rw: Rewriter, axes: Mapping[int, _Axis], x: str) -> str:
    dtype = rw.types[x].dtype
    sparse = _sparse_axes(axes, rw.type.shape, dtype)
    for at, axis in axes.items():
        if at in sparse:
            continue
        check_constant(rw.node, 4 * axis.size * axis.out)
        shape = rw.types[x].shape
        flat = (math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :]))
        weights = rw.array(axis.matrix().astype(dtype))
        made = rw("MatMul", weights, rw("Reshape", x, shape=flat), dtype=dtype)
        x = rw("Reshape", made, shape=(*shape[:at], axis.out, *shape[at + 1 :]))
    if sparse:
        tables = [name for at in sparse for name in _tables(rw, axes[at])]
        x = rw("Interpolate", x, *tables, shape=rw.type.shape, axes=tuple(sparse))
    return x


def _sparse_axes(axes: Mapping[int, _Axis], out: Shape, dtype: str) -> list[int]:
    """The axes along which summing a few taps is faster than a product with a whole matrix.

    Types other than float32 need a single tap.
    """
    found: list[int] = []
    left = _MOST_TAPS
    for at, axis in axes.items():
        n = axis.n_taps
        is_faster = axis.size * math.prod(out[at + 1 :]) >= _DENSE * n
        is_faster |= axis.size * axis.out > _LARGE_MATRIX
        if n <= left and (is_faster if dtype == "float32" else n == 1):
            found.append(at)
            left //= n
    return found


def _tables(rw: Rewriter, axis: _Axis) -> tuple[str, str]:
    """The first source of every result, and the weights of its taps; the latter is "" where there
    is a single tap.
    """
    first = rw.array(axis.first)
    return first, rw.array(float_array(axis.weights)) if axis.n_taps > 1 else ""


def _interpolation(rw: Rewriter, axis: int) -> _Axis:
    """The taps of every result along `axis`."""
    size, out = rw.kind(0).shape[axis], rw.type.shape[axis]
    check_constant(rw.node, 8 * out)
    scale = _scale(rw, axis)
    at = _coordinates(rw, axis, scale)
    inside = np.ones(out, bool)
    if rw.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        inside = (at >= 0) & (at <= size - 1)
    mode = rw.attr("mode", "nearest")
    if mode == "nearest":
        picked = np.clip(_nearest(rw, at, scale), 0, size - 1)
        return _Axis(size, picked, np.ones((out, 1)), inside)
    if mode not in _RADIUS:
        raise rw.refuse(f"mode '{mode}'")
    smooth = bool(rw.attr("antialias", 0))
    narrow = min(1.0, float(scale)) if smooth else 1.0
    reach = math.ceil(_RADIUS[mode] / narrow)
    check_constant(rw.node, 8 * out * min(size, 2 * reach))
    begin, weights = _shares(rw, at.astype(np.float64), size, reach, narrow)
    return _Axis(size, *_trimmed(begin, weights, size), inside)


def _shares(rw: Rewriter, at: Array, size: int, reach: int, narrow: float) -> tuple[Array, Array]:
    """The first source within reach of every result, and the weights of its taps, whose sum is 1.
    Sources outside are clamped, or excluded (`exclude_outside`).
    """
    mode, out = rw.attr("mode"), len(at)
    takes_part = mode == "cubic" or rw.attr("antialias", 0)
    only_inside = takes_part and rw.attr("exclude_outside", 0)
    near = np.floor(at).astype(np.int64)
    width = min(size, 2 * reach)
    begin = np.clip(near + 1 - reach, 0, size - width)
    weights: Array = np.zeros((out, width))
    for step in range(1 - reach, reach + 1):
        index = near + step
        share = _kernel(rw, np.abs(index - at) * narrow)
        if only_inside:
            share = np.where((index >= 0) & (index < size), share, 0.0)
        np.add.at(weights, (np.arange(out), np.clip(index, 0, size - 1) - begin), share)
    weights /= weights.sum(1, keepdims=True)
    return begin, weights


def _trimmed(begin: Array, weights: Array, size: int) -> tuple[Array, Array]:
    """The same without taps of weight 0 on both sides of all results.

    Results at the ends need fewer taps; theirs of weight 0 lie outside of the source, so that a NaN
    inside of the source is not multiplied by 0.
    """
    used = weights != 0
    first, last = used.argmax(1), weights.shape[1] - 1 - used[:, ::-1].argmax(1)
    n = int((last - first).max()) + 1
    start = begin + first - np.where(begin + first == 0, n - 1 - (last - first), 0)
    wide = np.pad(weights, ((0, 0), (n, n)))
    return start, np.take_along_axis(wide, (start - begin + n)[:, None] + np.arange(n), 1)


def _kernel(rw: Rewriter, distance: Array) -> Array:
    """The weight of a source at some distance, before the weights are normalised to 1."""
    if rw.attr("mode") == "linear":
        return (1.0 - distance).clip(min=0.0)
    a = rw.attr("cubic_coeff_a", -0.75)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    share: Array = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    return share


def _scale(rw: Rewriter, axis: int) -> np.float32:
    """The scale of an axis: given, or from the sizes, common to all axes by the aspect policy."""
    shape, out = rw.kind(0).shape, rw.type.shape
    rank, axis = len(shape), to_last(len(shape))[axis]
    sizes = {to_last(rank)[n]: pair for n, pair in enumerate(zip(shape, out, strict=True))}
    axes = [a % rank for a in rw.attr("axes", range(rank))]
    given, asked = rw.value(2), rw.value(3)
    if given is not None and given.size and axis in axes:
        return np.float32(given[axes.index(axis)])
    policy = rw.attr("keep_aspect_ratio_policy", "stretch")
    if asked is not None and asked.size and policy != "stretch" and axis in axes:
        ratios = [n / sizes[a][0] for n, a in zip(asked.tolist(), axes, strict=True)]
        return np.float32(min(ratios) if policy == "not_larger" else max(ratios))
    return np.float32(sizes[axis][1] / sizes[axis][0])


def _coordinates(rw: Rewriter, axis: int, scale: np.float32) -> Array:
    """The source coordinate of every result, in elements; in float32, on which ties depend."""
    size, out = rw.kind(0).shape[axis], rw.type.shape[axis]
    at: Array = np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    match rw.attr("coordinate_transformation_mode", "half_pixel"):
        case "align_corners":
            last = scale * np.float32(size) - np.float32(1)  # of a length that may be fractional
            return at * np.float32((size - 1) / last) if last else at * np.float32(0)
        case "asymmetric":
            return at / scale
        case "half_pixel":
            return (at + half) / scale - half
        case "half_pixel_symmetric":
            centre = np.float32(size / 2 * (1 - out / (float(scale) * size)))
            return centre + (at + half) / scale - half
        case "pytorch_half_pixel":
            return (at + half) / scale - half if out > 1 else at
        case "tf_half_pixel_for_nn":
            return (at + half) / scale
        case "tf_crop_and_resize":
            begin, end = _crop(rw, axis)
            if out == 1:
                return at + half * (begin + end) * np.float32(size - 1)
            span = at * (end - begin) * np.float32(size - 1)
            return begin * np.float32(size - 1) + span / np.float32(out - 1)
        case mode:
            raise rw.refuse(f"coordinates '{mode}'")


def _crop(rw: Rewriter, axis: int) -> tuple[np.float32, np.float32]:
    """The region of interest along an axis, in [0, 1]."""
    rank = len(rw.type.shape)
    roi = rw.value(1)
    if roi is None:
        raise rw.refuse("its region is computed at run time")
    axes = [a % rank for a in rw.attr("axes", range(rank))]
    of_axis = to_last(rank)[axis]
    if of_axis not in axes:
        return np.float32(0), np.float32(1)
    begins, ends = roi.reshape(2, -1).astype(np.float32)
    return begins[axes.index(of_axis)], ends[axes.index(of_axis)]


def _nearest(rw: Rewriter, at: Array, scale: np.float32) -> Array:
    """Nearest whole coordinates; 'simple', before opset 11, depends on the direction."""
    match rw.attr("nearest_mode", "round_prefer_floor"):
        case "simple":
            picked = np.ceil(at) if scale < 1 else np.floor(at)
        case "floor":
            picked = np.floor(at)
        case "ceil":
            picked = np.ceil(at)
        case "round_prefer_ceil":
            picked = np.floor(at + 0.5)
        case _:
            picked = np.ceil(at - 0.5)
    return picked.astype(np.int64)


def _type(rw: Rewriter) -> Types:
    """floor(extent · scale) in float32, as the scales are; sizes are left to `onnx`.

    Of a cropped source too, as in ONNX's own inference and reference implementation.
    """
    scales = rw.value(2) if len(rw.node.inputs) > 2 else None
    if scales is None or not scales.size:
        return []
    shape = list(rw.kind(0).shape)
    rank = len(shape)
    axes = rw.attr("axes", range(rank))
    if len(axes) != scales.size or any(not -rank <= a < rank for a in axes):
        return []
    for axis, scale in zip(axes, scales.reshape(-1), strict=True):
        shape[axis] = int(np.floor(np.float32(shape[axis]) * np.float32(scale)))
    return [replace(rw.kind(0), shape=tuple(shape))] if min(shape, default=1) > 0 else []


def _upsample(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Nearest neighbour by whole factors: y[i…] = x[i // factor…]."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    factors = [out // n for out, n in zip(shape, x.shape, strict=True)]
    index = [binary("floordiv", a.var, idx(f)) for a, f in zip(axes, factors, strict=True)]
    return scope.compute("upsample", axes, x[tuple(index)])


def _check_axes(rw: Rewriter) -> str:
    """Attribute `axes` names no dimension twice."""
    rank, axes = len(rw.kind(0).shape), rw.attr("axes", ())
    is_repeated = len({a % rank for a in axes}) < len(axes) if rank else bool(axes)
    return f"axes {axes} of {rank} dimensions" if is_repeated else ""


OPERATORS: Mapping[str, Operator] = {
    "Resize": Operator(
        define=_upsample,
        fusion=Fusion.INJECTIVE,
        layout=Layout.SPATIAL,
        resolve=_resize,
        typing=typed(before=_check_axes, own=_type),
    ),
}
