"""Drawers of operators that work element by element or only move elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.fuzz.graphs import BOOL, FLOAT, INT, Drawer, Drawing, NotPossible

UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Softplus", "Softsign", "Sign")
UNARY += ("Floor", "Ceil", "Round", "Sin", "Cos", "Tan", "Atan", "Sinh", "Asinh", "Identity")
UNARY += ("Not", "IsNaN", "IsInf", "HardSwish", "Mish", "Gelu", "Reciprocal", "Cosh", "Dropout")
POSITIVE = ("Sqrt", "Log")
NARROW = ("Asin", "Acos", "Atanh")
SLOPED = ("LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "Shrink", "Swish")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Mod", "Sum", "Mean")
COMPARE = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
LOGIC = ("And", "Or", "Xor")


def unary(op: str, g: Drawing) -> None:
    dtype = BOOL if op == "Not" else FLOAT
    attrs = {"approximate": g.one_of(["none", "tanh"]), "detect_negative": g.int(0, 1)}
    g.node(op, [g.tensor(dtype=dtype)], **attrs)


def positive(op: str, g: Drawing) -> None:
    (x,) = g.node("Abs", [g.tensor()])
    (x,) = g.node("Add", [x, g.constant(np.float32(0.1))])
    g.node(op, [x])


def narrow(op: str, g: Drawing) -> None:
    (x,) = g.node("Tanh", [g.tensor()])
    (x,) = g.node("Mul", [x, g.constant(np.float32(0.9))])
    g.node(op, [x])


def sloped(op: str, g: Drawing) -> None:
    attrs = {name: round(g.rng.uniform(0.1, 2), 3) for name in ("alpha", "beta", "gamma", "lambd")}
    g.node(op, [g.tensor()], **{k: v for k, v in attrs.items() if g.maybe()})


def binary(op: str, g: Drawing) -> None:
    dtype = g.one_of([FLOAT, FLOAT, INT, "int32"]) if op in ("Add", "Sub", "Mul") else FLOAT
    x = g.tensor(dtype=dtype)
    y = g.alike(x)
    if op == "Div" and g.maybe(0.7):
        (y,) = g.node("Abs", [y]) if y in g.tensors else (g.constant(np.float32(1.5)),)
        (y,) = g.node("Add", [y, g.constant(np.float32(0.5))])
    if op == "Pow":
        (x,) = g.node("Abs", [x])
        y = g.constant(np.float32(g.one_of([2, 3, 0.5, -1, 0, 1.7])))
    if op == "PRelu":
        y = g.constant(g.values(g.shape_of(x)[-1:]))
    operands = [x, y] if op in ("Pow", "PRelu") or g.maybe(0.7) else [y, x]
    if op in ("Max", "Min", "Sum", "Mean") and g.maybe(0.3):
        operands = operands[:1] if g.maybe(0.3) else [*operands, x]
    if op == "PRelu" and not g.shape_of(x):
        raise NotPossible
    g.node(op, operands, fmod=1)


def compare(op: str, g: Drawing) -> None:
    x = g.tensor(dtype=g.one_of([FLOAT, FLOAT, INT, "int32"]))
    (y,) = g.node(op, [x, g.alike(x)])
    if g.maybe():
        g.node("Cast", [y], to=g.one_of([1, 6, 7, 9, 11]))


def logic(op: str, g: Drawing) -> None:
    x = g.tensor(dtype=BOOL)
    g.node(op, [x, g.alike(x)])


def cast(g: Drawing) -> None:
    g.node(
        "Cast", [g.tensor(dtype=g.one_of([FLOAT, INT, BOOL]))], to=g.one_of([1, 6, 7, 9, 10, 11])
    )


def clip(g: Drawing) -> None:
    x = g.tensor()
    low, high = sorted(g.rng.uniform(-1, 1) for _ in range(2))
    if g.opset < 11:
        bounds = {"min": low, "max": high}
        g.node("Clip", [x], **{k: v for k, v in bounds.items() if g.maybe(0.7)})
        return
    inputs = [g.constant(np.float32(v)) if g.maybe(0.7) else "" for v in (low, high)]
    while inputs and not inputs[-1]:
        inputs.pop()
    g.node("Clip", [x, *inputs])


def where(g: Drawing) -> None:
    x = g.tensor()
    (c,) = g.node("Greater", [x, g.alike(x)])
    g.node("Where", [c, x, g.alike(x)])


def transpose(g: Drawing) -> None:
    x = g.tensor(1)
    rank = len(g.shape_of(x))
    g.node("Transpose", [x], perm=g.rng.sample(range(rank), rank) if g.maybe(0.8) else None)


def reshape(g: Drawing) -> None:
    x = g.tensor()
    shape = list(g.shape_of(x))
    if shape and g.maybe(0.5):
        at = g.int(0, len(shape) - 1)
        target = [*shape[:at], -1, *([1] if g.maybe() else [])]
    elif g.maybe():
        target = [-1]
    else:
        target = [0 if g.maybe(0.3) else n for n in shape] + [1] * g.int(0, 1)
    g.node("Reshape", [x, g.constant(np.array(target, np.int64))])


def flatten(g: Drawing) -> None:
    x = g.tensor(1)
    rank = len(g.shape_of(x))
    g.node("Flatten", [x], axis=g.int(0 if g.opset < 11 else -rank, rank) if g.maybe(0.8) else None)


def squeeze(g: Drawing) -> None:
    x = g.tensor(1)
    shape = g.shape_of(x)
    ones = [n for n, extent in enumerate(shape) if extent == 1]
    axes = None
    if ones and g.maybe(0.8):
        signed = g.opset >= 11
        axes = [a - len(shape) if signed and g.maybe() else a for a in ones[: g.int(1, len(ones))]]
    inputs, attr = g.list_input(axes, 13)
    g.node("Squeeze", [x, *inputs], axes=attr)


def unsqueeze(g: Drawing) -> None:
    x = g.tensor(0, 4)
    rank = len(g.shape_of(x)) + (n := g.int(1, 2))
    axes = g.rng.sample(range(rank), n)
    if g.opset >= 11 and g.maybe():
        axes = [a - rank for a in axes]
    inputs, attr = g.list_input(axes if g.maybe() else sorted(axes), 13)
    g.node("Unsqueeze", [x, *inputs], axes=attr)


def concat(g: Drawing) -> None:
    x = g.tensor(1)
    shape = g.shape_of(x)
    axis = g.axis(len(shape)) if g.opset >= 11 else g.int(0, len(shape) - 1)
    others = []
    for _ in range(g.int(0, 2)):
        other = list(shape)
        other[axis] = g.int(1, 4)
        others.append(x if g.maybe(0.25) else g.new(tuple(other)))
    operands = [x, *others]
    g.rng.shuffle(operands)
    g.node("Concat", operands, axis=axis)


def split(g: Drawing) -> None:
    x = g.tensor(1)
    shape = g.shape_of(x)
    axis = g.axis(len(shape)) if g.opset >= 11 else g.int(0, len(shape) - 1)
    n = shape[axis]
    if n < 2:
        raise NotPossible
    cuts = sorted(g.rng.sample(range(1, n), min(n - 1, g.int(1, 2))))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    inputs, attr = g.list_input(sizes, 13)
    g.node("Split", [x, *inputs], len(sizes), axis=axis, split=attr)


def slice_(g: Drawing) -> None:
    x = g.tensor(1)
    shape = g.shape_of(x)
    axes = (
        g.axes(len(shape)) if g.opset >= 10 else sorted(a % len(shape) for a in g.axes(len(shape)))
    )
    starts, ends, steps = [], [], []
    for a in axes:
        n = shape[a]
        step = g.one_of([1, 1, 2, 3, -1, -2]) if g.opset >= 10 else 1
        first, last = sorted((g.int(0, n - 1), g.int(0, n - 1)))
        start, end = (first, last + 1) if step > 0 else (last, first - 1 if first else -n - 5)
        if end == n and g.maybe():
            end = g.one_of([n + 7, 2**31 - 1, 2**63 - 1])
        starts.append(start - n if g.maybe(0.3) else start)
        ends.append(end)
        steps.append(step)
    if g.opset < 10:
        g.node("Slice", [x], starts=starts, ends=ends, axes=axes)
        return
    inputs = [g.constant(np.array(v, np.int64)) for v in (starts, ends, axes)]
    if any(s != 1 for s in steps) or g.maybe(0.3):
        inputs.append(g.constant(np.array(steps, np.int64)))
    g.node("Slice", [x, *inputs])


def pad(g: Drawing) -> None:
    mode = g.one_of(["constant", "constant", "edge", "reflect", "wrap"])
    if mode == "wrap" and g.opset < 19:
        mode = "reflect"
    x = g.tensor(1, 4 if mode == "constant" else 3)
    shape = g.shape_of(x)
    most = [min(3, n - 1) if mode == "reflect" else min(3, n) for n in shape]
    low = -1 if mode == "constant" and g.maybe(0.3) else 0
    pads = [g.int(low if n > 2 else 0, max(m, 0)) for m, n in zip(most * 2, shape * 2, strict=True)]
    value = round(g.rng.uniform(-2, 2), 2)
    if g.opset < 11:
        g.node("Pad", [x], mode=mode, pads=pads, value=value)
        return
    inputs = [g.constant(np.array(pads, np.int64))]
    if mode == "constant" and g.maybe():
        inputs.append(g.constant(np.float32(value)))
    g.node("Pad", [x, *inputs], mode=mode)


def tile(g: Drawing) -> None:
    x = g.tensor(1, 4)
    repeats = [g.one_of([1, 1, 2, 3]) for _ in g.shape_of(x)]
    g.node("Tile", [x, g.constant(np.array(repeats, np.int64))])


def expand(g: Drawing) -> None:
    x = g.tensor(0, 4)
    shape = [g.int(1, 4) if n == 1 else (1 if g.maybe(0.2) else n) for n in g.shape_of(x)]
    if g.maybe(0.3):
        shape.insert(0, g.int(1, 3))
    g.node("Expand", [x, g.constant(np.array(shape, np.int64))])


def space(g: Drawing) -> None:
    block = g.int(2, 3)
    if g.maybe():
        x = g.new((g.int(1, 2), block * block * g.int(1, 3), g.int(1, 4), g.int(1, 4)))
        g.node("DepthToSpace", [x], blocksize=block, mode=g.one_of(["DCR", "CRD", None]))
    else:
        x = g.new((g.int(1, 2), g.int(1, 4), block * g.int(1, 3), block * g.int(1, 3)))
        g.node("SpaceToDepth", [x], blocksize=block)


def trilu(g: Drawing) -> None:
    x = g.tensor(2)
    k = [g.constant(np.int64(g.int(-4, 4)))] if g.maybe(0.7) else []
    g.node("Trilu", [x, *k], upper=g.int(0, 1) if g.maybe(0.8) else None)


def shape_chain(g: Drawing) -> None:
    """What exporters write for a reshape: shapes, gathered, and put together again."""
    x = g.tensor(2, 4)
    rank = len(g.shape_of(x))
    (s,) = g.node("Shape", [x])
    (first,) = g.node("Gather", [s, g.constant(np.array([g.int(-rank, rank - 1)]))], axis=0)
    (target,) = g.node("Concat", [g.constant(np.array([-1])), first], axis=0)
    g.node("Reshape", [x, target])


DRAWERS: dict[str, Drawer] = {
    **{op: partial(unary, op) for op in UNARY},
    **{op: partial(positive, op) for op in POSITIVE},
    **{op: partial(narrow, op) for op in NARROW},
    **{op: partial(sloped, op) for op in SLOPED},
    **{op: partial(binary, op) for op in BINARY},
    **{op: partial(compare, op) for op in COMPARE},
    **{op: partial(logic, op) for op in LOGIC},
    "Cast": cast,
    "Clip": clip,
    "Where": where,
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Tile": tile,
    "Expand": expand,
    "DepthToSpace": space,
    "Trilu": trilu,
    "Shape": shape_chain,
}
