"""Probabilities of classes by those of pairs of classes: Wu, Lin and Weng, JMLR 5 (2004), 2.

    p(s) = 1 - sigmoid(a·s + b) of each pair;  classes by the iterations of libsvm until a tolerance

What libsvm and ONNX Runtime compute depends on where their iterations end: so each row has as many
here, of at most `_MOST_STEPS`. More than four were never seen.
"""

from __future__ import annotations

import numpy as np

from autotune.graph.rewriter import Rewriter

MOST_CLASSES = 16
_MOST_STEPS = 6
_LEAST, _TOLERANCE = 1e-7, 0.005


def coupled(rw: Rewriter, scores: str, a: str, b: str, n: int) -> str:
    """Scores [rows, pairs of classes i < j] -> probabilities [rows, n]. `a`, `b`: of the pairs."""
    one = rw.scalar(1.0)
    likely = rw("Sub", one, rw("Sigmoid", rw("Add", rw("Mul", scores, a), b)))
    likely = rw("Max", rw("Min", likely, rw.scalar(1 - _LEAST)), rw.scalar(_LEAST))
    against = rw("Sub", one, likely)
    n_pairs, place = n * (n - 1) // 2, np.zeros((n, n), np.int64)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    for k, (i, j) in enumerate(pairs):
        place[i, j], place[j, i] = k, n_pairs + k
    apart = rw.array((1 - np.eye(n)).astype(np.float32))
    square = rw("Gather", rw("Concat", likely, against, axis=1), rw.array(place), axis=1)
    r = rw("Mul", square, apart)
    own = rw("ReduceSumSquare", r, rw.integers(1), keepdims=0)
    eye = rw.array(np.eye(n, dtype=np.float32))
    diagonal = rw("Mul", rw("Unsqueeze", own, rw.integers(1)), eye)
    matrix = rw("Sub", diagonal, rw("Mul", rw("Transpose", r, perm=(0, 2, 1)), r))
    columns = [_column(rw, own, t) for t in range(n)]
    rows = [rw("Gather", matrix, rw.array(np.array(t)), axis=1) for t in range(n)]
    p = rw("Add", rw("Mul", own, rw.scalar(0.0)), rw.scalar(1 / n))
    for _ in range(_MOST_STEPS):
        p = _step(rw, p, matrix, rows, columns, n)
    return p


def _column(rw: Rewriter, x: str, t: int) -> str:
    return rw.slice(x, [1], [t], [t + 1])


def _step(rw: Rewriter, p: str, matrix: str, rows: list[str], own: list[str], n: int) -> str:
    """One iteration, of rows that are not within the tolerance."""
    one, axis = rw.scalar(1.0), rw.integers(1)
    product = rw("Mul", matrix, rw("Unsqueeze", p, axis))
    qp = rw("ReduceSum", product, rw.integers(2), keepdims=0)
    pqp = rw("ReduceSum", rw("Mul", p, qp), axis)
    error = rw("ReduceMax", rw("Abs", rw("Sub", qp, pqp)), axis)
    is_done = rw("Less", error, rw.scalar(_TOLERANCE / n))
    new = p
    for t in range(n):
        at = _column(rw, qp, t)
        move = rw("Div", rw("Sub", pqp, at), own[t])
        scale = rw("Div", one, rw("Add", one, move))
        twice = rw("Add", rw("Mul", move, own[t]), rw("Mul", rw.scalar(2.0), at))
        grown = rw("Add", pqp, rw("Mul", move, twice))
        pqp = rw("Mul", rw("Mul", grown, scale), scale)
        qp = rw("Mul", rw("Add", qp, rw("Mul", move, rows[t])), scale)
        place = rw.array(np.eye(n, dtype=np.float32)[t][None])
        new = rw("Mul", rw("Add", new, rw("Mul", move, place)), scale)
    return rw("Where", is_done, p, new)
