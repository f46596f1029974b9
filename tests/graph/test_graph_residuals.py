"""Residual sums of quantised networks: what lies between tasks is bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, save

from autotune.graph.network import build_network
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs
from tests.graph.test_graph_quantised import model_of

CHANNELS, STEP = 16, 0.0607
RNG = np.random.default_rng(1)


class Qdq:
    """A quantised model in the making: every tensor quantised and dequantised behind its node."""

    def __init__(self, scales: dict[str, float]) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {"zero": np.array(113, np.uint8)}
        self.scales = scales

    def node(self, op: str, inputs: list[str], output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attrs))
        return output

    def quantised(self, name: str) -> str:
        """`name` behind QuantizeLinear and DequantizeLinear."""
        self.constants[f"{name}.s"] = np.array(self.scales[name], np.float32)
        step = [f"{name}.s", "zero"]
        self.node("QuantizeLinear", [name, *step], f"{name}.q")
        return self.node("DequantizeLinear", [f"{name}.q", *step], f"{name}.d")

    def conv(self, x: str, name: str) -> str:
        w = RNG.integers(-127, 128, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8)
        self.constants |= {f"{name}.w": w, f"{name}.ws": np.array(0.004, np.float32)}
        weight = self.node("DequantizeLinear", [f"{name}.w", f"{name}.ws"], f"{name}.wd")
        return self.quantised(self.node("Conv", [x, weight], name))


def residual_block(op: str, is_projected: bool) -> ModelProto:
    scales = {"x": 0.0513, "first": 0.0621, "a": 0.0417, "b": 0.0339, "c": 0.0523, "sum": STEP}
    q = Qdq(scales)
    x = q.conv(q.quantised("x"), "first")
    long = q.conv(q.conv(x, "a"), "b")
    short = q.conv(x, "c") if is_projected else x
    q.node("Relu", [q.node(op, [long, short], "total")], "sum")
    q.node("Transpose", [q.quantised("sum")], "y", perm=[0, 2, 3, 1])
    inputs = {"x": np.zeros((1, CHANNELS, 6, 6), np.float32)}
    return model_of(q.nodes, inputs, {"y": "float32"}, q.constants, {"y": [1, 6, 6, CHANNELS]})


@pytest.mark.parametrize("is_projected", [False, True], ids=["identity", "projected"])
@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_residual_sums_are_computed_from_bytes(op: str, is_projected: bool, tmp_path: Path) -> None:
    proto = residual_block(op, is_projected)
    save(proto, tmp_path / "m.onnx")
    network = build_network(tmp_path / "m.onnx")
    ends = {p.value for p in (*network.inputs, *network.outputs)}
    assert {v.dtype for n, v in network.values.items() if n not in ends} == {"uint8"}
    feeds = {"x": RNG.standard_normal((1, CHANNELS, 6, 6)).astype(np.float32)}
    found, expected = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    steps = np.abs(found - expected) / STEP
    assert steps.max() < 1.01
    assert np.count_nonzero(steps > 0.5) <= 2
