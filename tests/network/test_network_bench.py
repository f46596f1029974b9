from __future__ import annotations

import builtins
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

from autotune.errors import MissingDependency, WrongNumbers
from autotune.network.bench import (
    PAUSE_S,
    BenchResult,
    Timing,
    bench,
    interleave,
    onnxruntime_runner,
)
from autotune.network.check import check_onnxruntime
from autotune.network.compiler import compile_network
from autotune.network.runtime import Model
from autotune.target import host_target
from tests.network.small_networks import mlp

FIELDS = ["min_s", "median_s", "mean_s", "max_s", "std_s", "runs", "threads"]


@pytest.fixture(scope="module")
def model() -> Model:
    network = mlp()
    return Model(compile_network(network, dict.fromkeys(network.tasks, ()), host_target()))


def onnx_mlp(bias: float = 0.0) -> onnx.ModelProto:
    """The network of `mlp` as an ONNX model."""
    nodes = [oh.make_node("Reshape", ["image", "flat"], ["x0"])]
    constants = {"flat": onnx.numpy_helper.from_array(np.array([1, 12]), "flat")}
    for n, call in enumerate(mlp().calls):
        for name, array in call.constants.items():
            shifted = array + bias if name == "b" else array
            constants[f"{name}{n}"] = onnx.numpy_helper.from_array(shifted, f"{name}{n}")
        nodes.append(oh.make_node("Gemm", [f"x{n}", f"w{n}", f"b{n}"], [f"y{n}"]))
        nodes.append(oh.make_node("Relu", [f"y{n}"], [f"x{n + 1}"]))
    nodes[-1].output[0] = "last"
    constants["vector"] = onnx.numpy_helper.from_array(np.array([20]), "vector")
    nodes.append(oh.make_node("Reshape", ["last", "vector"], ["scores"]))
    ports = [oh.make_tensor_value_info("image", 1, (1, 3, 4))]
    outputs = [oh.make_tensor_value_info("scores", 1, (20,))]
    graph = oh.make_graph(nodes, "mlp", ports, outputs, list(constants.values()))
    return oh.make_model(graph, ir_version=9, opset_imports=[oh.make_opsetid("", 17)])


def test_alone(model: Model) -> None:
    result = bench(model, min_runs=3, min_s=0.0)
    data = json.loads(json.dumps(result.to_json()))
    assert list(data) == ["autotune", "onnxruntime", "ratio"]
    assert list(data["autotune"]) == FIELDS
    assert data["autotune"]["runs"] >= 3
    assert data["onnxruntime"] is None
    assert data["ratio"] is None


def test_against_onnxruntime(model: Model) -> None:
    pytest.importorskip("onnxruntime")
    data = bench(model, onnx_mlp(), min_runs=3, min_s=0.0).to_json()
    assert list(data["onnxruntime"]) == FIELDS
    assert data["ratio"] == data["autotune"]["median_s"] / data["onnxruntime"]["median_s"]


def test_statistics() -> None:
    result = BenchResult(Timing((1.0, 2.0, 6.0), 2), Timing((4.0,), 2))
    assert result.ratio == 0.5
    std_s = pytest.approx((14 / 3) ** 0.5)
    values = [1.0, 2.0, 3.0, 6.0, std_s, 3, 2]
    assert result.to_json()["autotune"] == dict(zip(FIELDS, values, strict=True))


def test_sides_take_turns_in_blocks_and_first_runs_do_not_count() -> None:
    clock = itertools.count(step=0.1).__next__
    calls: list[str] = []
    sides = [lambda: calls.append("a"), lambda: calls.append("b")]
    times = interleave(sides, 3, 0.0, lambda: float(clock()), lambda s: calls.append(f"{s}"))
    pause = f"{PAUSE_S}"
    block_a, block_b = [pause, "a", "a", "a"], [pause, "b", "b", "b"]
    assert calls == [*block_a, *block_b, *block_a, *block_b]
    assert [len(t) for t in times] == [4, 4]
    assert times[0] == pytest.approx([0.1] * 4)


def test_onnxruntime_is_optional(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependency, match="onnxruntime") as caught:
        bench(model, onnx_mlp())
    assert "pip install onnxruntime" in caught.value.hint


def test_check_against_onnxruntime(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert check_onnxruntime(model, onnx_mlp()) < 1e-5
    onnx.save(onnx_mlp(bias=1.0), tmp_path / "other.onnx")
    with pytest.raises(WrongNumbers, match="'scores' differs from the oracle"):
        check_onnxruntime(model, tmp_path / "other.onnx")


def test_the_runner_names_its_outputs() -> None:
    pytest.importorskip("onnxruntime")
    run = onnxruntime_runner(onnx_mlp(), 1)
    outputs = run({"image": np.zeros((1, 3, 4), np.float32)})
    assert {name: array.shape for name, array in outputs.items()} == {"scores": (20,)}
