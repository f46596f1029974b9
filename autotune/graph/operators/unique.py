"""① Unique: the elements that occur, or rows along an axis, in order or as they come first.

    where[p] = the row that is at place p when rows are sorted, equal ones in their order
    new[p]   = row where[p] is another than row where[p - 1]
    group[p] = how many are new up to p, less one
    first[g] = where[place of new number g]                   a length that data decide

    sorted:      Y = rows first[g];  of each row its group;  counts[g] = Σ over p of [group[p] is g]
    not sorted:  the same, with groups counted in the order of their first rows

Rows are compared in pairs, as elements of TopK are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from autotune.graph.ir import Node, Shape, malformed
from autotune.graph.operators.definition import (
    Operands,
    Operator,
    Scope,
    axes_of,
    inside,
    tensor,
)
from autotune.graph.operators.selection import at_ranks, ranks
from autotune.graph.operators.written_lengths import (
    NONE,
    ONE,
    chosen,
    flat,
    front,
    told,
    written_of,
)
from autotune.graph.rewriter import Rewrite, Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    cast,
    compare,
    idx,
    maximum,
    select,
    sub,
)

_MOST_ROWS = 16_384
"""Every pair is compared."""
_MOST_PAIRS = 2**24
"""Of rows of several elements, for each of which it is kept where they differ."""


def _unique(rw: Rewriter) -> None:
    """Unique -> the above."""
    if rw.value(0) is not None or 0 in rw.shape(0):
        return
    axis, name = rw.attr("axis", None), next(filter(None, rw.node.outputs))
    shape = rw.shape(0)
    if axis is not None and not -len(shape) <= axis < len(shape):
        raise malformed(rw.node, f"axis {axis} of {len(shape)} dimensions")
    x = flat(rw, rw.input(0)) if axis is None else rw.input(0)
    axis = 0 if axis is None else axis % len(shape)
    rows = _rows(rw, x, axis, name)
    n = rw.types[rows].shape[0]
    whole: Mapping[str, Any] = {"shape": (n,), "dtype": INDEX}
    where = _sorted(rw, rows)
    new = rw("NewRows", rows, where, shape=(n,), dtype="int32")
    group = rw("RunningCount", new, **whole)
    if rw.attr("sorted", 1):
        first = rw("Gather", where, chosen(rw, new, name), axis=0, **_long(rw, new, name))
    else:
        begins = rw("Gather", where, rw("RowBegin", group, **whole), axis=0, **whole)
        flags = rw("AtPlaces", where, new, shape=(n,), dtype="int32")
        first = chosen(rw, flags, name)
        group = rw("Gather", rw("RunningCount", flags, **whole), begins, axis=0, **whole)
    m, count = rw.types[first].shape[0], written_of(rw).tensors[name]
    kind = rw.types[x].shape
    taken = rw("Gather", x, first, shape=(*kind[:axis], m, *kind[axis + 1 :]), axis=axis)
    of_row = rw("GroupOfRow", where, group, **whole)
    counts = front(rw, rw("CountsOf", group, **whole), count, name)
    told(rw, taken, first, of_row, counts)


def _long(rw: Rewriter, flags: str, name: str) -> Mapping[str, Any]:
    return {"shape": rw.types[chosen(rw, flags, name)].shape, "dtype": INDEX}


def _rows(rw: Rewriter, x: str, axis: int, name: str) -> str:
    """A tensor as one row for each index along an axis.

    A fixed number of elements is refused where it is large: of a length there may be few.
    """
    kind = rw.types[x]
    n, rest = kind.shape[axis], kind.shape[:axis] + kind.shape[axis + 1 :]
    if axis:
        order = (axis, *(a for a in range(len(kind.shape)) if a != axis))
        x = rw("Transpose", x, shape=(n, *rest), perm=order)
    size = math.prod(rest)
    is_known = name in written_of(rw).fixed or size > 1
    if (n > _MOST_ROWS and is_known) or (size > 1 and n * n > _MOST_PAIRS):
        raise rw.refuse(f"it compares each pair of {n} rows of {size} elements")
    return rw("Reshape", x, rw.integers(n, size), shape=(n, size))


def _sorted(rw: Rewriter, rows: str) -> str:
    """Which row is at each place when they are sorted."""
    n, size = rw.types[rows].shape
    if size == 1:
        row = rw("Reshape", rows, rw.integers(n), shape=(n,))
        order = ranks(rw, row, 0, largest=0)
    else:
        order = rw("RankOfRows", rows, shape=(n,), dtype=INDEX)
    return at_ranks(rw, order, 0, (n,))


RULES: Mapping[str, Rewrite] = {"Unique": _unique}


# --- definitions ---


def _rank_of_rows(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Rank of each row: the number of smaller ones, and of equal ones further in front."""
    x, (i,) = tensor(operands, 0), axes_of(shape)
    n, size = x.shape
    j, c = Axis("rj", n), Axis("re", size)
    differs = compare("ne", x[i, c], x[j, c])
    last = Const(size, "int32")
    at = select(differs, cast("int32", c.var), last)
    differ = scope.compute("differ", (i, j), Reduce("min", at, (c,)))
    r = Axis("r", n)
    place = inside(cast(INDEX, differ[i, r]), size)
    in_front = compare("lt", r.var, i.var)
    smaller = compare("lt", x[r.var, place], x[i.var, place])
    wins = select(compare("eq", differ[i, r], last), in_front, smaller)
    return scope.compute("rank", (i,), Reduce("sum", select(wins, ONE, NONE), (r,)))


