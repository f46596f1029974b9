"""Sums of bytes that lie halfway between two steps: either side is right, and no other number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save

import autotune
from autotune.errors import WrongNumbers
from autotune.graph.bound_model import BoundModel
from autotune.graph.network import build_network
from autotune.network.check import check as module
from autotune.network.check.check import check_model
from autotune.network.check.oracles import Original
from autotune.network.runtime.runtime import Model

Make = Callable[[str, str], NodeProto]
SHAPE = (1, 4, 8, 8)


def node(op: str, inputs: str, output: str, **attrs: Any) -> NodeProto:
    own = () if op in ("QLinearConv", "QLinearMatMul") else ("com.microsoft",)
    return helper.make_node(op, inputs.split(), [output], domain="".join(own), **attrs)


POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
OPS: dict[str, Make] = {
    "mean of a window": lambda x, y: node("QLinearAveragePool", f"{x} s z t z", y, **POOL),
    "mean of all": lambda x, y: node("QLinearGlobalAveragePool", f"{x} s z t z", y),
    "sum": lambda x, y: node("QLinearAdd", f"{x} s z {x} s z t z", y),
    "sum with a constant": lambda x, y: node("QLinearAdd", f"{x} s z c s z t z", y),
    "product": lambda x, y: node("QLinearMul", f"{x} s z c s z t z", y),
    "half below zero": lambda x, y: node("QLinearLeakyRelu", f"{x} s z t z", y, alpha=0.5),
    "pieces": lambda x, y: node("QLinearConcat", f"t z {x} s z {x} t z", y, axis=1),
    "convolution": lambda x, y: node("QLinearConv", f"{x} s z w h zw t z", y),
    "matrices": lambda x, y: node("QLinearMatMul", f"{x} s z m h zw t z", y),
}
SCALES = [(0.02, 0.02), (0.02, 0.04), (0.25, 0.5), (0.1, 0.3)]


def model(make: Make, scales: tuple[float, float], kind: str) -> ModelProto:
    rng = np.random.default_rng(1)

    def of_bytes(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.integers(0, 255, shape).astype(np.uint8), name)

    constants = [
        *(
            numpy_helper.from_array(np.float32(v), n)
            for n, v in zip("sth", (*scales, 0.5), strict=True)
        ),
        *(numpy_helper.from_array(np.uint8(v), n) for n, v in (("z", 120), ("zw", 128))),
        *(of_bytes("c", *SHAPE), of_bytes("w", 4, 4, 1, 1), of_bytes("m", 8, 8)),
    ]
    value = helper.make_tensor_value_info
    if kind == "bytes":
        nodes = [make("x", "y")]
        ports = [value("x", TensorProto.UINT8, SHAPE)], [value("y", TensorProto.UINT8, None)]
    else:
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            make("q", "r"),
            helper.make_node("DequantizeLinear", ["r", "t", "z"], ["f"]),
            helper.make_node("Mul", ["f", "f"], ["y"]),
        ]
        ports = [value("x", TensorProto.FLOAT, SHAPE)], [value("y", TensorProto.FLOAT, None)]
    used = {name for n in nodes for name in n.input}
    graph = helper.make_graph(nodes, "g", *ports, [c for c in constants if c.name in used])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["bytes", "floats behind"])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("op", OPS)
def test_either_side_of_a_tie_is_right(
    op: str, scales: tuple[float, float], kind: str, tmp_path: Path
) -> None:
    save(model(OPS[op], scales, kind), tmp_path / "m.onnx")
    report = autotune.compile(tmp_path / "m.onnx", threads=1).report
    assert report is not None
    assert report.oracles == ("ONNX Runtime",)


@pytest.mark.parametrize("how", ["two steps", "one step everywhere", "zeros"])
def test_other_numbers_than_both_sides_are_wrong(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    save(model(OPS["mean of a window"], (0.02, 0.02), "bytes"), path)
    made = autotune.compile(path, threads=1, check=False).artifact
    run = Model.run

    def wrong(self: Model, inputs: Any, out: Any = None) -> Any:
        y = run(self, inputs)["y"].copy()
        if how == "zeros":
            y[0, 1] = 0
        elif how == "two steps":
            y[0, :2] = np.clip(y[0, :2].astype(int) + 2, 0, 255)
        else:
            y = np.clip(y.astype(int) + 1, 0, 255).astype(np.uint8)
        return {"y": y}

    monkeypatch.setattr(module.Model, "run", wrong)
    with pytest.raises(WrongNumbers):
        check_model(Model(made, 1), build_network(path), Original(BoundModel(path)))
