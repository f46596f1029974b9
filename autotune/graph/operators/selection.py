"""① The first k elements of rows, as TopK orders them: keys, ranks, and a threshold bit by bit.

    key[r, i]   = x[r, i] as an integer, the larger the further in front
    rank[r, i]  = Σ over j of [key[r, i] < key[r, j]]       of keys with i below them: none is equal

Of long rows the elements that come first are found before they are ranked:

    limit[r]    = the largest that k keys reach, some bits of it in each step:
                  limit' = limit + step where k ≤ Σ over i of [limit + step ≤ key[r, i]]
    count[r, i] = how many up to i are larger than the limit, + 2^32 · how many are equal
    place[r, p] = where element p of the chosen ones is: larger ones, then equal ones, in order

Counts are reductions, so a step reads a row once, in vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.dtypes import DTYPES, is_float
from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import (
    Operands,
    Operator,
    Scope,
    axes_of,
    inside,
    tensor,
)
from autotune.graph.operators.trees import ordered
from autotune.graph.operators.written_lengths import scan
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Binary,
    Const,
    Expr,
    Reduce,
    Tensor,
    binary,
    cast,
    compare,
    dtype_of,
    idx,
    maximum,
    select,
    sub,
)

_LARGER, _EQUAL = Const(1, INDEX), Const(1 << 32, INDEX)
_NONE = Const(0, INDEX)


def ranks(rw: Rewriter, x: str, axis: int, largest: int) -> str:
    """The rank of each element of x along an axis, int64; equal ones in their order."""
    kind = rw.types[x]
    whole: Mapping[str, Any] = {"shape": kind.shape, "dtype": INDEX, "axis": axis}
    keys = distinct_keys(rw, x, axis, largest)
    return rw("RankOfKeys", keys, **whole, ties=_integers_for(kind.dtype) == INDEX)


def distinct_keys(rw: Rewriter, x: str, axis: int, largest: int) -> str:
    """Integers in the order of TopK, none equal to another; of elements of 64 bits, with ties."""
    kind = rw.types[x]
    wide = _integers_for(kind.dtype)
    op = "SortKeys" if wide == INDEX else "DistinctKeys"
    attrs = {"axis": axis, "largest": largest, "wide": wide}
    return rw(op, x, shape=kind.shape, dtype=INDEX, **attrs)


def at_ranks(rw: Rewriter, ranks: str, axis: int, shape: Shape, x: str = "") -> str:
    """The elements of x, or where they are, in the order of their ranks: those that `shape` has."""
    dtype = rw.types[x].dtype if x else INDEX
    return rw("AtRanks", *filter(None, (ranks, x)), shape=shape, dtype=dtype, axis=axis)


def selected(rw: Rewriter, x: str, k: str, shape: Shape, largest: int) -> tuple[str, str]:
    """The elements of the rows of x that come first, and where: both of `shape`, which has as many
    as the tensor `k` says."""
    whole, wide = rw.types[x].shape, _integers_for(rw.types[x].dtype)
    keys = rw("SortKeys", x, shape=whole, dtype=wide, wide=wide, largest=largest)
    limit = _limit(rw, keys, k)
    counts = rw("RunningChoice", keys, limit, shape=whole, dtype=INDEX)
    places = rw("ChosenPlaces", keys, limit, counts, shape=shape, dtype=INDEX)
    taken = rw("GatherElements", keys, places, shape=shape, dtype=wide, axis=1)
    where = at_ranks(rw, ranks(rw, taken, 1, largest=1), 1, shape, places)
    return rw("GatherElements", x, where, shape=shape, dtype=rw.types[x].dtype, axis=1), where


def _integers_for(dtype: str) -> str:
    """Integers that have all elements of a type, in their order."""
    is_long = dtype == "uint32" or DTYPES[dtype].bits == 64
    return "int64" if is_long else "int32"


def _limit(rw: Rewriter, keys: str, k: str) -> str:
    """The largest integer in each row that k keys reach."""
    rows, kind = rw.types[keys].shape[0], rw.types[keys].dtype
    dtype, bits = np.dtype(kind), DTYPES[kind].bits
    limit = rw.array(np.full(rows, DTYPES[kind].low, dtype))
    for bit in range(bits - 1, -1, -1):
        step = rw.array(np.full(1, DTYPES[kind].low if bit == bits - 1 else 1 << bit, dtype))
        counts = rw("Reaching", keys, limit, step, shape=(rows,), dtype="int32")
        limit = rw("Narrowed", counts, limit, step, k, shape=(rows,), dtype=kind)
    return limit


# --- definitions ---


def _key(own: Expr, node: Node) -> Expr:
    """An integer in the order of the numbers, NaN the largest; all bits turned if not `largest`."""
    wide = node.attrs["wide"]
    if is_float(dtype_of(own)):
        own = cast("float64" if wide == INDEX else "float32", own)
        nan = Const(int(DTYPES[wide].high), wide)
        key = select(compare("ne", own, own), nan, ordered(own))
    else:
        key = cast(wide, own)
    return key if node.attrs["largest"] else Binary("bitxor", key, Const(-1, wide))


def _keys(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…] = the key of x[…]."""
    x, axes = tensor(operands, 0), axes_of(shape)
    return scope.compute("keys", axes, _key(x[axes], node))


