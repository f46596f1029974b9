"""① Reshape, Transpose and Gather of a dequantised tensor move to its integers.

    Transpose(Dequantize(q, s, z))  ->  Dequantize(Transpose(q), Transpose(s), Transpose(z))
    Gather(Dequantize(q, s, z), i)  ->  Dequantize(Gather(q, i), s, z)      one s, one z

So a product behind them still has a dequantised operand, constants are moved once, here, and
tables of embeddings stay bytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node, Shape
from autotune.graph.operators.table import operator_of

_BYTES = ("int8", "uint8")
_MOVES = ("Reshape", "Transpose")


def move_dequantise(graph: Graph) -> Graph:
    """Reshape, Transpose, Gather of Dequantize(q, s, z) -> Dequantize(moved q, moved s, moved z).

    Left where scales vary along a dimension of `q` that a Reshape splits or merges and `q` is
    computed; a constant `q` gets a scale for each of its elements there.
    """
    editor = Editor(graph)
    made: dict[str, Node] = {}
    for original in graph.nodes:
        node = editor.updated(original)
        can_move = node.op in _MOVES or operator_of(node.op).indexed is not None
        source = made.get(node.inputs[0]) if can_move else None
        moved = None if source is None else _moved(editor, node, source)
        if moved is not None:
            node = moved
        if node.op == "Dequantize":
            made[node.output] = node
        editor.emit(node)
    return editor.build()


def _moved(editor: Editor, node: Node, source: Node) -> Node | None:
    """The Dequantize that makes the output of `node`, behind a move of what `source` reads."""
    q, *factors = source.inputs
    values = [editor.constants.get(n) for n in factors]
    known = [v for v in values if v is not None]
    if editor.types[q].dtype not in _BYTES or len(known) < len(factors):
        return None
    data = editor.constants.get(q)
    shape, target = editor.types[q].shape, editor.types[node.output].shape
    parts = [_moved_factor(node, v, shape, target, data is not None) for v in known]
    if any(part is None for part in parts):
        return None
    if data is not None and node.op in _MOVES:
        name = editor.constant(f"{q}.moved", np.ascontiguousarray(_applied(node, data, target)))
    else:
        name = editor.new(f"{q}.moved", target, editor.types[q].dtype)
        editor.emit(replace(node, inputs=(q, *node.inputs[1:]), outputs=(name,)))
    names = [
        n if part is value else editor.constant(f"{n}.moved", part)
        for n, value, part in zip(factors, known, parts, strict=True)
        if part is not None
    ]
    return replace(source, inputs=(name, *names), outputs=node.outputs)


def _applied(node: Node, value: Array, target: Shape) -> Array:
    """What a Reshape or Transpose makes of a constant."""
    if node.op == "Reshape":
        return value.reshape(target)
    return value.transpose(node.attrs.get("perm"))


def _moved_factor(
    node: Node, value: Array, shape: Shape, target: Shape, is_constant: bool
) -> Array | None:
    """Scales or zero points of `shape` as they repeat along `target`; None where they do not."""
    if value.size == 1:
        return value
    if node.op not in _MOVES:
        return None
    value = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if node.op == "Transpose" or value.shape == shape:
        return np.ascontiguousarray(_applied(node, value, target))
    (axis, *others) = [n for n, extent in enumerate(value.shape) if extent > 1]
    for n, extent in enumerate(target):
        is_same = extent == shape[axis] and prod(target[:n]) == prod(shape[:axis])
        if is_same and not others:
            return value.reshape((1,) * n + (extent,) + (1,) * (len(target) - n - 1))
    if not is_constant:
        return None
    return np.ascontiguousarray(np.broadcast_to(value, shape).reshape(target))
