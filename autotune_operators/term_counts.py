"""TfIdfVectorizer of numbers -> comparisons with all terms, and sums over places.

count[b, t] = Σ_skip Σ_p Π_j (x[b, p + j·skip] = term[t, j])
y[b, i]     = Σ_t count[b, t] over the terms of column i, as it is, as 0 or 1, or weighted
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.limits import check_constant
from autotune.graph.rewriter import Rewrite, Rewriter


def _term_counts(rw: Rewriter) -> None:
    """x[n] or x[b, n] of whole numbers -> [columns] or [b, columns] in float32."""
    shape = rw.shape(0)
    if "pool_int64s" not in rw.node.attrs or not 0 < len(shape) < 3:
        raise rw.refuse("it counts strings, or what is no row of numbers")
    n_rows, n = (1, *shape)[-2:]
    x = rw.cast(rw.reshaped(rw.input(0), n_rows, n), "int64")
    columns = np.array(rw.node.attrs["ngram_indexes"])
    parts, found = [], []
    for size, first, terms in _terms(rw):
        made = (_counted(rw, x, (n_rows, n), terms, skip) for skip in _skips(rw, size))
        counts = [name for name in made if name]
        if counts:
            parts.append(counts[0] if len(counts) == 1 else rw("Sum", *counts))
            found.append(columns[first : first + len(terms)])
    n_columns = int(columns.max()) + 1
    result = (*shape[:-1], n_columns)
    if not parts:
        rw.result("Identity", rw.array(np.zeros(result, np.float32)))
        return
    total = parts[0] if len(parts) == 1 else rw("Concat", *parts, axis=1)
    at = np.concatenate(found)
    places = (at[:, None] == np.arange(n_columns)).astype(np.float32)
    weighted = rw("MatMul", total, rw.array(places))
    mode, weights = rw.attr("mode", "TF"), rw.attr("weights", ())
    if mode == "IDF":
        weighted = rw("Min", weighted, rw.scalar(1.0))
    if mode != "TF" and weights:
        weighted = rw("Mul", weighted, rw.array(np.array(weights, np.float32)))
    rw.result("Reshape", weighted, rw.integers(*result))


def _terms(rw: Rewriter) -> Iterator[tuple[int, int, Array]]:
    """Length, number of the first and terms [n, length] of every length that counts."""
    pool, starts = np.array(rw.node.attrs["pool_int64s"], np.int64), rw.node.attrs["ngram_counts"]
    first = 0
    for size, (begin, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        terms = pool[begin:end].reshape(-1, size)
        if rw.attr("min_gram_length", 1) <= size <= rw.attr("max_gram_length", 1) and len(terms):
            yield size, first, terms
        first += len(terms)


def _skips(rw: Rewriter, size: int) -> range:
    """Distances between the parts of a term; a term of one part has no distance."""
    return range(1, 2 if size == 1 else rw.attr("max_skip_count", 0) + 2)


def _counted(rw: Rewriter, x: str, shape: tuple[int, int], terms: Array, skip: int) -> str:
    """Counts of every term in each row, [rows, terms]; "" where none fits into a row."""
    n_terms, size = terms.shape
    n_places = shape[1] - skip * (size - 1)
    if n_places < 1:
        return ""
    check_constant(rw.node, 4 * shape[0] * n_places * n_terms * size)
    at = np.arange(n_places)[:, None] + skip * np.arange(size)
    read = rw.reshaped(rw("Gather", x, rw.array(at), axis=1), shape[0], n_places, 1, size)
    equal = rw.cast(rw("Equal", read, rw.array(terms)), "float32")
    whole = rw("ReduceMin", equal, rw.integers(3), keepdims=0)
    return rw("ReduceSum", whole, rw.integers(1), keepdims=0)


COMPOSITIONS: dict[str, Rewrite] = {"TfIdfVectorizer": _term_counts}
