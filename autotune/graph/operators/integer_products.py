"""① Products of integers: bytes by constant bytes, summed in int32.

    Σ (a - za)·w  ->  Σ a·w - za·Σ w            a: uint8, w: constant
    Σ a·w         ->  Σ a·(w - d) + d·Σ a       where w needs 9 bits; d: one for each channel

Those are MatMulInteger and ConvInteger, where w = b - zb, and products of dequantised tensors
(`passes.quantised`). Where `b` is not constant, both operands are widened first. ConvInteger reads
0 where its window leaves the picture, not za: there the sum over w is that of the taps inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from autotune.graph.ir import Array, Node, Shape, unsupported
from autotune.graph.operators.contraction import row_length
from autotune.graph.operators.convolution import window_size
from autotune.graph.operators.definition import Attrs, Factors, Operator
from autotune.graph.operators.elementwise import of_formula
from autotune.graph.operators.whole_terms import (
    channel_axis,
    term_axis,
    with_zeros,
    zeros_behind,
)
from autotune.graph.operators.windows import Window
from autotune.graph.rewriter import Rewriter
from autotune.te.exactness import MOST_TERMS
from autotune.te.expr import Const, Expr, cast

_OFFSET = 128
"""Offset of the zero point from int8 to uint8."""


def signed_weights(value: Array, zero: Array | None) -> Array:
    """`value - zero` of bytes as int8, or int16 where that is too large for it."""
    wide = value.astype(np.int16) - (np.int16(0) if zero is None else zero.astype(np.int16))
    fits = not wide.size or (wide.min() >= -128 and wide.max() <= 127)
    return np.ascontiguousarray(wide.astype(np.int8 if fits else np.int16))


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """A MatMul or Conv by constant whole numbers: of int8, int16 or float32.

    `shape`: that of the result. The channels are padded to a multiple of `n_terms`.
    """

    op: str
    attrs: Attrs
    weights: Array
    shape: Shape
    n_terms: int = 1

    @property
    def axis(self) -> int:
        """The dimension of the weights that counts output channels."""
        return channel_axis(self.op, self.attrs, self.weights.ndim)

    @property
    def dtype(self) -> str:
        """The type of sums."""
        return "float32" if self.weights.dtype == np.float32 else "int32"

    def along(self, channels: Array) -> Array:
        """One number for each output channel, in a shape that repeats along the result."""
        return channels.reshape(-1, *(1,) * (len(self.shape) - 2 if self.op == "Conv" else 0))

    def sums_of_weights(self) -> Array:
        """Σ w for each output channel, in a shape that repeats along the result."""
        others = tuple(n for n in range(self.weights.ndim) if n != self.axis)
        return self.along(self.weights.sum(axis=others, dtype=np.int64))


def sum_less_zero(rw: Rewriter, product: IntegerProduct, data: str, zero: int, sums: Array) -> str:
    """Emit Σ (data - zero)·w as Σ data·w - zero·Σ w; `sums`: Σ w along the result."""
    total = sum_of_products(rw, product, data)
    rest = (-zero * sums.astype(np.int64)).astype(product.dtype)
    return rw("Add", total, rw.array(rest)) if rest.any() else total


def sum_of_products(rw: Rewriter, product: IntegerProduct, data: str) -> str:
    """Emit Σ data·w.

    Weights of int16 become those of int8 where each channel of them spans no more: one more
    product, with ones, adds what is missing.
    """
    op, attrs, shape = product.op, product.attrs, product.shape
    weights, offsets = _bytes_and_offsets(product)
    one_channel = np.ones_like(weights.take([0], product.axis)) if offsets is not None else weights
    axis = term_axis(op, attrs, weights.ndim)
    at = 1 if op == "Conv" else len(rw.types[data].shape) - 1
    missing = -weights.shape[axis] % product.n_terms
    if missing:
        data = zeros_behind(rw, data, at, missing)
        weights, one_channel = (with_zeros(w, axis, missing) for w in (weights, one_channel))
    total = rw(op, data, rw.array(weights), shape=shape, dtype=product.dtype, **attrs)
    if offsets is None:
        return total
    at = 1 if op == "Conv" else len(shape) - 1
    shape = (*shape[:at], 1, *shape[at + 1 :])
    sums = rw(op, data, rw.array(one_channel), shape=shape, dtype="int32", **attrs)
    return rw("Add", total, rw("Mul", sums, rw.array(product.along(offsets))))


def _bytes_and_offsets(product: IntegerProduct) -> tuple[Array, Array | None]:
    """Weights as int8 and the offset of each channel; None where they are int8 or span too much."""
    weights, rank = product.weights, product.weights.ndim
    is_simple = rank > 1 if product.op == "Conv" else rank == 2
    if weights.dtype != np.int16 or not weights.size or not is_simple:
        return weights, None
    others = tuple(n for n in range(rank) if n != product.axis)
    low, high = (f(axis=others, keepdims=True).astype(np.int32) for f in (weights.min, weights.max))
    if (high - low > 255).any() or product.attrs.get("group", 1) != 1:
        return weights, None
    offsets = np.where((low >= -128) & (high <= 127), 0, low + 128).astype(np.int32)
    return (weights - offsets).astype(np.int8), offsets.reshape(-1)


def unsigned(rw: Rewriter, name: str) -> tuple[str, int]:
    """Bytes as uint8, and the offset that was added."""
    if rw.types[name].dtype != "int8":
        return name, 0
    moved = rw("Add", rw("Cast", name, to="int32"), rw.array(np.full(1, _OFFSET, np.int32)))
    return rw("Cast", moved, to="uint8"), _OFFSET


def _integer_product(rw: Rewriter) -> None:
    """MatMulInteger, ConvInteger -> MatMul, Conv; see the module."""
    rw.returns(integer_product(rw, rw.node, rw.type.shape))


def integer_product(rw: Rewriter, node: Node, shape: Shape) -> str:
    """Emit the product of MatMulInteger or ConvInteger `node`; the name of its result."""
    a, _, za, _ = (*node.inputs, "", "")[:4]
    op = node.op.removesuffix("Integer")
    weights = _constant_weights(rw, node)
    if weights is None or _n_terms(op, weights) > MOST_TERMS:
        return _widened_product(rw, replace(node, op=op), shape)
    sums = _sums_of_weights(node, weights, rw.types[a].shape, shape)
    product = IntegerProduct(op, node.attrs, weights, shape)
    data, offset = unsigned(rw, a)
    known = rw.constants.get(za) if za else np.zeros(1, np.int32)
    if known is not None and known.size == 1:
        return sum_less_zero(rw, product, data, int(known.reshape(-1)[0]) + offset, sums)
    return _less_zero(rw, product, data, za, offset, sums)


def _constant_weights(rw: Rewriter, node: Node) -> Array | None:
    _, b, _, zb = (*node.inputs, "", "")[:4]
    value, zero = rw.constants.get(b), rw.constants.get(zb) if zb else None
    if value is None or (zb and zero is None):
        return None
    if zero is not None and zero.size > 1 and node.op == "ConvInteger":
        zero = zero.reshape(-1, *(1,) * (value.ndim - 1))
    return signed_weights(value, zero)


def _n_terms(op: str, weights: Array) -> int:
    """Products that are summed for one element of the result."""
    if op == "Conv":
        return window_size((weights, weights))
    return int(weights.shape[term_axis(op, {}, weights.ndim)])


def _sums_of_weights(node: Node, w: Array, data: Shape, out: Shape) -> Array:
    """Σ w for each element of the result, as an int32 that repeats along it."""
    if node.op == "MatMulInteger":
        columns: Array = w.sum(axis=-2 if w.ndim > 1 else 0, keepdims=w.ndim > 1, dtype=np.int32)
        return columns
    taps = w.sum(axis=1, dtype=np.int32)  # (out channels, …kernel…)
    window = Window(node, w.shape[2:], data[2:], out[2:])
    if not any((*window.begin, *window.end)):
        total: Array = taps.reshape(len(taps), -1).sum(1, dtype=np.int32)
        return total.reshape(-1, *(1,) * len(out[2:]))
    inside = np.zeros(out[1:], np.int32)
    for tap in np.ndindex(*w.shape[2:]):
        places = []
        for n, (k, s, d, b) in enumerate(
            zip(tap, window.strides, window.dilations, window.begin, strict=True)
        ):
            at = np.arange(out[2 + n]) * s + k * d - b
            places.append((at >= 0) & (at < data[2 + n]))
        grid = reduce(np.multiply.outer, (p.astype(np.int32) for p in places))
        inside += taps[(slice(None), *tap)].reshape(-1, *(1,) * grid.ndim) * grid
    return inside


def _less_zero(
    rw: Rewriter, product: IntegerProduct, data: str, za: str, offset: int, sums: Array
) -> str:
    """Σ data·w - (za + offset)·Σ w where za is computed at run time; of a matrix, one for each row.

    One node, so that it is part of the product's task.
    """
    total, shape = sum_of_products(rw, product, data), rw.types[za].shape
    if shape not in ((), (1,)):
        if product.op != "MatMul":
            raise unsupported(rw.node, rw.editor.graph, "its zero points vary along the data")
        za = rw("Reshape", za, shape=(*shape, 1))
    return rw("LessZero", total, za, rw.array(sums), offset=offset)


def _less_zero_formula(attrs: Attrs, product: Expr, zero: Expr, sums: Expr) -> Expr:
    """product - (zero + offset)·sums in int32."""
    whole = cast("int32", zero) + Const(attrs["offset"], "int32")
    return product - whole * sums


def _widened_product(rw: Rewriter, node: Node, shape: Shape) -> str:
    """The product of both operands less their zero points, in int32."""
    operands = []
    for position, name in enumerate(node.inputs[:2]):
        zero = (*node.inputs, "", "")[2 + position]
        wide = rw("Cast", name, to="int32")
        if zero:
            along = _zero_along(rw, node.op, zero, position, len(rw.types[name].shape))
            wide = rw("Sub", wide, along)
        operands.append(wide)
    return rw(node.op, *operands, shape=shape, dtype="int32", **node.attrs)


def _zero_along(rw: Rewriter, op: str, zero: str, position: int, rank: int) -> str:
    """Zero points as int32 in a shape that repeats along operand `position`."""
    shape, wide = rw.types[zero].shape, rw("Cast", zero, to="int32")
    if len(shape) != 1 or shape == (1,):
        return wide
    behind = rank - 1 if op == "Conv" else 1 - position
    return rw("Reshape", wide, shape=(*shape, *(1,) * behind))


OPERATORS: Mapping[str, Operator] = {
    "MatMulInteger": Operator(canonical=_integer_product, factors=Factors(n_terms=row_length)),
    "LessZero": of_formula(_less_zero_formula),
    "ConvInteger": Operator(canonical=_integer_product, factors=Factors(n_terms=window_size)),
}
