"""① TopK: the largest elements in order, by ranks from comparing every pair.

    TopK(x, k)  ->  rank[i] = Σ_j [x[j] comes before x[i]]        j, i < n
                    y[k] = Σ_i [rank[i] = k] · x[i]               and likewise where it is

These are n² vectorised comparisons; all but the few of a choice among experts compare integers
(`selection`). Where k is small, blocks of 4k are reduced first, and elsewhere those that come first
are selected before they are ranked:

    TopK(x, k)  ->  TopK(TopK(block, k) of every block, k)
    TopK(x, k)  ->  TopK(x[those above the k-th], k)
    TopK(x, 1)  ->  ReduceMax(x), ArgMax(x)

NaN is the largest element, as when NumPy sorts; so the smallest of floats is not ReduceMin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.dtypes import is_float
from autotune.graph.ir import Node, Shape, TensorType
from autotune.graph.operators.definition import Operands, Operator, Scope, axes_of, tensor
from autotune.graph.operators.selection import at_ranks, ranks, selected
from autotune.graph.operators.written_lengths import (
    length_of,
    looked,
    shortened,
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
    call,
    cast,
    compare,
    dtype_of,
    f32,
    select,
)

_MOST_RANKED = 16_384
"""Every pair is compared. Ranks are floats, which have as many lanes as the elements."""


_LEAST_BLOCK = 32
"""Fewest elements of a block."""
_FEWER = 4
"""Elements of a block per element of the result."""
_MOST_BLOCK = 128
"""Elements of a block; where more were needed, the elements that come first are selected."""


def _top_k(rw: Rewriter) -> None:
    """TopK -> the cheapest of the above."""
    axis = rw.attr("axis", -1) % len(rw.kind(0).shape)
    k = next(rw.types[name].shape[axis] for name in rw.node.outputs if name)
    rw.returns(*_best(rw, rw.input(0), axis, k))


def _best(rw: Rewriter, x: str, axis: int, k: int) -> tuple[str, str]:
    """The k elements of x that are ordered first, and where they are."""
    kind, largest = rw.types[x], rw.attr("largest", 1)
    shape = (*kind.shape[:axis], k, *kind.shape[axis + 1 :])
    if k == 1 and (largest or not is_float(kind.dtype)):
        end = "Max" if largest else "Min"
        best = rw(f"Reduce{end}", x, axes=(axis,), keepdims=1)
        return best, rw(f"Arg{end}", x, shape=shape, dtype="int64", axis=axis, keepdims=1)
    block = max(_LEAST_BLOCK, _FEWER * k)
    if kind.shape[axis] > 2 * block or k <= _MOST_RANKED < kind.shape[axis]:
        if block > _MOST_BLOCK:
            return _selected(rw, x, axis, rw.integers(k), k, largest)
        return _best_of_blocks(rw, x, axis, k, block)
    if kind.shape[axis] > _MOST_RANKED:
        raise rw.refuse(f"it ranks more than {_MOST_RANKED} elements")
    if k == kind.shape[axis] or block > _LEAST_BLOCK:
        order = ranks(rw, x, axis, largest)
        return at_ranks(rw, order, axis, shape, x), at_ranks(rw, order, axis, shape)
    order = rw("Rank", x, shape=kind.shape, dtype="float32", axis=axis, largest=largest)
    best = rw("Ranked", order, x, shape=shape, dtype=kind.dtype, axis=axis)
    return best, rw("Ranked", order, shape=shape, dtype="int64", axis=axis)


def _selected(
    rw: Rewriter, x: str, axis: int, k: str, n_taken: int, largest: int
) -> tuple[str, str]:
    """The same, `k` as a tensor: those that come first are found before they are ranked."""
    shape = rw.types[x].shape
    last = len(shape) - 1
    swap = tuple({axis: last, last: axis}.get(d, d) for d in range(len(shape)))
    turned = tuple(shape[d] for d in swap)
    if axis != last:
        x = rw("Transpose", x, shape=turned, perm=swap)
    rows = math.prod(turned[:-1])
    flat = _as(rw, x, rows, turned[-1])
    found = selected(rw, flat, k, (rows, n_taken), largest)
    value, where = (_as(rw, one, *turned[:-1], n_taken) for one in found)
    if axis != last:
        shape = (*shape[:axis], n_taken, *shape[axis + 1 :])
        value, where = (rw("Transpose", one, shape=shape, perm=swap) for one in (value, where))
    return value, where


def _as(rw: Rewriter, x: str, *shape: int) -> str:
    if rw.types[x].shape == shape:
        return x
    return rw("Reshape", x, rw.integers(*shape), shape=shape)


def _best_of_blocks(rw: Rewriter, x: str, axis: int, k: int, size: int) -> tuple[str, str]:
    """TopK of every block, then of the results; equal elements stay in order."""
    blocks = _in_blocks(rw, x, axis, size, _last(rw.types[x].dtype, rw.attr("largest", 1)))
    n_blocks, rank = rw.types[blocks].shape[axis], len(rw.types[blocks].shape)
    best, inside = _best(rw, blocks, axis + 1, k)
    value, among = _best(rw, _reshaped(rw, best, axis, n_blocks * k, n_axes=2), axis, k)
    first = size * np.arange(n_blocks).reshape([-1 if a == axis else 1 for a in range(rank)])
    at = _reshaped(rw, rw("Add", inside, rw.array(first)), axis, n_blocks * k, n_axes=2)
    return value, rw("GatherElements", at, among, shape=rw.types[among].shape, axis=axis)


def _reshaped(rw: Rewriter, x: str, axis: int, *extents: int, n_axes: int = 1) -> str:
    """x with `n_axes` dimensions from `axis` on replaced by `extents`."""
    shape = rw.types[x].shape
    return rw("Reshape", x, shape=(*shape[:axis], *extents, *shape[axis + n_axes :]))


def _in_blocks(rw: Rewriter, x: str, axis: int, size: int, fill: float) -> str:
    """x (…, n, …) as (…, ⌈n / size⌉, size, …), padded with `fill` at the end."""
    kind = rw.types[x]
    n = kind.shape[axis]
    if n % size:
        more = np.full((*kind.shape[:axis], -n % size, *kind.shape[axis + 1 :]), fill, kind.dtype)
        x = rw("Concat", x, rw.array(more), axis=axis)
    return _reshaped(rw, x, axis, -(-n // size), size)


def _last(dtype: str, largest: int) -> float:
    """The element that is ordered last, to pad blocks with."""
    if is_float(dtype):
        return -np.inf if largest else np.nan
    limits = np.iinfo(dtype)
    return int(limits.min if largest else limits.max)


def _of_a_length(rw: Rewriter) -> None:
    """TopK(x, k) of a k that is computed, or of a length -> Front of all in order, or what is
    selected of many."""
    written, name = written_of(rw), next(filter(None, rw.node.outputs))
    known = written.shortened.get(rw.node.outputs[0])
    axis, k = rw.attr("axis", -1) % len(rw.shape(0)), rw.value(1)
    shape = rw.shape(0)
    n = taken = shape[axis]
    if k is not None:
        taken = int(k.reshape(-1)[0])
    looked(rw, axis, (*shape[:axis], taken, *shape[axis + 1 :]))
    if k is not None and known is None:
        return
    most: Mapping[str, Any] = {"most": n if known is None else known, "less": 0}
    of = rw.input(1) if known is None else length_of(rw, n, axis)
    count = rw("AtMost", of, shape=(1,), dtype=INDEX, **most)
    if rw.node.outputs[0] in written.long:
        least = n if known is None else min(known, n)
        taken = written.length(name, least, count)
        largest = rw.attr("largest", 1)
        told(rw, *_selected(rw, rw.input(0), axis, count, taken, largest))
        return
    whole = rw.several("TopK", 2, rw.input(0), rw.integers(n), shape=(), **rw.node.attrs)
    for one, dtype in zip(whole, (rw.kind(0).dtype, INDEX), strict=True):
        rw.types[one] = TensorType(shape, dtype)
    told(rw, *(shortened(rw, x, count, name, axis, 0, known) for x in whole))


RULES: Mapping[str, Rewrite] = {"TopK": _of_a_length}


def is_long(n: int) -> bool:
    """Whether those of n elements of a length that come first are selected, not all ranked."""
    return n > _MOST_RANKED


# --- definitions ---


def _rank(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Rank of each element along `axis`: the number of larger ones (not `largest`: smaller), and of
    equal ones further in front; NaN is the largest."""
    x, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of(x.shape)
    r = Axis(f"r{axes[axis].name}", x.shape[axis])
    other, own = x[(*axes[:axis], r, *axes[axis + 1 :])], x[axes]
    in_front = cast("float32", r.var) < cast("float32", axes[axis].var)
    before = _comes_before(other, own, in_front, node.attrs["largest"])
    counts = select(before, f32(1), f32(0))
    return scope.compute("rank", axes, Reduce("sum", counts, (r,)))


