"""Models with open dimensions, compiled once for every size: beside ONNX Runtime at that size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.extent import Extents, Length, longest
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.lift import lifted_network
from autotune.graph.network import Network, chosen
from autotune.network.check.oracles import Original
from autotune.network.check.size_check import check_any
from autotune.network.runtime.baselines import Runner, onnxruntime_runner
from autotune.network.runtime.loading import load
from autotune.network.runtime.runtime import Model, random_inputs
from tests.network.sized_networks import compiled
from tests.network.test_network_variants import encoder

pytest.importorskip("onnxruntime")

Arrays = Mapping[str, NDArray[Any]]

BATCH, SEQUENCE = Length("batch", 4), Length("sequence", 48)
WIDTH = Length("width", 6, 8)


@dataclass(frozen=True)
class Lifted:
    """A model for all sizes, and ONNX Runtime's session of its file."""

    network: Network
    model: Model
    oracle: Runner
    original: Original

    def inputs(self, numbers: Mapping[str, int], seed: int = 0) -> Arrays:
        return random_inputs(self.model.sized(numbers).input_info, seed)

    def require_right(self, inputs: Arrays, found: Arrays) -> None:
        for name, array in self.oracle(inputs).items():
            assert found[name].shape == array.shape
            scale = max(1.0, float(np.abs(array).max()))
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5 * scale)


def picture(path: Path) -> Path:
    """Convolutions and a pool of a picture of any width, and its columns as rows."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "v": (16, 8, 3, 3), "p": (64, 5)}
    tensors = {n: (rng.standard_normal(s) / 9).astype(np.float32) for n, s in shapes.items()}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], **pads),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], **pads),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 3, 1, 2]),
        helper.make_node("Reshape", ["e", "rows"], ["f"]),
        helper.make_node("MatMul", ["f", "p"], ["y"]),
    ]
    tensors["rows"] = np.array([0, 0, 64])
    graph = helper.make_graph(
        nodes,
        "picture",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 3, 16, "width"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in tensors.items()],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def spans(path: Path) -> Path:
    """Rows at places that an input gives, which are below the sequence's length, not its most."""
    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["x", "places"], ["y"], axis=1)],
        "spans",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", "sequence", 2)),
            helper.make_tensor_value_info("places", TensorProto.INT64, ("batch", 3, 2)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


MADE: Mapping[str, tuple[Callable[[Path], Path], dict[str, Extents]]] = {
    "encoder": (encoder, {"ids": (BATCH, SEQUENCE), "mask": (BATCH, SEQUENCE)}),
    "picture": (picture, {"x": (BATCH, 3, 16, WIDTH)}),
    "spans": (spans, {"x": (BATCH, SEQUENCE, 2), "places": (BATCH, 3, 2)}),
}


@cache
def _made(kind: str, folder: Path) -> Lifted:
    make, dims = MADE[kind]
    path = make(folder / f"{kind}.onnx")
    network = chosen(lifted_network(BoundModel(path), dims), {})
    compiled(network).save(folder / f"{kind}.atn")
    original = Original(BoundModel(path), {n: longest(e) for n, e in dims.items()})
    model = load(folder / f"{kind}.atn", 2)
    return Lifted(network, model, onnxruntime_runner(path, 1), original)


@pytest.fixture(params=MADE)
def lifted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lifted:
    return _made(request.param, tmp_path_factory.getbasetemp())


def _sizes(model: Model, rng: np.random.Generator, n: int) -> list[dict[str, int]]:
    """1, the most, each of them in one length alone, and random numbers."""
    mosts = model.lengths
    corners = [{k: m if k in some else 1 for k, m in mosts.items()} for some in ((), mosts)]
    corners += [{k: m if k == name else 1 for k, m in mosts.items()} for name in mosts]
    drawn = [{k: int(rng.integers(1, m + 1)) for k, m in mosts.items()} for _ in range(n)]
    return [*corners, *drawn]


def test_every_size_is_what_the_file_computes(lifted: Lifted, rng: np.random.Generator) -> None:
    for n, numbers in enumerate(_sizes(lifted.model, rng, 12)):
        inputs = lifted.inputs(numbers, n)
        lifted.model.spoil()
        lifted.require_right(inputs, lifted.model.run(inputs))


def test_arrays_of_out_and_results_are_apart(lifted: Lifted, rng: np.random.Generator) -> None:
    kept = []
    for n, numbers in enumerate(_sizes(lifted.model, rng, 3)):
        inputs = lifted.inputs(numbers, n)
        (end,) = lifted.model.sized(numbers).output_info
        out = np.full(end.shape, np.nan, np.float32)
        assert lifted.model.run(inputs, out)["y"] is out
        kept += [(inputs, out), (inputs, lifted.model.run(inputs)["y"])]
    for k, (inputs, array) in enumerate(kept):
        lifted.require_right(inputs, {"y": array})
        assert not any(np.may_share_memory(array, other) for _, other in kept[:k])


def test_callers_of_two_models_and_many_sizes_do_not_meet(
    tmp_path_factory: pytest.TempPathFactory, rng: np.random.Generator
) -> None:
    both = [_made(kind, tmp_path_factory.getbasetemp()) for kind in ("encoder", "picture")]
    work = []
    for one in both * 4:
        cases = [one.inputs(numbers, n) for n, numbers in enumerate(_sizes(one.model, rng, 4))]
        work.append((one, cases))
    found: list[list[Arrays]] = [[] for _ in work]

    def call(k: int) -> None:
        one, cases = work[k]
        found[k] += [one.model.run(inputs) for inputs in cases]

    threads = [threading.Thread(target=call, args=(k,)) for k in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (one, cases), outputs in zip(work, found, strict=True):
        assert len(outputs) == len(cases)
        for inputs, output in zip(cases, outputs, strict=True):
            one.require_right(inputs, output)


def test_the_check_of_all_sizes_passes(lifted: Lifted) -> None:
    report = check_any(lifted.model, lifted.network, lifted.original)
    assert report.error < 1e-5
