"""① Nodes that compute the same from the same operands become one.

y = Exp(x); z = Exp(x)  ->  y = Exp(x)                readers of z read y
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from autotune.graph.ir import Editor, Graph, Node
from autotune.graph.operators.definition import Folding
from autotune.graph.operators.table import operator_of

_MOST_BYTES = 4096
"""Constants up to this size are compared by value, larger ones by name."""


def merge_equal_nodes(graph: Graph) -> Graph:
    """Nodes of equal operator, attributes and operands -> the first of them.

    Not merged: what is cheap to compute again (it fuses with each of its readers), what moves data,
    random operators, those that hold graphs, and outputs of the model.
    """
    editor = Editor(graph)
    seen: dict[Hashable, Node] = {}
    kept = set(graph.outputs)
    for original in graph.nodes:
        node = editor.updated(original)
        key = _key(editor, node)
        first = None if key is None else seen.setdefault(key, node)
        if first is None or first is node or kept & set(node.outputs):
            editor.emit(node)
            continue
        for name, same in zip(node.outputs, first.outputs, strict=True):
            if name:
                editor.alias(name, same)
    return editor.build()


def _key(editor: Editor, node: Node) -> Hashable | None:
    """What two nodes that compute the same have in common; None for those that are not merged."""
    operator = operator_of(node.op)
    is_scalar = all(np.prod(editor.types[o].shape) == 1 for o in node.outputs if o)
    is_free = operator.moves or (operator.is_cheap and not is_scalar)
    if is_free or operator.folding in (Folding.NEVER, Folding.DRAWN):
        return None
    attrs = tuple((name, _frozen(value)) for name, value in sorted(node.attrs.items()))
    if any(value is None for _, value in attrs):
        return None
    inputs = tuple(_operand(editor, name) for name in node.inputs)
    types = tuple(editor.types[o] if o else None for o in node.outputs)
    return node.op, node.opset, inputs, attrs, types


def _operand(editor: Editor, name: str) -> Hashable:
    value = editor.constants.get(name) if name else None
    if value is None or value.nbytes > _MOST_BYTES:
        return name
    return str(value.dtype), value.shape, value.tobytes()


def _frozen(value: Any) -> Hashable | None:
    """An attribute that can be compared; None for graphs and other records."""
    match value:
        case bool() | int() | float() | str() | bytes():
            return type(value).__name__, repr(value)
        case list() | tuple():
            parts = tuple(_frozen(v) for v in value)
            return None if any(p is None for p in parts) else parts
        case _:
            return None
