from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import MissingDependency, ModelError, WrongNumbers
from autotune.measure.timing.noise import Usage
from autotune.network.bench.bench import PAUSE_S, BenchResult, Timing, bench, interleave
from autotune.network.check.check import check_onnxruntime
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.baselines import BASELINES, baseline
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.target import host_target
from tests.network.small_networks import mlp

TIMES = ["min_s", "median_s", "mean_s", "p95_s", "p99_s", "max_s", "std_s"]
FIELDS = [*TIMES, "inferences_per_s", "runs", "threads"]

Arrays = Mapping[str, NDArray[Any]]


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
    return onnx_model(nodes, ports, outputs, list(constants.values()))


def onnx_model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = oh.make_graph(nodes, "small", inputs, outputs, constants)
    return oh.make_model(graph, ir_version=9, opset_imports=[oh.make_opsetid("", 17)])


def test_alone(model: Model) -> None:
    result = bench(model, min_runs=3, min_s=0.0)
    data = json.loads(json.dumps(result.to_json()))
    assert list(data) == ["autotune", "onnxruntime", "ratio", "noise"]
    assert list(data["autotune"]) == FIELDS
    assert data["autotune"]["runs"] >= 3
    assert data["onnxruntime"] is None
    assert data["ratio"] is None


@pytest.mark.parametrize("name", BASELINES)
def test_against_one(model: Model, name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    runners = {name: baseline(name, onnx_mlp(), model.n_threads)}
    data = bench(model, runners, min_runs=3, min_s=0.0).to_json()
    assert set(data) == {"autotune", "onnxruntime", "ratio", "noise", name}
    assert list(data[name]) == [*FIELDS, "max_error"]
    assert data[name]["max_error"] < (3e-2 if ":" in name else 1e-5)
    assert data["ratio"] == data["autotune"]["median_s"] / data[name]["median_s"]


def test_baselines_get_our_inputs_and_their_outputs_are_compared(model: Model) -> None:
    seen: list[NDArray[Any]] = []

    def twice(inputs: Arrays) -> dict[str, NDArray[Any]]:
        seen.append(inputs["image"])
        return {"scores": 2 * model.run(inputs)["scores"]}

    def lost(inputs: Arrays) -> dict[str, NDArray[Any]]:
        return {"scores": np.full(20, np.nan, np.float32)}

    result = bench(model, {"twice": twice, "lost": lost}, min_runs=2, min_s=0.0, seed=5)
    assert all(np.array_equal(x, random_inputs(model.input_info, 5)["image"]) for x in seen)
    assert result.baselines["twice"].max_error == 0.5
    assert result.baselines["lost"].max_error == float("inf")
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["lost"]["max_error"] is None


def test_statistics() -> None:
    result = BenchResult(Timing((1.0, 2.0, 6.0), 2), {"onnxruntime": Timing((4.0,), 2)})
    assert result.ratio == 0.5
    assert "ratios" not in result.to_json()
    std_s = pytest.approx((14 / 3) ** 0.5)
    values = [1.0, 2.0, 3.0, 6.0, 6.0, 6.0, std_s, 1 / 3, 3, 2]
    assert result.to_json()["autotune"] == dict(zip(FIELDS, values, strict=True))


def test_percentiles_are_times_that_so_many_runs_stay_within() -> None:
    timing = Timing(tuple(float(n) for n in range(200, 0, -1)), 1)
    assert (timing.p95_s, timing.p99_s) == (190.0, 198.0)


def test_the_ratio_is_to_the_best_of_several() -> None:
    others = {"onnxruntime": Timing((4.0,), 2), "openvino": Timing((1.0,), 2)}
    result = BenchResult(Timing((2.0,), 2), others, round_trip_s=3e-7)
    assert (result.best, result.ratio) == ("openvino", 2.0)
    data = result.to_json()
    keys = ["autotune", "onnxruntime", "openvino", "ratio", "ratios", "round_trip_s", "noise"]
    assert list(data) == keys
    assert data["ratios"] == {"onnxruntime": 0.5, "openvino": 2.0}
    assert data["ratio"] == 2.0
    assert data["round_trip_s"] == 3e-7


def test_the_round_trip_is_measured_on_several_threads_only(model: Model) -> None:
    assert bench(model, min_runs=1, min_s=0.0).round_trip_s is None
    trip_s = bench(Model(model.artifact, 2), min_runs=1, min_s=0.0).round_trip_s
    assert trip_s is not None
    assert trip_s > 0


def test_sides_take_turns_in_blocks_and_first_runs_do_not_count() -> None:
    clock = itertools.count(step=0.1).__next__
    calls: list[str] = []
    sides = [lambda: calls.append("a"), lambda: calls.append("b")]
    times = interleave(
        sides,
        min_runs=3,
        min_s=0.0,
        between=lambda: calls.append("round"),
        clock=lambda: float(clock()),
        sleep=lambda s: calls.append(f"{s}"),
    )
    pause = f"{PAUSE_S}"
    block_a, block_b = [pause, "a", "a", "a"], [pause, "b", "b", "b"]
    rounds = [calls[n : n + 9] for n in (0, 9)]
    assert sorted(rounds) == [["round", *block_a, *block_b], ["round", *block_b, *block_a]]
    assert [len(t) for t in times] == [4, 4]
    assert times[0] == pytest.approx([0.1] * 4)


# --- baselines --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_optional(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, package, None)  # an import then says that there is none
    with pytest.raises(MissingDependency, match=f"{package} is not installed") as caught:
        baseline(name, onnx_mlp(), 1)
    assert f"pip install {package}" in caught.value.hint


@pytest.mark.parametrize("name", BASELINES)
def test_a_model_that_an_baseline_refuses(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    port = oh.make_tensor_value_info("x", 1, (2,))
    node = oh.make_node("NoSuchOperator", ["x"], ["y"], domain="nowhere")
    proto = onnx_model([node], [port], [oh.make_tensor_value_info("y", 1, (2,))], [])
    with pytest.raises(ModelError, match=f"{name} cannot load the model: .*NoSuch") as caught:
        baseline(name, proto, 1)
    assert f"`against={name!r}`" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", BASELINES)
def test_inputs_that_an_baseline_refuses(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    run = baseline(name, onnx_mlp(), 1)
    with pytest.raises(ModelError, match=f"{name} cannot run the model: ") as caught:
        run({"image": np.ones((1, 3, 5), np.float32)})
    assert f"`against={name!r}`" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", BASELINES)
def test_inputs_that_nobody_reads(name: str) -> None:
    """TensorFlow's exporter leaves such ones, and OpenVINO does not find them by name."""
    pytest.importorskip(name.partition(":")[0])
    port = oh.make_tensor_value_info
    nodes = [oh.make_node("Sub", ["y:0", "x:0"], ["out:0"])]
    inputs = [port("x:0", 1, (2,)), port("idle:0", 1, (3,)), port("y:0", 1, (2,))]
    run = baseline(name, onnx_model(nodes, inputs, [port("out:0", 1, (2,))], []), 1)
    x, idle, y = (np.array(a, np.float32) for a in ([1, 1], [0, 0, 0], [5, 7]))
    assert (run({"y:0": y, "idle:0": idle, "x:0": x})["out:0"] == [4, 6]).all()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_name_their_outputs_and_give_fresh_ones(name: str, n_threads: int) -> None:
    pytest.importorskip(name.partition(":")[0])
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    nodes = [
        oh.make_node("Relu", ["x"], ["a"]),
        oh.make_node("Identity", ["a"], ["b"]),
        oh.make_node("Identity", ["x"], ["same"]),
    ]
    port = oh.make_tensor_value_info
    outputs = [port(n, 1, (2, 3)) for n in ("b", "a", "same")]
    run = baseline(name, onnx_model(nodes, [port("x", 1, (2, 3))], outputs, []), n_threads)
    first = run({"x": x})
    run({"x": x + 1})
    assert {"a", "b", "same"} <= set(first)
    for output in ("a", "b"):
        assert np.array_equal(first[output], np.maximum(x, 0))
    assert np.array_equal(first["same"], x)


def test_openvino_computes_in_float32() -> None:
    """In bfloat16 1 + 2⁻¹⁰ is 1, so that what is left of the sum would be 0."""
    pytest.importorskip("openvino")
    k = 256
    x, w = np.full((8, k), 1 + 2.0**-10, np.float32), np.ones((k, 32), np.float32)
    nodes = [oh.make_node("MatMul", ["x", "w"], ["y"])]
    port = oh.make_tensor_value_info
    constants = [onnx.numpy_helper.from_array(w, "w")]
    proto = onnx_model(nodes, [port("x", 1, x.shape)], [port("y", 1, (8, 32))], constants)
    y = baseline("openvino", proto, 1)({"x": x})["y"]
    assert np.allclose(y - k, k * 2.0**-10, atol=1e-3)


@pytest.mark.parametrize("name", BASELINES)
def test_models_may_be_files(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name.partition(":")[0])
    onnx.save(onnx_mlp(), tmp_path / "m.onnx")
    inputs = {"image": np.ones((1, 3, 4), np.float32)}
    a, b = (baseline(name, source, 1)(inputs) for source in (tmp_path / "m.onnx", onnx_mlp()))
    assert np.array_equal(a["scores"], b["scores"])


def test_check_against_onnxruntime(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert check_onnxruntime(model, onnx_mlp()) < 1e-5
    onnx.save(onnx_mlp(bias=1.0), tmp_path / "other.onnx")
    with pytest.raises(WrongNumbers, match="'scores' differs from the oracle"):
        check_onnxruntime(model, tmp_path / "other.onnx")


def test_noise_is_what_others_did_during_the_run(model: Model) -> None:
    quiet = Usage(at_s=0.0, n_cores=2, busy_s=0.0, steal_s=0.0, own_s=0.0)
    for busy_s, other_cpus in ((4.0, None), (6.0, 1.0)):
        after = replace(quiet, at_s=2.0, busy_s=busy_s, own_s=4.0)
        readings = iter([quiet, after])
        result = bench(model, min_s=0.01, usage=readings.__next__)
        noise = result.to_json()["noise"]
        assert (noise and noise["other_cpus"]) == other_cpus
        assert noise is None or noise["n_cores"] == 2


def test_baselines_take_float32_where_the_file_has_halves(tmp_path: Path) -> None:
    half = oh.np_dtype_to_tensor_dtype(np.dtype("float16"))
    ports = [oh.make_tensor_value_info(name, half, (2, 8)) for name in "xy"]
    weights = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float16), "w")
    graph = oh.make_graph([oh.make_node("MatMul", ["x", "w"], ["y"])], "g", *[[p] for p in ports])
    graph.initializer.append(weights)
    imports = [oh.make_opsetid("", 17)]
    onnx.save(oh.make_model(graph, ir_version=8, opset_imports=imports), tmp_path / "m.onnx")
    artifact = autotune.compile(tmp_path / "m.onnx", threads=1).artifact
    result = autotune.bench(Model(artifact, 1), ("onnxruntime",), time_s=0.01)
    assert result.baselines["onnxruntime"].max_error < 1e-3
