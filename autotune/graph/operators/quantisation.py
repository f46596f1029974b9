"""① Quantised tensors: integers q that stand for the real numbers (q - zero point) · scale.

    QuantizeLinear(x, s, z)    -> Quantize(x, s, z)     q = saturated(round(x / s) + z)
    DequantizeLinear(q, s, z)  -> Dequantize(q, s, z)   x = (q - z) · s

Scale and zero point are one number, or vary along one dimension, or from block to block of one;
they are brought into a shape that repeats along the tensor. `passes.quantised` makes integer
products of dequantised tensors, quantised again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from autotune.dtypes import DTYPES, SMALL_TYPES
from autotune.errors import ModelError
from autotune.graph.ir import Array, Node, Shape
from autotune.graph.operators.definition import Attrs, Folding, Operator, Trait
from autotune.graph.operators.elementwise import of_formula
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Const,
    Expr,
    call,
    cast,
    dtype_of,
    f32,
    maximum,
    minimum,
)

_SINGLE = ((), (1,))
"""Shapes of one scale for all of a tensor."""


def _quantize(attrs: Attrs, x: Expr, scale: Expr | None = None, zero: Expr | None = None) -> Expr:
    """saturated(round(x / scale) + zero), halves to even."""
    to = attrs["to"]
    low, high = attrs.get("limits", (DTYPES[to].low, DTYPES[to].high))
    real = cast("float32", x)
    steps = call("round", real if scale is None else real / scale)
    if zero is not None:
        steps = steps + cast("float32", zero)
    return cast(to, minimum(f32(float(high)), maximum(f32(float(low)), steps)))


def _dequantize(attrs: Attrs, q: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    """(q - zero) · scale."""
    if zero is None:
        return cast("float32", q) * scale
    if dtype_of(q) == "float32":
        return (q - zero) * scale
    if isinstance(zero, Const) and dtype_of(q) != "int32":
        return (cast("float32", q) - f32(float(zero.value))) * scale
    return cast("float32", cast("int32", q) - cast("int32", zero)) * scale


def _aligned(is_quantizing: bool, rw: Rewriter) -> None:
    """Scale and zero point in shapes that repeat along the tensor; a zero point of 0 is none."""
    name, scale, zero = (rw.input(n) for n in range(3))
    if is_quantizing:
        _check_scale(rw.node, rw.value(1))
    check_zero(rw.node, rw.kind(1).shape, rw.kind(2).shape if zero else None)
    value = rw.value(2)
    if value is not None and not value.any():
        zero = ""
    operands = (name, *(_along(rw, n) for n in (scale, zero) if n))
    if not is_quantizing:
        rw.result("Dequantize", *operands)
        return
    attrs: Attrs = {"to": rw.type.dtype}
    small = SMALL_TYPES.get(rw.attr("small_type", ""))
    if small is not None and small.is_float:  # x / scale + zero, rounded to a value of it
        for op, operand in zip(("Div", "Add"), operands[1:], strict=False):
            name = rw(op, name, operand)
        rw.result("ToSmallType", name, to=small.name, saturate=rw.attr("saturate", 1))
        return
    if small is not None:
        attrs = {**attrs, "limits": (int(small.low), int(small.high))}
    rw.result("Quantize", *operands, **attrs)


def _check_scale(node: Node, value: Array | None) -> None:
    """Raises ModelError for scales of quantised tensors that are 0 or NaN.

    The standard has no integer for 0 / 0 and NaN. Whatever else is a scale computes what it says,
    so do all scales of DequantizeLinear: weights that are zero are written with a scale of 0.
    """
    if value is None:
        return
    wrong = value[np.isnan(value) | (value == 0)]
    if wrong.size:
        raise ModelError(
            f"operator '{node.op}' (node '{node.name}') has a scale of {wrong.flat[0]:g}",
            "the standard defines no quotient by it: quantise the model again",
        )


def check_zero(node: Node, scales: Shape, zeros: Shape | None) -> None:
    """Raises ModelError where zero points have not the shape of the scales."""
    is_single = scales in _SINGLE and zeros in _SINGLE
    if zeros is not None and zeros != scales and not is_single:
        raise ModelError(
            f"operator '{node.op}' (node '{node.name}') has {zeros} zero points for {scales} "
            "scales",
            "each scale has one zero point: quantise the model again",
        )


def _along(rw: Rewriter, name: str) -> str:
    """Scale or zero point `name` as it repeats along the tensor of the node."""
    shape, given, value = rw.kind(0).shape, rw.types[name].shape, rw.constants.get(name)
    if given in _SINGLE:
        return name
    if value is not None:
        return rw.array(spread(rw.node, value, shape))
    target = _repeated_shape(rw.node, given, shape)
    if rw.attr("block_size", 0):
        raise rw.refuse("its scales of blocks are computed at run time")
    return rw("Reshape", name, shape=target)


def spread(node: Node, value: Array, shape: Shape) -> Array:
    """Constant scales or zero points of `node` as they repeat along a tensor of `shape`.

    Raises ModelError where they do not fit to it.
    """
    if value.shape in _SINGLE:
        return value.reshape(())
    aligned = value.reshape(_repeated_shape(node, value.shape, shape))
    block = node.attrs.get("block_size", 0)
    if not block:
        return aligned
    wide: Array = np.repeat(aligned, block, node.attrs.get("axis", 1) % len(shape))
    return np.ascontiguousarray(wide[tuple(slice(0, n) for n in shape)])


def _repeated_shape(node: Node, given: Shape, shape: Shape) -> Shape:
    """The shape of scales or zero points of shape `given` with a dimension for each of `shape`."""
    axis: int = node.attrs.get("axis", 1) % max(1, len(shape))
    block: int = node.attrs.get("block_size", 0)
    if not block and given == shape[axis : axis + 1]:
        return (1,) * axis + given + (1,) * (len(shape) - axis - 1)
    if not block or given != (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :]):
        raise ModelError(
            f"operator '{node.op}' (node '{node.name}') has {given} scales or zero points for "
            f"a tensor of {shape}",
            "they are one, or one for each index of attribute `axis`, or for each of its blocks",
        )
    return given


def quantised_dynamically(rw: Rewriter, x: str) -> tuple[str, str, str]:
    """Emit x as steps of its own range, as DynamicQuantizeLinear does: uint8, scale, zero point.

    The scale of zeros is 1, as in ONNX Runtime: by the standard it is 0, and 0 / 0 is NaN.
    Source: https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
    """
    nothing, one, most = (rw.array(np.array(v, np.float32)) for v in (0, 1, 255))
    low = rw("Min", rw("ReduceMin", x, keepdims=0, shape=()), nothing)
    high = rw("Max", rw("ReduceMax", x, keepdims=0, shape=()), nothing)
    step = rw("Div", rw("Sub", high, low), most)
    scale = rw("Where", rw("Equal", step, nothing), one, step)
    exact = rw("Sub", nothing, rw("Div", low, scale))
    zero = rw("Cast", rw("Round", rw("Clip", exact, nothing, most)), to="uint8")
    return rw("Quantize", x, scale, zero, to="uint8"), scale, zero


def _dynamic(rw: Rewriter) -> None:
    """DynamicQuantizeLinear -> reductions, a few numbers, and Quantize."""
    rw.returns(*quantised_dynamically(rw, rw.input(0)))


def dequantised(q: Array, scale: Array, zero: Array | None = None) -> Array:
    """(q - zero) · scale in float32, as `Dequantize` computes it; float8 is held in float32."""
    wide = np.float32 if q.dtype.kind == "f" else np.int32
    whole = q.astype(wide) if zero is None else q.astype(wide) - zero.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be infinite
        real: Array = whole.astype(np.float32) * scale
    return real


OPERATORS: Mapping[str, Operator] = {
    "QuantizeLinear": Operator(canonical=partial(_aligned, True)),
    "DequantizeLinear": Operator(canonical=partial(_aligned, False), folding=Folding.NEVER),
    "DynamicQuantizeLinear": Operator(canonical=_dynamic, folding=Folding.NEVER),
    # Scales and zero points are data, so that layers that differ in them alone are one task.
    "Quantize": of_formula(_quantize, roles=("x", "step", "zero"), literals=False),
    "Dequantize": of_formula(
        _dequantize, traits=Trait.CHEAP | Trait.WIDENS, roles=("x", "step", "zero"), literals=False
    ),
}
