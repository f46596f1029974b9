"""Drawers of operators that add up, look up or sample: windows, products, reductions, indices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.fuzz.graphs import Drawer, Drawing

REDUCE = ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
AUTO = ("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def reduction(op: str, g: Drawing) -> None:
    x = g.tensor(1)
    if op == "LogSum":
        (x,) = g.node("Abs", [x])
    rank = len(g.shape_of(x))
    axes = g.axes(rank) if g.maybe(0.8) else None
    if axes is not None and g.opset < 11:
        axes = [a % rank for a in axes]
    inputs, attr = g.list_input(axes, 13 if op == "Sum" else 18)
    noop = g.int(0, 1) if axes is None else None
    keep = g.int(0, 1) if g.maybe(0.8) else None
    g.node(f"Reduce{op}", [x, *inputs], axes=attr, keepdims=keep, noop_with_empty_axes=noop)


def spatial(g: Drawing, transposed: bool = False) -> tuple[int, dict[str, Any]]:
    """The number of spatial dimensions and attributes of a window over them."""
    n = g.one_of([1, 2, 2, 2, 3])
    kernel = [g.int(1, 4) for _ in range(n)]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if g.maybe():
        attrs["strides"] = [g.int(1, 3) for _ in range(n)]
    if g.maybe(0.3):
        attrs["dilations"] = [g.int(1, 3) for _ in range(n)]
    attrs["auto_pad"] = g.one_of(AUTO)
    if attrs["auto_pad"] == "NOTSET" and g.maybe(0.7):
        attrs["pads"] = [g.int(0, k - 1) for k in kernel * 2]
    if attrs["auto_pad"] != "NOTSET" and not transposed and "dilations" in attrs:
        del attrs["dilations"]
    return n, attrs


def image(g: Drawing, n: int, channels: int) -> str:
    """An image of at least what the largest window covers; one made before where it fits."""
    fitting = [
        t
        for t, (s, d) in g.tensors.items()
        if d == "float32" and len(s) == n + 2 and s[1] == channels and min(s[2:]) >= 4
    ]
    if fitting and g.maybe():
        return fitting[-1]
    least = 5 if n == 3 else 4
    return g.input((g.int(1, 2), channels, *(g.int(least, 11 if n < 3 else 6) for _ in range(n))))


def conv(g: Drawing) -> None:
    n, attrs = spatial(g)
    group = g.one_of([1, 1, 1, 2, 3])
    per_group, out = g.int(1, 4), g.int(1, 5)
    x = image(g, n, group * per_group)
    w = g.new((out * group, per_group, *attrs["kernel_shape"]), constant=0.9)
    b = [g.new((out * group,), constant=0.9)] if g.maybe() else []
    if g.maybe(0.2):
        del attrs["kernel_shape"]
    g.node("Conv", [x, w, *b], group=group if group > 1 or g.maybe() else None, **attrs)


def conv_transpose(g: Drawing) -> None:
    n, attrs = spatial(g, transposed=True)
    group = g.one_of([1, 1, 2])
    per_group, out = g.int(1, 3), g.one_of([1, 2, 3, 17])
    x = image(g, n, group * per_group)
    strides = attrs.get("strides", [1] * n)
    if g.maybe(0.3) and max(strides) > 1:
        attrs["output_padding"] = [g.int(0, s - 1) for s in strides]
    w = g.new((group * per_group, out, *attrs["kernel_shape"]), constant=0.8)
    b = [g.new((out * group,), constant=0.8)] if g.maybe() else []
    g.node("ConvTranspose", [x, w, *b], group=group, **attrs)


def pool(op: str, g: Drawing) -> None:
    n, attrs = spatial(g)
    if op == "LpPool":
        attrs["p"] = g.int(1, 3)
    else:
        attrs["ceil_mode"] = g.int(0, 1) if g.opset >= 10 and g.maybe() else None
    if op == "AveragePool":
        attrs["count_include_pad"] = g.int(0, 1)
    wants_places = op == "MaxPool" and g.opset >= 8 and g.maybe(0.2)
    attrs["storage_order"] = g.int(0, 1) if wants_places else None
    g.node(op, [image(g, n, g.int(1, 5))], 2 if wants_places else 1, **attrs)


def global_pool(op: str, g: Drawing) -> None:
    g.node(op, [g.tensor(3, 5)], p=g.int(1, 3))


def matmul(g: Drawing) -> None:
    x = g.tensor(1, 4)
    shape = g.shape_of(x)
    batch = [1 if g.maybe(0.3) else n for n in shape[:-2]]
    other = (*batch[g.int(0, len(batch)) :], shape[-1], g.int(1, 7)) if g.maybe(0.8) else shape[-1:]
    g.node("MatMul", [x, g.new(tuple(other), constant=0.6)])


def gemm(g: Drawing) -> None:
    x = g.tensor(2, 2)
    a, b = g.int(0, 1), g.int(0, 1)
    rows, inner = g.shape_of(x)[:: -1 if a else 1]
    out = g.int(1, 9)
    w = g.new((out, inner) if b else (inner, out), constant=0.7)
    bias = g.one_of([(out,), (1, out), (rows, out), (rows, 1), (1,), None])
    if bias is None and g.opset < 11:
        bias = (out,)
    c = [] if bias is None else [g.new(bias, constant=0.7)]
    scales = {k: round(g.rng.uniform(-2, 2), 2) for k in ("alpha", "beta") if g.maybe()}
    g.node("Gemm", [x, w, *c], transA=a, transB=b, **scales)


EQUATIONS = ("ij,jk->ik", "ij->ji", "bij,bjk->bik", "ij,kj->ik", "bhid,bhjd->bhij", "ij->i")
EQUATIONS += (
    "i,j->ij",
    "ii->i",
    "ij,ij->",
    "...ij,...jk->...ik",
    "ij,jk,kl->il",
    "ij,j->i",
    "ij->",
)
EQUATIONS += ("bij,bkj", "ij , jk -> ik", "ab,cd->abcd", "abc,abc->bc", "ba,b->a")


def einsum(g: Drawing) -> None:
    equation = g.one_of(EQUATIONS)
    extents = {c: g.int(1, 5) for c in "abcdhijkl"}
    operands = equation.replace(" ", "").split("->")[0].split(",")
    shapes = [[extents[c] for c in o.replace("...", "")] for o in operands]
    lead = [g.int(1, 3)] if "..." in equation else []
    g.node("Einsum", [g.new((*lead, *s)) for s in shapes], equation=equation)


def normalisation(op: str, g: Drawing) -> None:
    if op == "LayerNormalization":
        x = g.tensor(1, 4)
        axis = g.axis(len(g.shape_of(x)))
        shape = g.shape_of(x)[axis:]
        inputs = [g.constant(g.values(shape))] + (
            [g.constant(g.values(shape))] if g.maybe() else []
        )
        g.node(op, [x, *inputs], axis=axis, epsilon=1e-3)
        return
    x = g.tensor(3, 5)
    channels = g.shape_of(x)[1]
    scale, bias, mean = (g.constant(g.values((channels,))) for _ in range(3))
    match op:
        case "BatchNormalization":
            variance = g.constant(np.abs(g.values((channels,))) + np.float32(0.1))
            g.node(op, [x, scale, bias, mean, variance], epsilon=g.one_of([1e-5, 1e-3, None]))
        case "InstanceNormalization":
            g.node(op, [x, scale, bias], epsilon=1e-2)
        case "GroupNormalization":
            groups = g.one_of([n for n in (1, 2, 3, 4) if channels % n == 0])
            if g.opset < 21:
                scale, bias = (g.constant(g.values((groups,))) for _ in range(2))
            g.node(op, [x, scale, bias], num_groups=groups, epsilon=1e-2)
        case "LRN":
            g.node(op, [x], size=g.one_of([1, 3, 5]), alpha=0.3, beta=0.7, bias=1.5)


def softmax(op: str, g: Drawing) -> None:
    x = g.tensor(1)
    rank = len(g.shape_of(x))
    axis = g.axis(rank) if g.opset >= 11 else g.int(0, rank - 1)
    g.node(op, [x], axis=axis if g.maybe(0.8) else None, p=g.int(1, 2))


def arg(op: str, g: Drawing) -> None:
    x = g.tensor(1)
    rank = len(g.shape_of(x))
    axis = g.axis(rank) if g.opset >= 11 else g.int(0, rank - 1)
    g.node(op, [x], axis=axis, keepdims=g.int(0, 1), select_last_index=g.int(0, 1))


def cumsum(g: Drawing) -> None:
    x = g.tensor(1)
    axis = g.constant(np.array(g.axis(len(g.shape_of(x))), g.one_of([np.int64, np.int32])))
    g.node("CumSum", [x, axis], exclusive=g.int(0, 1), reverse=g.int(0, 1))


def top_k(g: Drawing) -> None:
    x = g.tensor(1)
    shape = g.shape_of(x)
    axis = g.axis(len(shape)) if g.opset >= 11 else g.int(0, len(shape) - 1)
    k = g.int(1, shape[axis])
    attrs = {"axis": axis, "largest": g.int(0, 1), "sorted": 1}
    if g.opset < 10:
        g.node("TopK", [x], 2, axis=axis, k=k)
    else:
        g.node("TopK", [x, g.constant(np.array([k], np.int64))], 2, **attrs)


def gather(op: str, g: Drawing) -> None:
    x = g.tensor(1, 4)
    shape = g.shape_of(x)
    axis = g.axis(len(shape)) if g.opset >= 11 else g.int(0, len(shape) - 1)
    n, low = shape[axis], -shape[axis] if g.opset >= 11 else 0
    if op == "GatherND":
        batch = g.int(0, min(1, len(shape) - 1)) if g.opset >= 12 else 0
        depth = g.int(1, len(shape) - batch)
        rows = (*shape[:batch], *g.shape(1, 2, 3))
        parts = [g.numbers.integers(-m, m, rows) for m in shape[batch : batch + depth]]
        g.node(op, [x, g.constant(np.stack(parts, -1))], batch_dims=batch or None)
        return
    where = g.shape(0, 2, 4)
    if op == "GatherElements":
        where = tuple(g.int(1, m) for m in shape)
    dtype = g.one_of([np.int64, np.int32])
    g.node(op, [x, g.constant(g.numbers.integers(low, n, where).astype(dtype))], axis=axis)


def scatter(op: str, g: Drawing) -> None:
    x = g.tensor(1, 3)
    shape = g.shape_of(x)
    known = ["add", "mul"] if g.opset < 18 else ["add", "mul", "min", "max"]
    if g.opset >= 16 and g.maybe():
        scatter_many(op, g, x, g.one_of(known))
        return
    if op == "ScatterND":
        n = g.int(1, shape[0])
        rows = np.array(g.rng.sample(range(shape[0]), n))[:, None]
        g.node(op, [x, g.constant(rows), g.new((n, *shape[1:]))])
        return
    axis = g.axis(len(shape))
    order = np.stack(
        [g.numbers.permutation(shape[axis]) for _ in range(int(np.prod(shape)) // shape[axis])]
    )
    moved = [n for k, n in enumerate(shape) if k != axis % len(shape)]
    index = np.moveaxis(order.reshape(*moved, shape[axis]), -1, axis)
    g.node(op, [x, g.constant(index), g.new(shape)], axis=axis)


def scatter_many(op: str, g: Drawing, x: str, reduction: str) -> None:
    """Several updates of an element, at places that are known or not."""
    shape = g.shape_of(x)
    if op == "ScatterND":
        depth = g.int(1, len(shape))
        rows = (*g.shape(1, 2, 5), depth)
        limit, updates = min(shape[:depth]), (*rows[:-1], *shape[depth:])
        attrs: dict[str, Any] = {}
    else:
        axis = g.axis(len(shape))
        rows = updates = tuple(g.int(1, n) for n in shape)
        limit, attrs = shape[axis], {"axis": axis}
    if g.maybe():
        index = g.constant(g.numbers.integers(-limit, limit, rows))
    else:
        index = g.input(rows, "int64")
    g.node(op, [x, index, g.new(updates)], reduction=reduction, **attrs)


def one_hot(g: Drawing) -> None:
    n = g.int(2, 6)
    index = g.constant(g.numbers.integers(-n, n, g.shape(0, 2, 4)))
    inputs = [index, g.constant(np.int64(n)), g.new((2,))]
    g.node("OneHot", inputs, axis=g.one_of([-1, 0]))


def resize(g: Drawing) -> None:
    n = g.one_of([1, 2, 2])
    x = image(g, n, g.int(1, 3))
    shape = g.shape_of(x)
    scales = [1.0, 1.0, *(g.one_of([0.5, 0.6, 1, 1.5, 2, 2.3, 3]) for _ in range(n))]
    if g.opset < 11:
        mode = g.one_of(["nearest", "linear"]) if n == 2 else "nearest"
        op = "Upsample" if g.opset < 10 else "Resize"
        scales = [max(s, 1.0) for s in scales] if op == "Upsample" else scales
        if g.opset < 9:
            g.node(op, [x], mode=mode, scales=scales)
        else:
            g.node(op, [x, g.constant(np.array(scales, np.float32))], mode=mode)
        return
    modes = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
    modes += ["half_pixel_symmetric"] if g.opset >= 19 else []
    attrs: dict[str, Any] = {
        "mode": g.one_of(["nearest", "linear", "cubic"] if n == 2 else ["nearest", "linear"])
    }
    attrs["coordinate_transformation_mode"] = g.one_of(modes)
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = g.one_of(
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        )
    if attrs["mode"] == "cubic":
        attrs |= {"cubic_coeff_a": g.one_of([-0.5, -0.75]), "exclude_outside": g.int(0, 1)}
    if g.opset >= 18 and g.maybe(0.3):
        attrs["antialias"] = 0
    roi = g.constant(np.zeros(0, np.float32)) if g.opset < 13 else ""
    if g.maybe():
        g.node("Resize", [x, roi, g.constant(np.array(scales, np.float32))], **attrs)
    else:
        sizes = [round(m * s) or 1 for m, s in zip(shape, scales, strict=True)]
        none = g.constant(np.zeros(0, np.float32)) if g.opset < 13 else ""
        g.node("Resize", [x, roi, none, g.constant(np.array(sizes, np.int64))], **attrs)


def grid_sample(g: Drawing) -> None:
    x = image(g, 2, g.int(1, 3))
    batch = g.shape_of(x)[0]
    grid = g.input((batch, g.int(1, 4), g.int(1, 4), 2))
    mode = g.one_of(["bilinear", "nearest"] if g.opset < 20 else ["linear", "nearest"])
    padding = g.one_of(["zeros", "border", "reflection"])
    g.node("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=g.int(0, 1))


def recurrent(op: str, g: Drawing) -> None:
    steps, batch, inner, hidden = (g.int(1, 4) for _ in range(4))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    direction = g.one_of(["forward", "reverse", "bidirectional"])
    d = 2 if direction == "bidirectional" else 1
    x = g.new((steps, batch, inner), constant=0)
    w, r = (g.new((d, gates * hidden, k), constant=0.8) for k in (inner, hidden))
    b = g.new((d, 2 * gates * hidden), constant=0.8) if g.maybe(0.7) else ""
    h = g.new((d, batch, hidden)) if g.maybe(0.4) else ""
    inputs = [x, w, r, b, "", h]
    if op == "LSTM" and g.maybe(0.4):
        inputs.append(g.new((d, batch, hidden)))
    while not inputs[-1]:
        inputs.pop()
    attrs = {"linear_before_reset": g.int(0, 1)} if op == "GRU" else {}
    n = g.int(1, 3 if op == "LSTM" else 2)
    g.node(op, inputs, n, hidden_size=hidden, direction=direction, **attrs)


def attention(g: Drawing) -> None:
    """A product, a mask, rows normalised, a product, as exporters write them."""
    b, h, n, m, k = (g.int(1, 3) if i < 2 else g.int(2, 9) for i in range(5))
    q, key, v = g.input((b, h, n, k)), g.input((b, h, k, m)), g.input((b, h, m, k))
    (s,) = g.node("MatMul", [q, key])
    (s,) = g.node("Mul", [s, g.constant(np.float32(0.3))])
    if g.maybe():
        (s,) = g.node("Add", [s, g.new((b if g.maybe() else 1, 1, n if g.maybe() else 1, m))])
    (s,) = g.node("Softmax", [s], axis=-1 if g.opset >= 11 else 3)
    g.node("MatMul", [s, v])


def range_(g: Drawing) -> None:
    n = g.int(1, 6)
    bounds = [g.constant(np.float32(v)) for v in (0.5, 0.5 + n * 0.7, 0.7)]
    (r,) = g.node("Range", bounds)
    g.node("Mul", [r, g.input((n,))])


POOLS = ("MaxPool", "AveragePool", "LpPool")
GLOBAL = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
NORMALISE = ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN")

DRAWERS: dict[str, Drawer] = {
    **{f"Reduce{op}": partial(reduction, op) for op in REDUCE},
    **{op: partial(pool, op) for op in POOLS},
    **{op: partial(global_pool, op) for op in GLOBAL},
    **{op: partial(normalisation, op) for op in (*NORMALISE, "LayerNormalization")},
    **{op: partial(softmax, op) for op in ("Softmax", "LogSoftmax", "LpNormalization", "Hardmax")},
    **{op: partial(arg, op) for op in ("ArgMax", "ArgMin")},
    **{op: partial(gather, op) for op in ("Gather", "GatherElements", "GatherND")},
    **{op: partial(scatter, op) for op in ("ScatterND", "ScatterElements")},
    **{op: partial(recurrent, op) for op in ("RNN", "GRU", "LSTM")},
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "CumSum": cumsum,
    "TopK": top_k,
    "OneHot": one_hot,
    "Resize": resize,
    "GridSample": grid_sample,
    "attention": attention,
    "Range": range_,
}
