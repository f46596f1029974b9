"""One operator between Transposes: a task in ONNX's order beside the three, with equal numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from autotune.graph.network import build_network, chosen
from autotune.graph.reader.onnx_reader import prepare_model
from autotune.network.check.check import check_onnxruntime
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.search.defaults import default_steps
from autotune.target import host_target
from tests.graph.onnx_models import assert_matches, model, node, save

pytestmark = pytest.mark.target


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


PADS = {"pads": [1, 1, 1, 1]}
MODELS: dict[str, ModelProto] = {
    "depthwise": model(
        [node("Conv", "x w", "a", group=6, strides=[2, 2], **PADS), node("Relu", "a", "y")],
        {"x": (2, 6, 13, 11)},
        {"w": weight(6, 1, 3, 3)},
    ),
    "grouped": model(
        [node("Conv", "x w b", "a", group=2, **PADS), node("Clip", "a lo", "y")],
        {"x": (2, 6, 9, 7)},
        {"w": weight(8, 3, 3, 3), "b": weight(8), "lo": np.float32(-1)},
    ),
    "1×1, residual": model(
        [node("Conv", "x w", "a"), node("Add", "a z", "y")],
        {"x": (2, 6, 9, 7), "z": (2, 5, 9, 7)},
        {"w": weight(5, 6, 1, 1)},
    ),
    "of its own operand": model(
        [node("Conv", "x w", "a", **PADS), node("Mul", "a x", "y")],
        {"x": (1, 6, 9, 7)},
        {"w": weight(6, 6, 3, 3)},
    ),
    "three dimensions": model(
        node("Conv", "x w", "y", strides=[1, 2, 1]),
        {"x": (1, 3, 5, 7, 6)},
        {"w": weight(4, 3, 2, 3, 1)},
    ),
    "pool": model(node("MaxPool", "x", "y", kernel_shape=[2, 3], **PADS), {"x": (1, 5, 9, 8)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_operator_alone_has_a_task_in_the_order_of_the_model(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]
    network = assert_matches(proto, tmp_path, 1e-5)
    (chain,) = network.chains
    assert network.labels[chain.whole.task].endswith(", channels first")
    assert set(chain.parts) == set(range(len(network.calls)))
    (whole,) = chosen(network, {chain.whole.task: 0.0}).calls
    assert set(whole.inputs.values()) == {p.value for p in network.inputs}
    assert set(whole.outputs.values()) == {p.value for p in network.outputs}
    width = network.outputs[0].shape[-1]
    assert network.tasks[whole.task].ops[-1].tensor.shape[-1] % width == 0


@pytest.mark.parametrize("name", ["depthwise", "grouped", "1×1, residual"])
def test_compiled_it_computes_the_same(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name], tmp_path)
    network = build_network(path)
    choice = chosen(network, dict.fromkeys(network.parts, 0.0))
    target = host_target()
    steps = {key: default_steps(dag, target, 1) for key, dag in choice.tasks.items()}
    assert (
        check_onnxruntime(Model(compile_network(choice, steps, target, 1), 1), prepare_model(path))
        < 1e-5
    )


def labels(proto: ModelProto, folder: Path) -> list[str]:
    network = build_network(save(proto, folder))
    return [network.labels[key] for key in network.parts]


def test_operators_inside_of_a_network_stay_channels_last(tmp_path: Path) -> None:
    """Their neighbours are channels last, so a Transpose would be needed instead of saved."""
    nodes = [
        node("Conv", "x v", "a", **PADS),
        node("Relu", "a", "b"),
        node("Conv", "b v", "y", **PADS),
    ]
    assert labels(model(nodes, {"x": (1, 6, 9, 7)}, {"v": weight(6, 6, 3, 3)}), tmp_path) == []


def test_transposes_that_others_read_stay(tmp_path: Path) -> None:
    nodes = [node("Conv", "x v", "y", **PADS), node("MaxPool", "x", "z", kernel_shape=[2, 2])]
    proto = model(nodes, {"x": (1, 6, 9, 7)}, {"v": weight(6, 6, 3, 3)}, outputs="y z")
    assert labels(proto, tmp_path) == []


def test_rows_are_merged_where_memory_is_the_models(tmp_path: Path) -> None:
    """An image of 9×7 pixels is one row of 63, which vectors fill better."""
    proto = model(node("Conv", "x w", "y"), {"x": (1, 6, 9, 7)}, {"w": weight(5, 6, 1, 1)})
    network = build_network(save(proto, tmp_path))
    (key,) = network.parts
    assert network.tasks[key].ops[-1].tensor.shape == (5, 63)
