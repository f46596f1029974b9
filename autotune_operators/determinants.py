"""Determinants of small matrices.

Det(x)  ->  elimination with pivots, a few operators for each row
"""

from __future__ import annotations

import numpy as np

from autotune.graph.rewriter import Rewrite, Rewriter

_MOST_ROWS = 64
"""Rows of a matrix up to which its elimination is written out."""


def _det(rw: Rewriter) -> None:
    """x[…, n, n] -> […]: the product of the pivots, with a sign for every exchange of rows."""
    *batch, n, n_columns = rw.shape(0)
    if n != n_columns or not 0 < n <= _MOST_ROWS:
        raise rw.refuse(f"a matrix of {n} x {n_columns}")
    rest = rw.reshaped(rw.input(0), -1, n, n)
    total = ""
    for size in range(n, 0, -1):
        pivot, rest = _eliminated(rw, rest, size)
        total = rw("Mul", total, pivot) if total else pivot
    rw.result("Reshape", total, rw.integers(*batch))


def _eliminated(rw: Rewriter, x: str, size: int) -> tuple[str, str]:
    """x[m, size, size] -> its largest pivot [m, 1, 1] with a sign, and the Schur complement."""
    if size == 1:
        return x, ""
    zero, one = (rw.scalar(value, rw.kind(0).dtype) for value in (0.0, 1.0))
    first = rw("Slice", x, rw.integers(0), rw.integers(1), rw.integers(2))
    best = rw("ArgMax", rw("Abs", first), axis=1, keepdims=1)
    places = rw.array(np.arange(size).reshape(1, size, 1))
    is_best = rw("Equal", places, best)
    row = rw("ReduceSum", rw("Where", is_best, x, zero), rw.integers(1))
    top = rw("Slice", x, rw.integers(0), rw.integers(1), rw.integers(1))
    moved = rw("Where", is_best, top, x)  # the first row takes the place of the pivot's
    below = rw("Slice", moved, rw.integers(1), rw.integers(size), rw.integers(1))
    pivot, *others = (
        rw("Slice", row, rw.integers(a), rw.integers(b), rw.integers(2))
        for a, b in ((0, 1), (1, size))
    )
    is_zero = rw("Equal", pivot, zero)
    head = rw("Slice", below, rw.integers(0), rw.integers(1), rw.integers(2))
    factor = rw("Div", head, rw("Where", is_zero, one, pivot))
    tail = rw("Slice", below, rw.integers(1), rw.integers(size), rw.integers(2))
    left = rw("Sub", tail, rw("Mul", factor, others[0]))
    stays = rw("Equal", best, rw.array(np.zeros((1, 1, 1), np.int64)))
    return rw("Where", stays, pivot, rw("Neg", pivot)), left


COMPOSITIONS: dict[str, Rewrite] = {"Det": _det}
