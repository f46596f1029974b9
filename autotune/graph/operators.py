"""① What every operator means: ONNX semantics as te computations.

`OPERATORS[op]` defines an operator on tensors in memory layout (see `layout`): it takes the scope of
the subgraph, the node, and its operands, and returns the tensor it defines. `ELEMENTWISE[op]` gives
one element of the result from one element of each operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from autotune.errors import UnsupportedOperator
from autotune.graph.ir import Node, Shape
from autotune.graph.scope import Operand, Scope, axes_of, broadcast_shape, literal, read
from autotune.te.expr import (
    Axis,
    Call,
    Expr,
    Reduce,
    Tensor,
    add,
    as_index,
    binary,
    both,
    call,
    compare,
    div,
    f32,
    idx,
    maximum,
    minimum,
    mul,
    select,
    sub,
)

Operands: TypeAlias = Sequence[Operand | None]
Definition: TypeAlias = Callable[[Scope, Node, Operands, Shape], Tensor]
Attrs: TypeAlias = Mapping[str, Any]

# --- elementwise ------------------------------------------------------------------------------

ZERO, ONE = f32(0.0), f32(1.0)


def _clip(attrs: Attrs, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    floor = x if low is None else maximum(low, x)
    return floor if high is None else minimum(high, floor)


def _linear_clip(alpha: float, beta: float, x: Expr) -> Expr:
    line = add(mul(x, literal(alpha)), literal(beta))
    return minimum(ONE, maximum(ZERO, line))


def _elu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.0))
    return select(compare("lt", x, ZERO), mul(alpha, sub(call("exp", x), ONE)), x)


def _celu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.0))
    below = mul(alpha, sub(call("exp", div(x, alpha)), ONE))
    return add(maximum(ZERO, x), minimum(ZERO, below))


def _selu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.67326319217681884765625))
    gamma = literal(attrs.get("gamma", 1.05070102214813232421875))
    below = mul(alpha, sub(call("exp", x), ONE))
    return mul(gamma, select(compare("gt", x, ZERO), x, below))


def _leaky(attrs: Attrs, x: Expr) -> Expr:
    return select(compare("lt", x, ZERO), mul(x, literal(attrs.get("alpha", 0.01))), x)


def _prelu(attrs: Attrs, x: Expr, slope: Expr) -> Expr:
    return select(compare("lt", x, ZERO), mul(x, slope), x)


def _softplus(attrs: Attrs, x: Expr) -> Expr:
    """log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-|x|)."""
    return add(maximum(ZERO, x), call("log", add(ONE, call("exp", call("neg", call("abs", x))))))


def _gelu(attrs: Attrs, x: Expr) -> Expr:
    half = mul(literal(0.5), x)
    if attrs.get("approximate", "none") == "tanh":
        cube = mul(x, mul(x, x))
        inner = mul(literal(math.sqrt(2 / math.pi)), add(x, mul(literal(0.044715), cube)))
        return mul(half, add(ONE, call("tanh", inner)))
    return mul(half, add(ONE, call("erf", mul(x, literal(1 / math.sqrt(2))))))


def _unary(fn: str) -> Callable[..., Expr]:
    return lambda attrs, x: call(fn, x)


def _binary(op: str) -> Callable[..., Expr]:
    return lambda attrs, a, b: binary(op, a, b)


ELEMENTWISE: dict[str, Callable[..., Expr]] = {
    **{op: _binary(op.lower()) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")},
    **{
        op: _unary(op.lower())
        for op in ("Exp", "Log", "Sqrt", "Tanh", "Erf", "Sigmoid", "Abs", "Neg", "Floor", "Ceil")
    },
    "Round": _unary("round"),
    "Relu": lambda attrs, x: maximum(ZERO, x),
    "Clip": _clip,
    "Reciprocal": lambda attrs, x: div(ONE, x),
    "LeakyRelu": _leaky,
    "PRelu": _prelu,
    "ThresholdedRelu": lambda attrs, x: select(
        compare("gt", x, literal(attrs.get("alpha", 1.0))), x, ZERO
    ),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Softplus": _softplus,
    "Softsign": lambda attrs, x: div(x, add(ONE, call("abs", x))),
    "HardSigmoid": lambda attrs, x: _linear_clip(attrs.get("alpha", 0.2), attrs.get("beta", 0.5), x),
    "HardSwish": lambda attrs, x: mul(x, _linear_clip(1 / 6, 0.5, x)),
    "Gelu": _gelu,
    "Mish": lambda attrs, x: mul(x, call("tanh", _softplus(attrs, x))),
    "Sign": lambda attrs, x: select(
        compare("gt", x, ZERO), ONE, select(compare("lt", x, ZERO), f32(-1.0), ZERO)
    ),
    "Identity": lambda attrs, x: x,
}


def elementwise(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = f(a[i…], b[i…], …) with broadcasting."""
    axes = axes_of(broadcast_shape([o for o in operands if o is not None]))
    elements = [None if o is None else read(o, axes) for o in operands]
    return scope.compute(node.op.lower(), axes, ELEMENTWISE[node.op](node.attrs, *elements))


