"""① Scales and shifts per channel fold into the weights of the producer.

    Mul(Conv(x, W, b), s)  -> Conv(x, W·s, b·s)          Add(Conv(x, W, b), t) -> Conv(x, W, b + t)
    Mul(Mul(x, r), s)      -> Mul(x, r·s)                Add(Add(x, t), u)     -> Add(x, t + u)
    Mul(Add(x, t), s)      -> Add(Mul(x, s), t·s)

and likewise for MatMul. `s`, `t` vary along the channel dimension only (1 for convolutions, the
last one for MatMul). Only where the first result has a single consumer. BatchNormalization arrives
here as Mul and Add, so it disappears behind a convolution and is one scale and shift elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node, float_array
from autotune.graph.operators.table import operator_of


def fold_affine(graph: Graph) -> Graph:
    """Apply the rules above until none fits."""
    folder = _Folder(graph)
    for node in graph.nodes:
        folder.visit(folder.editor.updated(node))
    return folder.editor.build()


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self.editor = Editor(graph)
        self.readers = {n: len(users) for n, users in graph.consumers().items()}
        self.kept = set(graph.outputs)

    def visit(self, node: Node) -> None:
        factor = self._channel_operand(node)
        producer = self._private_producer(node.inputs[0]) if factor is not None else None
        if factor is None or producer is None or not self._fold(producer, node, factor):
            self.editor.emit(node)

    def _channel_operand(self, node: Node) -> Array | None:
        """The constant operand of a Mul or Add."""
        if node.op not in ("Mul", "Add") or node.inputs[1] not in self.editor.constants:
            return None
        value = self.editor.constants[node.inputs[1]]
        return value if value.dtype == np.float32 else None

    def _private_producer(self, name: str) -> Node | None:
        if self.readers.get(name, 0) != 1 or name in self.kept:
            return None
        return next((n for n in reversed(self.editor.nodes) if n.output == name), None)

    def _fold(self, producer: Node, node: Node, value: Array) -> bool:
        shape = self.editor.types[node.output].shape
        if shape != self.editor.types[producer.output].shape:
            return False
        channel = operator_of(producer.op).channel_axis
        if channel is not None:
            return self._into_product(producer, node, value, channel)
        inner = self._channel_operand(producer)
        if inner is None or (producer.op, node.op) == ("Mul", "Add"):
            return False
        if np.broadcast_shapes(inner.shape, value.shape) not in (inner.shape, value.shape):
            return False
        self._forget(producer)
        if producer.op == node.op:
            both = inner * value if node.op == "Mul" else inner + value
            self._emit(node, node.op, producer.inputs[0], both, node.output)
        else:
            read = self.editor.types[producer.inputs[0]].shape
            scaled = np.broadcast_shapes(read, value.shape)
            between = self.editor.new(f"{node.output}.scaled", scaled)
            self.readers[between] = 1
            self._emit(node, "Mul", producer.inputs[0], value, between)
            self._emit(node, "Add", between, inner * value, node.output)
        return True

    def _forget(self, node: Node) -> None:
        """Remove an emitted node; it is one of the last."""
        nodes = self.editor.nodes
        del nodes[next(n for n in reversed(range(len(nodes))) if nodes[n] is node)]

    def _emit(self, node: Node, op: str, x: str, value: Array, out: str) -> None:
        operand = self.editor.constant(f"{out}.{op.lower()}", float_array(value))
        self.visit(Node(node.name, op, (x, operand), (out,)))

    def _into_product(self, product: Node, node: Node, value: Array, channel: int) -> bool:
        weight = self.editor.constants.get(product.inputs[1])
        bias_name = product.inputs[2] if len(product.inputs) > 2 else ""
        vector = channel_vector(value, self.editor.types[node.output].shape, channel)
        bias = self.editor.constants.get(bias_name)
        if weight is None or weight.ndim < 2 or vector is None or (bias_name and bias is None):
            return False
        n_channels = self.editor.types[node.output].shape[channel]
        if node.op == "Mul":
            weight = _scaled(weight, vector, product)
            bias = bias if bias is None else bias * vector
        else:
            bias = vector if bias is None else bias + vector
        inputs = [product.inputs[0], product.inputs[1]]
        if node.op == "Mul":
            inputs[1] = self.editor.constant(f"{product.inputs[1]}.scaled", weight)
        if bias is not None:
            full = np.ascontiguousarray(np.broadcast_to(bias, (n_channels,)), np.float32)
            inputs.append(self.editor.constant(f"{product.output}.bias", full))
        self._forget(product)
        self.editor.emit(replace(product, inputs=tuple(inputs), outputs=node.outputs))
        return True


def channel_vector(value: Array, shape: tuple[int, ...], axis: int) -> Array | None:
    """`value` as a vector over one dimension of a result of `shape` (or of length 1), else None."""
    if value.ndim > len(shape):
        return None
    channel = axis % len(shape)
    dims = (1,) * (len(shape) - value.ndim) + value.shape
    if any(d != 1 for n, d in enumerate(dims) if n != channel):
        return None
    return value.reshape(-1)


def _scaled(weight: Array, vector: Array, product: Node) -> Array:
    """Multiply the output channels of a weight."""
    if product.op == "Conv" or product.attrs.get("trans_b", 0):
        vector = vector.reshape(-1, *(1,) * (weight.ndim - 1))
    return float_array(weight * vector)
