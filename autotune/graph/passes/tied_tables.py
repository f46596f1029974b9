"""① A table of rows that is the weight of a product as well, in one copy: that of the product.

    GatherBlocks(table, i), BlockMatMul(x, words, …)  ->  GatherWords(words, i), BlockMatMul(…)
    Gather(table, i), MatMul(x, tableᵀ)               ->  Transpose(Gather(tableᵀ, i)), MatMul(…)

Embeddings of language models are such tables. Columns of the weight are rows of the table; a few
of them are read, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import operator_of, view_of
from autotune.graph.operators.weight_only import in_words
from autotune.graph.rewriter import Rewriter, Rule

_LEAST_BYTES = 64 << 10
_SAMPLE = 4
"""Rows that are compared before all are."""
_BITS = 4


def _tied(rw: Rewriter) -> None:
    """Gather(table, i), MatMul(x, tableᵀ) -> Transpose(Gather(tableᵀ, i)), MatMul(x, tableᵀ)"""
    table = rw.value(0)
    if table is None or table.ndim != 2 or rw.attr("axis", 0) or table.nbytes < _LEAST_BYTES:
        return
    (_words if rw.node.op == "GatherBlocks" else _floats)(rw, table)


def _words(rw: Rewriter, table: Array) -> None:
    """A table of 4 bits in the words of a product; see `block_quantised` for its halves."""
    n_words, rest = divmod(table.shape[1], 4)
    if not rw.attr("is_packed") or rw.attr("along") != 1 or rest:
        return
    for name in _weights(rw, (n_words, len(table)), "int32"):
        words = rw.constants[name]
        if all(np.array_equal(_in_words(t, words), words[..., : len(t)]) for t in _tries(table)):
            shape = (*rw.kind(1).shape, words.shape[1], words.shape[0], 8)
            attrs = {key: rw.attr(key) for key in ("block", "zero")}
            inputs = (name, *rw.node.inputs[1:])
            rows = rw("GatherWords", *inputs, shape=shape, dtype="float32", axis=2, **attrs)
            rw.result("Reshape", rows)
            return


def _in_words(table: Array, like: Array) -> Array:
    """Rows of a table as columns of words, in groups as others are."""
    words = in_words(np.concatenate([table & 15, table >> 4], axis=1).T, _BITS)
    return words.reshape(like.shape[1], like.shape[0], -1).transpose(1, 0, 2)


def _floats(rw: Rewriter, table: Array) -> None:
    """A table of a model with a state, whose programs share their weights."""
    if all(view_of(node) is not ViewKind.APPENDED for node in rw.editor.graph.nodes):
        return
    for name in _weights(rw, table.shape[::-1], str(table.dtype)):
        weight = rw.constants[name].T
        if all(np.array_equal(t, weight[: len(t)]) for t in _tries(table)):
            index = rw.kind(1).shape
            rows = rw("Gather", name, rw.input(1), axis=1, shape=(table.shape[1], *index))
            rw.result("Transpose", rows, perm=(*range(1, 1 + len(index)), 0))
            return


def _tries(table: Array) -> tuple[Array, Array]:
    return table[:_SAMPLE], table


def _weights(rw: Rewriter, shape: tuple[int, ...], dtype: str) -> Iterator[str]:
    """The weights of products that have such a shape and type."""
    for node in rw.editor.graph.nodes:
        name = node.inputs[1] if operator_of(node.op).factors.weight_input == 1 else ""
        value = rw.constants.get(name)
        if value is None or value.ndim < 2 or str(value.dtype) != dtype:
            continue
        if value.ndim < 4 and (prod(value.shape[:-1]), value.shape[-1]) == shape:
            yield name


TIED = Rule("tied-tables", _tied, {"Gather", "GatherBlocks"})
