"""① Sums of products of bytes as products of floats, where those give every bit of them.

    Conv(q, w): int32  ->  Cast(Conv(Cast(q), w')): int32    w': the same weights as floats

float32 holds each integer up to 2²⁴, bfloat16 each byte. So products of bytes are exact in both,
and so are sums in float32, in any order, as long as neither the positive products of one output
nor the negative ones can exceed 2²⁴.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node

_EXACT = 2**24
"""float32 holds all integers up to it."""
_PRODUCTS = ("Conv", "MatMul")
_LARGEST = {"uint8": 255, "int8": 128}
"""Of the data, by type."""


def float_integers(graph: Graph, names: Set[str], stored: Set[str] = frozenset()) -> Graph:
    """Sums of products of bytes, those of nodes `names`, as exact sums of floats.

    `stored`: those whose data are to lie in memory as floats. What is dequantised from the same
    data is read from there too, so that the bytes need not be stored.
    """
    return _Floats(graph, names, stored).run()


class _Floats:
    def __init__(self, graph: Graph, names: Set[str], stored: Set[str]) -> None:
        self.graph, self.editor = graph, Editor(graph)
        nodes = (n for n in graph.nodes if n.name in names and has_exact_floats(graph, n))
        self.products = {node.output for node in nodes}
        """What the products make that become those of floats."""
        self.floats: dict[str, str] = {}
        """Data as bytes -> as floats."""
        self.stored = self._stored(stored)
        """Data that nobody reads as bytes."""

    def run(self) -> Graph:
        for original in self.graph.nodes:
            node = self.editor.updated(original)
            if node.output in self.products:
                self._emit_product(node)
            elif node.op == "Dequantize" and node.inputs[0] in self.stored:
                floats = self._as_floats(node, node.inputs[0])
                self.editor.emit(replace(node, inputs=(floats, *node.inputs[1:])))
            else:
                self.editor.emit(node)
        return self.editor.build()

    def _stored(self, names: Set[str]) -> frozenset[str]:
        """What only products of nodes `names` read, and what dequantises it."""
        found = set()
        for name, readers in self.graph.consumers().items():
            products = {node.name for node in readers if node.output in self.products}
            rest = [node for node in readers if node.output not in self.products]
            if products and products <= names and all(n.op == "Dequantize" for n in rest):
                found.add(name)
        return frozenset(found.difference(self.graph.outputs))

    def _as_floats(self, node: Node, name: str) -> str:
        if name not in self.floats:
            self.floats[name] = self.editor.new(f"{name}.floats", self.editor.types[name].shape)
            made = (self.floats[name],)
            self.editor.emit(Node(node.name, "Cast", (name,), made, {"to": "float32"}))
        return self.floats[name]

    def _emit_product(self, node: Node) -> None:
        editor, (data, weights) = self.editor, node.inputs
        value = editor.constants[weights].astype(np.float32)
        operands = (self._as_floats(node, data), editor.constant(f"{weights}.floats", value))
        kind = editor.types[node.output]
        total = editor.new(f"{node.output}.floats", kind.shape)
        editor.emit(Node(node.name, node.op, operands, (total,), node.attrs))
        editor.emit(Node(node.name, "Cast", (total,), node.outputs, {"to": kind.dtype}))


def has_exact_floats(graph: Graph, node: Node) -> bool:
    """Whether a node sums products of bytes and constant ones, and floats would do it exactly."""
    if node.op not in _PRODUCTS or len(node.inputs) > 2:
        return False
    largest = _LARGEST.get(graph.types[node.inputs[0]].dtype)
    weights = graph.constants.get(node.inputs[1])
    if largest is None or weights is None or weights.dtype.kind != "i":
        return False
    return largest * _most(node, weights) <= _EXACT


def _most(node: Node, weights: Array) -> int:
    """The largest sum of weights of one sign that belong to one output."""
    if node.op == "Conv":
        others = tuple(range(1, weights.ndim))
    else:
        others = (max(0, weights.ndim - (1 if node.attrs.get("trans_b", 0) else 2)),)
    signs = (np.maximum(weights, 0), np.minimum(weights, 0))
    sums = (np.abs(part.sum(axis=others, dtype=np.int64)) for part in signs)
    return int(max(total.max(initial=0) for total in sums))
