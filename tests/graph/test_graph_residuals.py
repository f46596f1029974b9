"""Residual sums of quantised networks: bytes between tasks, scales without a division."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, save

from autotune.graph.network import Network, build_network
from autotune.te.expr import Binary, walk
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs
from tests.graph.test_graph_quantised import model_of

CHANNELS, STEP = 16, 0.0607


class Qdq:
    """A quantised model in the making: every tensor quantised and dequantised behind its node."""

    def __init__(self, rng: np.random.Generator, scales: dict[str, float]) -> None:
        self.rng = rng
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
        w = self.rng.integers(-127, 128, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8)
        self.constants |= {f"{name}.w": w, f"{name}.ws": np.array(0.004, np.float32)}
        weight = self.node("DequantizeLinear", [f"{name}.w", f"{name}.ws"], f"{name}.wd")
        return self.quantised(self.node("Conv", [x, weight], name))


def residual_block(
    rng: np.random.Generator, op: str, is_projected: bool, shortcut: float = 0.0523
) -> ModelProto:
    """A block whose shortcut is quantised by scale `shortcut` where a convolution projects it."""
    scales = {"x": 0.0513, "first": 0.0621, "a": 0.0417, "b": 0.0339, "c": shortcut, "sum": STEP}
    q = Qdq(rng, scales)
    x = q.conv(q.quantised("x"), "first")
    long = q.conv(q.conv(x, "a"), "b")
    short = q.conv(x, "c") if is_projected else x
    q.node("Relu", [q.node(op, [long, short], "total")], "sum")
    q.node("Transpose", [q.quantised("sum")], "y", perm=[0, 2, 3, 1])
    inputs = {"x": np.zeros((1, CHANNELS, 6, 6), np.float32)}
    return model_of(q.nodes, inputs, {"y": "float32"}, q.constants, {"y": [1, 6, 6, CHANNELS]})


def divisions(network: Network, label: str) -> int:
    """Divisions in the tasks whose label has `label` in it."""
    dags = [network.tasks[c.task] for c in network.calls if label in c.label]
    assert dags
    bodies = (op.body for dag in dags for op in dag.computes)
    return sum(isinstance(e, Binary) and e.op == "div" for body in bodies for e in walk(body))


def assert_within_one_step(rng: np.random.Generator, network: Network, proto: ModelProto) -> None:
    """Outputs are those of ONNX Runtime, a few of a tie on its other side."""
    feeds = {"x": rng.standard_normal((1, CHANNELS, 6, 6)).astype(np.float32)}
    found, expected = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    steps = np.abs(found - expected) / STEP
    assert steps.max() < 1.01
    assert np.count_nonzero(steps > 0.5) <= 2


@pytest.mark.parametrize("is_projected", [False, True], ids=["identity", "projected"])
@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_residual_sums_are_of_bytes_and_need_no_division(
    rng: np.random.Generator, op: str, is_projected: bool, tmp_path: Path
) -> None:
    proto = residual_block(rng, op, is_projected)
    save(proto, tmp_path / "m.onnx")
    network = build_network(tmp_path / "m.onnx")
    ends = {p.value for p in (*network.inputs, *network.outputs)}
    assert {v.dtype for n, v in network.values.items() if n not in ends} == {"uint8"}
    assert divisions(network, "Conv") == 0
    assert_within_one_step(rng, network, proto)


def test_scales_whose_quotient_may_be_infinite_are_divided_at_run_time(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    proto = residual_block(rng, "Add", True, 1e37)
    save(proto, tmp_path / "m.onnx")
    network = build_network(tmp_path / "m.onnx")
    assert divisions(network, "Dequantize+Add") > 0
    assert_within_one_step(rng, network, proto)
