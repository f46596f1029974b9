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
from autotune.graph.ir import Graph, Node
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import data_of, operator_of
from autotune.graph.operators.whole_terms import term_axis, with_zeros, zeros_behind
from autotune.graph.passes.typed_editor import TypedEditor
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
        self.editor = TypedEditor(graph)
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
            self.rw = Rewriter(node, self.editor)
            self._visit(node)
            for made in self.rw.nodes:
                self.editor.emit(made)
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
                todo += data_of(maker)
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
        is_dense = self._is_dense(node)
        data = data_of(node)
        is_kept = node.name in self.kept
        if is_dense and not is_kept and all(map(self._is_factor, node.inputs[:2])):
            factors = self._whole(node, [*map(self._narrowed, node.inputs[:2])])
            self.rw.again(*factors, *map(self._widened, node.inputs[2:]))
        elif Trait.MOVES in operator_of(node.op).traits and all(n in self.narrow for n in data):
            self._move(node, len(data))
        elif node.op == "Gather" and not is_kept and self._is_table(node.inputs[0]):
            self._emit_narrow(node, self._narrowed(node.inputs[0]), *node.inputs[1:])
        else:
            self.rw.again(*map(self._widened, node.inputs))
        for name in node.outputs:
            if name in self.wanted and name not in self.graph.outputs:
                self._narrowed(name)

    def _is_dense(self, node: Node) -> bool:
        """Whether a product sums over channels, of groups over pairs of them."""
        if operator_of(node.op).factors.channel_axis is None:
            return False
        is_one_group = node.attrs.get("group", 1) == 1
        return is_one_group or self.editor.types[node.inputs[1]].shape[1] % _PAIR == 0

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
        channel = operator_of(node.op).factors.channel_axis
        assert channel is not None, node.op
        at = channel % len(self.editor.types[data].shape)
        if (data, at) not in self.padded:
            self.padded[data, at] = zeros_behind(self.rw, data, at, missing)
        return [self.padded[data, at], self.rw.array(with_zeros(value, axis, missing))]

    def _move(self, node: Node, n_data: int) -> None:
        """Move narrow elements."""
        rest = list(node.inputs[n_data:])
        if node.op == "Pad" and len(rest) > 1 and rest[1]:
            rest[1] = self._narrowed(rest[1])
        self._emit_narrow(node, *(self.narrow[name] for name in node.inputs[:n_data]), *rest)

    def _is_table(self, name: str) -> bool:
        value = self.editor.constants.get(name)
        return value is not None and value.dtype == np.float32 and value.ndim > 1

    def _emit_narrow(self, node: Node, *inputs: str) -> None:
        """A node with narrow results; results in float32 remain for outputs alone."""
        kinds = (self.editor.types[name] for name in node.outputs)
        outputs = [self.editor.new(f"{node.name}.narrow", k.shape, self.dtype) for k in kinds]
        self.rw.nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs)))
        for name, narrow in zip(node.outputs, outputs, strict=True):
            self.narrow[name] = narrow
            if name in self.graph.outputs:
                to = {"to": "float32"}
                self.rw.nodes.append(Node(node.name, "Cast", (narrow,), (name,), to))

    def _narrowed(self, name: str) -> str:
        """The narrow form of a tensor; constants are rounded here."""
        if self.editor.types[name].dtype == self.dtype:
            return name
        if name not in self.narrow:
            value = self.editor.constants.get(name)
            if value is None:
                self.narrow[name] = self.rw("Cast", name, to=self.dtype)
            else:
                with np.errstate(over="ignore"):  # the check of the network tells
                    self.narrow[name] = self.rw.array(value.astype(DTYPES[self.dtype].numpy))
        return self.narrow[name]

    def _widened(self, name: str) -> str:
        """A tensor as float32: out of its narrow form, where that is the one that is stored."""
        is_kept = name in self.graph.outputs or name in self.graph.inputs
        if name not in self.narrow or is_kept or name in self.editor.constants:
            return name
        if name not in self.wide:
            self.wide[name] = self.rw("Cast", self.narrow[name], to="float32")
        return self.wide[name]
