"""Products with pruned weights over blocks, against the dense product of NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from autotune.graph.network import Network, build_network, chosen
from autotune.graph.tasks.sparse import best_blocks, to_blocks
from autotune.loopir.lower import lower
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.search.defaults import default_steps
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from tests.schedule.running import assert_close, assert_computes

pytestmark = pytest.mark.target

F32 = NDArray[np.float32]


def pruned(shape: tuple[int, ...], block: tuple[int, int], density: float, seed: int = 0) -> F32:
    """Random weights [..., k, n] of which that share of the blocks is there."""
    rng = np.random.default_rng(seed)
    *batch, k, n = shape
    height, width = block
    kept = rng.random((*batch, -(-k // height), -(-n // width))) < density
    mask = kept.repeat(height, axis=-2)[..., :k, :].repeat(width, axis=-1)[..., :n]
    return (rng.standard_normal(shape) * mask).astype(np.float32)


def network_of(
    path: Path,
    nodes: list[onnx.NodeProto],
    x: tuple[int, ...],
    y: tuple[int, ...],
    weights: dict[str, F32],
) -> Network:
    """A model of `nodes` from x to y."""
    ports = [
        oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))
    ]
    arrays = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = oh.make_graph(nodes, "sparse", ports[:1], ports[1:], arrays)
    onnx.save(oh.make_model(graph, ir_version=9, opset_imports=[oh.make_opsetid("", 17)]), path)
    return build_network(path)


def sparse_calls(network: Network) -> list[str]:
    """Tasks over blocks."""
    return [c.whole.task for c in network.chains if len(c.parts) == 1]


@pytest.mark.parametrize(("height", "width"), [(4, 16), (1, 16), (16, 4), (4, 4), (5, 8), (37, 16)])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_blocks_hold_every_element(height: int, width: int, density: float) -> None:
    """Rows that do not divide, empty and full block rows, no block at all."""
    weight = pruned((2, 37, 48), (height, width), density)
    blocks = to_blocks(weight, height, width)
    found = np.zeros_like(weight)
    for row in range(len(blocks.indptr) - 1):
        matrix, column = divmod(row, 48 // width)
        for p in range(blocks.indptr[row], blocks.indptr[row + 1]):
            at = slice(blocks.starts[p], blocks.starts[p] + height)
            found[matrix, at, column * width : (column + 1) * width] += blocks.values[p]
    np.testing.assert_array_equal(found, weight)
    assert len(blocks.values) == max(1, blocks.indptr[-1])


def test_dense_weights_stay_dense() -> None:
    assert best_blocks(pruned((1, 64, 64), (4, 16), 1.0)) is None
    assert best_blocks(pruned((1, 64, 64), (1, 1), 0.5)) is None  # no block is all zero
    assert best_blocks(pruned((1, 64, 61), (4, 1), 0.1)) is None  # one row, and no width divides
    found = best_blocks(pruned((1, 64, 64), (4, 16), 0.1))
    assert found is not None
    assert found.shape == (4, 16)
    many = best_blocks(pruned((1, 512, 512), (1, 1), 0.05), n_rows=128)
    assert many is not None
    assert (many.shape, many.by_rows) == ((1, 1), True)


PATTERNS = {
    "4x16": ((4, 16), 0.2),
    "1x16": ((1, 16), 0.2),
    "16x1": ((16, 1), 0.02),
    "4x4": ((4, 4), 0.1),
    "7x24": ((7, 24), 0.3),
    "all zero": ((4, 16), 0.0),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_dense_layer(pattern: str, tmp_path: Path) -> None:
    block, density = PATTERNS[pattern]
    weight = pruned((45, 48), block, density)
    weight[:, 16:32] = 0  # an empty block row
    nodes = [oh.make_node("Gemm", ["x", "w", "b"], ["a"]), oh.make_node("Relu", ["a"], ["y"])]
    bias = np.linspace(-1, 1, 48).astype(np.float32)
    network = network_of(tmp_path / "m.onnx", nodes, (7, 45), (7, 48), {"w": weight, "b": bias})
    (chain,) = network.chains
    dag = network.tasks[chain.whole.task]
    rng = np.random.default_rng(1)
    x = rng.standard_normal((7, 45)).astype(np.float32)
    given = {"x": x, **chain.whole.constants}
    given = {p.name: np.asarray(given[p.name]).reshape(p.tensor.shape) for p in dag.placeholders}
    shape = dag[dag.outputs[0]].tensor.shape
    expected = {dag.outputs[0]: np.maximum(x @ weight + bias, 0).reshape(shape)}
    assert_close(evaluate(dag, given), expected, 1e-6)
    assert_sketches_compute(dag, given, expected)


def assert_sketches_compute(
    dag: ComputeDAG, given: dict[str, F32], expected: dict[str, F32]
) -> None:
    """Random candidates of every sketch, interpreted and as machine code."""
    target, rng = host_target(), np.random.default_rng(2)
    sketches = generate_sketches(dag, target)
    assert any("ragged" in s.tags for s in sketches)
    for sketch in sketches:
        row = np.array([rng.integers(len(p.domain)) for p in sketch.parameters])
        assert_computes(lower(dag, sketch.bind(row)), given, expected, target, (1, 2))


MODELS = {
    "transposed": (
        [oh.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        (6, 64),
        (6, 32),
        lambda: {"w": pruned((64, 32), (4, 16), 0.2).T.copy()},
    ),
    "pointwise convolution": (
        [
            oh.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2]),
            oh.make_node("Relu", ["a"], ["y"]),
        ],
        (1, 64, 9, 7),
        (1, 48, 5, 4),
        lambda: {"w": pruned((64, 48), (4, 16), 0.2).T.reshape(48, 64, 1, 1).copy()},
    ),
    "batch": (
        [oh.make_node("MatMul", ["x", "w"], ["y"])],
        (3, 5, 64),
        (3, 5, 32),
        lambda: {"w": pruned((3, 64, 32), (4, 16), 0.2)},
    ),
    "unstructured": (
        [
            oh.make_node("MatMul", ["x", "w"], ["a"]),
            oh.make_node("Add", ["a", "b"], ["c"]),
            oh.make_node("Relu", ["c"], ["y"]),
        ],
        (37, 512),
        (37, 512),
        lambda: {"w": pruned((512, 512), (1, 1), 0.02), "b": pruned((1, 512), (1, 1), 1.0)[0]},
    ),
    "batch, narrow blocks": (
        [oh.make_node("MatMul", ["x", "w"], ["y"])],
        (3, 33, 128),
        (3, 33, 96),
        lambda: {"w": pruned((3, 128, 96), (16, 4), 0.05)},
    ),
    "pointwise convolution, unstructured": (
        [oh.make_node("Conv", ["x", "w"], ["y"])],
        (1, 256, 3, 33),
        (1, 256, 3, 33),
        lambda: {"w": pruned((256, 256), (1, 1), 0.03).reshape(256, 256, 1, 1)},
    ),
    "residual": (
        [
            oh.make_node("MatMul", ["x", "w"], ["a"]),
            oh.make_node("Add", ["a", "x"], ["b"]),
            oh.make_node("Concat", ["b", "x"], ["y"], axis=1),
        ],
        (6, 32),
        (6, 64),
        lambda: {"w": pruned((32, 32), (4, 16), 0.2)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_networks_equal_onnxruntime(name: str, tmp_path: Path) -> None:
    """Each call over blocks, in the windows and layouts that the network gives it."""
    nodes, x, y, weights = MODELS[name]
    network = network_of(tmp_path / "m.onnx", nodes, x, y, weights())
    (task,) = sparse_calls(network)
    fast = chosen(network, dict.fromkeys(network.tasks, 1.0) | {task: 0.5})
    assert task in fast.tasks
    target = host_target()
    steps = {key: default_steps(dag, target, 1) for key, dag in fast.tasks.items()}
    model = Model(compile_network(fast, steps, target))
    inputs = random_inputs(model.input_info)
    expected = check_inputs(tmp_path / "m.onnx", inputs)
    assert_close(model.run(inputs), expected, 1e-5)


def check_inputs(path: Path, inputs: dict[str, F32]) -> dict[str, F32]:
    """What onnxruntime makes of them."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip(["y"], session.run(["y"], inputs), strict=True))


def test_layers_pruned_alike_share_a_task(tmp_path: Path) -> None:
    weights = {f"w{n}": pruned((128, 128), (4, 16), 0.2, n) for n in range(2)}
    nodes = [oh.make_node("MatMul", ["x", "w0"], ["a"]), oh.make_node("MatMul", ["a", "w1"], ["y"])]
    network = network_of(tmp_path / "m.onnx", nodes, (8, 128), (8, 128), weights)
    assert len(network.chains) == 2
    assert len(set(sparse_calls(network))) == 1