def _comes_before(other: Expr, own: Expr, in_front: Expr, largest: int) -> Expr:
    """Whether `other` is ordered before `own`.

    Comparisons with NaN are false except `ne`: `not other < own` is true for a NaN in `other`.
    """
    if largest:
        wins = call("not", select(in_front, other < own, other <= own))
    else:
        wins = select(in_front, other <= own, other < own)
    if not is_float(dtype_of(own)):
        return wins
    is_nan = compare("ne", other, other)
    of_nan = in_front & is_nan if largest else in_front | call("not", is_nan)
    return select(compare("ne", own, own), of_nan, wins)


def _ranked(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, k, …] = the element of x that has rank k or, without x, where it is."""
    ranks, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of((*ranks.shape[:axis], shape[axis], *ranks.shape[axis + 1 :]))
    r = Axis(f"r{axes[axis].name}", ranks.shape[axis])
    at = (*axes[:axis], r, *axes[axis + 1 :])
    element = tensor(operands, 1)[at] if len(operands) > 1 else r.var
    is_it = compare("eq", ranks[at], cast("float32", axes[axis].var))
    one = Reduce("sum", select(is_it, element, Const(0, dtype_of(element))), (r,))
    return scope.compute("ranked", axes, one)


OPERATORS: Mapping[str, Operator] = {
    "TopK": Operator(canonical=_top_k),
    "Rank": Operator(define=_rank),
    "Ranked": Operator(define=_ranked),
}
