"""① Pooling: reductions over a sliding window of every channel, activations channels last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from autotune.graph.ir import Array, Node, Shape
from autotune.graph.limits import check_constant
from autotune.graph.operators.definition import (
    FLOATS,
    Factors,
    Folding,
    Layout,
    Operands,
    Operator,
    Scope,
    Trait,
    axes_of,
    literal,
    read,
    tensor,
    typed,
)
from autotune.graph.operators.windows import Window, check_window, space_axes
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    Tensor,
    binary,
    both,
    call,
    compare,
    dtype_of,
    f32,
    idx,
    mul,
    select,
)


def _max_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Maximum over the window; padding is -inf."""
    return _pool(scope, node, operands, shape, "max")


def _average_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Mean over the window. The second operand is 1 / the number of elements that count."""
    total = _pool(scope, node, operands, shape, "sum")
    axes = axes_of(total.shape)
    return scope.compute("mul", axes, read(total, axes) * read(operands[1] or f32(1.0), axes))


def _lp_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """(Σ |x|^p)^(1/p) over the window."""
    p = node.attrs.get("p", 2)
    total = _pool(scope, node, operands, shape, "sum", lambda e: _power(call("abs", e), p))
    axes = axes_of(total.shape)
    return scope.compute("root", axes, _root(read(total, axes), p))


def _place(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Flat index (in ONNX's layout of x) of the first largest element of each window.

    `storage_order` 1: the first spatial dimension is the fastest. NaN counts as the largest.
    """
    x = tensor(operands, 0)
    size = x.shape[1:-1]
    window = Window(node, tuple(node.attrs["kernel_shape"]), size, shape[1:-1])
    source = window.pad(scope, x, -math.inf)
    n, outs, c = Axis("n", x.shape[0]), space_axes(shape[1:-1]), Axis("c", x.shape[-1])
    taps = window.taps
    padded = window.at(outs, taps)
    element = source[(n, *padded, c)]
    axes = (n, *outs, c)
    best = scope.compute("max_pool", axes, Reduce("max", element, taps))[axes]
    at = [p - b for p, b in zip(padded, window.begin, strict=True)]
    is_best = compare("eq", element, best) | compare("ne", element, element)
    if source is not x:  # where all is -inf, padding is too
        inside = ((p >= 0) & (p < h) for p, h in zip(at, size, strict=True))
        is_best = reduce(both, inside) & is_best
    most = idx(math.prod(x.shape))
    place: Expr = idx(0)
    for p, h in zip(at, size, strict=True):
        place = place * h + p
    first = Reduce("min", select(is_best, place, most), taps)
    inner: Expr = scope.compute("place", axes, first)[axes]
    if node.attrs.get("storage_order", 0):
        inner = _turned(inner, size)
    plane = n * c.extent + c
    return scope.compute("places", axes, plane * math.prod(size) + inner)


def _turned(place: Expr, size: Shape) -> Expr:
    """A position of a flattened box, of the same box with its dimensions in reverse order."""
    turned: Expr = idx(0)
    for h in size[::-1]:
        turned = turned * h + place % h
        place = place // h
    return turned


def _root(e: Expr, p: float) -> Expr:
    """The p-th root of a nonnegative number; a general power costs ten times as much."""
    if p in (1, 2):
        return e if p == 1 else call("sqrt", e)
    return call("exp", call("log", e) * literal(1 / p, dtype_of(e)))


_MOST_FACTORS = 4
"""Whole exponents up to this are products, which cost less than a power and are more exact."""


def _power(e: Expr, p: float) -> Expr:
    if p in range(1, _MOST_FACTORS + 1):
        return reduce(mul, [e] * int(p))
    return binary("pow", e, literal(p, dtype_of(e)))


