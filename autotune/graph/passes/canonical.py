"""① Many ways of writing an operator become one, so that later passes know few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from autotune.graph.ir import (
    Array,
    Editor,
    Graph,
    Node,
    float_array,
    is_denormal,
    moves_nothing,
    unsupported,
)
from autotune.graph.limits import check_constant
from autotune.graph.operators.blocks import running_sum
from autotune.graph.operators.contraction import einsum
from autotune.graph.operators.ranking import top_k
from autotune.graph.operators.recurrent import recurrent
from autotune.graph.operators.windows import Window
from autotune.graph.passes.upscale import columns_to_image, depth_to_space, transposed_convolution
from autotune.graph.refusals import attempt

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def canonical_operators(graph: Graph) -> Graph:
    """Reduce variants to one operator each.

    Reshape, Flatten, Squeeze, Unsqueeze -> Reshape of one input (chains -> the last one) ·
    Transpose of axes with one element -> Reshape ·
    Sum(a, b, c) -> Add(Add(a, b), c) · Gemm -> MatMul, Mul, Add · BatchNormalization -> Mul, Add ·
    Sub/Div by a constant -> Add/Mul · constants to the right of Add and Mul · ConvTranspose, Col2Im
    and DepthToSpace -> Conv, Interleave (see `upscale`) · Conv -> without taps on padding alone ·
    Einsum of labels and pairs (see `contraction`) · Tile -> Expand · GlobalLpPool and
    LpNormalization -> ReduceL1 or ReduceL2 · RNN, GRU and LSTM -> their steps (see `recurrent`) ·
    CumSum -> of blocks (see `blocks`) · TopK -> Rank, Ranked (see `ranking`) · OneHot -> Where.
    """
    editor = Editor(graph)
    for original in graph.nodes:
        node = editor.updated(original)
        rewrite = _CANONICAL.get(node.op)
        if rewrite is None:
            editor.emit(node)
        else:
            attempt(editor, node, partial(rewrite, editor, node))
    return editor.build()


def _reshape(editor: Editor, node: Node) -> None:
    editor.emit(replace(node, op="Reshape", inputs=node.inputs[:1], attrs={}))


def _transpose(editor: Editor, node: Node) -> None:
    """Transpose -> Reshape where only axes of extent 1 change places with others."""
    shape = editor.types[node.inputs[0]].shape
    axes = node.attrs.get("perm", range(len(shape))[::-1])
    if moves_nothing(axes, shape):
        _reshape(editor, node)
    else:
        editor.emit(node)


def _sum(editor: Editor, node: Node) -> None:
    """Sum, Max, Min and Mean of many -> a chain of two-operand ones; a mean is scaled."""
    op = "Add" if node.op in ("Sum", "Mean") else node.op
    result = node.output
    if node.op == "Mean":
        result = editor.new(f"{node.output}.sum", editor.types[node.output].shape)
    total = node.inputs[0]
    for n, name in enumerate(node.inputs[1:], 1):
        last = n == len(node.inputs) - 1
        shape = np.broadcast_shapes(editor.types[total].shape, editor.types[name].shape)
        dtype = editor.types[node.output].dtype
        out = result if last else editor.new(f"{node.output}.{n}", shape, dtype)
        editor.emit(Node(node.name, op, (total, name), (out,)))
        total = out
    if node.op == "Mean":
        share = editor.constant(f"{node.output}.share", np.full(1, 1 / len(node.inputs), "f4"))
        editor.emit(Node(node.name, "Mul", (total, share), node.outputs))


def _tile(editor: Editor, node: Node) -> None:
    """Tile -> Reshape to (…, 1, n, …), Expand to (…, repeats, n, …), Reshape."""
    repeats = editor.constants.get(node.inputs[1])
    if repeats is None:
        raise unsupported(node, editor.graph, "its repeats are computed at run time")
    kind = editor.types[node.inputs[0]]
    apart = [d for n in kind.shape for d in (1, n)]
    wide = [d for r, n in zip(repeats.tolist(), kind.shape, strict=True) for d in (r, n)]
    split = editor.new(f"{node.output}.apart", apart, kind.dtype)
    tiled = editor.new(f"{node.output}.tiled", wide, kind.dtype)
    editor.emit(Node(node.name, "Reshape", node.inputs[:1], (split,)))
    editor.emit(Node(node.name, "Expand", (split,), (tiled,)))
    editor.emit(Node(node.name, "Reshape", (tiled,), node.outputs))


def _global_lp_pool(editor: Editor, node: Node) -> None:
    """GlobalLpPool -> ReduceL1 or ReduceL2 over the spatial dimensions."""
    p = node.attrs.get("p", 2)
    if p not in (1, 2):
        raise unsupported(node, editor.graph, f"p = {p}")
    axes = tuple(range(2, len(editor.types[node.output].shape)))
    editor.emit(replace(node, op=f"ReduceL{p}", attrs={"axes": axes, "keepdims": 1}))


def _lp_normalisation(editor: Editor, node: Node) -> None:
    """LpNormalization -> x / max(ReduceL1 or ReduceL2 of x, what is not denormal): 0 / 0 is 0."""
    kind = editor.types[node.output]
    axis = node.attrs.get("axis", -1) % len(kind.shape)
    shape = (*kind.shape[:axis], 1, *kind.shape[axis + 1 :])
    norm, divisor = (editor.new(f"{node.output}.{n}", shape) for n in ("norm", "divisor"))
    attrs = {"axes": (axis,), "keepdims": 1}
    editor.emit(Node(node.name, f"ReduceL{node.attrs.get('p', 2)}", node.inputs, (norm,), attrs))
    least = editor.constant(f"{node.output}.least", np.finfo(np.float32).tiny.reshape(1))
    editor.emit(Node(node.name, "Max", (norm, least), (divisor,)))
    editor.emit(Node(node.name, "Div", (node.inputs[0], divisor), node.outputs))


def _float_power(editor: Editor, node: Node) -> None:
    """Pow with a constant exponent of whole numbers -> with one of floats."""
    x, power = node.inputs
    value = editor.constants.get(power)
    if value is not None and editor.types[x].dtype == "float32" != value.dtype:
        node = replace(node, inputs=(x, editor.constant(f"{power}.float", float_array(value))))
    editor.emit(node)


def _gemm(editor: Editor, node: Node) -> None:
    a, b = node.inputs[:2]
    c = node.inputs[2] if len(node.inputs) > 2 else ""
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    if node.attrs.get("transB", 0) and b in editor.constants:
        b = editor.constant(f"{b}.t", editor.constants[b].T)
        trans_b = 0
    else:
        trans_b = int(node.attrs.get("transB", 0))
    attrs = {"trans_a": int(node.attrs.get("transA", 0)), "trans_b": trans_b}
    shape = editor.types[node.output].shape
    steps: list[tuple[str, tuple[str, ...], dict[str, int]]] = [("MatMul", (a, b), attrs)]
    if alpha != 1.0:
        steps.append(("Mul", (editor.constant("alpha", np.float32(alpha).reshape(1)),), {}))
    if c and beta != 0.0:
        if beta != 1.0 and c not in editor.constants:
            scaled = editor.new(f"{c}.beta", editor.types[c].shape)
            factor = editor.constant("beta", np.float32(beta).reshape(1))
            editor.emit(Node(node.name, "Mul", (c, factor), (scaled,)))
            c = scaled
        elif beta != 1.0:
            c = editor.constant(f"{c}.beta", editor.constants[c] * np.float32(beta))
        steps.append(("Add", (c,), {}))
    previous: tuple[str, ...] = ()
    for n, (op, inputs, extra) in enumerate(steps, 1):
        last = n == len(steps)
        out = node.output if last else editor.new(f"{node.output}.{op.lower()}", shape)
        editor.emit(Node(node.name, op, previous + inputs, (out,), extra))
        previous = (out,)


def _batch_norm(editor: Editor, node: Node) -> None:
    """y = (x - mean) · scale / sqrt(var + ε) + bias, as one Mul and one Add."""
    params = [editor.constants.get(n) for n in node.inputs[1:5]]
    if node.attrs.get("training_mode", 0) or any(p is None for p in params):
        raise unsupported(node, editor.graph, "only inference with constant parameters")
    scale, bias, mean, var = (p.astype(np.float64) for p in params if p is not None)
    factor = scale / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    rank = len(editor.types[node.output].shape)
    dims = (-1,) + (1,) * (rank - 2)
    mul = editor.constant(f"{node.output}.scale", factor.reshape(dims).astype(np.float32))
    add = editor.constant(
        f"{node.output}.shift", (bias - mean * factor).reshape(dims).astype(np.float32)
    )
    scaled = editor.new(f"{node.output}.scaled", editor.types[node.output].shape)
    editor.emit(Node(node.name, "Mul", (node.inputs[0], mul), (scaled,)))
    editor.emit(Node(node.name, "Add", (scaled, add), node.outputs[:1]))


def _cast(editor: Editor, node: Node) -> None:
    """The number of a type -> its name."""
    editor.emit(replace(node, attrs={"to": editor.types[node.output].dtype}))


def _commute(editor: Editor, node: Node) -> None:
    a, b = node.inputs
    inputs = (b, a) if a in editor.constants and b not in editor.constants else (a, b)
    editor.emit(replace(node, inputs=inputs))


def _inverse(editor: Editor, node: Node) -> None:
    """x - c -> x + (-c);  x / c -> x · (1/c), where 1/c is no denormal number."""
    a, b = node.inputs
    if b not in editor.constants or editor.types[b].dtype != "float32":
        editor.emit(node)
        return
    value = editor.constants[b]
    with np.errstate(all="ignore"):
        op, inverse = ("Add", -value) if node.op == "Sub" else ("Mul", np.float32(1) / value)
    if op == "Mul" and is_denormal(inverse).any():
        editor.emit(node)
        return
    editor.emit(replace(node, op=op, inputs=(a, editor.constant(f"{b}.inverse", inverse))))


def _live_taps(editor: Editor, node: Node) -> None:
    """Conv without the outer taps that meet only padding, as those of a large dilation do."""
    weight = editor.constants.get(node.inputs[1])
    if weight is not None:
        size, out = editor.types[node.inputs[0]].shape[2:], editor.types[node.output].shape[2:]
        live, attrs = Window(node, weight.shape[2:], size, out).live()
        kept = [slice(None)] * 2 + [slice(t.start, t.stop) for t in live]
        taps = weight[tuple(kept)]
        if taps.shape != weight.shape:
            name = editor.constant(f"{node.inputs[1]}.live", np.ascontiguousarray(taps))
            inputs = (node.inputs[0], name, *node.inputs[2:])
            node = replace(node, inputs=inputs, attrs={**node.attrs, **attrs})
    editor.emit(node)


def _one_hot(editor: Editor, node: Node) -> None:
    """OneHot -> Where(index == 0, 1, 2, …; on, off); negative indices count from the end."""
    index, depth, pair = node.inputs
    n, values = editor.constants.get(depth), editor.constants.get(pair)
    if n is None or values is None:
        raise unsupported(node, editor.graph, "its depth or values are computed at run time")
    shape, kind = list(editor.types[node.output].shape), editor.types[index].dtype
    axis = node.attrs.get("axis", -1) % len(shape)
    wide = [1 if a == axis else d for a, d in enumerate(shape)]
    check_constant(node, 8 * shape[axis])
    extent = np.array(n.reshape(-1)[0], kind)

    def emit(op: str, inputs: tuple[str, ...], dims: list[int], dtype: str) -> str:
        name = editor.new(f"{node.output}.{op.lower()}", dims, dtype)
        editor.emit(Node(node.name, op, inputs, (name,)))
        return name

    def constant(value: Array) -> str:
        return editor.constant(f"{node.output}.value", value)

    at = emit("Reshape", (index,), wide, kind)
    below = emit("Less", (at, constant(np.zeros(1, kind))), wide, "bool")
    moved = emit("Add", (at, constant(extent.reshape(1))), wide, kind)
    at = emit("Where", (below, moved, at), wide, kind)
    places = np.arange(int(extent)).astype(kind)
    places = places.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    hot = emit("Equal", (at, constant(places)), shape, "bool")
    off, on = (constant(v.reshape(1)) for v in values)
    editor.emit(Node(node.name, "Where", (hot, on, off), node.outputs))


_CANONICAL: dict[str, Callable[[Editor, Node], None]] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    "Transpose": _transpose,
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), _sum),
    **dict.fromkeys(("Add", "Mul"), _commute),
    **dict.fromkeys(("Sub", "Div"), _inverse),
    "Cast": _cast,
    "Gemm": _gemm,
    "BatchNormalization": _batch_norm,
    "Conv": _live_taps,
    "ConvTranspose": transposed_convolution,
    "Col2Im": columns_to_image,
    "DepthToSpace": depth_to_space,
    "Einsum": einsum,
    "Tile": _tile,
    "GlobalLpPool": _global_lp_pool,
    "LpNormalization": _lp_normalisation,
    "Pow": _float_power,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), recurrent),
    "CumSum": running_sum,
    "TopK": top_k,
    "OneHot": _one_hot,
}
