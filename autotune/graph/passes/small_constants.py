"""① Large float32 constants that half precision holds exactly are stored so: half the bytes.

    MatMul(x, w)      ->  MatMul(x, w')            w' is widened in registers while it is read
    Gather(table, i)  ->  Cast(Gather(table', i))

Nothing is rounded: the values of a model that was saved in float16 or bfloat16, or trained in it,
are the same. Products with many rows keep wide weights: they compute for longer than they read.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Editor, Graph, Node

_SAMPLE = 4096
"""Elements of an array that are looked at before all of it is."""
_LEAST_BYTES = 64 << 10
_MOST_ROWS = 32
_HALVES = ("bfloat16", "float16")


def store_small_constants(graph: Graph) -> Graph:
    """Weights of products with few rows and tables, where half precision holds them exactly."""
    editor = Editor(graph)
    small: dict[str, str | None] = {}
    for original in graph.nodes:
        node = editor.updated(original)
        slot = 1 if _has_few_rows(editor, node) else 0 if node.op == "Gather" else None
        name = node.inputs[slot] if slot is not None else ""
        value = editor.constants.get(name) if name else None
        if value is not None and name not in small:
            half = exact_half(value)
            small[name] = None if half is None else editor.constant(f"{name}.half", half)
        narrow = small.get(name) if value is not None else None
        if slot is None or narrow is None:
            editor.emit(node)
            continue
        inputs = (*node.inputs[:slot], narrow, *node.inputs[slot + 1 :])
        if slot:
            editor.emit(replace(node, inputs=inputs))
        else:
            _look_up(editor, replace(node, inputs=inputs), editor.types[narrow].dtype)
    return editor.build()


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


def _has_few_rows(editor: Editor, node: Node) -> bool:
    if node.op != "MatMul":
        return False
    rows = editor.types[node.inputs[0]].shape[:-1]
    return editor.types[node.inputs[0]].dtype == "float32" and prod(rows) <= _MOST_ROWS


def _look_up(editor: Editor, node: Node, dtype: str) -> None:
    """A Gather of narrow rows, widened behind it."""
    found = editor.new(f"{node.output}.half", editor.types[node.output].shape, dtype)
    editor.emit(replace(node, outputs=(found,)))
    editor.emit(Node(node.name, "Cast", (found,), node.outputs, {"to": "float32"}))
