"""① Gather and OneHot: operators whose operands hold indices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, unsupported
from autotune.graph.limits import check_constant
from autotune.graph.operators.definition import (
    POINT,
    Fusion,
    Operands,
    Operator,
    Scope,
    axes_of,
    inside,
    shape_text,
    tensor,
)
from autotune.graph.operators.movement import emit_slice
from autotune.te.expr import INDEX, Expr, Tensor, add, cast, compare, idx, select


def chosen(index: Expr, extent: int) -> Expr:
    """The position that an element of an ONNX index stands for: negative ones count from the end.

    An index outside of the dimension is clamped, so that no input makes a kernel read elsewhere.
    """
    at = cast(INDEX, index)
    at = select(compare("lt", at, idx(0)), add(at, idx(extent)), at)
    return inside(at, extent)


def _gather(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = x[a…, index[i…], b…] with the index at dimension `axis`."""
    x, index = tensor(operands, 0), tensor(operands, 1)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(shape)
    last = axis + len(shape) - len(x.shape) + 1
    at = index[axes[axis:last] or (idx(0),)]
    element = x[(*axes[:axis], chosen(at, x.shape[axis]), *axes[last:])]
    return scope.compute("gather", axes or POINT, element)


def _gather_elements(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i…] but index[i…] at dimension `axis`."""
    x, index = tensor(operands, 0), tensor(operands, 1)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(shape)
    at = chosen(index[axes], x.shape[axis])
    return scope.compute("gather", axes, x[(*axes[:axis], at, *axes[axis + 1 :])])


def _gather_nd(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = x[a…, index[a…, i…, 0], index[a…, i…, 1], …, b…]; `batch_dims` are a…"""
    x, index = tensor(operands, 0), tensor(operands, 1)
    n_batch, n_rows = node.attrs.get("batch_dims", 0), len(index.shape) - 1
    axes = axes_of(shape)
    at = [
        chosen(index[(*axes[:n_rows], idx(k))], x.shape[n_batch + k])
        for k in range(index.shape[-1])
    ]
    element = x[(*axes[:n_batch], *at, *axes[n_rows:])]
    return scope.compute("gather", axes or POINT, element)


# --- rewrites ---------------------------------------------------------------------------------

_MOST_RUNS = 64
"""Most slices that a Gather of constant indices becomes."""


def _to_slices(editor: Editor, node: Node) -> None:
    """Gather of a few arithmetic runs of constants -> one Slice per run, Concat, Reshape."""
    shape, dtype = editor.types[node.inputs[0]].shape, editor.types[node.output].dtype
    axis = node.attrs.get("axis", 0) % len(shape)
    index = editor.constants.get(node.inputs[1])
    runs = [] if index is None else _runs((index.reshape(-1) % shape[axis]).tolist())
    if not 0 < len(runs) <= _MOST_RUNS:
        editor.emit(node)
        return
    parts = []
    for run in runs:
        starts, steps = [0] * len(shape), [1] * len(shape)
        starts[axis], steps[axis] = run.start, run.step
        taken = (*shape[:axis], len(run), *shape[axis + 1 :])
        parts.append(editor.new(f"{node.output}.part", taken, dtype))
        emit_slice(editor, node, node.inputs[0], parts[-1], tuple(starts), tuple(steps))
    if len(parts) > 1:
        n_taken = sum(len(run) for run in runs)
        together = (*shape[:axis], n_taken, *shape[axis + 1 :])
        whole = editor.new(f"{node.output}.parts", together, dtype)
        editor.emit(Node(node.name, "Concat", tuple(parts), (whole,), {"axis": axis}))
        parts = [whole]
    editor.emit(Node(node.name, "Reshape", tuple(parts), node.outputs))


def _runs(values: list[int]) -> list[range]:
    """The values as arithmetic progressions, greedily from the first value on."""
    runs: list[range] = []
    while values:
        step = values[1] - values[0] if len(values) > 1 else 1
        n = 1
        while step and n < len(values) and values[n] == values[0] + n * step:
            n += 1
        runs.append(range(values[0], values[0] + n * (step or 1), step or 1))
        values = values[n:]
    return runs


def _one_hot(editor: Editor, node: Node) -> None:
    """OneHot -> Where(index == 0, 1, 2, …; on, off); negative indices count from the end."""
    index, depth, pair = node.inputs
    n, values = editor.constants.get(depth), editor.constants.get(pair)
    if n is None:
        raise unsupported(node, editor.graph, "its depth is computed at run time")
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
    if values is None:
        of_two = editor.types[pair].dtype
        off, on = (editor.new(f"{node.output}.value", (1,), of_two) for _ in range(2))
        editor.emit(Node(node.name, "Split", (pair, constant(np.array([1, 1]))), (off, on)))
    else:
        off, on = (constant(v.reshape(1)) for v in values)
    editor.emit(Node(node.name, "Where", (hot, on, off), node.outputs))


# --- checks -----------------------------------------------------------------------------------


def check_indices(editor: Editor, node: Node) -> str:
    """Constant indices lie inside of their table; others are clamped when the network runs."""
    index, shape = editor.constants.get(node.inputs[1]), editor.types[node.inputs[0]].shape
    if index is None or not index.size:
        return ""
    if node.op.endswith("ND"):
        extents = np.array(extents_nd(node, shape, index.shape))
    else:
        extents = np.array(shape[node.attrs.get("axis", 0)])
    outside = (index < -extents) | (index >= extents)
    return f"index {index[outside][0]} outside of {shape_text(shape)}" if outside.any() else ""


def extents_along(node: Node, shape: Shape, index: Shape) -> Shape:
    """The dimension that attribute `axis` names."""
    axis = node.attrs.get("axis", 0) % len(shape)
    return shape[axis : axis + 1]


def extents_nd(node: Node, shape: Shape, index: Shape) -> Shape:
    """The dimensions that the last one of an index tells the places of."""
    first: int = node.attrs.get("batch_dims", 0)
    return shape[first : first + index[-1]]


def _evaluate_elements(node: Node, given: list[Array]) -> list[Array]:
    """GatherElements; the reference implementation fails beyond 64 elements."""
    x, index = given
    axis = node.attrs.get("axis", 0) % x.ndim
    near = tuple(slice(None if d == axis else n) for d, n in enumerate(index.shape))
    taken: Array = np.take_along_axis(x[near], index, axis)
    return [taken]


OPERATORS: Mapping[str, Operator] = {
    "Gather": Operator(
        define=_gather,
        fusion=Fusion.INJECTIVE,
        any_type=True,
        selects=True,
        keeps_range=True,
        indexed=extents_along,
        resolve=_to_slices,
        check=check_indices,
    ),
    "GatherElements": Operator(
        define=_gather_elements,
        fusion=Fusion.INJECTIVE,
        any_type=True,
        keeps_range=True,
        indexed=extents_along,
        check=check_indices,
        evaluate=_evaluate_elements,
    ),
    "GatherND": Operator(
        define=_gather_nd,
        fusion=Fusion.INJECTIVE,
        any_type=True,
        keeps_range=True,
        indexed=extents_nd,
        check=check_indices,
    ),
    "OneHot": Operator(canonical=_one_hot, axis_may_be_rank=True),
}
