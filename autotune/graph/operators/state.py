"""① Rows and Append: places behind the filled ones of a buffer that stays with a session.

    rows = Rows(new)              (n, …) -> (…, n, …), written where the buffer has them
    Append(buffer, rows)          the buffer (…, capacity, …) with them

No kernel appends: Rows lie in the memory of the buffer, at an address that the caller gives (see
`graph.storage` and `network.compile.layout`). Rows has the new dimension of its operand in front,
so that no loop runs over it and another one at once: in the buffer they are not neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.graph.ir import Node, Shape, TensorType
from autotune.graph.operators.definition import (
    Folding,
    Fusion,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    like_first,
    tensor,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Tensor

APPEND, ROWS = "autotune.Append", "autotune.Rows"


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
    return scope.compute("rows", axes, x[moved])


def _rows_type(rw: Rewriter) -> Types:
    kind = rw.kind(0)
    order = _order(rw.attr("axis"), len(kind.shape))
    return [TensorType(tuple(kind.shape[d] for d in order), kind.dtype)]


OPERATORS: Mapping[str, Operator] = {
    APPEND: Operator(
        fusion=Fusion.VIEW,
        roles=("buffer", "rows"),
        typing=typed(own=like_first),
        folding=Folding.NEVER,
    ),
    ROWS: Operator(define=_rows, typing=typed(own=_rows_type), folding=Folding.NEVER),
}
