"""① Operators that slide a window over the spatial dimensions: convolution and pooling.

Activations are (n, …spatial…, c). Padding is a computation of its own, so that the scheduler may
inline it, compute it per tile, or once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.elementwise import ONE
from autotune.graph.operators.scope import (
    Operands,
    Scope,
    axes_of,
    literal,
    optional,
    read,
    tensor,
)
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    Tensor,
    add,
    binary,
    both,
    call,
    compare,
    idx,
    mul,
    select,
    sub,
    substitute,
)


class Window:
    """A sliding window over the spatial dimensions: kernel, strides, dilations, padding.

    `begin` is the padding before each dimension; what lies behind follows from the output's extent.
    """

    def __init__(self, node: Node, kernel: Shape, size: Shape, out: Shape) -> None:
        n = len(kernel)
        self.kernel, self.size, self.out = kernel, size, out
        self.strides = tuple(node.attrs.get("strides", (1,) * n))
        self.dilations = tuple(node.attrs.get("dilations", (1,) * n))
        pads = tuple(node.attrs.get("pads", (0,) * 2 * n))
        self.begin, self.end = pads[:n], pads[n:]
        mode = node.attrs.get("auto_pad", "NOTSET")
        if mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            total = [max(0, r - s) for r, s in zip(self.reach, size, strict=True)]
            total = [0] * n if mode == "VALID" else total
            self.begin = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)
            self.end = tuple(t - b for t, b in zip(total, self.begin, strict=True))

    @property
    def reach(self) -> Shape:
        """Extent of the padded input that the outputs touch."""
        return tuple(
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        )

    def live(self) -> tuple[tuple[range, ...], dict[str, object]]:
        """The taps of every dimension that meet more than padding, and a window's attributes so.

        All taps of a dimension where none does, or where what is left would begin inside the input.
        """
        kept, pads = [], []
        window = zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        for (o, s, k, d), b, e, h in zip(window, self.begin, self.end, self.size, strict=True):
            at = np.arange(k) * d - b  # of the first result; s further for each of the next
            first_met, last_met = np.maximum(0, -(at // s)), np.minimum(o - 1, (h - 1 - at) // s)
            met = np.flatnonzero(first_met <= last_met)
            first, last = (int(met[0]), int(met[-1])) if met.size else (0, k - 1)
            cut = first * d, (k - 1 - last) * d
            fits = cut[0] <= b
            kept.append(range(first, last + 1) if fits else range(k))
            pads.append((b - cut[0], max(0, e - cut[1])) if fits else (b, e))
        ends = (*(b for b, _ in pads), *(e for _, e in pads))
        attrs: dict[str, object] = {"pads": ends, "auto_pad": "NOTSET"}
        return tuple(kept), {**attrs, "kernel_shape": tuple(map(len, kept))}

    @property
    def taps(self) -> tuple[Axis, ...]:
        """Reduction axes over the kernel."""
        names = _names(_TAPS, len(self.kernel), "k")
        return tuple(Axis(name, extent) for name, extent in zip(names, self.kernel, strict=True))

    def at(self, outs: Sequence[Axis], taps: Sequence[Axis]) -> list[Expr]:
        """Index into the padded input of each spatial dimension."""
        parts = zip(outs, self.strides, taps, self.dilations, strict=True)
        return [add(mul(o.var, idx(s)), mul(t.var, idx(d))) for o, s, t, d in parts]

    def pad(self, scope: Scope, x: Tensor, value: float) -> Tensor:
        """x with `value` around the spatial dimensions, only as far as it is read."""
        n = len(self.kernel)
        parts = list(zip(self.begin, self.reach, self.size, strict=True))
        if all(b == 0 and r <= s for b, r, s in parts):
            return x
        behind = [r - b - s for b, r, s in parts]
        rest = len(x.shape) - n - 1
        begin = (0, *self.begin, *(0,) * rest)
        return padded(scope, x, begin, (0, *behind, *(0,) * rest), value)


_TAPS = {1: ("kw",), 2: ("kh", "kw"), 3: ("kd", "kh", "kw")}
_SPACE = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def _names(usual: Mapping[int, tuple[str, ...]], n: int, stem: str) -> tuple[str, ...]:
    """Names of `n` axes: the usual ones, or numbered."""
    return usual.get(n) or tuple(f"{stem}{i}" for i in range(n))


def padded(scope: Scope, x: Tensor, begin: Shape, end: Shape, value: float) -> Tensor:
    """pad[i…] = x[i - begin…] where that lies inside, else `value`; negative amounts crop."""
    shape = [b + n + e for b, n, e in zip(begin, x.shape, end, strict=True)]
    axes = axes_of(shape)
    tests: list[Expr] = []
    for a, b, n, e in zip(axes, begin, x.shape, end, strict=True):
        tests += [compare("ge", a.var, idx(b))] if b > 0 else []
        tests += [compare("lt", a.var, idx(b + n))] if e > 0 else []
    body = _through(scope, x, [sub(a.var, idx(b)) for a, b in zip(axes, begin, strict=True)])
    if tests:
        body = select(reduce(both, tests), body, literal(value))
    return scope.compute("pad", axes, body)


def _through(scope: Scope, x: Tensor, index: Sequence[Expr]) -> Expr:
    """x[index]; where x only rearranges another tensor, that tensor is read directly."""
    copied = scope.take_copy(x)
    if copied is None:
        return x[tuple(index)]
    return substitute(copied.body, {a.name: i for a, i in zip(copied.axes, index, strict=True)})


def conv(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Convolution, channels last: dense, depthwise or grouped by the form of the weight."""
    x, weight, bias = tensor(operands, 0), tensor(operands, 1), optional(operands, 2)
    kind = node.attrs["kind"]
    n_spatial = len(shape) - 2
    window = Window(node, weight.shape[:n_spatial], x.shape[1 : 1 + n_spatial], shape[1:-1])
    source = window.pad(scope, x, 0.0)
    n, outs = Axis("n", shape[0]), _space(shape[1:-1])
    taps = window.taps
    at = (n.var, *window.at(outs, taps))
    if kind == "depthwise":
        c = Axis("c", shape[-1])
        axes, reduced = (n, *outs, c), taps
        product = mul(source[(*at, c)], weight[(*taps, c)])
    elif kind == "dense":
        i, o = Axis("i", weight.shape[-2]), Axis("o", weight.shape[-1])
        axes, reduced = (n, *outs, o), (*taps, i)
        product = mul(source[(*at, i)], weight[(*taps, i, o)])
    else:
        g, i, o = (Axis(a, e) for a, e in zip("gio", weight.shape[-3:], strict=True))
        axes, reduced = (n, *outs, g, o), (*taps, i)
        product = mul(source[(*at, g, i)], weight[(*taps, g, i, o)])
    result = scope.compute("conv", axes, Reduce("sum", product, reduced))
    return biased(scope, result, bias)


