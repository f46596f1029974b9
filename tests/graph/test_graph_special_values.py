"""NaN, infinities and zeros of either sign through whole operators: docs/numbers.md, as tests.

Every model is run three times: by the oracle of its tasks, and as machine code for two targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from autotune.graph.network import build_network
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.search.defaults import default_steps
from autotune.target import parse_target, runs_here
from tests.graph.onnx_models import execute, model, node, onnxruntime_outputs, save

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
TARGETS = [t for t in map(parse_target, ("x86-64-v3", "x86-64-v4")) if runs_here(t)]


def results(
    proto: ModelProto, feeds: Mapping[str, Array], folder: Path, n_targets: int = 2
) -> list[dict[str, Array]]:
    """The outputs by the oracle, and of the compiled network for the widest targets."""
    network = build_network(save(proto, folder))
    with np.errstate(all="ignore"):
        found = [execute(network, feeds)]
    for target in TARGETS[-n_targets:]:
        steps = {key: default_steps(dag, target, 1) for key, dag in network.tasks.items()}
        found.append(dict(Model(compile_network(network, steps, target)).run(dict(feeds))))
    return found


def assert_gives(
    proto: ModelProto,
    feeds: Mapping[str, Array],
    expected: Mapping[str, Array],
    folder: Path,
    n_targets: int = 2,
) -> None:
    for found in results(proto, feeds, folder, n_targets):
        for name, array in expected.items():
            np.testing.assert_allclose(
                found[name].astype(np.float64), array, rtol=1e-5, atol=1e-6, err_msg=name
            )


ROW = np.array([[-1.3, 0.3, 1.35, NAN, -1.27, -1.5, -0.7, 1.58, -0.2], [NAN] * 9], np.float32)
ROW = np.concatenate([ROW, [[INF, NAN, -INF, 0, 0, NAN, INF, 1, -1]]]).astype(np.float32)


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "Sign", "Elu", "Selu", "Celu", "HardSigmoid"])
def test_activations_keep_nan(op: str, tmp_path: Path) -> None:
    feeds = {"x": ROW}
    proto = model(node(op, "x"), {"x": ROW.shape})
    found = results(proto, feeds, tmp_path)
    for each in found:
        np.testing.assert_array_equal(np.isnan(each["y"]), np.isnan(ROW))
        np.testing.assert_allclose(each["y"], found[0]["y"], rtol=1e-5)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extrema_of_two_keep_the_nan_of_either(op: str, tmp_path: Path) -> None:
    a, b = (x.astype(np.float32).reshape(1, -1) for x in np.meshgrid(ROW[2], ROW[0]))
    f = {"Max": np.maximum, "Min": np.minimum}[op]
    proto = model(node(op, "a b"), {"a": a.shape, "b": b.shape})
    assert_gives(proto, {"a": a, "b": b}, {"y": f(a, b)}, tmp_path)


@pytest.mark.parametrize("bounds", [{"lo": -1, "hi": 1}, {"lo": 0}])
def test_clip_keeps_nan(bounds: dict[str, float], tmp_path: Path) -> None:
    constants = {n: np.float32(v) for n, v in bounds.items()}
    proto = model(node("Clip", " ".join(["x", *bounds])), {"x": ROW.shape}, constants)
    expected = np.clip(ROW, bounds["lo"], bounds.get("hi", INF))
    assert_gives(proto, {"x": ROW}, {"y": expected}, tmp_path)


@pytest.mark.parametrize("n", [9, 100])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL1"])
def test_reductions_keep_a_nan_wherever_it_is(op: str, n: int, tmp_path: Path) -> None:
    """Also in the partial results of vectors and in their tails."""
    x = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    x[np.arange(n), np.arange(n)] = NAN
    found = results(model(node(op, "x", axes=[1]), {"x": x.shape}, opset=11), {"x": x}, tmp_path)
    assert all(np.isnan(each["y"]).all() for each in found)


@pytest.mark.slow
def test_pooling_keeps_nan_and_spreads_it_no_further(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype(np.float32)
    x[0, 3, 4, 4], x[0, 5, 0, 0] = NAN, INF
    for op, extra in (("MaxPool", {}), ("AveragePool", {"count_include_pad": 1})):
        pool = node(op, "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], **extra)
        proto = model(pool, {"x": x.shape})
        finite = onnxruntime_outputs(proto, {"x": np.nan_to_num(x, posinf=3e38)})["y"]
        for found in results(proto, {"x": x}, tmp_path):
            rows, columns = np.nonzero(np.isnan(found["y"][0, 3]))
            assert {*zip(rows.tolist(), columns.tolist(), strict=True)} == {(2, 2)}
            assert found["y"][0, 5, 0, 0] == INF
            rest = np.isfinite(found["y"])
            assert rest.sum() == rest.size - 2
            np.testing.assert_allclose(found["y"][rest], finite[rest], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_row_with_nan_is_nan_and_hidden_elements_are_zero(op: str, tmp_path: Path) -> None:
    x = np.zeros((4, 40), np.float32)
    x[0, 7], x[1, 5], x[2] = NAN, -INF, -INF
    proto = model(node(op, "x", axis=1), {"x": x.shape})
    share = np.full(40, 1 / 39)
    share[5] = 0
    with np.errstate(divide="ignore"):
        last = [share, [NAN] * 40, [1 / 40] * 40]
        rows = [[NAN] * 40, *(np.log(r) if op == "LogSoftmax" else r for r in last)]
    assert_gives(proto, {"x": x}, {"y": np.array(rows)}, tmp_path)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions_of_nan_are_those_of_numpy(op: str, last: int, tmp_path: Path) -> None:
    proto = model(
        node(op, "x", axis=1, keepdims=0, select_last_index=last),
        {"x": ROW.shape},
        types={"y": "int64"},
    )
    f = {"ArgMax": np.argmax, "ArgMin": np.argmin}[op]
    expected = 8 - f(ROW[:, ::-1], 1) if last else f(ROW, 1)
    assert_gives(proto, {"x": ROW}, {"y": expected}, tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("n", "k"), [(9, 1), (9, 4), (80, 3)])
def test_top_k_counts_nan_as_the_largest(n: int, largest: int, k: int, tmp_path: Path) -> None:
    """As where NumPy sorts, and onnxruntime in the case `nan_index`; equal ones stay in order."""
    x = np.concatenate([np.repeat(ROW, n // 9, axis=1), np.full((3, n % 9), NAN)], axis=1)
    x = x.astype(np.float32)
    proto = model(
        node("TopK", "x k", "y i", axis=1, largest=largest),
        {"x": x.shape},
        {"k": np.array([k])},
        "y i",
        types={"i": "int64"},
    )
    rank = np.where(np.isnan(x), 2, np.clip(x, -2, 1.9)) * (-1 if largest else 1)
    at = np.argsort(rank, axis=1, kind="stable")[:, :k]
    expected = {"y": np.take_along_axis(x, at, 1), "i": at}
    assert_gives(proto, {"x": x}, expected, tmp_path, 2 if n == 9 else 1)


def test_sines_of_large_arguments(tmp_path: Path) -> None:
    x = np.array([1e4, 5e5, 1e6, 1e7, -1e9, 1e12, 3.4e38, INF, -0.0, NAN], np.float32)
    ops = {"Sin": np.sin, "Cos": np.cos, "Tan": np.tan}
    nodes = [node(op, "x", op) for op in ops]
    with np.errstate(invalid="ignore"):
        expected = {op: f(x.astype(np.float64)) for op, f in ops.items()}
    assert_gives(model(nodes, {"x": x.shape}, outputs=" ".join(ops)), {"x": x}, expected, tmp_path)


@pytest.mark.parametrize("exponent", [2.0, [2.0, 3, 2, 4], 11.0, 0.5, [0, -1, -INF, NAN]])
@pytest.mark.parametrize("is_known", [True, False])
def test_powers_of_negative_numbers(exponent: Any, is_known: bool, tmp_path: Path) -> None:
    x, e = (
        np.array([[-2, -1, 0, 2], [-INF, INF, NAN, -0.5]], np.float32),
        np.asarray(exponent, np.float32),
    )
    inputs = {"x": x.shape} | ({} if is_known else {"e": e.shape})
    proto = model(node("Pow", "x e"), inputs, {"e": e} if is_known else {})
    with np.errstate(all="ignore"):
        expected = np.float_power(x, e)
    feeds = {"x": x} if is_known else {"x": x, "e": e}
    assert_gives(proto, feeds, {"y": expected}, tmp_path)


def test_remainders_of_large_quotients(tmp_path: Path) -> None:
    a = np.array([3e38, -3e38, 5.5, -5.5, 1e20, -0.0, INF, 4, 1], np.float32)
    b = np.array([1e-30, 7, -2, 2, 3, 3, 2, INF, 0], np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.fmod(a, b)
    proto = model(node("Mod", "a b", fmod=1), {"a": a.shape, "b": b.shape})
    assert_gives(proto, {"a": a, "b": b}, {"y": expected}, tmp_path)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Softplus": lambda x: np.logaddexp(0, x),
    "Gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tanh": np.tanh,
}


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activations_at_their_ends(op: str, tmp_path: Path) -> None:
    x = np.array([-INF, -3e38, -200, -88.5, -30, -0.0, 0, 1e-20, 30, 88.5, 200, 3e37, INF, NAN])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        expected = ACTIVATIONS[op](x.astype(np.float64))
    assert_gives(
        model(node(op, "x"), {"x": x.shape}, opset=20), {"x": x}, {"y": expected}, tmp_path
    )


def spoilt(x: Array, at: tuple[int, ...], value: float) -> Array:
    out = x.copy()
    out[at] = value
    return out


def places(y: Array) -> set[tuple[int, int]]:
    """Pixels (h, w) of (1, c, h, w) that hold something that is not finite."""
    return {(int(h), int(w)) for _, _, h, w in np.argwhere(~np.isfinite(y))}


X = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("channels", [1, 64])
def test_resize_at_the_ends_reads_no_neighbour(mode: str, channels: int, tmp_path: Path) -> None:
    """A NaN beside the first pixel is no part of the results that only that pixel makes."""
    resize = node("Resize", "x _ scales", mode=mode)
    scales = np.array([1, 1, 2, 2], np.float32)
    for at in ((0, 0, 1, 6), (0, 0, 3, 4)):
        x = spoilt(np.tile(X, (1, 4, 1, 1))[:, :channels], at, NAN)
        proto = model(resize, {"x": x.shape}, {"scales": scales})
        expected = places(onnxruntime_outputs(proto, {"x": x})["y"])
        for found in results(proto, {"x": x}, tmp_path, 1):
            if channels == 64:
                assert places(found["y"]) <= expected
                assert len(places(found["y"])) >= 16
            else:  # a product with the matrix of weights: rows and columns, docs/numbers.md
                assert places(found["y"]) >= expected


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_reads_no_pixel_outside(mode: str, tmp_path: Path) -> None:
    grid = np.array([[[[-1.2, -1.2], [NAN, 0], [0, 0], [5, -0.9]]]], np.float32)
    proto = model(
        node("GridSample", "x g", mode=mode, padding_mode="zeros"),
        {"x": X.shape, "g": grid.shape},
        opset=20,
    )
    for at in ((0, 3, 0, 7), (0, 3, 0, 0)):
        x = spoilt(X, at, NAN)
        for found in results(proto, {"x": x, "g": grid}, tmp_path):
            y = found["y"][0, :, 0]
            assert np.isfinite(y[:, 1:]).all()
            assert (y[:, [1, 3]] == 0).all()
            touched = mode == "linear" and at[3] == 0
            assert np.isnan(y[3, 0]) == touched


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "n_places"), [(3, 16), (2, 4)])
def test_transposed_convolution_spreads_over_its_phases(
    kernel: int, n_places: int, tmp_path: Path
) -> None:
    """With a stride of 2 a kernel of 3 is run as one of 4 with zeros: 16 places, and 9 are due."""
    weight = np.random.default_rng(1).standard_normal((16, 4, kernel, kernel)).astype(np.float32)
    proto = model(node("ConvTranspose", "x w", strides=[2, 2]), {"x": X.shape}, {"w": weight})
    x = spoilt(X, (0, 3, 4, 4), NAN)
    due = places(onnxruntime_outputs(proto, {"x": x})["y"])
    for found in results(proto, {"x": x}, tmp_path, 1):
        assert due <= places(found["y"])
        assert len(places(found["y"])) <= n_places


@pytest.mark.slow
def test_convolutions_and_padding_spread_nothing(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
    nodes = [
        node("Pad", "x p", "t"),
        node("Conv", "t w", "y", pads=[1, 1, 1, 1]),
        node("AveragePool", "t", "z", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    constants = {"w": weight, "p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    proto = model(nodes, {"x": X.shape}, constants, "y z")
    x = spoilt(X, (0, 3, 0, 5), NAN)
    for found in results(proto, {"x": x}, tmp_path, 1):
        for name, array in onnxruntime_outputs(proto, {"x": x}).items():
            assert places(found[name]) == places(array)


def test_a_divisor_whose_inverse_is_denormal_divides(tmp_path: Path) -> None:
    d = np.array([2e38, 1e-39, 0, INF], np.float32)
    x = np.array([3e38, 0, 1, 1], np.float32)
    proto = model(node("Div", "x d"), {"x": x.shape}, {"d": d})
    for found in results(proto, {"x": x}, tmp_path, 1)[1:]:  # 1e-39 counts as zero
        np.testing.assert_array_equal(found["y"], np.array([1.5, NAN, INF, 0], np.float32))


def test_denormal_weights_are_counted(tmp_path: Path) -> None:
    w = np.array([1e-40, 0, 1, -1e-39, 2e-38], np.float32)
    network = build_network(save(model(node("Mul", "x w"), {"x": (3, 5)}, {"w": w}), tmp_path))
    assert network.n_denormal == 2


def test_log_sum_exp_of_infinities(tmp_path: Path) -> None:
    x = np.array([[-INF, -INF], [0, INF], [-INF, 3], [NAN, 1], [200, 100]], np.float32)
    proto = model(node("ReduceLogSumExp", "x", axes=[1], keepdims=0), {"x": x.shape}, opset=13)
    expected = np.array([-INF, INF, 3, NAN, 200])
    assert_gives(proto, {"x": x}, {"y": expected}, tmp_path)


POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    "op",
    [
        *(node(op, "c") for op in ("Relu", "Sign", "LeakyRelu", "Softplus", "Cosh", "Sin")),
        *(node(op, "c", axis=3, keepdims=0) for op in ("ArgMax", "ArgMin")),
        *(node(op, "c", **POOL) for op in ("MaxPool", "AveragePool")),
        *(node(op, "c d") for op in ("Max", "Min", "Pow")),
        node("Mod", "c d", fmod=1),
        node("TopK", "c k", "v y", axis=3),
    ],
    ids=lambda op: op.op_type,
)
def test_folded_constants_are_what_kernels_compute(op: Any, tmp_path: Path) -> None:
    c = spoilt(spoilt(X, (0, 0, 2, 3), NAN), (0, 1, 0, 0), INF)
    constants = {"d": c[:, ::-1].copy(), "k": np.array([3])}
    types = {"y": "int64"} if op.op_type in ("ArgMax", "ArgMin", "TopK") else {}
    late = model(op, {"c": c.shape}, constants, types=types)
    early = model(
        [op, node("Identity", "x", "z")], {"x": (1,)}, constants | {"c": c}, "y z", types=types
    )
    for proto, feeds in ((late, {"c": c}), (early, {"x": np.ones(1, np.float32)})):
        network = build_network(save(proto, tmp_path))
        with np.errstate(all="ignore"):
            found = execute(network, feeds)["y"]
        if proto is late:
            expected = found
    np.testing.assert_allclose(found, expected, rtol=1e-5)
