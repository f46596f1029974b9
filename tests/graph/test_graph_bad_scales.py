"""Scales and zero points that are none: what the standard defines is computed, the rest refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import autotune
from autotune.errors import ModelError
from autotune.graph.network import build_network
from autotune.network.runtime.baselines import apart_runner
from tests.graph.onnx_models import execute

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
FLOAT, BYTES, WHOLE = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32
ZERO = i8(0)
Q, D = "QuantizeLinear", "DequantizeLinear"


def model_of(
    nodes: list[Any],
    constants: dict[str, Any],
    x: tuple[int, ...] = (2, 8),
    types: tuple[int, int] = (FLOAT, FLOAT),
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", types[0], x)],
        [helper.make_tensor_value_info("y", types[1], None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(op: str, inputs: str, output: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], name=f"the {output}", **attrs)


def pair(s: Any, z: Any, s2: Any = None, z2: Any = None) -> ModelProto:
    """QuantizeLinear and DequantizeLinear of the input."""
    constants = {"s": s, "z": z, "s2": s if s2 is None else s2, "z2": z if z2 is None else z2}
    return model_of([node(Q, "x s z", "q"), node(D, "q s2 z2", "y")], constants)


def product(s: Any, z: Any = ZERO, out: float = 0.5) -> ModelProto:
    """A product in integers: weights with scales `s`, quantised again by `out`."""
    axis = {} if np.ndim(s) == 0 else {"axis": 1}
    nodes = [
        node(Q, "x xs xz", "q"),
        node(D, "q xs xz", "dx"),
        node(D, "w s z", "dw", **axis),
        node("MatMul", "dx dw", "m"),
        node("Relu", "m", "r"),
        node(Q, "r os oz", "oq"),
        node(D, "oq os oz", "y"),
    ]
    w = np.random.default_rng(0).integers(-9, 9, (8, 4)).astype(i8)
    constants = {"xs": f32(0.1), "xz": u8(3), "w": w, "s": s, "z": z, "os": f32(out), "oz": u8(0)}
    return model_of(nodes, constants)


def convolution(**given: Any) -> ModelProto:
    constants = {"xs": f32(0.1), "xz": u8(7), "w": np.ones((2, 1, 3, 3), i8), "ws": f32(0.1)}
    constants |= {"wz": i8(0), "ys": f32(0.1), "yz": u8(0)} | given
    nodes = [node("QLinearConv", "x xs xz w ws wz ys yz", "y")]
    return model_of(nodes, constants, (1, 1, 5, 5), (BYTES, BYTES))


def channels(first: float) -> Any:
    return np.array([first, 0.1, 0.2, 0.3], f32)


DEFINED = {
    "negative steps": pair(f32(-0.1), u8(3)),
    "infinite steps": pair(f32(np.inf), u8(3)),
    "a scale of zero": pair(f32(0.1), u8(3), f32(0)),
    "a scale of NaN": pair(f32(0.1), u8(3), f32(np.nan)),
    "an infinite scale": pair(f32(0.1), u8(3), f32(np.inf)),
    "tiny steps": pair(f32(1e-40), u8(3)),
    "weights of zeros": product(channels(0), np.zeros(4, i8)),
    "weights of a negative scale": product(channels(-0.1), np.zeros(4, i8)),
    "weights that are NaN": product(channels(np.nan), np.zeros(4, i8)),
    "infinite weights": product(channels(np.inf), np.zeros(4, i8)),
    "one infinite scale": product(f32(np.inf)),
    "negative steps of a result": product(f32(0.1), out=-0.5),
    "tiny steps of a result": product(f32(0.1), out=1e-40),
}


@pytest.mark.parametrize("name", DEFINED)
def test_what_the_standard_defines_is_computed(name: str, tmp_path: Path) -> None:
    proto, path = DEFINED[name], tmp_path / "m.onnx"
    onnx.save(proto, path)
    feeds = {"x": 3 * np.random.default_rng(0).standard_normal((2, 8)).astype(f32)}
    want = apart_runner(path, 1)(feeds)["y"]  # optimised it drops the Relu
    found = execute(build_network(path), feeds)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


REFUSED = {
    "zero": (pair(f32(0), u8(3)), "the q", "has a scale of 0"),
    "NaN": (pair(f32(np.nan), u8(3)), "the q", "has a scale of nan"),
    "zero in a channel": (convolution(ys=f32(0)), "the y/QuantizeLinear", "has a scale of 0"),
    "three scales": (pair(np.ones(3, f32), np.zeros(3, u8)), "the q", r"has \(3,\) scales"),
    "three zero points": (pair(np.ones(8, f32), np.zeros(3, u8)), "the q", r"\(3,\) zero points"),
    "zero points for one": (pair(f32(0.1), np.zeros((2, 2), u8)), "the q", r"\(2, 2\) zero points"),
    "zero points of weights": (product(channels(1), np.zeros(3, i8)), "the dw", "zero points"),
    "scales of weights": (product(np.ones(3, f32), np.zeros(3, i8)), "the dw", "scales"),
    "scales of filters": (
        convolution(ws=np.ones(3, f32), wz=np.zeros(3, i8)),
        "the y/DequantizeLinear",
        "scales",
    ),
    "other types": (pair(f32(0.1), i8(3), z2=u8(3)), "the y", "inconsistent type tensor"),
    "types of weights": (product(f32(0.1), u8(0)), "the dw", "inconsistent type tensor"),
    "a zero point beyond": (pair(f32(0.1), i32(300)), "the q", "unsupported type: tensor.int32"),
    "a zero point beyond bytes": (convolution(xz=i32(700)), "the y/Deq", "tensor.int32"),
    "a float zero point": (pair(f32(0.1), f32(3)), "the q", "unsupported type: tensor.float"),
    "a scale of integers": (pair(i32(1), u8(3)), "the ", "type: tensor.int32"),
    "a scale in double": (pair(np.float64(0.1), u8(3)), "the q", "tensor.double"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_define_is_refused(name: str, tmp_path: Path) -> None:
    proto, where, reason = REFUSED[name]
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=reason) as caught:
        build_network(tmp_path / "m.onnx")
    assert f"(node '{where}" in caught.value.message
    assert "\n" not in caught.value.message
    assert "again" in caught.value.hint or "attribute `axis`" in caught.value.hint
    assert "`shapes`" not in caught.value.hint


@pytest.mark.slow
def test_programs_take_such_scales_too(tmp_path: Path) -> None:
    """Zero, negative and infinite scales, compiled: the check compares them with ONNX Runtime."""
    for name in ("weights of zeros", "infinite weights", "negative steps of a result"):
        onnx.save(DEFINED[name], tmp_path / "m.onnx")
        report = autotune.compile(tmp_path / "m.onnx", threads=1).report
        assert report is not None
        assert report.oracles == ("ONNX Runtime",)