def _pool(
    scope: Scope,
    node: Node,
    operands: Operands,
    shape: Shape,
    op: str,
    before: Callable[[Expr], Expr] = lambda e: e,
) -> Tensor:
    x = tensor(operands, 0)
    window = Window(node, tuple(node.attrs["kernel_shape"]), x.shape[1:-1], shape[1:-1])
    source = window.pad(scope, x, -math.inf if op == "max" else 0.0)
    n, outs, c = Axis("n", x.shape[0]), space_axes(shape[1:-1]), Axis("c", x.shape[-1])
    taps = window.taps
    body = Reduce(op, before(source[(n, *window.at(outs, taps), c)]), taps)
    return scope.compute(f"{op}_pool", (n, *outs, c), body)


# --- rewrites ---------------------------------------------------------------------------------


def _window(rw: Rewriter) -> Window:
    size, out = rw.kind(0).shape[1:-1], rw.type.shape[1:-1]
    return Window(rw.node, tuple(rw.attr("kernel_shape")), size, out)


def _counted_pool(rw: Rewriter) -> None:
    """AveragePool with a second operand: 1 / the number of elements that count."""
    window = _window(rw)
    check_constant(rw.node, 8 * math.prod(window.out))
    counts = np.ones((), np.int64)
    for n in range(len(window.size)):
        counts = np.multiply.outer(counts, _n_counted(window, n, rw.node))
    scale = (1.0 / np.maximum(counts, 1)).astype(rw.type.dtype)
    scale = scale.reshape(-1)[:1] if (scale == scale.flat[0]).all() else scale[..., None]
    rw.again(rw.input(0), rw.array(scale), **window.live()[1])


def _max_pools(rw: Rewriter) -> None:
    """MaxPool -> MaxPool and PoolPlace, one for each of its results; of bytes in float32."""
    x, dtype, attrs = rw.input(0), rw.kind(0).dtype, rw.node.attrs
    is_bytes = dtype in ("int8", "uint8")
    if not is_bytes and not rw.wants(1):
        return
    shape = next(rw.types[name].shape for name in rw.node.outputs if name)
    if is_bytes:
        x = rw("Cast", x, to="float32")
    place = rw("PoolPlace", x, shape=shape, dtype="int64", **attrs)
    value = rw("MaxPool", x, shape=shape, **attrs)
    rw.returns(rw("Cast", value, to=dtype) if is_bytes else value, place)


def _live_pool(rw: Rewriter) -> None:
    """Drop the outer taps that read only padding."""
    rw.again(**_window(rw).live()[1])


def _n_counted(window: Window, n: int, node: Node) -> Array:
    """Divisor of the average: counted taps of each output position along dimension `n`."""
    at = np.arange(window.out[n]) * window.strides[n] - window.begin[n]  # of the first tap
    step, padded = window.dilations[n], bool(node.attrs.get("count_include_pad", 0))
    end = window.size[n] + (window.end[n] if padded else 0)
    first = np.zeros_like(at) if padded else np.maximum(0, -(at // step))
    last = np.minimum(window.kernel[n] - 1, (end - 1 - at) // step)
    counted: Array = np.maximum(0, last - first + 1)
    return counted


def _pooling(takes_prologue: bool = False, **fields: Any) -> Operator:
    return Operator(
        factors=Factors(n_narrow=1, takes_prologue=takes_prologue),
        dtypes=FLOATS,
        layout=Layout.SPATIAL,
        typing=typed(before=check_window),
        folding=Folding.FINITE,
        **fields,
    )


OPERATORS: Mapping[str, Operator] = {
    "MaxPool": _pooling(
        define=_max_pool, takes_prologue=True, canonical=_max_pools, resolve=_live_pool
    ),
    "PoolPlace": Operator(define=_place, layout=Layout.SPATIAL, resolve=_live_pool),
    "AveragePool": _pooling(
        define=_average_pool,
        takes_prologue=True,
        constant_role="scale",
        traits=Trait.LITERALS,
        resolve=_counted_pool,
    ),
    "LpPool": _pooling(define=_lp_pool, resolve=_live_pool),
}