# --- windows: convolution and pooling -----------------------------------------------------------


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

    @property
    def taps(self) -> tuple[Axis, ...]:
        """Reduction axes over the kernel."""
        names = _TAPS[len(self.kernel)]
        return tuple(Axis(name, extent) for name, extent in zip(names, self.kernel, strict=True))

    def at(self, outs: Sequence[Axis], taps: Sequence[Axis]) -> list[Expr]:
        """Index into the padded input of each spatial dimension."""
        parts = zip(outs, self.strides, taps, self.dilations, strict=True)
        return [add(mul(o.var, idx(s)), mul(t.var, idx(d))) for o, s, t, d in parts]

    def pad(self, scope: Scope, x: Tensor, value: float) -> Tensor:
        """x with `value` around the spatial dimensions, only as far as it is read."""
        n = len(self.kernel)
        inside = all(b == 0 and r <= s for b, r, s in zip(self.begin, self.reach, self.size, strict=True))
        if inside:
            return x
        behind = [r - b - s for r, b, s in zip(self.reach, self.begin, self.size, strict=True)]
        rest = len(x.shape) - n - 1
        begin = (0, *self.begin, *(0,) * rest)
        return padded(scope, x, begin, (0, *behind, *(0,) * rest), value)


_TAPS = {1: ("kw",), 2: ("kh", "kw"), 3: ("kd", "kh", "kw")}
_SPACE = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def padded(scope: Scope, x: Tensor, begin: Shape, end: Shape, value: float) -> Tensor:
    """pad[i…] = x[i - begin…] where that lies inside, else `value`; negative amounts crop."""
    shape = [b + n + e for b, n, e in zip(begin, x.shape, end, strict=True)]
    axes = axes_of(shape)
    index = [as_index(a) if b == 0 else sub(a.var, idx(b)) for a, b in zip(axes, begin, strict=True)]
    inside: Expr | None = None
    for a, i, b, n, e in zip(axes, index, begin, x.shape, end, strict=True):
        tests = [compare("ge", a.var, idx(b))] if b > 0 else []
        tests += [compare("lt", a.var, idx(b + n))] if e > 0 else []
        for test in tests:
            inside = test if inside is None else both(inside, test)
    body = _through(scope, x, index)
    return scope.compute("pad", axes, body if inside is None else select(inside, body, literal(value)))


def _through(scope: Scope, x: Tensor, index: Sequence[Expr]) -> Expr:
    """x[index]; where x only rearranges another tensor, that tensor is read directly."""
    from autotune.te.dag import Compute
    from autotune.te.expr import substitute

    op = next((o for o in scope.ops if o.name == x.name), None)
    if isinstance(op, Compute) and x.name.startswith("transpose"):
        body = substitute(op.body, {a.name: i for a, i in zip(op.axes, index, strict=True)})
        scope.drop(x)
        return body
    return x[tuple(index)]


