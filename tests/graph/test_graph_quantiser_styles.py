"""What Neural Compressor, Olive and optimum write: products of integers, equal results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

from autotune.graph.network import build_network
from tests.graph.onnx_models import execute, onnxruntime_outputs

Array = np.ndarray[Any, Any]
STEP = 0.05
"""Scale of the outputs: results may differ by one step."""


@dataclass(frozen=True)
class Style:
    """A model: nodes from "x" to "y", its constants, how many integer products it has."""

    nodes: list[NodeProto]
    x: Array
    constants: Mapping[str, Array]
    products: int = 1


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _node(op: str, inputs: str, output: str, **attrs: object) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def _around(x: str, axis: int | None = None, params: str = "s z") -> list[NodeProto]:
    """x -> x.d by QuantizeLinear and DequantizeLinear."""
    attrs = {} if axis is None else {"axis": axis}
    return [
        _node("QuantizeLinear", f"{x} {params}", f"{x}.q", **attrs),
        _node("DequantizeLinear", f"{x}.q {params}", f"{x}.d", **attrs),
    ]


def _common(dtype: str = "uint8") -> dict[str, Array]:
    zero = 128 if dtype == "uint8" else 0
    return {"s": np.array(STEP, np.float32), "z": np.array(zero, dtype)}


def _floats(*shape: int) -> Array:
    return _rng().standard_normal(shape).astype(np.float32)


def _weights(*shape: int, dtype: str = "int8") -> Array:
    info = np.iinfo(dtype)
    return _rng().integers(info.min + 1, info.max + 1, shape).astype(dtype)


def _scales(n: int) -> Array:
    return (0.002 + 0.001 * _rng().random(n)).astype(np.float32)


def _product(weights: list[NodeProto], name: str, /, **constants: Array) -> Style:
    """A matrix product of quantised data and the weights `name`."""
    nodes = [*_around("x"), *weights, _node("MatMul", f"x.d {name}", "m"), *_around("m")]
    return Style([*nodes, _node("Relu", "m.d", "y")], _floats(5, 16), {**_common(), **constants})


def transposed_weights() -> Style:
    nodes = [
        _node("DequantizeLinear", "w ws wz", "w.d", axis=0),
        _node("Transpose", "w.d", "w.t", perm=[1, 0]),
    ]
    w, ws = _weights(8, 16), _scales(8)
    return _product(nodes, "w.t", w=w, ws=ws, wz=np.zeros(8, np.int8))


def reshaped_weights() -> Style:
    nodes = [
        _node("DequantizeLinear", "w ws", "w.d"),
        _node("Reshape", "w.d to", "w.r"),
    ]
    w, ws = _weights(8, 2, 8), np.float32(0.003)
    return _product(nodes, "w.r", w=w, ws=np.asarray(ws), to=np.array([16, 8]))


def unsqueezed_weights() -> Style:
    nodes = [
        _node("DequantizeLinear", "w ws", "w.d", axis=1),
        _node("Squeeze", "w.d at", "w.r"),
    ]
    w = _weights(16, 8)[:, :, None]
    return _product(nodes, "w.r", w=w, ws=_scales(8), at=np.array([2]))


def float_weights() -> Style:
    real = (0.1 * _floats(16, 8)).astype(np.float32)
    nodes = _around("w", 1, "ws wz")
    return _product(nodes, "w.d", w=real, ws=_scales(8), wz=np.zeros(8, np.int8))


def float_weights_transposed() -> Style:
    real = (0.1 * _floats(8, 16)).astype(np.float32)
    nodes = [*_around("w", 0, "ws wz"), _node("Transpose", "w.d", "w.t", perm=[1, 0])]
    return _product(nodes, "w.t", w=real, ws=_scales(8), wz=np.zeros(8, np.int8))


def identity_weights() -> Style:
    nodes = [_node("DequantizeLinear", "w ws", "w.d", axis=1), _node("Identity", "w.d", "w.i")]
    return _product(nodes, "w.i", w=_weights(16, 8), ws=_scales(8))


def moved_data() -> Style:
    """The data are reshaped and transposed between DequantizeLinear and the product."""
    nodes = [
        *_around("x"),
        _node("Reshape", "x.d to", "x.r"),
        _node("Transpose", "x.r", "x.t", perm=[1, 0]),
        _node("DequantizeLinear", "w ws", "w.d", axis=1),
        _node("MatMul", "x.t w.d", "m"),
        *_around("m"),
        _node("Relu", "m.d", "y"),
    ]
    constants = {"to": np.array([16, 6]), "w": _weights(16, 8), "ws": _scales(8)}
    return Style(nodes, _floats(2, 8, 6), {**_common(), **constants})


def gemm_with_quantised_bias() -> Style:
    nodes = [
        *_around("x"),
        _node("DequantizeLinear", "w ws", "w.d", axis=0),
        _node("DequantizeLinear", "b bs", "b.d", axis=0),
        _node("Gemm", "x.d w.d b.d", "m", transB=1),
        *_around("m"),
        _node("Relu", "m.d", "y"),
    ]
    scales = _scales(8)
    bias = {"b": _rng().integers(-900, 900, 8).astype(np.int32), "bs": STEP * scales}
    constants = {"w": _weights(8, 16), "ws": scales, **bias}
    return Style(nodes, _floats(5, 16), {**_common(), **constants})


def symmetric_data() -> Style:
    style = gemm_with_quantised_bias()
    return Style(style.nodes, style.x, {**style.constants, **_common("int8")})


def convolution(dtype: str = "int8", act: str = "HardSwish") -> Style:
    """A convolution whose weights have a zero point per channel, between it and its activation."""
    hard = [_node("HardSwish", "c.d", "y")]
    smooth = [_node("Sigmoid", "c.d", "g"), *_around("g"), _node("Mul", "c.d g.d", "y")]
    nodes = [
        *_around("x"),
        _node("DequantizeLinear", "w ws wz", "w.d", axis=0),
        _node("Conv", "x.d w.d", "c", pads=[1] * 4),
        *_around("c"),
        *(hard if act == "HardSwish" else smooth),
    ]
    zeros = _rng().integers(-9, 9, 8) + (128 if dtype == "uint8" else 0)
    constants = {
        "w": _weights(8, 3, 3, 3, dtype=dtype), "ws": _scales(8), "wz": zeros.astype(dtype)
    }  # fmt: skip
    data = _floats(1, 3, 6, 6)
    return Style(nodes, data, {**_common(), **constants}, products=2)  # one with ones, for w - wz


def pooled() -> Style:
    """MaxPool of integers, a concatenation of dequantised parts, then a convolution."""
    nodes = [
        *_around("x"),
        _node("MaxPool", "x.q", "m.q", kernel_shape=[2, 2], strides=[2, 2]),
        _node("DequantizeLinear", "m.q s z", "r"),
        _node("MaxPool", "x.d", "p", kernel_shape=[2, 2], strides=[2, 2]),
        *_around("p"),
        _node("Concat", "r p.d", "cat", axis=1),
        *_around("cat"),
        _node("DequantizeLinear", "w ws", "w.d", axis=0),
        _node("Conv", "cat.d w.d", "c"),
        *_around("c"),
        _node("Relu", "c.d", "y"),
    ]
    constants = {"w": _weights(8, 8, 1, 1), "ws": _scales(8)}
    return Style(nodes, _floats(1, 4, 6, 6), {**_common(), **constants})


def wide_steps(dtype: str) -> Style:
    """Data of 16 bits in steps: a product of floats, whose results are those of the definition."""
    style = gemm_with_quantised_bias()
    zero = 32768 if dtype == "uint16" else 0
    wide = {"s": np.array(1e-4, np.float32), "z": np.array(zero, dtype)}
    return Style(style.nodes, style.x, {**style.constants, **wide}, products=0)


def transformer_outputs() -> Style:
    """Steps of the outputs of Softmax, LayerNormalization and Gelu, each before a product."""
    nodes: list[NodeProto] = []
    source = "x"
    for n, act in enumerate(("Softmax", "LayerNormalization", "Gelu")):
        inputs = f"{source} one" if act == "LayerNormalization" else source
        nodes += [_node(act, inputs, f"a{n}"), *_around(f"a{n}")]
        nodes += [_node("DequantizeLinear", "w ws", f"w{n}", axis=1)]
        nodes += [_node("MatMul", f"a{n}.d w{n}", f"m{n}"), *_around(f"m{n}")]
        source = f"m{n}.d"
    nodes.append(_node("Relu", source, "y"))
    constants = {"w": _weights(16, 16), "ws": _scales(16), "one": np.ones(16, np.float32)}
    return Style(nodes, _floats(5, 16), {**_common(), **constants}, products=3)


STYLES: dict[str, Callable[[], Style]] = {
    f.__name__: f
    for f in (
        transposed_weights,
        reshaped_weights,
        unsqueezed_weights,
        float_weights,
        float_weights_transposed,
        identity_weights,
        moved_data,
        gemm_with_quantised_bias,
        symmetric_data,
        pooled,
        transformer_outputs,
    )
} | {
    "zero_points_of_channels": convolution,
    "zero_points_of_channels_uint8": lambda: convolution("uint8"),
    "silu": lambda: convolution(act="SiLU"),
    "int16": lambda: wide_steps("int16"),
    "uint16": lambda: wide_steps("uint16"),
}


@pytest.mark.parametrize("name", STYLES)
def test_what_quantisers_write(name: str, tmp_path: Path) -> None:
    style = STYLES[name]()
    graph = helper.make_graph(
        style.nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, style.x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in style.constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    found = execute(network, {"x": style.x})["y"]
    want = onnxruntime_outputs(proto, {"x": style.x})["y"]
    step = float(style.constants["s"])
    assert np.abs(found - want).max() <= 1.01 * step
    assert (np.abs(found - want) > 0.5 * step).mean() <= 0.03
    dtypes = [
        {p.tensor.dtype for p in network.tasks[call.task].placeholders}
        for call in network.calls
        if "MatMul" in call.label or "Conv" in call.label
    ]
    assert sum("uint8" in d and "int8" in d for d in dtypes) == style.products


def test_equal_nodes_are_computed_once(tmp_path: Path) -> None:
    """Three products that each quantise the same data: its range is computed once."""
    names = ("q", "k", "v")
    nodes = [
        helper.make_node("DynamicQuantizeMatMul", ["x", f"w{n}", "ws"], [n], domain="com.microsoft")
        for n in names
    ]
    nodes.append(_node("Sum", "q k v", "y"))
    x = _floats(6, 16)
    constants = {f"w{n}": _weights(16, 8) + np.int8(i) for i, n in enumerate(names)}
    graph = helper.make_graph(
        nodes,
        "qkv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(a, n)
            for n, a in {**constants, "ws": np.array(0.01, "f")}.items()
        ],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    labels = [call.label for call in network.calls]
    print(labels)
    assert sum("ReduceMax" in label for label in labels) == 1
    found = execute(network, {"x": x})["y"]
    want = onnxruntime_outputs(proto, {"x": x})["y"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("per_row", [False, True])
def test_a_table_of_embeddings_stays_bytes(per_row: bool, tmp_path: Path) -> None:
    rows = 200
    nodes = [
        _node("DequantizeLinear", "w ws", "w.d", axis=0),
        _node("Gather", "w.d i", "e"),
        _node("Relu", "e", "y"),
    ]
    scales = _scales(rows) if per_row else np.array(0.01, np.float32)
    constants = {"w": _weights(rows, 16), "ws": scales}
    indices = _rng().integers(0, rows, (3, 5))
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info("i", TensorProto.INT64, indices.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    want = onnxruntime_outputs(proto, {"i": indices})["y"]
    np.testing.assert_allclose(execute(network, {"i": indices})["y"], want, rtol=1e-6)
    n_bytes = sum(a.nbytes for call in network.calls for a in call.constants.values())
    assert per_row or n_bytes < 2 * rows * 16
