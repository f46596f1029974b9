"""① Matrix products, reductions, and what is made of them: softmax, response normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.elementwise import ONE, ZERO
from autotune.graph.operators.scope import Operands, Scope, axes_of, literal, optional, read, tensor
from autotune.graph.operators.windows import biased
from autotune.te.expr import (
    Axis,
    Call,
    Expr,
    Reduce,
    Tensor,
    add,
    binary,
    both,
    call,
    compare,
    div,
    floordiv,
    idx,
    mul,
    select,
    sub,
)

_POINT = (Axis("n", 1),)
"""The axes of a number: a computation has at least one."""


def matmul(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, m, n] = Σ a[…, m, k] · b[…, k, n] + bias[n], batches broadcast, vectors promoted."""
    a, b, bias = tensor(operands, 0), tensor(operands, 1), optional(operands, 2)
    trans_a, trans_b = node.attrs.get("trans_a", 0), node.attrs.get("trans_b", 0)
    n_inner = a.shape[0] if len(a.shape) == 1 else a.shape[-2 if trans_a else -1]
    k = Axis("k", n_inner)
    axes = _matmul_axes(shape)
    n_rows, n_cols = int(len(a.shape) > 1), int(len(b.shape) > 1)
    rows = axes[len(axes) - n_cols - n_rows : len(axes) - n_cols]
    cols = axes[len(axes) - n_cols :]
    batch = axes[: len(axes) - n_rows - n_cols]
    left = (k, *rows) if trans_a else (*rows, k)
    right = (*cols, k) if trans_b else (k, *cols)
    product = mul(_batched(a, batch, left), _batched(b, batch, right))
    result = scope.compute("matmul", axes or _POINT, Reduce("sum", product, (k,)))
    return biased(scope, result, bias)


def _matmul_axes(shape: Shape) -> tuple[Axis, ...]:
    names = ["b", "m", "n"][max(0, 3 - len(shape)) :]
    if len(shape) > 3:
        names = [f"b{n}" for n in range(len(shape) - 2)] + ["m", "n"]
    return tuple(Axis(a, e) for a, e in zip(names, shape, strict=True))


def _batched(x: Tensor, batch: Sequence[Axis], inner: Sequence[Axis]) -> Expr:
    n_batch = len(x.shape) - len(inner)
    lead = batch[len(batch) - n_batch :]
    pairs = zip(x.shape, lead, strict=False)
    index = [idx(0) if extent == 1 else axis.var for extent, axis in pairs]
    return x[(*index, *inner)]


