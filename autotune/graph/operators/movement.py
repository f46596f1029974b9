"""① Data movement: reshape, transpose, pad, slice, split, concatenate, repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Editor, Node, Shape, moves_nothing, unsupported
from autotune.graph.operators.definition import (
    Fusion,
    Layout,
    Operands,
    Operator,
    Scope,
    axes_of,
    inside,
    read,
    shape_text,
    tensor,
)
from autotune.graph.operators.windows import padded
from autotune.te.expr import (
    Expr,
    Tensor,
    add,
    compare,
    identity,
    idx,
    minimum,
    mod,
    mul,
    select,
    sub,
)


def _transpose(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i permuted]."""
    x = tensor(operands, 0)
    perm = node.attrs["perm"]
    axes = axes_of([x.shape[p] for p in perm])
    return scope.compute("transpose", axes, x[tuple(axes[perm.index(n)] for n in range(len(perm)))])


def _pad(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Constant, edge, reflect or wrap padding by `node.attrs["amounts"]`.

    Negative amounts crop first; the modes repeat elements that are left.
    """
    x = tensor(operands, 0)
    amounts = node.attrs["amounts"]
    begin, end = amounts[: len(x.shape)], amounts[len(x.shape) :]
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        return padded(scope, x, begin, end, node.attrs.get("fill", 0.0))
    axes = axes_of(shape)
    index: list[Expr] = []
    for a, b, e, n in zip(axes, begin, end, x.shape, strict=True):
        first, last = max(0, -b), n - 1 - max(0, -e)
        size = last - first + 1
        place = sub(a.var, idx(b + first))  # relative to the cropped operand
        if max(b, e) > 0:
            place = _REPEATED[mode](place, size, max(b, e))
        index.append(add(place, idx(first)))
    return scope.compute("pad", axes, x[tuple(index)])


def _edge(place: Expr, size: int, most: int) -> Expr:
    """An index outside of `size` elements -> the nearest end."""
    return inside(place, size)


def _reflect(place: Expr, size: int, most: int) -> Expr:
    """An index outside of `size` elements, by at most `most`, mirrored at the ends."""
    if size == 1:
        return idx(0)
    if most >= size:  # reflected more than once
        place = mod(place, idx(2 * size - 2))
        return minimum(place, sub(idx(2 * size - 2), place))
    place = select(compare("lt", place, idx(0)), sub(idx(0), place), place)
    place = select(compare("ge", place, idx(size)), sub(idx(2 * size - 2), place), place)
    return inside(place, size)


def _wrap(place: Expr, size: int, most: int) -> Expr:
    """An index outside of `size` elements, modulo `size`."""
    return inside(mod(place, idx(size)), size)


_REPEATED = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}


def _slice(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[start + step·i…] with `node.attrs["starts"]`, `["steps"]` per dimension."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    parts = zip(axes, node.attrs["starts"], node.attrs["steps"], strict=True)
    index = [add(mul(a.var, idx(step)), idx(start)) for a, start, step in parts]
    return scope.compute("slice", axes, x[tuple(index)])


def _triangle(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The elements of x on one side of diagonal `node.attrs["k"]` of its last two dimensions."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    row, column = add(axes[-2].var, idx(node.attrs["k"])), axes[-1].var
    kept = compare("ge" if node.attrs.get("upper", 1) else "le", column, row)
    return scope.compute("triangle", axes, select(kept, x[axes], identity("sum", x.dtype)))


def _concat(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Select between the operands by position; only where `storage` cannot place them as views."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    axis = node.attrs["axis"] % len(shape)
    axes = axes_of(shape)
    at = axes[axis].var
    body: Expr | None = None
    start = shape[axis]
    for x in reversed(tensors):
        start -= x.shape[axis]
        index = [sub(at, idx(start)) if n == axis else a.var for n, a in enumerate(axes)]
        element: Expr = x[tuple(index)]
        if body is not None:
            element = select(compare("lt", at, idx(start + x.shape[axis])), element, body)
        body = element
    assert body is not None
    return scope.compute("concat", axes, body)


def _expand(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Broadcast to `shape`; a number is stored as one element."""
    x = tensor(operands, 0)
    axes = axes_of(shape or (1,))
    return scope.compute("expand", axes, read(x, axes))


# --- rewrites in ONNX's order -----------------------------------------------------------------


def _to_reshape(editor: Editor, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze -> Reshape of one input: the output has the shape."""
    editor.emit(replace(node, op="Reshape", inputs=node.inputs[:1], attrs={}))


def _without_transposing(editor: Editor, node: Node) -> None:
    """Transpose -> Reshape where only dimensions of extent 1 move, else with explicit `perm`."""
    shape = editor.types[node.inputs[0]].shape
    axes = node.attrs.get("perm", range(len(shape))[::-1])
    if moves_nothing(axes, shape):
        _to_reshape(editor, node)
    else:
        editor.emit(replace(node, attrs={"perm": tuple(axes)}))


def _to_expand(editor: Editor, node: Node) -> None:
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


# --- rewrites on the stored layout ------------------------------------------------------------


def pad_amounts(node: Node, constants: dict[str, Array], rank: int) -> list[int] | None:
    """Begin and end padding of all dimensions; None if computed at run time."""
    if any(name and name not in constants for name in node.inputs[1:]):
        return None
    given = constants[node.inputs[1]].reshape(-1)
    axes = list(range(rank))
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = [int(a) % rank for a in constants[node.inputs[3]].reshape(-1)]
    full = [0] * (2 * rank)
    for n, axis in enumerate(axes):
        full[axis], full[rank + axis] = int(given[n]), int(given[len(given) // 2 + n])
    return full


def _resolve_pad(editor: Editor, node: Node) -> None:
    """Amounts and fill value become attributes; a computed fill is chosen by each padded axis."""
    fills = (*node.inputs, "", "")[2]
    is_constant = node.attrs.get("mode", "constant") == "constant"
    if is_constant and fills and fills not in editor.constants:
        _fill(editor, node, fills)
        return
    amounts = pad_amounts(node, editor.constants, len(editor.types[node.output].shape))
    if amounts is None:
        raise unsupported(node, editor.graph, "its padding is computed at run time")
    if not any(amounts):
        editor.emit(replace(node, op="Identity", inputs=node.inputs[:1], attrs={}))
        return
    mode = node.attrs.get("mode", "constant")
    _check_padding(editor, node, mode, amounts)
    fill = 0.0
    if len(node.inputs) > 2 and node.inputs[2]:
        fill = float(editor.constants[node.inputs[2]].reshape(-1)[0])
    attrs = {"mode": mode, "amounts": tuple(amounts), "fill": fill}
    editor.emit(replace(node, inputs=node.inputs[:1], attrs=attrs))


def _fill(editor: Editor, node: Node, fill: str) -> None:
    """Pad with a computed value -> Pad with zeros, and Where(inside, y, value) per padded axis."""
    kind = editor.types[node.output]
    rank = len(kind.shape)
    inputs = (*node.inputs[:2], "", *node.inputs[3:])
    amounts = pad_amounts(replace(node, inputs=inputs), editor.constants, rank)
    if amounts is None:
        raise unsupported(node, editor.graph, "its padding is computed at run time")
    padded = [a for a in range(rank) if max(amounts[a], amounts[rank + a]) > 0]
    names = [editor.new(f"{node.output}.zeros", kind.shape, kind.dtype) for _ in padded]
    names.append(node.output)
    _resolve_pad(editor, replace(node, inputs=inputs, outputs=(names[0],)))
    for axis, before, after in zip(padded, names, names[1:], strict=False):
        at = np.arange(kind.shape[axis])
        inside = (at >= amounts[axis]) & (at < kind.shape[axis] - amounts[rank + axis])
        along = inside.reshape([-1 if a == axis else 1 for a in range(rank)])
        mask = editor.constant(f"{node.output}.inside", along)
        editor.emit(Node(node.name, "Where", (mask, before, fill), (after,)))


def emit_zeros_behind(editor: Editor, node: Node, name: str, axis: int, missing: int) -> str:
    """Emit a Pad of `missing` zeros behind a dimension of a tensor; the name of its result."""
    kind = editor.types[name]
    wide = tuple(n + missing * (d == axis) for d, n in enumerate(kind.shape))
    out = editor.new(f"{name}.whole", wide, kind.dtype)
    pads = np.zeros(2 * len(wide), np.int64)
    pads[len(wide) + axis] = missing
    zero = np.zeros((), DTYPES[kind.dtype].numpy)
    given = (editor.constant(f"{name}.pads", pads), editor.constant(f"{name}.fill", zero))
    editor.emit(Node(node.name, "Pad", (name, *given), (out,)))
    return out


def _check_padding(editor: Editor, node: Node, mode: str, amounts: list[int]) -> None:
    """Refuse unknown modes, and repetition along an axis that is cropped to nothing."""
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise unsupported(node, editor.graph, f"mode '{mode}'")
    shape = editor.types[node.inputs[0]].shape
    pairs = zip(amounts[: len(shape)], amounts[len(shape) :], shape, strict=True)
    if mode != "constant" and any(n + min(b, 0) + min(e, 0) < 1 for b, e, n in pairs):
        raise unsupported(node, editor.graph, f"mode '{mode}' of an axis cropped to nothing")


def _resolve_slice(editor: Editor, node: Node) -> None:
    """Starts and steps of every dimension become attributes."""
    if any(name and name not in editor.constants for name in node.inputs[1:]):
        raise unsupported(node, editor.graph, "its bounds are computed at run time")
    shape = editor.types[node.inputs[0]].shape
    names = (*node.inputs[1:], "", "")
    begin, end = (editor.constants[n].reshape(-1) for n in names[:2])
    axes = editor.constants.get(names[2], np.arange(begin.size))
    steps = editor.constants.get(names[3], np.ones(begin.size, np.int64))
    starts, strides = [0] * len(shape), [1] * len(shape)
    for b, e, a, s in zip(begin, end, axes, steps, strict=True):
        axis = int(a) % len(shape)
        taken = range(shape[axis])[slice(int(b), _end(int(e), int(s), shape[axis]), int(s))]
        starts[axis], strides[axis] = taken.start, taken.step
    emit_slice(editor, node, node.inputs[0], node.output, tuple(starts), tuple(strides))


def _end(end: int, step: int, extent: int) -> int | None:
    """ONNX's end as Python's: far below zero with a negative step means to the beginning."""
    return None if step < 0 and end < -extent else end


def _split(editor: Editor, node: Node) -> None:
    """Split(x) -> one Slice per output."""
    shape = editor.types[node.inputs[0]].shape
    axis = node.attrs.get("axis", 0) % len(shape)
    start = 0
    for out in node.outputs:
        starts = [0] * len(shape)
        starts[axis] = start
        start += editor.types[out].shape[axis]
        emit_slice(editor, node, node.inputs[0], out, tuple(starts), (1,) * len(shape))


def emit_slice(
    editor: Editor, node: Node, source: str, out: str, starts: Shape, steps: Shape
) -> None:
    """Emit a Slice with resolved bounds, or an Identity where it takes everything."""
    attrs = {"starts": starts, "steps": steps}
    if editor.types[source].shape == editor.types[out].shape and all(s == 1 for s in steps):
        editor.emit(Node(node.name, "Identity", (source,), (out,)))
    else:
        editor.emit(Node(node.name, "Slice", (source,), (out,), attrs))


def _resolve_triangle(editor: Editor, node: Node) -> None:
    """The diagonal becomes an attribute."""
    k = editor.constants.get(node.inputs[1]) if len(node.inputs) > 1 else np.zeros(1)
    if k is None:
        raise unsupported(node, editor.graph, "its diagonal is computed at run time")
    attrs = {**node.attrs, "k": int(k.reshape(-1)[0])}
    editor.emit(replace(node, inputs=node.inputs[:1], attrs=attrs))


def _resolve_expand(editor: Editor, node: Node) -> None:
    """The output has the shape."""
    editor.emit(replace(node, inputs=node.inputs[:1]))


def _check_reshape(editor: Editor, node: Node) -> str:
    before, after = editor.types[node.inputs[0]].shape, editor.types[node.output].shape
    if min(after, default=0) < 0 or math.prod(before) == math.prod(after):
        return ""
    return f"{shape_text(before)} has not as many elements as {shape_text(after)}"


OPERATORS: Mapping[str, Operator] = {
    "Reshape": Operator(
        moves=True,
        fusion=Fusion.VIEW,
        any_type=True,
        keeps_range=True,
        layout=Layout.RESHAPE,
        canonical=_to_reshape,
        check=_check_reshape,
    ),
    "Flatten": Operator(moves=True, canonical=_to_reshape, axis_may_be_rank=True),
    "Squeeze": Operator(moves=True, canonical=_to_reshape),
    "Unsqueeze": Operator(moves=True, canonical=_to_reshape),
    "Transpose": Operator(
        moves=True,
        define=_transpose,
        fusion=Fusion.INJECTIVE,
        is_cheap=True,
        any_type=True,
        keeps_range=True,
        layout=Layout.TRANSPOSE,
        canonical=_without_transposing,
    ),
    "Pad": Operator(
        moves=True,
        any_type=True,
        define=_pad,
        fusion=Fusion.INJECTIVE,
        is_cheap=True,
        layout=Layout.PAD,
        resolve=_resolve_pad,
    ),
    "Slice": Operator(
        moves=True,
        define=_slice,
        fusion=Fusion.VIEW,
        any_type=True,
        selects=True,
        keeps_range=True,
        layout=Layout.SLICE,
        resolve=_resolve_slice,
    ),
    "Split": Operator(moves=True, selects=True, layout=Layout.AXIS, resolve=_split),
    "Concat": Operator(
        moves=True,
        define=_concat,
        fusion=Fusion.VIEW,
        any_type=True,
        selects=True,
        keeps_range=True,
        layout=Layout.AXIS,
        is_identity=lambda editor, node: len(node.inputs) == 1,
    ),
    "Expand": Operator(
        moves=True,
        define=_expand,
        fusion=Fusion.INJECTIVE,
        any_type=True,
        keeps_range=True,
        resolve=_resolve_expand,
    ),
    "Tile": Operator(canonical=_to_expand),
    "Trilu": Operator(define=_triangle, any_type=True, resolve=_resolve_triangle),
}
