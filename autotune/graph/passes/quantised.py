"""① Products of dequantised tensors become products of integers.

    MatMul((q - z)·s, (w - v)·r)  ->  float(Σ (q - z)·(w - v)) · (s·r)      w - v: constant
    MatMul(x, (w - v)·r)          ->  WeightOnlyMatMul(x, w, r, v)

The sums are exact, so the result is that of the definition but for its last rounding. What goes
with them (bias, activation, quantising again: `passes.requantisation`) is fused behind the product
as for any other. Where a product has no such form, its operands are dequantised while it reads
them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from autotune.dtypes import SMALL_TYPES, SmallType
from autotune.graph.ir import Array
from autotune.graph.operators.integer_products import (
    IntegerProduct,
    signed_weights,
    sum_less_zero,
    unsigned,
)
from autotune.graph.operators.weight_only import SmallWeights, weight_only_product
from autotune.graph.operators.whole_terms import channel_axis
from autotune.graph.passes.affine import BYTES, Affine, affine_of
from autotune.graph.rewriter import Rewriter, Rule
from autotune.te.exactness import MOST_FLOAT_TERMS, MOST_TERMS

_NIBBLE, _LEAST_BLOCK = 16, 8
_TERMS = 4
"""Products of bytes that one instruction adds up: the channels are padded to a multiple of it."""


def _product(rw: Rewriter) -> None:
    """Conv and MatMul of dequantised operands -> of integers."""
    w = affine_of(rw, rw.input(1), "float32", *BYTES)
    value = rw.constants.get(w.name) if w is not None else None
    if w is None or value is None:
        return
    if value.dtype == np.float32:
        _small_float_weights(rw, w, value)
        return
    x = affine_of(rw, rw.input(0), *BYTES)
    # infinite and NaN factors move out of no sum: 0 · inf is NaN in one term
    if not np.isfinite(w.scale).all():
        return
    if x is not None and x.is_single and np.isfinite(x.scale).all():
        _integer_product(rw, x, w, value)
    else:
        _integer_weights(rw, w, value)


# --- both are integers ------------------------------------------------------------------------


def _integer_product(rw: Rewriter, x: Affine, w: Affine, value: Array) -> None:
    """float(sum of integers) · scale + bias."""
    op, attrs, weights = rw.node.op, rw.node.attrs, signed_weights(value, w.zero)
    axis = channel_axis(op, attrs, weights.ndim)
    scales = _per_channel(w.scale, weights.ndim, axis)
    is_batched = op == "MatMul" and weights.ndim != 2
    in_floats = rw.attr("group", 1) != 1 and not _fits_groups(weights)
    most = MOST_FLOAT_TERMS if in_floats else MOST_TERMS
    n_terms = prod(weights.shape) // weights.shape[axis]
    if scales is None or rw.attr("trans_a", 0) or is_batched or n_terms > most:
        return
    if in_floats:
        data, offset = rw("Cast", x.name, to="float32"), 0
        weights = weights.astype(np.float32)
    else:
        data, offset = unsigned(rw, x.name)
    zero = x.zero_point + offset
    if op == "Conv":
        attrs = {**attrs, "pad_value": zero}
    product = IntegerProduct(op, attrs, weights, rw.type.shape, 1 if in_floats else _TERMS)
    total = sum_less_zero(rw, product, data, zero, product.sums_of_weights())
    real = total if in_floats else rw("Cast", total, to="float32")
    factor = (x.scale.reshape(-1)[0].astype(np.float64) * scales).astype(np.float32)
    if factor.size == 1:  # data, so that layers that differ in it alone are one task
        factor = np.repeat(factor, weights.shape[axis])
    scale, bias = rw.array(product.along(factor)), rw.input(2)
    if not bias:
        rw.result("Mul", real, scale)
        return
    shift = rw.value(2)
    if shift is not None and op == "Conv":
        bias = rw.array(product.along(shift))
    rw.result("Add", rw("Mul", real, scale), bias)


def _fits_groups(weights: Array) -> bool:
    """Whether instructions add up products of bytes over the channels of each group."""
    return weights.dtype == np.int8 and weights.shape[1] % _TERMS == 0


def _per_channel(scale: Array, rank: int, axis: int) -> Array | None:
    """The scales of output channels in float64; None where they vary along another dimension."""
    shape = (1,) * (rank - scale.ndim) + scale.shape
    varies = [n for n, extent in enumerate(shape) if extent > 1]
    return scale.reshape(-1).astype(np.float64) if varies in ([], [axis]) else None


# --- the weights alone ------------------------------------------------------------------------


def _integer_weights(rw: Rewriter, w: Affine, value: Array) -> None:
    """The product of floats and integers that are widened while they are read."""
    zero = np.zeros((), np.int32) if w.zero is None else w.zero.astype(np.int32)
    weights = _in_blocks(rw, value, w.scale, zero)
    if weights is None:
        return
    low, high = int(value.min(initial=0)), int(value.max(initial=0))
    if high - low < _NIBBLE and weights.block % 2 == 0:
        q = (weights.q.astype(np.int32) - low).astype(np.uint8)
        weights = replace(weights, make_q=lambda: q, zero=weights.zero - low, bits=4)
    weight_only_product(rw, weights, rw.input(0), rw.input(2))


def _small_float_weights(rw: Rewriter, w: Affine, value: Array) -> None:
    """The product of floats and weights that a float of 8 or 4 bits has exactly."""
    kind = _exact_small_float(value)
    weights = _in_blocks(rw, value, w.scale, np.zeros((), np.int32))
    if kind is None or weights is None or w.zero is not None:
        return
    bits = np.ascontiguousarray(weights.q.astype(kind.numpy)).view(np.int8)
    if kind.bits == 8:
        weights = replace(weights, make_q=lambda: bits, small_type=kind.name)
    elif weights.block % 2 == 0:
        values = np.arange(_NIBBLE, dtype=np.uint8).view(kind.numpy).astype(np.float32)
        weights = replace(weights, make_q=lambda: bits.view(np.uint8), bits=4, values=values)
    else:
        return
    weight_only_product(rw, weights, rw.input(0), rw.input(2))


def _exact_small_float(value: Array) -> SmallType | None:
    """The float of 4 or 8 bits that holds all of a float32 array, none of it infinite or NaN."""
    if not np.isfinite(value).all():
        return None
    floats = sorted((k for k in SMALL_TYPES.values() if k.is_float), key=lambda k: k.bits)
    for kind in floats:
        with np.errstate(all="ignore"):
            held = value.astype(kind.numpy).astype(np.float32)
        if np.array_equal(held, value):
            return kind
    return None


def _in_blocks(rw: Rewriter, q: Array, scale: Array, zero: Array) -> SmallWeights | None:
    """Weights of a MatMul as (k, n), with blocks of rows that share scale and zero point.

    None where rows do not change at regular distances, and for other products.
    """
    if rw.node.op != "MatMul" or q.ndim != 2 or rw.attr("trans_a", 0):
        return None
    if rw.attr("trans_b", 0):
        q, scale, zero = q.T, scale.T, zero.T
    k = block = q.shape[0]
    for a in (scale, zero):
        if a.ndim == 2 and a.shape[0] == k and k > 1:
            changes = np.flatnonzero((a[1:] != a[:-1]).any(axis=1)) + 1
            block = int(np.gcd.reduce([block, *changes]))
    if block == 0 or (block < _LEAST_BLOCK and block != k):
        return None
    rows = [np.broadcast_to(a, q.shape)[::block].astype(np.float64) for a in (scale, zero)]
    return SmallWeights(lambda: q, rows[0], rows[1], block, bits=8)


PRODUCT = Rule("integer-product", _product, {"Conv", "MatMul"})
