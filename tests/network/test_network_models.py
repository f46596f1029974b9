"""From ONNX files to artifacts, against ONNX Runtime, with schedules that only divide work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

from autotune.graph.network import Network, build_network
from autotune.graph.reader.onnx_reader import prepare_model
from autotune.network.check.check import check_network, check_onnxruntime
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.schedule.steps import Parallel, Steps
from autotune.target import host_target

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def divided(network: Network) -> dict[str, Steps]:
    """Every stage runs in parallel over all but its last axis."""
    return {
        key: tuple(Parallel(c.name, max(1, len(c.axes) - 1)) for c in dag.computes)
        for key, dag in network.tasks.items()
    }


def residual_net(path: Path) -> Path:
    """Conv, two branches into a Concat, a 1×1 Conv back, a residual Add, pooling, Gemm, Softmax."""
    rng = np.random.default_rng(0)
    shapes = {
        "w0": (8, 3, 3, 3),
        "w1": (8, 8, 1, 1),
        "w2": (12, 8, 3, 3),
        "w3": (8, 20, 1, 1),
        "w4": (8, 10),
        "b4": (10,),
    }
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / 4).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        oh.make_node("Conv", ["image", "w0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["c0"], ["r0"]),
        oh.make_node("Conv", ["r0", "w1"], ["c1"]),
        oh.make_node("Relu", ["c1"], ["r1"]),
        oh.make_node("Conv", ["r0", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["c2"], ["r2"]),
        oh.make_node("Concat", ["r1", "r2"], ["joined"], axis=1),
        oh.make_node("Conv", ["joined", "w3"], ["c3"]),
        oh.make_node("Add", ["c3", "r0"], ["sum"]),
        oh.make_node("Relu", ["sum"], ["r3"]),
        oh.make_node("GlobalAveragePool", ["r3"], ["pooled"]),
        oh.make_node("Flatten", ["pooled"], ["flat"]),
        oh.make_node("Gemm", ["flat", "w4", "b4"], ["logits"]),
        oh.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    image = oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, (1, 3, 17, 15))
    scores = oh.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, (1, 10))
    joined = oh.make_tensor_value_info("joined", onnx.TensorProto.FLOAT, (1, 20, 9, 8))
    graph = oh.make_graph(nodes, "residual", [image], [scores, joined], weights)
    onnx.save(oh.make_model(graph, ir_version=9, opset_imports=[oh.make_opsetid("", 17)]), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_branches_concatenation_and_residual(tmp_path: Path, n_threads: int) -> None:
    path = residual_net(tmp_path / "residual.onnx")
    network = build_network(path)
    artifact = compile_network(network, divided(network), host_target())
    model = Model(artifact, n_threads)
    assert {e.name: e.shape for e in model.output_info} == {
        "scores": (1, 10),
        "joined": (1, 20, 9, 8),
    }
    assert check_network(model, network) < 1e-5
    pytest.importorskip("onnxruntime")
    assert check_onnxruntime(model, prepare_model(path)) < 1e-5


@pytest.mark.slow
def test_a_real_model_on_one_and_two_threads() -> None:
    pytest.importorskip("onnxruntime")
    path = LIGHT / "light_squeezenet.onnx"
    network = build_network(path, random_weights=True)
    artifact = compile_network(network, divided(network), host_target(), n_threads=2)
    models = [Model(artifact, 1), Model(artifact, 2)]
    assert check_onnxruntime(models[0], prepare_model(path, {}, True)) < 1e-5
    inputs = random_inputs(artifact.inputs)
    alone, together = (model.run(inputs) for model in models)
    for name, array in alone.items():
        assert np.array_equal(array, together[name])
    # activations share memory: far less than the sum of all storages
    storages = [v for v in network.values.values() if v.parent is None]
    assert artifact.arena_bytes < sum(4 * int(np.prod(v.shape)) for v in storages)