def conv(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Convolution, channels last: dense, depthwise or grouped by the form of the weight."""
    x, weight, bias = _tensors(operands, 3)
    assert x is not None and weight is not None
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
    return _biased(scope, result, bias)


def _space(extents: Shape) -> tuple[Axis, ...]:
    return tuple(Axis(a, e) for a, e in zip(_SPACE[len(extents)], extents, strict=True))


def _biased(scope: Scope, x: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return x
    axes = axes_of(x.shape)
    return scope.compute("add", axes, add(read(x, axes), read(bias, axes)))


def max_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Maximum over the window; what lies outside counts as -inf."""
    return _pool(scope, node, operands, shape, "max")


def average_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Mean over the window. `node.attrs["counts"]`: 1 / the number of elements that count."""
    total = _pool(scope, node, operands, shape, "sum")
    scale = operands[1]
    assert scale is not None
    axes = axes_of(total.shape)
    return scope.compute("mul", axes, mul(read(total, axes), read(scale, axes)))


def _pool(scope: Scope, node: Node, operands: Operands, shape: Shape, op: str) -> Tensor:
    x = operands[0]
    assert isinstance(x, Tensor)
    window = Window(node, tuple(node.attrs["kernel_shape"]), x.shape[1:-1], shape[1:-1])
    source = window.pad(scope, x, -math.inf if op == "max" else 0.0)
    n, outs, c = Axis("n", shape[0]), _space(shape[1:-1]), Axis("c", shape[-1])
    taps = window.taps
    body = Reduce(op, source[(n, *window.at(outs, taps), c)], taps)
    return scope.compute(f"{op}_pool", (n, *outs, c), body)


def global_pool(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Mean or maximum over all spatial dimensions."""
    x = operands[0]
    assert isinstance(x, Tensor)
    spatial = tuple(range(1, len(x.shape) - 1))
    op = "ReduceMean" if "Average" in node.op else "ReduceMax"
    return _reduced(scope, op, x, spatial, keep=True)


# --- matrix products ----------------------------------------------------------------------------


def matmul(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, m, n] = Σ a[…, m, k] · b[…, k, n] + bias[n], batches broadcast, vectors promoted."""
    a, b, bias = _tensors(operands, 3)
    assert a is not None and b is not None
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
    result = scope.compute("matmul", axes, Reduce("sum", product, (k,)))
    return _biased(scope, result, bias)


def _matmul_axes(shape: Shape) -> tuple[Axis, ...]:
    names = ["b", "m", "n"][-len(shape) :] if len(shape) < 4 else None
    names = names or [f"b{n}" for n in range(len(shape) - 2)] + ["m", "n"]
    return tuple(Axis(a, e) for a, e in zip(names, shape, strict=True))


def _batched(x: Tensor, batch: Sequence[Axis], inner: Sequence[Axis]) -> Expr:
    n_batch = len(x.shape) - len(inner)
    lead = batch[len(batch) - n_batch :]
    pairs = zip(x.shape, lead, strict=False)
    index = [idx(0) if extent == 1 else axis.var for extent, axis in pairs]
    return x[(*index, *inner)]


# --- reductions ---------------------------------------------------------------------------------


def softmax(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """exp(x - max) / Σ exp(x - max) along one axis; LogSoftmax its logarithm."""
    x = operands[0]
    assert isinstance(x, Tensor)
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
    return scope.compute("softmax", axes, div(read(powers, axes), read(total, axes)))


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


def reduction(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """A reduction over `node.attrs["axes"]`."""
    x = operands[0]
    assert isinstance(x, Tensor)
    keep = bool(node.attrs.get("keepdims", 1))
    return _reduced(scope, node.op, x, tuple(node.attrs["axes"]), keep)


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
    return scope.compute(op, outer or [Axis("n", 1)], Reduce(op, element, reduced))


def lrn(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """x / (bias + alpha/size · Σ x² over `size` neighbouring channels)^beta."""
    x = operands[0]
    assert isinstance(x, Tensor)
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


# --- rearrangements -----------------------------------------------------------------------------


def transpose(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i permuted]."""
    x = operands[0]
    assert isinstance(x, Tensor)
    perm = node.attrs["perm"]
    axes = axes_of([x.shape[p] for p in perm])
    return scope.compute("transpose", axes, x[tuple(axes[perm.index(n)] for n in range(len(perm)))])


def pad(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Constant, edge or reflect padding by `node.attrs["amounts"]`."""
    x = operands[0]
    assert isinstance(x, Tensor)
    amounts = node.attrs["amounts"]
    begin, end = amounts[: len(x.shape)], amounts[len(x.shape) :]
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        return padded(scope, x, begin, end, node.attrs.get("fill", 0.0))
    if mode not in ("edge", "reflect"):
        raise UnsupportedOperator(f"Pad with mode '{mode}' (node '{node.name}') is not supported")
    axes = axes_of(shape)
    index = []
    for a, b, n in zip(axes, begin, x.shape, strict=True):
        i = sub(a.var, idx(b))
        if mode == "reflect":
            i = select(compare("lt", i, idx(0)), sub(idx(0), i), i)
            i = select(compare("ge", i, idx(n)), sub(idx(2 * n - 2), i), i)
        index.append(maximum(idx(0), minimum(idx(n - 1), i)) if n != a.extent else as_index(a))
    return scope.compute("pad", axes, x[tuple(index)])


def slice_(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[start + step·i…] with `node.attrs["starts"]`, `["steps"]` per dimension."""
    x = operands[0]
    assert isinstance(x, Tensor)
    axes = axes_of(shape)
    parts = zip(axes, node.attrs["starts"], node.attrs["steps"], strict=True)
    index = [add(mul(a.var, idx(step)), idx(start)) for a, start, step in parts]
    return scope.compute("slice", axes, x[tuple(index)])


def concat(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Selects between the operands by position; used only where windows cannot do it."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    axis = node.attrs["axis"] % len(shape)
    axes = axes_of(shape)
    at = axes[axis].var
    body: Expr | None = None
    start = shape[axis]
    for x in reversed(tensors):
        start -= x.shape[axis]
        index = [sub(at, idx(start)) if n == axis else a.var for n, a in enumerate(axes)]
        element = x[tuple(index)]
        body = element if body is None else select(
            compare("lt", at, idx(start + x.shape[axis])), element, body
        )
    assert body is not None
    return scope.compute("concat", axes, body)


def expand(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Broadcast to `shape`."""
    x = operands[0]
    assert isinstance(x, Tensor)
    axes = axes_of(shape)
    return scope.compute("expand", axes, read(x, axes))


def upsample(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Nearest neighbour by whole factors: y[i…] = x[i // factor…]."""
    x = operands[0]
    assert isinstance(x, Tensor)
    axes = axes_of(shape)
    factors = [out // n for out, n in zip(shape, x.shape, strict=True)]
    index = [binary("floordiv", a.var, idx(f)) for a, f in zip(axes, factors, strict=True)]
    return scope.compute("upsample", axes, x[tuple(index)])


def _tensors(operands: Operands, n: int) -> list[Tensor | None]:
    full = [*operands, *(None,) * (n - len(operands))]
    return [o if isinstance(o, Tensor) else None for o in full]


OPERATORS: dict[str, Definition] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    "Conv": conv,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "MatMul": matmul,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "LRN": lrn,
    "Transpose": transpose,
    "Pad": pad,
    "Slice": slice_,
    "Concat": concat,
    "Expand": expand,
    "Resize": upsample,
}
