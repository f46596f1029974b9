"""A small residual network with seeded random weights, as an ONNX file:

python network.py 8 64 network.onnx

writes one for batches of 8 images of 64 × 64 pixels.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Layers:
    """Nodes and weights, added one layer after the other; methods return the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Random values that keep the magnitude of what they are multiplied with."""
        scale = np.sqrt(2 / np.prod(shape[1:]))
        values = self.random.normal(0, scale, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, channels: tuple[int, int], size: int, stride: int = 1) -> str:
        """A convolution with a border of zeros, and a bias."""
        w, b = self.weight(channels[1], channels[0], size, size), self.weight(channels[1])
        pads = [size // 2] * 4
        return self.add("Conv", x, w, b, pads=pads, strides=[stride, stride])

    def block(self, x: str, channels: tuple[int, int], stride: int) -> str:
        """Two convolutions and a way around them."""
        y = self.add("Relu", self.conv(x, channels, 3, stride))
        y = self.conv(y, (channels[1], channels[1]), 3)
        around = x if stride == 1 else self.conv(x, channels, 1, stride)
        return self.add("Relu", self.add("Add", y, around))


def network(batch: int, size: int) -> onnx.ModelProto:
    """Images (batch, 3, size, size) to the probabilities of ten classes."""
    layers = Layers()
    x = layers.add("Relu", layers.conv("image", (3, 32), 3, 2))
    for channels, stride in (((32, 32), 1), ((32, 64), 2), ((64, 128), 2)):
        x = layers.block(x, channels, stride)
    x = layers.add("Flatten", layers.add("GlobalAveragePool", x))
    x = layers.add("Gemm", x, layers.weight(10, 128), layers.weight(10), transB=1)
    x = layers.add("Softmax", x, axis=1)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, (batch, 3, size, size))
    classes = helper.make_tensor_value_info(x, TensorProto.FLOAT, (batch, 10))
    graph = helper.make_graph(layers.nodes, "network", [image], [classes], layers.weights)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


if __name__ == "__main__":
    n, pixels, place = sys.argv[1:]
    onnx.save(network(int(n), int(pixels)), place)
