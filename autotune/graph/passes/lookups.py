"""① What is computed of one byte becomes a table of its 256 values.

    Quantize(Sigmoid(Dequantize(q, s, z))·Dequantize(q, s, z), t, v)  ->  Lookup(q, table)
    Quantize(Dequantize(q, s, z), s, z)                               ->  q

Any elementwise operators, however many, as long as nothing but `q` and single numbers goes in and
a byte comes out. The table has the float32 results of the definition.
"""

from __future__ import annotations

import numpy as np

from autotune.dtypes import DTYPES, is_float
from autotune.graph.ir import Array, Editor, Graph, Node
from autotune.graph.operators.lookup import N_BYTES
from autotune.graph.operators.table import operator_of
from autotune.te.expr import Expr, Tensor, idx
from autotune.te.tabulate import tabulate

_BYTES = ("uint8", "int8")


def tabulate_bytes(graph: Graph) -> Graph:
    """Elementwise functions of one byte whose result is a byte -> Lookup, or the byte itself."""
    return _Tables(graph).run()


class _Tables:
    def __init__(self, graph: Graph) -> None:
        self.editor = Editor(graph)
        self.kept = set(graph.outputs)
        self.source: dict[str, str] = {}
        """A tensor -> the byte tensor that it is a function of."""
        self.values: dict[str, Array] = {}
        """What such a tensor is for each bit pattern of its source."""
        self.has_floats: set[str] = set()
        """Those that have floats in between."""

    def run(self) -> Graph:
        for original in self.editor.graph.nodes:
            node = self.editor.updated(original)
            source = self._source(node)
            if source and self._is_known(node, source) and self._is_replaced(node.output):
                self._replace(node)
            else:
                self.editor.emit(node)
        return self.editor.build()

    def _source(self, node: Node) -> str:
        """The bytes that an elementwise node computes its result from; "" where there are none."""
        shape = self.editor.types[node.output].shape
        if operator_of(node.op).formula is None or not shape:
            return ""
        read = [n for n in node.inputs if n and n not in self.editor.constants]
        types = [self.editor.types[n] for n in read]
        found = {self._root(n) for n in read}
        known = [self.editor.constants[n] for n in node.inputs if n in self.editor.constants]
        is_alone = len(found) == 1 and all(t.shape == shape for t in types)
        return found.pop() if is_alone and all(a.size == 1 for a in known) else ""

    def _root(self, name: str) -> str:
        if name in self.source:
            return self.source[name]
        return name if self.editor.types[name].dtype in _BYTES else ""

    def _is_known(self, node: Node, source: str) -> bool:
        """Compute the values of a node for all bytes; False where its formula has none."""
        try:
            values = self._computed(node)
        except ValueError:
            return False
        name = node.output
        self.source[name], self.values[name] = source, values
        reads_floats = any(n in self.has_floats for n in node.inputs)
        if reads_floats or is_float(self.editor.types[name].dtype):
            self.has_floats.add(name)
        return True

    def _computed(self, node: Node) -> Array:
        formula = operator_of(node.op).formula
        assert formula is not None
        operands: list[Expr | None] = []
        values: dict[str, Array] = {}
        for slot, name in enumerate(node.inputs):
            if not name:
                operands.append(None)
                continue
            value = self._value(name)
            values[str(slot)] = value
            kind = self.editor.types[name].dtype
            operands.append(Tensor(str(slot), (N_BYTES,), kind)[idx(0)])
        result = tabulate(formula(node.attrs, *operands), values)
        dtype = DTYPES[self.editor.types[node.output].dtype].numpy
        return np.ascontiguousarray(np.broadcast_to(result, (N_BYTES,)).astype(dtype))

    def _value(self, name: str) -> Array:
        """A tensor for all bytes; bytes themselves by their bit patterns."""
        value = self.editor.constants.get(name)
        if value is not None:
            return value.reshape(1)
        if name in self.values:
            return self.values[name]
        return _patterns(self.editor.types[name].dtype)

    def _is_replaced(self, name: str) -> bool:
        return self.editor.types[name].dtype in _BYTES and name in self.has_floats

    def _replace(self, node: Node) -> None:
        name = node.output
        source, table = self.source[name], self.values[name]
        dtype = self.editor.types[source].dtype
        is_same = dtype == str(table.dtype) and np.array_equal(table, _patterns(dtype))
        if is_same and name not in self.kept:
            self.editor.alias(name, source)
            return
        constant = self.editor.constant(f"{name}.table", table)
        self.editor.emit(Node(node.name, "Lookup", (source, constant), node.outputs))


def _patterns(dtype: str) -> Array:
    """All bytes in the order of their bit patterns."""
    return np.arange(N_BYTES, dtype=np.uint8).view(DTYPES[dtype].numpy)
