"""① Softmax and normalisations: batch, layer, instance, group, local response, Lp."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import (
    FLOATS,
    Layout,
    Operands,
    Operator,
    Scope,
    axes_of,
    like_first,
    literal,
    optional,
    read,
    repeats_along,
    tensor,
    typed,
)
from autotune.graph.operators.reductions import MEAN, fold, reduced, square
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    Tensor,
    binary,
    call,
    f32,
    select,
)
from autotune.units import format_shape


def _softmax(is_log: bool, scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """exp(x - max) / Σ exp(x - max) along one axis, or its logarithm."""
    x = tensor(operands, 0)
    axis = (node.attrs.get("axis", -1) % len(x.shape),)
    axes = axes_of(x.shape)
    top = fold(scope, "max", x, axis, lambda e: e)
    shifted = read(x, axes) - read(top, axes)
    if is_log:
        below = scope.compute("sub", axes, shifted)
        total = fold(scope, "sum", below, axis, lambda e: call("exp", e))
        return scope.compute("logsoftmax", axes, read(below, axes) - call("log", read(total, axes)))
    powers = scope.compute("exp", axes, call("exp", shifted))
    total = fold(scope, "sum", powers, axis, lambda e: e)
    share = 1 / read(total, axes)  # the same for the whole row: one division
    return scope.compute("softmax", axes, read(powers, axes) * share)


def _normalise(is_rows: bool, scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """(x - mean) / sqrt(variance + ε) · scale + bias.

    Mean and variance over the dimensions from `axis` on (`is_rows`), or over the spatial ones.
    """
    x, axes = tensor(operands, 0), axes_of(shape)
    first = node.attrs.get("axis", -1) % len(shape) if is_rows else 1
    over = tuple(range(first, len(shape) if is_rows else len(shape) - 1))
    mean = reduced(scope, MEAN, x, over, keep=True)
    centred = scope.compute("sub", axes, read(x, axes) - read(mean, axes))
    total = fold(scope, "sum", centred, over, square)
    share = 1 / math.prod(shape[n] for n in over)
    return _scaled(scope, node, operands, centred, total, share)


def _normalise_groups(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """(x - mean) / sqrt(variance + ε) · scale + bias over space and the channels of each group.

    Sums run over each channel first, then over the channels of a group, so that only these small
    second sums depend on groups.
    """
    x, axes = tensor(operands, 0), axes_of(shape)
    size = shape[-1] // node.attrs["num_groups"]
    share = 1 / (math.prod(shape[1:-1]) * size)
    mean = read(_group_sum(scope, x, size, lambda e: e), axes) * literal(share, x.dtype)
    centred = scope.compute("sub", axes, read(x, axes) - mean)
    total = _group_sum(scope, centred, size, square)
    return _scaled(scope, node, operands, centred, total, share)


def _group_sum(scope: Scope, x: Tensor, size: int, before: Callable[[Expr], Expr]) -> Tensor:
    """Σ over space and the `size` channels of a group, (n, 1…, c), or (n, 1…, 1) for one group."""
    channels = fold(scope, "sum", x, tuple(range(1, len(x.shape) - 1)), before)
    if size == x.shape[-1]:
        return fold(scope, "sum", channels, (len(x.shape) - 1,), lambda e: e)
    axes, near = axes_of(channels.shape), Axis("r", size)
    first = axes[-1] // size * size
    element = channels[(*axes[:-1], first + near)]
    return scope.compute("sum", axes, Reduce("sum", element, (near,)))


def _scaled(
    scope: Scope, node: Node, operands: Operands, centred: Tensor, squares: Tensor, share: float
) -> Tensor:
    """centred / sqrt(squares·share + ε) · scale + bias; scale and bias are operands 1 and 2."""
    axes = axes_of(centred.shape)
    number = partial(literal, dtype=centred.dtype)
    variance = read(squares, axes) * number(share)
    epsilon = number(node.attrs.get("epsilon", 1e-5))
    body = read(centred, axes) * call("rsqrt", variance + epsilon)
    body = body * read(tensor(operands, 1), axes)
    bias = optional(operands, 2)
    return scope.compute("norm", axes, body if bias is None else body + read(bias, axes))


def _lrn(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """x / (bias + alpha/size · Σ x² over `size` neighbouring channels)^beta."""
    x = tensor(operands, 0)
    size, n_channels = int(node.attrs["size"]), x.shape[-1]
    axes, near = axes_of(x.shape), Axis("r", size)
    c = axes[-1] + near - (size - 1) // 2
    inside = (c >= 0) & (c < n_channels)
    element = x[(*axes[:-1], c)]
    body = Reduce("sum", select(inside, element * element, f32(0.0)), (near,))
    squares = scope.compute("squares", axes, body)
    number = partial(literal, dtype=x.dtype)
    scale = number(node.attrs.get("alpha", 1e-4) / size)
    base = number(node.attrs.get("bias", 1.0)) + read(squares, axes) * scale
    beta = number(-node.attrs.get("beta", 0.75))
    return scope.compute("lrn", axes, read(x, axes) * binary("pow", base, beta))


# --- rewrites and checks ----------------------------------------------------------------------


def _batch_norm(rw: Rewriter) -> None:
    """(x - mean) · scale / sqrt(var + ε) + bias -> Mul, Add."""
    params = [value for n in range(1, 5) if (value := rw.value(n)) is not None]
    if rw.attr("training_mode", 0) or len(params) < 4:
        raise rw.refuse("only inference with constant parameters")
    scale, bias, mean, var = (value.astype(np.float64) for value in params)
    factor = scale / np.sqrt(var + rw.attr("epsilon", 1e-5))
    dims = (-1,) + (1,) * (len(rw.type.shape) - 2)
    mul, add = (
        rw.array(value.reshape(dims).astype(rw.type.dtype))
        for value in (factor, bias - mean * factor)
    )
    rw.result("Add", rw("Mul", rw.input(0), mul), add)


def _lp_normalisation(rw: Rewriter) -> None:
    """LpNormalization -> x / max(ReduceL1 or ReduceL2 of x, least normal float): 0 / 0 gives 0."""
    axis = rw.attr("axis", -1) % len(rw.type.shape)
    norm = rw(f"ReduceL{rw.attr('p', 2)}", rw.input(0), axes=(axis,), keepdims=1)
    least = rw.array(np.finfo(rw.type.dtype).tiny.reshape(1))
    rw.result("Div", rw.input(0), rw("Max", norm, least))


def _with_axis(rw: Rewriter) -> None:
    """Attribute `axis` where it is left out."""
    if "axis" not in rw.node.attrs:
        rw.again(axis=-1)


def _check_channels(rw: Rewriter) -> str:
    """Scale and bias have an element for every channel."""
    x, *rest = (rw.types[n].shape if n else () for n in rw.node.inputs)
    wrong = [s for n, s in zip(rw.node.inputs[1:], rest, strict=True) if n and s != (x[1],)]
    return f"a parameter of {format_shape(wrong[0])} for {x[1]} channels" if wrong else ""


def _check_rows(rw: Rewriter) -> str:
    """Scale and bias repeat along the dimensions that are normalised."""
    x, *rest = (rw.types[n].shape if n else () for n in rw.node.inputs)
    rows = x[rw.attr("axis", -1) % len(x) :]
    pairs = zip(rw.node.inputs[1:], rest, strict=True)
    wrong = [s for n, s in pairs if n and not repeats_along(s, rows)]
    if not wrong:
        return ""
    return f"a parameter of {format_shape(wrong[0])} for rows of {format_shape(rows)}"


def _check_size(rw: Rewriter) -> str:
    size = rw.attr("size", 1)
    return "" if size > 0 else f"size {size}"


OPERATORS: Mapping[str, Operator] = {
    **{
        op: Operator(
            define=partial(_softmax, op == "LogSoftmax"),
            dtypes=FLOATS,
            layout=Layout.AXIS,
            canonical=_with_axis,
            typing=typed(fallback=like_first),
        )
        for op in ("Softmax", "LogSoftmax")
    },
    "BatchNormalization": Operator(canonical=_batch_norm),
    "InstanceNormalization": Operator(
        define=partial(_normalise, False),
        dtypes=FLOATS,
        layout=Layout.SPATIAL,
        typing=typed(_check_channels),
    ),
    "GroupNormalization": Operator(
        define=_normalise_groups,
        dtypes=FLOATS,
        layout=Layout.SPATIAL,
        typing=typed(_check_channels, own=like_first),
    ),
    "LayerNormalization": Operator(
        define=partial(_normalise, True), dtypes=FLOATS, typing=typed(_check_rows)
    ),
    "LpNormalization": Operator(canonical=_lp_normalisation),
    "LRN": Operator(
        define=_lrn, dtypes=FLOATS, layout=Layout.SPATIAL, typing=typed(before=_check_size)
    ),
}
