"""① Low precision: products of float32 with bfloat16 or float16 factors and sums in float32.

    Conv(x, w, b)          ->  Conv(n, w', b)     n = Cast(x): narrow, w': narrow weights
    Add(x, y)              ->  Add(Cast(n), y)    all else reads n widened, where x is not an output
    Reshape(x), Conv of it ->  Reshape(n)         moves of elements move narrow ones

A tensor that a product or a window reads is stored narrow, once: its producer rounds it as the last
thing that it does, and readers that compute in float32 widen it in registers. Normalisations,
softmax and everything else that is not linear are computed in float32; tensors that only they read
are stored so. A product, a window or a table that is `kept` asks for nothing narrow.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Editor, Graph, Node
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.operators.whole_terms import term_axis, with_zeros, zeros_behind
from autotune.graph.rewriter import Rewriter

_TERMS = {"bfloat16": 2}
"""Products of a type that one instruction adds up, where CPUs have such an instruction."""

_PAIR = 2
"""Channels of each group of a convolution are a multiple of it, or stay float32: none is padded."""


def narrow_products(graph: Graph, dtype: str, kept: Set[str] = frozenset()) -> Graph:
    """Factors of Conv and MatMul in `dtype`, but of `kept` nodes; see the module."""
    return _Narrower(graph, dtype, kept).run()


def narrowable(node: Node) -> bool:
    """Whether a node may read narrow operands: a product, a window, or a look-up in a table."""
    return operator_of(node.op).factors.n_narrow > 0 or node.op == "Gather"


class _Narrower:
    def __init__(self, graph: Graph, dtype: str, kept: Set[str]) -> None:
        self.graph, self.dtype, self.kept = graph, dtype, kept
        self.editor = Editor(graph)
        self.makers = {o: n for n in graph.nodes for o in n.outputs}
        self.wanted = self._wanted()
        """Tensors that are stored narrow."""
        self.narrow: dict[str, str] = {}
        """A tensor -> its narrow form."""
        self.wide: dict[str, str] = {}
        """A tensor with a narrow form -> that form widened."""
        self.padded: dict[tuple[str, int], str] = {}
        """A tensor and a dimension -> it with zeros behind that."""

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._visit(self.editor.updated(node))
        return self.editor.build()

    def _wanted(self) -> set[str]:
        """Factors of products and operands of windows, at the source of moves of their elements."""
        found: set[str] = set()
        todo = [n for node in self.graph.nodes for n in self._factors(node)]
        while todo:
            name = todo.pop()
            if name in found or not self._is_float(name):
                continue
            found.add(name)
            maker = self.makers.get(name)
            if maker is not None and Trait.MOVES in operator_of(maker.op).traits:
                todo += maker.inputs if maker.op == "Concat" else maker.inputs[:1]
        return found

    def _factors(self, node: Node) -> tuple[str, ...]:
        n_narrow = 0 if node.name in self.kept else operator_of(node.op).factors.n_narrow
        return node.inputs[:n_narrow]

    def _is_float(self, name: str) -> bool:
        return bool(name) and self.editor.types[name].dtype == "float32"

    def _is_factor(self, name: str) -> bool:
        """Whether a tensor is of the type of factors, or can be."""
        return self._is_float(name) or self.editor.types[name].dtype == self.dtype

    def _visit(self, node: Node) -> None:
        is_dense = node.op == "MatMul" or (node.op == "Conv" and self._is_dense(node))
        data = node.inputs if node.op == "Concat" else node.inputs[:1]
        is_kept = node.name in self.kept
        if is_dense and not is_kept and all(map(self._is_factor, node.inputs[:2])):
            factors = self._whole(node, [self._narrowed(node, name) for name in node.inputs[:2]])
            rest = (self._widened(node, name) for name in node.inputs[2:])
            self.editor.emit(replace(node, inputs=(*factors, *rest)))
        elif Trait.MOVES in operator_of(node.op).traits and all(n in self.narrow for n in data):
            self._move(node, len(data))
            return
        elif node.op == "Gather" and not is_kept and self._is_table(node.inputs[0]):
            self._look_up(node)
            return
        else:
            inputs = tuple(self._widened(node, name) for name in node.inputs)
            self.editor.emit(replace(node, inputs=inputs))
        for name in node.outputs:
            if name in self.wanted and name not in self.graph.outputs:
                self._narrowed(node, name)

    def _is_dense(self, node: Node) -> bool:
        """Whether a convolution sums over channels, of groups over pairs of them."""
        n_channels = self.editor.types[node.inputs[1]].shape[1]
        return node.attrs.get("group", 1) == 1 or n_channels % _PAIR == 0

    def _whole(self, node: Node, factors: list[str]) -> list[str]:
        """Narrow factors with channels of zeros, where one instruction adds up several products."""
        data, weights = factors
        value = self.editor.constants.get(weights)
        if value is None or value.ndim < 2 or node.attrs.get("trans_a", 0):
            return factors
        axis = term_axis(node.op, node.attrs, value.ndim)
        missing = -value.shape[axis] % _TERMS.get(self.dtype, 1)
        if not missing:
            return factors
        at = 1 if node.op == "Conv" else len(self.editor.types[data].shape) - 1
        if (data, at) not in self.padded:
            rw = Rewriter(node, self.editor)
            self.padded[data, at] = zeros_behind(rw, data, at, missing)
            for made in rw.nodes:
                self.editor.emit(made)
        return [
            self.padded[data, at],
            self.editor.constant(f"{weights}.whole", with_zeros(value, axis, missing)),
        ]

    def _move(self, node: Node, n_data: int) -> None:
        """Move narrow elements; results in float32 remain for outputs alone."""
        moved = tuple(self._new(name) for name in node.outputs)
        data = [self.narrow[name] for name in node.inputs[:n_data]]
        rest = list(node.inputs[n_data:])
        if node.op == "Pad" and len(rest) > 1 and rest[1]:
            rest[1] = self._narrowed(node, rest[1])
        self.editor.emit(replace(node, inputs=(*data, *rest), outputs=moved))
        for name, narrow in zip(node.outputs, moved, strict=True):
            self.narrow[name] = narrow
            if name in self.graph.outputs:
                self.editor.emit(Node(node.name, "Cast", (narrow,), (name,), {"to": "float32"}))

    def _is_table(self, name: str) -> bool:
        value = self.editor.constants.get(name)
        return value is not None and value.dtype == np.float32 and value.ndim > 1

    def _look_up(self, node: Node) -> None:
        """Rows of a table that is stored narrow."""
        table = self._narrowed(node, node.inputs[0])
        found = self._new(node.output)
        self.editor.emit(replace(node, inputs=(table, *node.inputs[1:]), outputs=(found,)))
        self.narrow[node.output] = found
        if node.output in self.graph.outputs:
            self.editor.emit(Node(node.name, "Cast", (found,), node.outputs, {"to": "float32"}))

    def _new(self, name: str) -> str:
        return self.editor.new(f"{name}.narrow", self.editor.types[name].shape, self.dtype)

    def _narrowed(self, node: Node, name: str) -> str:
        """The narrow form of a tensor; constants are rounded here."""
        if self.editor.types[name].dtype == self.dtype:
            return name
        if name not in self.narrow:
            value = self.editor.constants.get(name)
            if value is not None:
                with np.errstate(over="ignore"):  # the check of the network tells
                    rounded = value.astype(DTYPES[self.dtype].numpy)
                self.narrow[name] = self.editor.constant(f"{name}.narrow", rounded)
            else:
                self.narrow[name] = self._new(name)
                made = (self.narrow[name],)
                self.editor.emit(Node(node.name, "Cast", (name,), made, {"to": self.dtype}))
        return self.narrow[name]

    def _widened(self, node: Node, name: str) -> str:
        """A tensor as float32: out of its narrow form, where that is the one that is stored."""
        is_kept = name in self.graph.outputs or name in self.graph.inputs
        if name not in self.narrow or is_kept or name in self.editor.constants:
            return name
        if name not in self.wide:
            shape = self.editor.types[name].shape
            self.wide[name] = self.editor.new(f"{name}.wide", shape)
            made = (self.wide[name],)
            self.editor.emit(Node(node.name, "Cast", (self.narrow[name],), made, {"to": "float32"}))
        return self.wide[name]
