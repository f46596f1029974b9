"""① Products with keys and values of a cache, which are read where they are.

MatMul(x, Reshape(Expand(keys)))    ->  Reshape(MatMul(Reshape(x), keys))   heads that share keys
Softmax(Reshape(x))                 ->  Reshape(Softmax(x))
MatMul(x, Transpose(keys))          ->  MatMul(x, keys, trans_b)            a few rows, a state

With few rows a product takes as long as its second operand takes to read, so nothing copies it.
"""

from __future__ import annotations

import math

from autotune.graph.ir import Node
from autotune.graph.operators.state import APPEND, MATMUL_BELOW, SOFTMAX_BELOW
from autotune.graph.rewriter import Rewriter, Rule

_FEW_ROWS = 16
"""Rows up to which copying the second operand costs more than it saves."""


def _swaps_last(node: Node | None, rank: int) -> bool:
    """Whether a node exchanges the last two dimensions, and nothing else."""
    return node is not None and tuple(node.attrs["perm"]) == (*range(rank - 2), rank - 1, rank - 2)


def _grouped(rw: Rewriter) -> None:
    """MatMul(x, Reshape(Expand(keys))) -> Reshape(MatMul(Reshape(x), keys))"""
    name, rank = rw.input(1), rw.rank(1)
    has_bias = rw.node.op == "MatMul" and bool(rw.input(2))
    if rank < 3 or rw.rank(0) != rank or has_bias or name in rw.constants:
        return
    turned = rw.maker(name, "Transpose")
    if turned is not None and not _swaps_last(turned, rank):
        return
    joined = rw.maker(turned.inputs[0] if turned else name, "Reshape")
    spread = rw.maker(joined.inputs[0], "Expand") if joined else None
    if joined is None or spread is None or spread.inputs[0] in rw.constants:
        return
    small, wide = (rw.types[n].shape for n in (spread.inputs[0], spread.output))
    shape, left = rw.types[joined.output].shape, rw.kind(0).shape
    small = (1,) * (len(wide) - len(small)) + small
    repeated = [d for d, (a, b) in enumerate(zip(small, wide, strict=True)) if a != b]
    if len(repeated) != 1:
        return
    at = repeated[0]
    group = wide[at]
    # the copies are neighbours in one dimension of the batch: (…, heads, group, …) -> (…, all, …)
    after = [math.prod(shape[d + 1 :]) for d in range(rank)]
    inner = math.prod(wide[at + 1 :])
    axis = next((d for d in range(rank - 2) if after[d] == inner), None)
    if axis is None or shape[axis] % group or left[: rank - 2] != shape[: rank - 2]:
        return
    if any(extent != 1 for extent in shape[axis + 1 : rank - 2]):
        return
    lead = (*shape[:axis], shape[axis] // group)
    rest = shape[axis + 1 : rank - 2]
    keys = rw("Reshape", spread.inputs[0], shape=(*lead, 1, *rest, *shape[-2:]))
    if turned is not None:
        order = (*range(rank - 1), rank, rank - 1)
        columns = (*lead, 1, *rest, shape[-1], shape[-2])
        keys = rw("Transpose", keys, shape=columns, perm=order)
    batch = (*lead, group, *rest)
    rows = rw("Reshape", rw.input(0), shape=(*batch, *left[-2:]))
    wanted, more = (*batch, left[-2], rw.type.shape[-1]), rw.node.inputs[2:]
    y = rw(rw.node.op, rows, keys, *more, shape=wanted, **rw.node.attrs)
    rw.result("Reshape", y)


def _softmax(rw: Rewriter) -> None:
    """Softmax(Reshape(MatMul)) -> Reshape(Softmax(MatMul))        along the same last dimension"""
    shape, axis = rw.type.shape, rw.attr("axis", -1)
    view = rw.private(rw.input(0), "Reshape")
    if view is None or axis % len(shape) != len(shape) - 1:
        return
    source = rw.types[view.inputs[0]].shape
    if len(source) < 2 or source[-1:] != shape[-1:] or rw.maker(view.inputs[0]) is None:
        return
    more, attrs = rw.node.inputs[1:], {**rw.node.attrs, "axis": len(source) - 1}
    rw.result("Reshape", rw(rw.node.op, view.inputs[0], *more, shape=source, **attrs))


def _in_place(rw: Rewriter) -> None:
    """MatMul(x, Transpose(keys)) -> MatMul(x, keys, trans_b)      a few rows"""
    rank = rw.rank(1)
    turned = rw.private(rw.input(1), "Transpose")
    if rank < 3 or rw.attr("trans_b", 0) or not _swaps_last(turned, rank) or turned is None:
        return
    shape, keys = rw.type.shape, rw.kind(1).shape
    n_rows = math.prod(shape[:-1]) // max(1, math.prod(keys[:-2]))
    if n_rows > _FEW_ROWS or not _is_kept(rw, turned.inputs[0]):
        return
    rw.again(rw.input(0), turned.inputs[0], *rw.node.inputs[2:], trans_b=1)


def _is_kept(rw: Rewriter, name: str) -> bool:
    """Whether a tensor is in memory already: a state, or an input."""
    while (view := rw.maker(name, "Reshape")) is not None:
        name = view.inputs[0]
    return name in rw.editor.graph.inputs or rw.maker(name, APPEND) is not None


GROUPED = Rule("grouped-products", _grouped, {"MatMul", MATMUL_BELOW})
SOFTMAX = Rule("softmax-of-rows", _softmax, {"Softmax", SOFTMAX_BELOW})
IN_PLACE = Rule("products-in-place", _in_place, {"MatMul"})
