"""The check of networks with lengths: sizes it tries, what it finds, what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import WrongNumbers
from autotune.extent import Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.network import Network
from autotune.network.check.evaluation import evaluate_network
from autotune.network.check.oracles import Original
from autotune.network.check.size_check import check_any, fits
from autotune.network.runtime.runtime import Model
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce
from tests.network.sized_networks import (
    IN,
    compiled,
    drawn,
    expected,
    sized_network,
)

BATCH, ROWS = Length("batch", 3), Length("rows", 24)


@pytest.fixture(scope="module")
def network() -> Network:
    return sized_network(BATCH, ROWS)


@pytest.fixture
def original(network: Network, tmp_path: Path) -> Original:
    """The same network as a file with open dimensions."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["dot"]),
        helper.make_node("Relu", ["dot"], ["y"]),
        helper.make_node("ReduceSum", ["y", "one"], ["s"], keepdims=0),
        helper.make_node("Identity", ["z"], ["same"]),
    ]
    dims = {"x": ("batch", "rows", IN), "z": ("rows", IN)}
    f32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "sized",
        [helper.make_tensor_value_info(n, f32, d) for n, d in dims.items()],
        [helper.make_tensor_value_info(n, f32, None) for n in ("y", "s", "same")],
        [
            numpy_helper.from_array(network.calls[0].constants["w"], "w"),
            numpy_helper.from_array(np.array([1]), "one"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "sized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return Original(BoundModel(path), {"x": (3, 24, IN), "z": (24, IN)})


def test_the_definition_is_evaluated_at_any_size(
    network: Network, rng: np.random.Generator
) -> None:
    for b, n in [(1, 1), (3, 24), (2, 7)]:
        inputs = drawn(rng, b, n)
        found = evaluate_network(network, inputs)
        for name, array in expected(network, inputs).items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_several_sizes_and_those_of_given_inputs_are_checked(
    network: Network, original: Original, rng: np.random.Generator
) -> None:
    model = Model(compiled(network))
    sizes: list[tuple[int, ...]] = []

    class Noting(Model):
        """Notes the sizes at which it is asked."""

        def sized(self, numbers: dict[str, int]) -> Model:  # type: ignore[override]
            sizes.append(tuple(numbers.values()))
            return super().sized(numbers)

    report = check_any(Noting(model.artifact), network, original, [drawn(rng, 2, 5)])
    assert report.error < 1e-5
    assert report.n_given == 1
    assert sizes[:2] == [(3, 24), (1, 1)]
    assert len(sizes) >= 5
    assert (2, 5) in sizes


def _without_end(b: int, n: int) -> ComputeDAG:
    """A sum over all rows of the memory, also behind the length."""
    axes, r = (Axis("h", b), Axis("j", 6)), Axis("r", n)
    y, rows = placeholder("y", (b, n, 6)), placeholder("n", (1,), "int64")
    s = compute("s", axes, Reduce("sum", y.tensor[axes[0], r, axes[1]], (r,)))
    return ComputeDAG((y, rows, s), ("s",))


def test_what_reads_behind_a_length_is_found(network: Network, original: Original) -> None:
    wrong = _without_end(3, 24)
    first, second = network.calls
    calls = (first, replace(second, task=wrong.key))
    tasks = {first.task: network.tasks[first.task], wrong.key: wrong}
    model = Model(compiled(replace(network, calls=calls, tasks=tasks)))
    with pytest.raises(WrongNumbers, match="output 's' differs from the oracle"):
        check_any(model, network, original)


def test_inputs_fit_at_any_size(network: Network, rng: np.random.Generator) -> None:
    artifact = compiled(network)
    assert fits(artifact, drawn(rng, 3, 24))
    assert fits(artifact, drawn(rng, 1, 1))
    assert not fits(artifact, drawn(rng, 4, 1))
    assert not fits(artifact, {"x": np.zeros((1, 1, IN), np.float32)})
