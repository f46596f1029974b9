"""Twelve layers that models consist of, small: each is one fused task or a few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from tests.graph.onnx_models import model, node

Array = NDArray[Any]
Rng = np.random.Generator


def _normal(rng: Rng, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _positive(rng: Rng, *shape: int) -> Array:
    return (0.5 + rng.random(shape)).astype(np.float32)


def _bytes(rng: Rng, *shape: int) -> Array:
    return rng.integers(-127, 128, shape).astype(np.int8)


def conv_bn_relu(rng: Rng) -> ModelProto:
    nodes = [
        node("Conv", "x w", "c", pads=[1] * 4, strides=[2, 2]),
        node("BatchNormalization", "c scale shift mean var", "n"),
        node("Relu", "n", "y"),
    ]
    constants = {
        "w": _normal(rng, 16, 3, 3, 3),
        "scale": _positive(rng, 16),
        "shift": _normal(rng, 16),
        "mean": _normal(rng, 16),
        "var": _positive(rng, 16),
    }
    return model(nodes, {"x": (1, 3, 16, 16)}, constants)


def depthwise(rng: Rng) -> ModelProto:
    nodes = [
        node("Conv", "x w b", "c", pads=[1] * 4, group=16),
        node("Clip", "c low high", "y"),
    ]
    constants = {"w": _normal(rng, 16, 1, 3, 3), "b": _normal(rng, 16)}
    limits = {"low": np.float32(0), "high": np.float32(6)}
    return model(nodes, {"x": (1, 16, 10, 10)}, constants | limits)


def gemm(rng: Rng) -> ModelProto:
    nodes = [node("Gemm", "x w b", "g", transB=1), node("Gelu", "g", "y")]
    return model(
        nodes, {"x": (8, 24)}, {"w": _normal(rng, 32, 24), "b": _normal(rng, 32)}, opset=20
    )


def attention(rng: Rng) -> ModelProto:
    """Two heads of a self-attention, from the projections on."""
    nodes: list[NodeProto] = []
    for name in "qkv":
        nodes += [
            node("MatMul", f"x w{name}", f"{name}1"),
            node("Add", f"{name}1 b{name}", f"{name}2"),
            node("Reshape", f"{name}2 heads", f"{name}3"),
            node("Transpose", f"{name}3", f"{name}4", perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Transpose", "k4", "k5", perm=[0, 1, 3, 2]),
        node("MatMul", "q4 k5", "s"),
        node("Div", "s root", "scaled"),
        node("Softmax", "scaled", "p", axis=-1),
        node("MatMul", "p v4", "o"),
        node("Transpose", "o", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t back", "y"),
    ]
    constants: dict[str, object] = {f"w{n}": _normal(rng, 16, 16) for n in "qkv"}
    constants |= {f"b{n}": _normal(rng, 16) for n in "qkv"}
    constants |= {"heads": np.array([1, 6, 2, 8]), "back": np.array([1, 6, 16])}
    return model(nodes, {"x": (1, 6, 16)}, constants | {"root": np.float32(8**0.5)})


def layer_norm(rng: Rng) -> ModelProto:
    """As exporters write it: a residual sum, its mean and its variance."""
    nodes = [
        node("Add", "x skip", "a"),
        node("ReduceMean", "a", "m", axes=[-1]),
        node("Sub", "a m", "d"),
        node("Pow", "d two", "square"),
        node("ReduceMean", "square", "v", axes=[-1]),
        node("Add", "v epsilon", "e"),
        node("Sqrt", "e", "root"),
        node("Div", "d root", "n"),
        node("Mul", "n scale", "s"),
        node("Add", "s shift", "y"),
    ]
    constants = {"scale": _positive(rng, 24), "shift": _normal(rng, 24)}
    numbers = {"two": np.float32(2), "epsilon": np.float32(1e-5)}
    return model(nodes, {"x": (2, 5, 24), "skip": (2, 5, 24)}, constants | numbers)


def qdq_matmul(rng: Rng) -> ModelProto:
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "d"),
        node("DequantizeLinear", "w ws wz", "f", axis=1),
        node("MatMul", "d f", "m"),
        node("Add", "m b", "a"),
        node("QuantizeLinear", "a ys yz", "r"),
        node("DequantizeLinear", "r ys yz", "y"),
    ]
    constants = {
        **{"xs": np.float32(0.031), "xz": np.uint8(121), "ys": np.float32(0.17)},
        **{"yz": np.uint8(128), "w": _bytes(rng, 32, 16), "b": _normal(rng, 16)},
        **{"ws": _positive(rng, 16) / 50, "wz": np.zeros(16, np.int8)},
    }
    return model(nodes, {"x": (4, 32)}, constants)


def qdq_conv(rng: Rng) -> ModelProto:
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "d"),
        node("DequantizeLinear", "w ws", "f", axis=0),
        node("DequantizeLinear", "b bs", "bias", axis=0),
        node("Conv", "d f bias", "c", pads=[1] * 4),
        node("Relu", "c", "a"),
        node("QuantizeLinear", "a ys yz", "r"),
        node("DequantizeLinear", "r ys yz", "y"),
    ]
    scale, weights = np.float32(0.031), _positive(rng, 8) / 50
    constants = {
        **{"xs": scale, "xz": np.uint8(121), "ys": np.float32(0.09), "yz": np.uint8(0)},
        **{"w": _bytes(rng, 8, 4, 3, 3), "b": rng.integers(-999, 999, 8).astype(np.int32)},
        **{"ws": weights, "bs": weights * scale},
    }
    return model(nodes, {"x": (1, 4, 8, 8)}, constants)


def dynamic_matmul(rng: Rng) -> ModelProto:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z wz", "i"),
        node("Cast", "i", "f", to=1),
        node("Mul", "s ws", "scale"),
        node("Mul", "f scale", "m"),
        node("Add", "m b", "y"),
    ]
    constants = {
        **{"w": _bytes(rng, 32, 16), "wz": np.int8(0)},
        **{"ws": np.float32(0.013), "b": _normal(rng, 16)},
    }
    return model(nodes, {"x": (4, 32)}, constants)


def four_bit_matmul(rng: Rng) -> ModelProto:
    attrs = {"K": 64, "N": 16, "bits": 4, "block_size": 32}
    op = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attrs)
    w = rng.integers(0, 256, (16, 2, 16)).astype(np.uint8)
    proto = model(op, {"x": (4, 64)}, {"w": w, "s": _positive(rng, 32) / 9})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", 1, [4, 16]))
    return proto


def resize(rng: Rng) -> ModelProto:
    nodes = [
        node("Conv", "x w", "c"),
        node("Resize", "c _ scales", "y", mode="linear"),
    ]
    constants = {"w": _normal(rng, 8, 4, 1, 1), "scales": np.array([1, 1, 2, 2], np.float32)}
    return model(nodes, {"x": (1, 4, 6, 6)}, constants)


def lstm(rng: Rng) -> ModelProto:
    op = node("LSTM", "x w r b", "y h c", hidden_size=8)
    constants = {"w": _normal(rng, 1, 32, 6), "r": _normal(rng, 1, 32, 8), "b": _normal(rng, 1, 64)}
    return model(op, {"x": (3, 2, 6)}, constants, "y h")


def group_norm(rng: Rng) -> ModelProto:
    """As PyTorch exports it: an instance normalisation of groups, scaled by channel."""
    nodes = [
        node("Reshape", "x groups", "g"),
        node("InstanceNormalization", "g ones zeros", "n"),
        node("Reshape", "n back", "f"),
        node("Mul", "f scale", "s"),
        node("Add", "s shift", "a"),
        node("Sigmoid", "a", "gate"),
        node("Mul", "a gate", "y"),
    ]
    constants = {
        **{"groups": np.array([0, 4, -1]), "back": np.array([1, 16, 6, 6])},
        **{"ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)},
        **{"scale": _positive(rng, 16, 1, 1), "shift": _normal(rng, 16, 1, 1)},
    }
    return model(nodes, {"x": (1, 16, 6, 6)}, constants)


LAYERS: Mapping[str, Callable[[Rng], ModelProto]] = {
    make.__name__: make
    for make in (
        *(conv_bn_relu, depthwise, gemm, attention, layer_norm, qdq_matmul, qdq_conv),
        *(dynamic_matmul, four_bit_matmul, resize, lstm, group_norm),
    )
}
