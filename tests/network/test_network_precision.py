"""Products in half precision: what is stored narrow, the numbers, and a check that knows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import autotune
from autotune import te
from autotune.dtypes import DTYPES
from autotune.errors import LogMismatch, WrongNumbers
from autotune.graph.network import build_network
from tests.graph.onnx_models import (
    execute,
    model,
    node,
    onnxruntime_outputs,
    save,
    upsampled_beside_a_skip,
)
from tests.graph.text_models import text_transformer


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:  # type: ignore[type-arg]
    fan = int(np.prod(shape[1:]))
    return (rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)


def conv_net(rng: np.random.Generator, scale: float = 1.0) -> ModelProto:
    """Dense and depthwise convolutions, padding, a residual sum, pooling, a dense layer."""
    nodes = [
        node("Conv", "x w1 b", "c1", pads=[1] * 4),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 dw", "c2", pads=[1] * 4, group=16),
        node("Relu", "c2", "r2"),
        node("Conv", "r2 w2", "c3"),
        node("Add", "c3 r1", "sum"),
        node("MaxPool", "sum", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w3", "y"),
    ]
    constants = {
        "w1": scale * weights(rng, 16, 4, 3, 3),
        "b": weights(rng, 16),
        "dw": weights(rng, 16, 1, 3, 3),
        "w2": weights(rng, 16, 16, 1, 1),
        "w3": weights(rng, 16, 10),
    }
    return model(nodes, {"x": (1, 4, 8, 8)}, constants)


@pytest.mark.parametrize(("precision", "limit"), [("bf16", 3e-2), ("f16", 4e-3)])
def test_products_of_a_convolutional_network(
    rng: np.random.Generator, precision: str, limit: float, tmp_path: Path
) -> None:
    proto = conv_net(rng)
    network = build_network(save(proto, tmp_path), precision=precision)
    narrow = {"bf16": "bfloat16", "f16": "float16"}[precision]
    roots = [v for v in network.values.values() if v.parent is None]
    stored = [v.dtype for v in roots if len(v.shape) == 4 and v.name != "x"]
    assert stored
    assert set(stored) == {narrow}, "a tensor between tasks is stored wide"
    constants = {str(a.dtype) for c in network.calls for a in c.constants.values() if a.ndim > 1}
    assert narrow in constants
    feeds = {"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    found, want = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    error = np.abs(found - want).max() / np.abs(want).max()
    assert 1e-6 < error < limit


def test_what_a_transposed_convolution_makes_is_moved_narrow(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    proto = upsampled_beside_a_skip(n_skipped=4)
    network = build_network(save(proto, tmp_path), precision="bf16")
    assert [c.label for c in network.calls].count("Cast") == 1  # of an input
    assert "Conv+Cast, bf16" in [c.label for c in network.calls]
    feeds = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in network.inputs}
    found, want = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    assert np.abs(found - want).max() < 1e-2 * np.abs(want).max()


@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
def test_recurrent_layers(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    nodes = [
        node(op, "x w r", "y1", hidden_size=24, direction="bidirectional", **attrs),
        node("Transpose", "y1", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t shape", "s"),
        node(op, "s w2 r", "y", hidden_size=24, direction="bidirectional", **attrs),
    ]
    constants = {
        "w": weights(rng, 2, 24 * gates, 16),
        "w2": weights(rng, 2, 24 * gates, 48),
        "r": weights(rng, 2, 24 * gates, 24),
        "shape": np.array([6, 1, 48]),
    }
    proto = model(nodes, {"x": (6, 1, 16)}, constants)
    network = build_network(save(proto, tmp_path), precision="bf16")
    feeds = {"x": rng.standard_normal((6, 1, 16)).astype(np.float32)}
    found, want = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    assert np.abs(found - want).max() < 2e-2


def test_pictures_of_three_channels_use_whole_instructions(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [node("Conv", "x w b", "c", pads=[1] * 4, strides=[2, 2]), node("Relu", "c", "y")]
    proto = model(
        nodes, {"x": (1, 3, 9, 9)}, {"w": weights(rng, 16, 3, 3, 3), "b": weights(rng, 16)}
    )
    network = build_network(save(proto, tmp_path), precision="bf16")
    read = [a.shape for c in network.calls for a in c.constants.values() if a.ndim == 4]
    assert read == [(3, 3, 4, 16)]
    feeds = {"x": rng.standard_normal((1, 3, 9, 9)).astype(np.float32)}
    found, want = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    assert np.abs(found - want).max() < 1e-2 * np.abs(want).max()


@pytest.mark.parametrize(("channels", "factors"), [(8, "bfloat16"), (3, "float32")])
def test_groups_of_channels_use_whole_instructions(
    rng: np.random.Generator, channels: int, factors: str, tmp_path: Path
) -> None:
    n = 4 * channels
    nodes = [node("Conv", "x w", "c", pads=[1] * 4, group=4), node("Conv", "c v", "y")]
    proto = model(
        nodes,
        {"x": (1, n, 9, 9)},
        {"w": weights(rng, n, channels, 3, 3), "v": weights(rng, 10, n, 1, 1)},
    )
    network = build_network(save(proto, tmp_path), precision="bf16")
    read = {a.shape: str(a.dtype) for c in network.calls for a in c.constants.values()}
    assert [dtype for shape, dtype in read.items() if channels in shape] == [factors]
    feeds = {"x": rng.standard_normal((1, n, 9, 9)).astype(np.float32)}
    found, want = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    assert 1e-6 < np.abs(found - want).max() / np.abs(want).max() < 1e-2


@pytest.mark.slow
def test_a_transformer_is_compiled_and_checked(tmp_path: Path) -> None:
    done = autotune.compile(save(text_transformer(), tmp_path), precision="bf16", threads=1)
    assert done.report is not None
    assert 1e-4 < done.report.error < 5e-2


def test_float32_stays_the_default(rng: np.random.Generator, tmp_path: Path) -> None:
    path = save(conv_net(rng), tmp_path)
    plain, told = build_network(path), build_network(path, precision="f32")
    assert plain.tasks.keys() == told.tasks.keys()
    assert plain.tasks.keys().isdisjoint(build_network(path, precision="bf16").tasks.keys())


@pytest.mark.slow
def test_what_overflows_half_precision_is_found(rng: np.random.Generator, tmp_path: Path) -> None:
    path = save(conv_net(rng, scale=1e6), tmp_path)
    with pytest.raises(WrongNumbers, match="precision f16 is too narrow"):
        autotune.compile(path, precision="f16", threads=1)
    autotune.compile(path, precision="bf16", threads=1)


@pytest.mark.slow
def test_a_log_knows_its_precision(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Relu", "m", "y")]
    path = tmp_path / "small.onnx"
    onnx.save(model(nodes, {"x": (4, 32)}, {"w": weights(rng, 32, 16)}), path)
    log = tmp_path / "log.jsonl"
    autotune.tune(path, log, trials=2, threads=1, precision="bf16", compare=False)
    done = autotune.compile(log=log)
    assert done.report is not None
    assert done.report.error > 1e-5
    with pytest.raises(LogMismatch, match="precision bf16, not f32"):
        autotune.compile(path, log=log, precision="f32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_computation_takes_and_gives_half_precision(
    rng: np.random.Generator, dtype: str, tmp_path: Path
) -> None:
    def product(n: int) -> te.Tensor:
        a, b = te.placeholder((n, n), "a", dtype), te.placeholder((n, n), "b", dtype)
        k = te.reduce_axis(n, "k")
        s = te.compute(
            (n, n),
            lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k),
            "s",
        )
        return te.compute((n, n), lambda i, j: te.maximum(s[i, j], 0.0).astype(dtype), "y")

    function = autotune.Task(product, (32,), threads=1).build()
    kind = DTYPES[dtype].numpy
    a, b = (rng.standard_normal((32, 32)).astype(kind) for _ in range(2))
    want = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)
    function.save(tmp_path / "task.atn")
    for run in (function, autotune.load(tmp_path / "task.atn")):
        found = run(a, b)
        assert found.dtype == kind
        assert np.abs(found.astype(np.float64) - want).max() <= DTYPES[dtype].eps * want.max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 64])
def test_weights_that_half_precision_holds_stay_small(
    rng: np.random.Generator, dtype: str, rows: int, tmp_path: Path
) -> None:
    """In products with few rows and in tables; the numbers are those of float32."""
    kind = DTYPES[dtype].numpy
    table, w = (weights(rng, 256, 128).astype(kind).astype(np.float32) for _ in range(2))
    nodes = [node("Gather", "table i", "x"), node("MatMul", "x w", "m"), node("Relu", "m", "y")]
    constants = {"table": table, "w": w.reshape(128, 256)}
    proto = model(nodes, {"i": (rows,)}, constants, types={"i": "int64"})
    network = build_network(save(proto, tmp_path))
    stored = {str(a.dtype) for c in network.calls for a in c.constants.values() if a.ndim == 2}
    assert stored == ({dtype} if rows == 1 else {dtype, "float32"})
    feeds = {"i": rng.integers(0, 256, rows)}
    found, want = execute(network, feeds)["y"], onnxruntime_outputs(proto, feeds)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_weights_that_half_precision_does_not_hold_stay_wide(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    proto = model([node("MatMul", "x w", "y")], {"x": (1, 128)}, {"w": weights(rng, 128, 256)})
    (call,) = build_network(save(proto, tmp_path)).calls
    assert {str(a.dtype) for a in call.constants.values()} == {"float32"}
