"""① TfIdfVectorizer of numbers -> comparisons with all terms, and sums over places.

count[b, t] = Σ_skip Σ_p Π_j (x[b, p + j·skip] = term[t, j])
y[b, i]     = Σ_t count[b, t] over the terms of column i, as it is, as 0 or 1, or weighted
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.limits import check_constant
from autotune.graph.reader.composer import Composer, Composition


def _term_counts(c: Composer) -> None:
    """x[n] or x[b, n] of whole numbers -> [columns] or [b, columns] in float32."""
    shape = c.shape(0)
    if "pool_int64s" not in c.node.attrs or not 0 < len(shape) < 3:
        raise c.refuse("it counts strings, or what is no row of numbers")
    n_rows, n = (1, *shape)[-2:]
    x = c.cast(c.reshaped(c.input(0), n_rows, n), "int64")
    columns = np.array(c.node.attrs["ngram_indexes"])
    parts, found = [], []
    for size, first, terms in _terms(c):
        made = (_counted(c, x, (n_rows, n), terms, skip) for skip in _skips(c, size))
        counts = [name for name in made if name]
        if counts:
            parts.append(counts[0] if len(counts) == 1 else c("Sum", *counts))
            found.append(columns[first : first + len(terms)])
    n_columns = int(columns.max()) + 1
    result = (*shape[:-1], n_columns)
    if not parts:
        c.result("Identity", c.array(np.zeros(result, np.float32)))
        return
    total = parts[0] if len(parts) == 1 else c("Concat", *parts, axis=1)
    at = np.concatenate(found)
    places = (at[:, None] == np.arange(n_columns)).astype(np.float32)
    weighted = c("MatMul", total, c.array(places))
    mode, weights = c.attr("mode", "TF"), c.attr("weights", ())
    if mode == "IDF":
        weighted = c("Min", weighted, c.float(1.0))
    if mode != "TF" and weights:
        weighted = c("Mul", weighted, c.array(np.array(weights, np.float32)))
    c.result("Reshape", weighted, c.integers(*result))


def _terms(c: Composer) -> Iterator[tuple[int, int, Array]]:
    """Length, number of the first and terms [n, length] of every length that counts."""
    pool, starts = np.array(c.node.attrs["pool_int64s"], np.int64), c.node.attrs["ngram_counts"]
    first = 0
    for size, (begin, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        terms = pool[begin:end].reshape(-1, size)
        if c.attr("min_gram_length", 1) <= size <= c.attr("max_gram_length", 1) and len(terms):
            yield size, first, terms
        first += len(terms)


def _skips(c: Composer, size: int) -> range:
    """Distances between the parts of a term; a term of one part has no distance."""
    return range(1, 2 if size == 1 else c.attr("max_skip_count", 0) + 2)


def _counted(c: Composer, x: str, shape: tuple[int, int], terms: Array, skip: int) -> str:
    """How often every term occurs in each row, [rows, terms]; "" where none fits into a row."""
    n_terms, size = terms.shape
    n_places = shape[1] - skip * (size - 1)
    if n_places < 1:
        return ""
    check_constant(c.node, 4 * shape[0] * n_places * n_terms * size)
    at = np.arange(n_places)[:, None] + skip * np.arange(size)
    read = c.reshaped(c("Gather", x, c.array(at), axis=1), shape[0], n_places, 1, size)
    equal = c.cast(c("Equal", read, c.array(terms)), "float32")
    whole = c("ReduceMin", equal, c.integers(3), keepdims=0)
    return c("ReduceSum", whole, c.integers(1), keepdims=0)


COMPOSITIONS: dict[str, Composition] = {"TfIdfVectorizer": _term_counts}
