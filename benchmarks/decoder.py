"""One token of a decoder with random weights, after a cache of `PAST` tokens that is an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

LAYERS, WIDTH, HEADS, PAST = 6, 384, 6, 128
INNER, DEPTH = 4 * WIDTH, WIDTH // HEADS


class Decoder:
    """Nodes, weights and ends of a decoder; methods return the name of a value."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def given(self, name: str, *shape: int) -> str:
        """An input."""
        self.inputs.append(helper.make_tensor_value_info(name, 1, shape))
        return name

    def constant(self, *values: float, kind: str = "float32") -> str:
        """A weight of one dimension."""
        return self._weight(np.array(values, kind))

    def dense(self, x: str, terms: int, results: int) -> str:
        """A product with random weights that keep the magnitude."""
        weights = self.random.standard_normal((terms, results)) / np.sqrt(terms)
        return self.add("MatMul", x, self._weight(weights.astype(np.float32)))

    def norm(self, x: str) -> str:
        """Normalisation of rows."""
        return self.add("LayerNormalization", x, self._weight(np.ones(WIDTH, np.float32)))

    def attention(self, x: str, layer: int) -> str:
        """Attention to the cache and the token itself; what is added to the cache is an output."""
        shape = self.constant(1, HEADS, 1, DEPTH, kind="int64")
        query, *new = (self.add("Reshape", self.dense(x, WIDTH, WIDTH), shape) for _ in range(3))
        for name in new:
            self.outputs.append(helper.make_tensor_value_info(name, 1, (1, HEADS, 1, DEPTH)))
        keys, values = (
            self.add("Concat", self.given(f"{kind}{layer}", 1, HEADS, PAST, DEPTH), each, axis=2)
            for kind, each in zip(("keys", "values"), new, strict=True)
        )
        scores = self.add("MatMul", query, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        shares = self.add("Softmax", self.add("Mul", scores, self.constant(DEPTH**-0.5)), axis=-1)
        found = self.add("MatMul", shares, values)
        flat = self.add("Reshape", found, self.constant(1, 1, WIDTH, kind="int64"))
        return self.dense(flat, WIDTH, WIDTH)

    def layer(self, x: str, layer: int) -> str:
        """Attention and two dense layers, each with a way around it."""
        x = self.add("Add", x, self.attention(self.norm(x), layer))
        inner = self.add("Relu", self.dense(self.norm(x), WIDTH, INNER))
        return self.add("Add", x, self.dense(inner, INNER, WIDTH))

    def _weight(self, array: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name


def token(n_layers: int = LAYERS) -> onnx.ModelProto:
    """The model: `x` and the cache of every layer in, a row and what the cache gets out."""
    made = Decoder()
    x = made.given("x", 1, 1, WIDTH)
    for layer in range(n_layers):
        x = made.layer(x, layer)
    row = helper.make_tensor_value_info(made.norm(x), 1, (1, 1, WIDTH))
    graph = helper.make_graph(made.nodes, "token", made.inputs, [row, *made.outputs], made.weights)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)