def einsum(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[result] = Σ Π x[labels] over the labels that the result lacks; one label, one axis.

    `node.attrs["labels"]`: those of every operand, then those of the result, as in `bik bkj bij`.
    """
    *sources, result = node.attrs["labels"].split(" ")
    tensors = [tensor(operands, n) for n in range(len(sources))]
    shapes = [x.shape if labels else () for labels, x in zip(sources, tensors, strict=True)]
    extents: dict[str, int] = {}
    for labels, found in zip(sources, shapes, strict=True):
        for label, extent in zip(labels, found, strict=True):
            extents[label] = max(extent, extents.get(label, 1))
    axes = {label: Axis(label, extent) for label, extent in extents.items()}
    elements: list[Expr] = [
        x[_einsum_index(labels, found, axes) or (idx(0),)]
        for labels, found, x in zip(sources, shapes, tensors, strict=True)
    ]
    body = reduce(mul, elements)
    summed = tuple(axis for label, axis in axes.items() if label not in result)
    body = Reduce("sum", body, summed) if summed else body
    return scope.compute("einsum", [axes[a] for a in result] or _POINT, body)


def _einsum_index(labels: str, shape: Shape, axes: Mapping[str, Axis]) -> tuple[Expr, ...]:
    """Where an operand is read; it has one place along an axis of extent 1."""
    pairs = zip(labels, shape, strict=True)
    return tuple(axes[a].var if n > 1 else idx(0) for a, n in pairs)


def softmax(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """exp(x - max) / Σ exp(x - max) along one axis; LogSoftmax its logarithm."""
    x = tensor(operands, 0)
    axis = (node.attrs.get("axis", -1) % len(x.shape),)
    axes = axes_of(x.shape)
    top = _fold(scope, "max", x, axis, lambda e: e)
    shifted = sub(read(x, axes), read(top, axes))
    if node.op == "LogSoftmax":
        below = scope.compute("sub", axes, shifted)
        total = _fold(scope, "sum", below, axis, lambda e: call("exp", e))
        return scope.compute(
            "logsoftmax", axes, sub(read(below, axes), call("log", read(total, axes)))
        )
    powers = scope.compute("exp", axes, call("exp", shifted))
    total = _fold(scope, "sum", powers, axis, lambda e: e)
    share = div(ONE, read(total, axes))  # the same for the whole row: one division
    return scope.compute("softmax", axes, mul(read(powers, axes), share))


def _square(e: Expr) -> Expr:
    return mul(e, e)


REDUCTIONS: dict[str, tuple[str, Callable[[Expr], Expr], str]] = {
    "ReduceSum": ("sum", lambda e: e, ""),
    "ReduceMean": ("sum", lambda e: e, "mean"),
    "ReduceMax": ("max", lambda e: e, ""),
    "ReduceMin": ("min", lambda e: e, ""),
    "ReduceProd": ("prod", lambda e: e, ""),
    "ReduceL1": ("sum", lambda e: call("abs", e), ""),
    "ReduceL2": ("sum", _square, "sqrt"),
    "ReduceSumSquare": ("sum", _square, ""),
    "ReduceLogSum": ("sum", lambda e: e, "log"),
}
"""Operator -> reduction, what is reduced, what happens to the result."""
REDUCES = (*REDUCTIONS, "ReduceLogSumExp")
"""All operators that reduce over some axes."""


OF_ONE = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceSumSquare": "Mul", "ReduceLogSum": "Log"}
"""What is left of a reduction over no axes, where that is not its operand: Mul is by itself."""


def reduction(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """A reduction over `node.attrs["axes"]`."""
    x = tensor(operands, 0)
    keep = bool(node.attrs.get("keepdims", 1))
    return _reduced(scope, node.op, x, tuple(node.attrs["axes"]), keep)


def log_sum_exp(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """log Σ exp(x - max) + max over `node.attrs["axes"]`.

    Without the maximum where that is infinite: the sum of nothing but e^-∞ is 0, its logarithm -∞.
    """
    x, over = tensor(operands, 0), tuple(node.attrs["axes"])
    axes, keep = axes_of(x.shape), bool(node.attrs.get("keepdims", 1))
    top = _fold(scope, "max", x, over, lambda e: e)
    largest = read(top, axes_of(top.shape))
    is_infinite = compare("eq", call("abs", largest), literal(math.inf))
    top = scope.compute("shift", axes_of(top.shape), select(is_infinite, ZERO, largest))
    below = scope.compute("sub", axes, sub(read(x, axes), read(top, axes)))
    total = _fold(scope, "sum", below, over, lambda e: call("exp", e), keep)
    outer = axes_of(total.shape)
    kept = iter(a for n, a in enumerate(outer) if not keep or n not in over)
    at = [idx(0) if n in over else next(kept).var for n in range(len(axes))]
    logarithm = call("log", total[tuple(a.var for a in outer)])
    return scope.compute("logsumexp", outer, add(logarithm, top[tuple(at)]))


def _reduced(scope: Scope, op: str, x: Tensor, over: tuple[int, ...], keep: bool) -> Tensor:
    kind, before, after = REDUCTIONS[op]
    total = _fold(scope, kind, x, over, before, keep)
    if not after:
        return total
    axes = axes_of(total.shape)
    element = read(total, axes) if total.shape else total[()]
    if after == "mean":
        scale = literal(1 / math.prod(x.shape[a] for a in over))
        return scope.compute("mul", axes, mul(element, scale))
    return scope.compute(after, axes, Call(after, (element,)))


def _fold(
    scope: Scope,
    op: str,
    x: Tensor,
    over: tuple[int, ...],
    before: Callable[[Expr], Expr],
    keep: bool = True,
) -> Tensor:
    """Reduce dimensions `over` of x; they become 1 or disappear."""
    axes = axes_of(x.shape)
    reduced = tuple(Axis(f"r{axes[n].name}", axes[n].extent) for n in over)
    inner = dict(zip(over, reduced, strict=True))
    element = before(x[tuple(inner.get(n, a) for n, a in enumerate(axes))])
    if keep:
        outer = [Axis(a.name, 1) if n in inner else a for n, a in enumerate(axes)]
    else:
        outer = [a for n, a in enumerate(axes) if n not in inner]
    return scope.compute(op, outer or _POINT, Reduce(op, element, reduced))


def normalise(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """(x - mean) / sqrt(variance + ε) · scale + bias.

    Mean and variance over the spatial dimensions (InstanceNormalization), or over the dimensions
    from `axis` on (LayerNormalization).
    """
    x, axes = tensor(operands, 0), axes_of(shape)
    layer = node.op == "LayerNormalization"
    first = node.attrs.get("axis", -1) % len(shape) if layer else 1
    over = tuple(range(first, len(shape) if layer else len(shape) - 1))
    mean = _reduced(scope, "ReduceMean", x, over, keep=True)
    centred = scope.compute("sub", axes, sub(read(x, axes), read(mean, axes)))
    total = _fold(scope, "sum", centred, over, _square)
    share = 1 / math.prod(shape[n] for n in over)
    return _scaled(scope, node, operands, centred, total, share)


def normalise_groups(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """(x - mean) / sqrt(variance + ε) · scale + bias over space and the channels of each group.

    Sums are made channel by channel, then over the channels of its group for each of them, so that
    only these small sums know of groups.
    """
    x, axes = tensor(operands, 0), axes_of(shape)
    size = shape[-1] // node.attrs["num_groups"]
    share = 1 / (math.prod(shape[1:-1]) * size)
    mean = mul(read(_group_sum(scope, x, size, lambda e: e), axes), literal(share))
    centred = scope.compute("sub", axes, sub(read(x, axes), mean))
    total = _group_sum(scope, centred, size, _square)
    return _scaled(scope, node, operands, centred, total, share)


def _group_sum(scope: Scope, x: Tensor, size: int, before: Callable[[Expr], Expr]) -> Tensor:
    """Σ over space and the `size` channels of a group; 1 in space, for every channel or for all."""
    channels = _fold(scope, "sum", x, tuple(range(1, len(x.shape) - 1)), before)
    if size == x.shape[-1]:
        return _fold(scope, "sum", channels, (len(x.shape) - 1,), lambda e: e)
    axes, near = axes_of(channels.shape), Axis("r", size)
    first = mul(floordiv(axes[-1].var, idx(size)), idx(size))
    element = channels[(*axes[:-1], add(first, near.var))]
    return scope.compute("sum", axes, Reduce("sum", element, (near,)))


def _scaled(
    scope: Scope, node: Node, operands: Operands, centred: Tensor, squares: Tensor, share: float
) -> Tensor:
    """centred / sqrt(squares·share + ε) · scale + bias, the operands behind the first."""
    axes = axes_of(centred.shape)
    variance = mul(read(squares, axes), literal(share))
    epsilon = literal(node.attrs.get("epsilon", 1e-5))
    body = mul(read(centred, axes), call("rsqrt", add(variance, epsilon)))
    body = mul(body, read(tensor(operands, 1), axes))
    bias = optional(operands, 2)
    return scope.compute("norm", axes, body if bias is None else add(body, read(bias, axes)))


def lrn(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """x / (bias + alpha/size · Σ x² over `size` neighbouring channels)^beta."""
    x = tensor(operands, 0)
    size, n_channels = int(node.attrs["size"]), x.shape[-1]
    axes, near = axes_of(x.shape), Axis("r", size)
    c = sub(add(axes[-1].var, near.var), idx((size - 1) // 2))
    inside = both(compare("ge", c, idx(0)), compare("lt", c, idx(n_channels)))
    element = x[(*axes[:-1], c)]
    body = Reduce("sum", select(inside, mul(element, element), ZERO), (near,))
    squares = scope.compute("squares", axes, body)
    scale = literal(node.attrs.get("alpha", 1e-4) / size)
    base = add(literal(node.attrs.get("bias", 1.0)), mul(read(squares, axes), scale))
    beta = literal(-node.attrs.get("beta", 0.75))
    return scope.compute("lrn", axes, mul(read(x, axes), binary("pow", base, beta)))


def global_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Mean or maximum over all spatial dimensions."""
    x = tensor(operands, 0)
    spatial = tuple(range(1, len(x.shape) - 1))
    op = "ReduceMean" if "Average" in node.op else "ReduceMax"
    return _reduced(scope, op, x, spatial, keep=True)
