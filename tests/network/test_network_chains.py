"""A depthwise-separable network, with its chains joined and with their parts: the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

from autotune.graph.network import Network, build_network, chosen
from autotune.graph.onnx_reader import prepare_model
from autotune.network.check import check_network, check_onnxruntime
from autotune.network.compiler import compile_network
from autotune.network.memory import live_blocks
from autotune.network.runtime import Model, random_inputs
from autotune.schedule.steps import Steps
from autotune.search.policy import default_steps
from autotune.target import host_target


def separable_net(path: Path) -> Path:
    """Conv, two depthwise-separable blocks, the second with a residual sum, into a Concat."""
    rng = np.random.default_rng(0)
    shapes = {
        "w0": (16, 3, 3, 3),
        "d1": (16, 1, 3, 3),
        "p1": (24, 16, 1, 1),
        "d2": (24, 1, 3, 3),
        "p2": (24, 24, 1, 1),
        "b2": (24,),
    }
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / 4).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        oh.make_node("Conv", ["image", "w0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["c0"], ["r0"]),
        oh.make_node("Conv", ["r0", "d1"], ["c1"], group=16, pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["c1"], ["r1"]),
        oh.make_node("Conv", ["r1", "p1"], ["c2"]),
        oh.make_node("Conv", ["c2", "d2"], ["c3"], group=24, pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["c3"], ["r3"]),
        oh.make_node("Conv", ["r3", "p2", "b2"], ["c4"]),
        oh.make_node("Add", ["c4", "c2"], ["sum"]),
        oh.make_node("Concat", ["sum", "c2"], ["y"], axis=1),
    ]
    image = oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, (1, 3, 37, 29))
    y = oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 48, 10, 8))
    graph = oh.make_graph(nodes, "separable", [image], [y], weights)
    onnx.save(oh.make_model(graph, ir_version=9, opset_imports=[oh.make_opsetid("", 17)]), path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return separable_net(tmp_path_factory.mktemp("chains") / "separable.onnx")


@pytest.fixture(scope="module")
def network(path: Path) -> Network:
    return build_network(path)


@pytest.fixture(scope="module")
def steps(network: Network) -> dict[str, Steps]:
    target = host_target()
    return {key: default_steps(dag, target, 2) for key, dag in network.tasks.items()}


def test_all_choices_agree(network: Network, steps: dict[str, Steps], path: Path) -> None:
    assert len(network.chains) == 2
    first, second = network.parts
    outputs = []
    for wholes in ((), (first,), (second,), (first, second)):
        choice = chosen(network, dict.fromkeys(wholes, 1e-6))
        assert len(choice.calls) == len(network.calls) - len(wholes)
        model = Model(compile_network(choice, steps, host_target(), 2), 2)
        assert check_network(model, choice) < 1e-5
        outputs.append(model.run(random_inputs(model.input_info))["y"])
    for other in outputs[1:]:
        np.testing.assert_allclose(other, outputs[0], rtol=0, atol=1e-5 * np.abs(other).max())
    pytest.importorskip("onnxruntime")
    assert check_onnxruntime(model, prepare_model(path)) < 1e-5


def test_what_is_between_the_parts_takes_no_memory(network: Network) -> None:
    def blocks(choice: Network) -> set[str]:
        return {b.name for b in live_blocks(choice, [{} for _ in choice.calls])}

    parts, whole = chosen(network, {}), chosen(network, dict.fromkeys(network.parts, 1e-6))
    between = {name for c in network.chains for name in network.calls[c.parts[0]].outputs.values()}
    assert blocks(parts) - blocks(whole) == between
    assert blocks(whole) < blocks(parts)


def test_without_a_choice_the_parts_are_compiled(network: Network, steps: dict[str, Steps]) -> None:
    kernels = compile_network(network, steps, host_target()).kernels
    assert not {kernel.task for kernel in kernels} & set(network.parts)
