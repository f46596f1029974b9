"""① Large float32 constants that half precision holds exactly are stored so: half the bytes.

    MatMul(x, w)      ->  MatMul(x, w')            w' is widened in registers while it is read
    Gather(table, i)  ->  Cast(Gather(table', i))
    BlockMatMul(x, q, scale, …)  ->  BlockMatMul(x, q, scale', …)

Nothing is rounded: the values of a model that was saved in float16 or bfloat16, or trained in it,
are the same. Products with many rows keep wide weights: they compute for longer than they read. The
scales of blocks of weights are widened once for a block: every number of rows has them narrow.
"""

from __future__ import annotations

from math import prod

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array
from autotune.graph.rewriter import Rewriter, Rule

_SAMPLE = 4096
"""Elements of an array that are looked at before all of it is."""
_LEAST_BYTES = 64 << 10
_MOST_ROWS = 32
_HALVES = ("bfloat16", "float16")


def _store(rw: Rewriter) -> None:
    """Weights of products with few rows and tables, where half precision holds them exactly."""
    is_table = rw.node.op == "Gather"
    if not is_table and (rw.kind(0).dtype != "float32" or prod(rw.kind(0).shape[:-1]) > _MOST_ROWS):
        return
    slot = 0 if is_table else 1
    half = rw.derived(rw.input(slot), exact_half)
    if not half:
        return
    inputs = (*rw.node.inputs[:slot], half, *rw.node.inputs[slot + 1 :])
    if is_table:
        rows = rw("Gather", *inputs, shape=rw.type.shape, **rw.node.attrs)
        rw.result("Cast", rows, to="float32")
    else:
        rw.results("MatMul", *inputs, **rw.node.attrs)


def _store_scales(rw: Rewriter) -> None:
    """Scales of weights of few bits."""
    if half := rw.derived(rw.input(2), exact_half):
        rw.results("BlockMatMul", *rw.node.inputs[:2], half, *rw.node.inputs[3:], **rw.node.attrs)


def exact_half(value: Array) -> Array | None:
    """A large float32 array in the half precision that holds all of it; None where none does."""
    if value.dtype != np.float32 or value.nbytes < _LEAST_BYTES:
        return None
    for dtype in _HALVES:
        if _rounded(value.flat[:_SAMPLE], dtype) is not None:  # most arrays need no more
            half = _rounded(value, dtype)
            if half is not None:
                return half
    return None


def _rounded(value: Array, dtype: str) -> Array | None:
    """`value` in another type where that changes no element, else None."""
    with np.errstate(over="ignore"):
        half = value.astype(DTYPES[dtype].numpy)
    return half if np.array_equal(half.astype(np.float32), value, equal_nan=True) else None


STORE_HALF = Rule("store-half", _store, {"Gather", "MatMul"})
STORE_SCALES = Rule("store-scales", _store_scales, {"BlockMatMul"})