def _new_rows(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[p] = 1 where row where[p] differs from row where[p - 1], or p is 0."""
    x, where, (p,) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)
    n, size = x.shape
    c = Axis("re", size)
    own, before = (
        x[inside(where[at], n), c.var] for at in (p.var, maximum(sub(p.var, idx(1)), idx(0)))
    )
    one, none = Const(1, "int32"), Const(0, "int32")
    differs = select(compare("ne", own, before), one, none)
    other = scope.compute("differ", (p,), Reduce("bitor", differs, (c,)))
    return scope.compute("new", (p,), select(compare("lt", idx(0), p.var), other[p], one))


def _placed(
    scope: Scope, role: str, operands: Operands, shape: Shape, of: Callable[[Expr], Expr]
) -> Tensor:
    """y[where[p]] = of(x[p]), for `where` that has each place once."""
    where, x, (i,) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)
    p = Axis("r", where.shape[0])
    is_there = compare("eq", inside(where[p], shape[0]), i.var)
    one = select(is_there, of(x[p]), Const(0, x.dtype))
    return scope.compute(role, (i,), Reduce("sum", one, (p,)))


def _at_places(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[where[p]] = x[p]."""
    return _placed(scope, "placed", operands, shape, lambda x: x)


def _group_of_row(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[where[p]] = x[p] - 1."""
    return _placed(scope, "group", operands, shape, lambda x: sub(x, ONE))


def _counts(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[g] = how many of x are g + 1."""
    x, (g,) = tensor(operands, 0), axes_of(shape)
    p = Axis("r", x.shape[0])
    is_it: Expr = compare("eq", inside(x[p] - ONE, shape[0]), g.var)
    return scope.compute("counts", (g,), Reduce("sum", select(is_it, ONE, NONE), (p,)))


OPERATORS: Mapping[str, Operator] = {
    "RankOfRows": Operator(define=_rank_of_rows),
    "NewRows": Operator(define=_new_rows, roles=("x", "where")),
    "AtPlaces": Operator(define=_at_places, roles=("where", "x")),
    "GroupOfRow": Operator(define=_group_of_row, roles=("where", "x")),
    "CountsOf": Operator(define=_counts),
}
