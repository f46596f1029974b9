"""① Rows and Append: places behind the filled ones of a buffer that stays with a session.

    rows = Rows(new)              (n, …) -> (…, n, …), written where the buffer has them
    Append(buffer, rows)          the buffer (…, capacity, …) with them
    RowSteps(new)                 a 127th of the largest element of each row, in size
    ByteRows(new)                 Rows(new) as whole numbers of these steps, int8

No kernel appends: Rows lie in the memory of the buffer, at an address that the caller gives (see
`graph.storage` and `network.compile.layout`). Rows has the new dimension of its operand in front,
so that no loop runs over it and another one at once: in the buffer they are not neighbours.

    Below(x, length)    of the first places: what lies behind is neither read nor written
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.graph.ir import Graph, Node, Shape, TensorType
from autotune.graph.operators.definition import (
    Folding,
    Fusion,
    Operands,
    Operator,
    Scope,
    Trait,
    Types,
    ViewKind,
    axes_of,
    like_first,
    literal,
    read,
    tensor,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Expr,
    Reduce,
    Tensor,
    call,
    cast,
    f32,
    idx,
    maximum,
    minimum,
    mul,
)

APPEND, ROWS, BELOW = "autotune.Append", "autotune.Rows", "autotune.Below"
BYTE_ROWS, ROW_STEPS = "autotune.ByteRows", "autotune.RowSteps"


def rows_first(axis: int, rank: int) -> tuple[int, ...]:
    """Permutation of a state's dimensions that brings the growing one to the front."""
    return (axis, *(d for d in range(rank) if d != axis))


def _order(axis: int, rank: int) -> tuple[int, ...]:
    """The reverse of `rows_first`."""
    return tuple(0 if d == axis else d + (d < axis) for d in range(rank))


def _rows(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    axes = axes_of(shape)
    x = tensor(operands, 0)
    moved = tuple(axes[d] for d in rows_first(node.attrs["axis"], len(shape)))
    return scope.compute("rows", axes, cast(node.attrs.get("to", x.dtype), x[moved]))


def _rows_shape(rw: Rewriter) -> Shape:
    shape = rw.kind(0).shape
    return tuple(shape[d] for d in _order(rw.attr("axis"), len(shape)))


def _rows_type(rw: Rewriter) -> Types:
    return [TensorType(_rows_shape(rw), rw.attr("to", rw.kind(0).dtype))]


def stored_narrow(graph: Graph) -> frozenset[str]:
    """The tensors of states that are of another type than what is computed with."""
    rows = {n.output for n in graph.nodes if n.op == ROWS and "to" in n.attrs}
    appended = (n for n in graph.nodes if n.op == APPEND and n.inputs[1] in rows)
    return frozenset(name for n in appended for name in (*n.inputs, n.output))


def step_axis(axis: int, rank: int) -> int:
    """The dimension of a state along which a row has one step."""
    return rows_first(axis, rank)[-1]


def _steps_type(rw: Rewriter) -> Types:
    shape = _rows_shape(rw)
    along = step_axis(rw.attr("axis"), len(shape))
    return [TensorType(tuple(1 if d == along else n for d, n in enumerate(shape)), "float32")]


def _step(scope: Scope, node: Node, operands: Operands, axes: Sequence[Axis]) -> Expr:
    """The step of the row at `axes`."""
    x, order = tensor(operands, 0), rows_first(node.attrs["axis"], len(axes))
    along = order[-1]
    term = Axis(f"r{axes[along].name}", x.shape[-1])
    outer = [Axis(a.name, 1) if d == along else a for d, a in enumerate(axes)]
    size = call("abs", x[(*(axes[d] for d in order[:-1]), term)])
    largest = scope.compute("max", outer, Reduce("max", size, (term,)))
    return maximum(f32(_LEAST_STEP), read(largest, axes) * literal(1 / 127))


def _row_steps(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    axes = axes_of(shape)
    return scope.compute("steps", axes, _step(scope, node, operands, axes))


def _byte_rows(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    axes, x = axes_of(shape), tensor(operands, 0)
    step = _step(scope, node, operands, axes)
    order = rows_first(node.attrs["axis"], len(shape))
    steps = call("round", x[tuple(axes[d] for d in order)] / step)
    whole = cast("int8", minimum(f32(127.0), maximum(f32(-127.0), steps)))
    return scope.compute("rows", axes, whole)


def _below(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, j] = x[…, j] where j is below the length, operand 1, or `times` as much."""
    *outer, last = axes_of(shape)
    length = cast(INDEX, tensor(operands, 1)[idx(0)])
    axes = *outer, replace(last, limit=mul(length, idx(node.attrs.get("times", 1))))
    return scope.compute("below", axes, read(tensor(operands, 0), axes))


_LEAST_STEP = 2.0**-100
"""The step of rows that are zero."""

OPERATORS: Mapping[str, Operator] = {
    APPEND: Operator(
        fusion=Fusion.VIEW,
        view=ViewKind.APPENDED,
        traits=Trait.SELECTS,
        roles=("buffer", "rows"),
        typing=typed(own=like_first),
        folding=Folding.NEVER,
    ),
    ROWS: Operator(define=_rows, typing=typed(own=_rows_type), folding=Folding.NEVER),
    BYTE_ROWS: Operator(
        define=_byte_rows,
        typing=typed(own=lambda rw: [TensorType(_rows_shape(rw), "int8")]),
        folding=Folding.NEVER,
    ),
    ROW_STEPS: Operator(define=_row_steps, typing=typed(own=_steps_type), folding=Folding.NEVER),
    BELOW: Operator(
        define=_below,
        fusion=Fusion.ELEMENTWISE,
        traits=Trait.PLACED,
        roles=("x", "length"),
        typing=typed(own=like_first),
    ),
}
