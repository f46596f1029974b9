"""Networks with chains, with these joined and with their parts: the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

from autotune.graph.network import Network, build_network, chosen
from autotune.graph.reader.onnx_reader import prepare_model
from autotune.network.check.check import check_network, check_onnxruntime
from autotune.network.compile.compiler import compile_network
from autotune.network.compile.memory import live_blocks
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.schedule.steps import Steps
from autotune.search.defaults import default_steps
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2])
def test_attention_as_one_call(n_threads: int, tmp_path: Path) -> None:
    """Queries of 13, keys of 37 places; heads stay in the middle, as exporters leave them."""
    shape = oh.make_tensor_value_info
    inputs = [shape(n, onnx.TensorProto.FLOAT, (1, m, 3, 20)) for n, m in (("q", 13), ("k", 37))]
    nodes = [
        oh.make_node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        oh.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        oh.make_node("Transpose", ["k"], ["vt"], perm=[0, 2, 1, 3]),
        oh.make_node("MatMul", ["qt", "kt"], ["s"]),
        oh.make_node("Mul", ["s", "root"], ["t"]),
        oh.make_node("Add", ["t", "mask"], ["u"]),
        oh.make_node("Softmax", ["u"], ["p"], axis=-1),
        oh.make_node("MatMul", ["p", "vt"], ["o"]),
        oh.make_node("Transpose", ["o"], ["y"], perm=[0, 2, 1, 3]),
    ]
    mask = np.where(np.tri(13, 37, 9) > 0, 0, -3.4e38).astype(np.float32)
    constants = {"root": np.float32(20**-0.5), "mask": mask}
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    y = shape("y", onnx.TensorProto.FLOAT, (1, 13, 3, 20))
    graph = oh.make_graph(nodes, "attention", inputs, [y], weights)
    proto = oh.make_model(graph, ir_version=9, opset_imports=[oh.make_opsetid("", 17)])
    onnx.save(proto, path := tmp_path / "attention.onnx")
    network = build_network(path)
    (whole,) = network.parts
    choice = chosen(network, {whole: 1e-6})
    assert len(choice.calls) == len(network.calls) - 2
    target = host_target()
    steps = {key: default_steps(dag, target, n_threads) for key, dag in choice.tasks.items()}
    model = Model(compile_network(choice, steps, target, n_threads), n_threads)
    assert check_network(model, choice) < 1e-5
    pytest.importorskip("onnxruntime")
    assert check_onnxruntime(model, prepare_model(path)) < 1e-5