def _space(extents: Shape) -> tuple[Axis, ...]:
    names = _names(_SPACE, len(extents), "d")
    return tuple(Axis(a, e) for a, e in zip(names, extents, strict=True))


def biased(scope: Scope, x: Tensor, bias: Tensor | None) -> Tensor:
    """x + bias, which varies along the last dimension (both, in a grouped convolution)."""
    if bias is None:
        return x
    axes = axes_of(x.shape)
    return scope.compute("add", axes, add(read(x, axes), read(bias, axes)))


def max_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Maximum over the window; what lies outside counts as -inf."""
    return _pool(scope, node, operands, shape, "max")


def average_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Mean over the window. The second operand is 1 / the number of elements that count."""
    total = _pool(scope, node, operands, shape, "sum")
    axes = axes_of(total.shape)
    return scope.compute("mul", axes, mul(read(total, axes), read(operands[1] or ONE, axes)))


def lp_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """(Σ |x|^p)^(1/p) over the window."""
    p = node.attrs.get("p", 2)
    total = _pool(scope, node, operands, shape, "sum", lambda e: _power(call("abs", e), p))
    axes = axes_of(total.shape)
    return scope.compute("root", axes, _root(read(total, axes), p))


def _root(e: Expr, p: float) -> Expr:
    """The p-th root of what is not negative; a power of any number costs ten times as much."""
    if p in (1, 2):
        return e if p == 1 else call("sqrt", e)
    return call("exp", mul(call("log", e), literal(1 / p)))


_MOST_FACTORS = 4
"""Whole exponents up to this are products, which cost less than a power and are more exact."""


def _power(e: Expr, p: float) -> Expr:
    if p in range(1, _MOST_FACTORS + 1):
        return reduce(mul, [e] * int(p))
    return binary("pow", e, literal(p))


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
    n, outs, c = Axis("n", shape[0]), _space(shape[1:-1]), Axis("c", shape[-1])
    taps = window.taps
    body = Reduce(op, before(source[(n, *window.at(outs, taps), c)]), taps)
    return scope.compute(f"{op}_pool", (n, *outs, c), body)
