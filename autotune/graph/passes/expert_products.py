"""① Products with gathered matrices read them where they are.

MatMul(x, Gather(W, e))    ->  ExpertMatMul(x, W, e)                         constant matrices W
MatMul(Gather(W, e), x)    ->  Reshape(ExpertMatMul(Reshape(x), Wᵀ, e))      x of one column
"""

from __future__ import annotations

import math

from autotune.graph.ir import Node
from autotune.graph.operators.experts import EXPERT_MATMUL
from autotune.graph.rewriter import Rewriter, Rule


def _expert_product(rw: Rewriter) -> None:
    """MatMul(x, Gather(W, e)) -> ExpertMatMul(x, W, e)            constant matrices W"""
    if rw.input(2) or rw.attr("trans_a", 0):
        return
    for n in range(2):
        name, is_turned = rw.input(n), bool(rw.attr("trans_b", 0)) and n == 1
        turned = rw.maker(name, "Transpose")
        if turned is not None and _swaps_last(turned):
            name, is_turned = turned.inputs[0], not is_turned
        while (view := rw.maker(name, "Reshape")) is not None and _keeps_matrices(rw, view):
            name = view.inputs[0]
        gather = rw.maker(name, "Gather")
        if gather is not None and _chooses_matrices(rw, gather):
            _replace(rw, n, gather, is_turned)
            return


def _swaps_last(node: Node) -> bool:
    rank, perm = len(node.attrs["perm"]), tuple(node.attrs["perm"])
    return rank > 2 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _keeps_matrices(rw: Rewriter, view: Node) -> bool:
    return rw.types[view.inputs[0]].shape[-2:] == rw.types[view.output].shape[-2:]


def _chooses_matrices(rw: Rewriter, gather: Node) -> bool:
    """Whether it takes some of several constant matrices, which data choose."""
    table, index = gather.inputs
    return (
        table in rw.constants
        and index not in rw.constants
        and rw.constants[table].ndim == 3
        and gather.attrs.get("axis", 0) % 3 == 0
        and rw.types[table].dtype in ("float32", "float16", "bfloat16")
    )


def _replace(rw: Rewriter, side: int, gather: Node, is_turned: bool) -> None:
    other, result = rw.kind(1 - side), rw.type
    batch = rw.kind(side).shape[:-2]
    n = math.prod(batch)
    if len(other.shape) != len(batch) + 2 or len(batch) < 1 or result.shape[:-2] != batch:
        return
    if side == 0 and other.shape[-1] != 1:
        return
    # from the left a matrix is turned, and a column is a row
    if is_turned == (side == 1):
        weight = rw("Transpose", gather.inputs[0], perm=(0, 2, 1))
    else:
        weight = gather.inputs[0]
    rows, width = other.shape[-2:] if side == 1 else other.shape[:-3:-1]
    x = rw.input(1 - side)
    if other.shape[:-2] != batch:  # rows that several matrices have in common
        x = rw("Expand", x, shape=(*batch, *other.shape[-2:]))
    x = rw("Reshape", x, shape=(n, rows, width))
    expert = rw("Reshape", gather.inputs[1], shape=(n,))
    n_columns = rw.types[weight].shape[-1]
    y = rw(EXPERT_MATMUL, x, weight, expert, shape=(n, rows, n_columns), dtype=result.dtype)
    rw.result("Reshape", y)


EXPERTS = Rule("expert-products", _expert_product, {"MatMul"})
