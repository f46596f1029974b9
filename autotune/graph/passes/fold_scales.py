"""① Batch-norm folding: scales and shifts per channel go into the weights of the producer.

BatchNormalization arrives here as Mul and Add, so it disappears behind a convolution and is one
scale and shift elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from autotune.graph.ir import Array, Node, Shape, float_array
from autotune.graph.operators.table import operator_of
from autotune.graph.operators.whole_terms import channel_axis
from autotune.graph.rewriter import Rewriter, Rule


def _fold_affine(rw: Rewriter) -> None:
    """Mul(Conv(x, W, b), s)  -> Conv(x, W·s, b·s)      Add(Conv(x, W, b), t) -> Conv(x, W, b + t)

        Mul(Mul(x, r), s)     -> Mul(x, r·s)            Add(Add(x, t), u)     -> Add(x, t + u)
        Mul(Add(x, t), s)     -> Add(Mul(x, s), t·s)

    and likewise for MatMul. `s`, `t` vary along the channel dimension only (1 for convolutions, the
    last one for MatMul). Only where nothing else reads the first result.
    """
    value = _constant_operand(rw, rw.node)
    producer = rw.private(rw.input(0)) if value is not None else None
    if value is None or producer is None or rw.kind(0).shape != rw.type.shape:
        return
    channel = operator_of(producer.op).factors.channel_axis
    if channel is not None:
        _into_product(rw, producer, value, channel)
        return
    inner = _constant_operand(rw, producer)
    if inner is None or (producer.op, rw.node.op) == ("Mul", "Add"):
        return
    if np.broadcast_shapes(inner.shape, value.shape) not in (inner.shape, value.shape):
        return
    x, both = producer.inputs[0], rw.array(_COMBINED[rw.node.op](inner, value))
    if producer.op == rw.node.op:
        rw.result(rw.node.op, x, both)
    else:
        rw.result("Add", rw("Mul", x, rw.array(value)), both)


_COMBINED: Mapping[str, Callable[[Array, Array], Array]] = {"Mul": np.multiply, "Add": np.add}
"""What two operators in a row do with their constants."""


def _constant_operand(rw: Rewriter, node: Node) -> Array | None:
    """The constant operand of a Mul or Add of float32."""
    value = rw.constants.get(node.inputs[1]) if node.op in _COMBINED else None
    return value if value is not None and value.dtype == np.float32 else None


def _into_product(rw: Rewriter, product: Node, value: Array, channel: int) -> None:
    x, name, *rest = product.inputs
    weight, bias = rw.constants.get(name), rw.constants.get(rest[0]) if rest else None
    vector = channel_vector(value, rw.type.shape, channel)
    if weight is None or weight.ndim < 2 or vector is None or (any(rest) and bias is None):
        return
    if rw.node.op == "Mul":
        name = rw.array(_scaled(weight, vector, product))
        bias = bias if bias is None else bias * vector
    else:
        bias = vector if bias is None else bias + vector
    if bias is not None:
        full = np.broadcast_to(bias, (rw.type.shape[channel],))
        rest = [rw.array(np.ascontiguousarray(full, np.float32))]
    rw.like(product, x, name, *rest)


def channel_vector(value: Array, shape: Shape, axis: int) -> Array | None:
    """`value` as a vector over one dimension of a result of `shape` (or of length 1), else None."""
    if value.ndim > len(shape):
        return None
    channel = axis % len(shape)
    dims = (1,) * (len(shape) - value.ndim) + value.shape
    if any(d != 1 for n, d in enumerate(dims) if n != channel):
        return None
    return value.reshape(-1)


def _scaled(weight: Array, vector: Array, product: Node) -> Array:
    """Multiply the output channels of a weight."""
    if channel_axis(product.op, product.attrs, weight.ndim) == 0:
        vector = vector.reshape(-1, *(1,) * (weight.ndim - 1))
    return float_array(weight * vector)


FOLD_AFFINE = Rule("fold-affine", _fold_affine, {"Mul", "Add"})