def _distinct(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, i, …] = the key of x[…, i, …], and below it 32 bits that i has turned."""
    x, axes = tensor(operands, 0), axes_of(shape)
    high = Binary("shl", cast(INDEX, _key(x[axes], node)), Const(32, INDEX))
    low = Binary("sub", Const((1 << 32) - 1, INDEX), axes[node.attrs["axis"]].var)
    return scope.compute("keys", axes, Binary("bitor", high, low))


def _rank(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, i, …] = how many are larger than x[…, i, …]; with `ties` equal ones in front as well."""
    x, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of(shape)
    r = Axis(f"r{axes[axis].name}", shape[axis])
    other, own = x[(*axes[:axis], r, *axes[axis + 1 :])], x[axes]
    before = compare("lt", own, other)
    if node.attrs["ties"]:
        in_front = compare("eq", own, other) & compare("lt", r.var, axes[axis].var)
        before = binary("or", before, in_front)
    term = select(before, Const(1, INDEX), _NONE)
    return scope.compute("rank", axes, Reduce("sum", term, (r,)))


def _at_ranks(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, k, …] = the element of x that has rank k or, without x, where it is."""
    ranks, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of(shape)
    r = Axis(f"r{axes[axis].name}", ranks.shape[axis])
    at = (*axes[:axis], r, *axes[axis + 1 :])
    element = tensor(operands, 1)[at] if len(operands) > 1 else r.var
    is_it = compare("eq", inside(ranks[at], shape[axis]), axes[axis].var)
    is_there = compare("lt", ranks[at], idx(shape[axis]))
    one = select(is_there & is_it, element, Const(0, dtype_of(element)))
    return scope.compute("ranked", axes, Reduce("sum", one, (r,)))


def _reaching(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[r] = how many keys of row r reach limit[r] + step."""
    keys, limit, step = (tensor(operands, n) for n in range(3))
    (r,) = axes_of(shape)
    i = Axis("i", keys.shape[1])
    reaches = compare("le", limit[r] + step[idx(0)], keys[r, i])
    term = select(reaches, Const(1, "int32"), Const(0, "int32"))
    return scope.compute("counts", (r,), Reduce("sum", term, (i,)))


def _narrowed(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """limit'[r] = limit[r] + step where k keys reach it, else limit[r]."""
    counts, limit, step, k = (tensor(operands, n) for n in range(4))
    (r,) = axes_of(shape)
    is_enough = compare("le", cast("int32", k[idx(0)]), counts[r])
    more = select(is_enough, step[idx(0)], Const(0, limit.dtype))
    return scope.compute("limit", (r,), limit[r] + more)


def _running(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[r, i] = y[r, i - 1] + (1 where key[r, i] is above the limit, 2^32 where it is equal)."""
    keys, limit, (r, i) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)

    def body(y: Tensor) -> Expr:
        before = y[r, maximum(sub(i.var, idx(1)), idx(0))]
        own = select(compare("eq", keys[r, i], limit[r]), _EQUAL, _NONE)
        own = select(compare("lt", limit[r], keys[r, i]), _LARGER, own)
        return select(compare("lt", idx(0), i.var), before, _NONE) + own

    return scan(scope, "counts", (r, i), INDEX, body)


def _places(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[r, p] = where element p of those that are chosen is."""
    keys, limit, counts = (tensor(operands, n) for n in range(3))
    r, p = axes_of(shape)
    i = Axis("i", keys.shape[1])
    low = Const((1 << 32) - 1, INDEX)
    n_larger = binary("bitand", counts[r, idx(keys.shape[1] - 1)], low)
    is_larger = compare("lt", limit[r], keys[r, i])
    n_equal = binary("shr", counts[r, i], Const(32, INDEX))
    own = select(is_larger, binary("bitand", counts[r, i], low), n_larger + n_equal)
    is_chosen = compare("le", limit[r], keys[r, i]) & compare("le", own, idx(shape[1]))
    is_there = compare("eq", inside(own - 1, shape[1]), p.var)
    at = select(is_chosen & is_there, i.var, _NONE)
    return scope.compute("places", (r, p), Reduce("sum", at, (i,)))


OPERATORS: Mapping[str, Operator] = {
    "SortKeys": Operator(define=_keys),
    "DistinctKeys": Operator(define=_distinct),
    "RankOfKeys": Operator(define=_rank),
    "AtRanks": Operator(define=_at_ranks, roles=("ranks", "x")),
    "Reaching": Operator(define=_reaching, roles=("keys", "limit", "step")),
    "Narrowed": Operator(define=_narrowed, roles=("counts", "limit", "step", "k")),
    "RunningChoice": Operator(define=_running, roles=("keys", "limit")),
    "ChosenPlaces": Operator(define=_places, roles=("keys", "limit", "counts")),
}
