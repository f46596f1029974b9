"""Fourier transforms, determinants, running products, cubic interpolation and steps of training are
those of the reference implementation, over all their attributes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper

from autotune.errors import AutotuneError
from autotune.graph.network import build_network
from tests.graph.onnx_models import execute, model, node, reference_outputs, save

Array = NDArray[Any]


def values(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Array:
    return rng.standard_normal(shape).astype(dtype)


def assert_computes(
    proto: ModelProto, inputs: dict[str, Array], folder: Path, want: dict[str, Array] | None = None
) -> None:
    """The network gives what the reference implementation does, or `want`."""
    proto.ir_version = 10
    found = execute(build_network(save(proto, folder)), inputs)
    for name, expected in (want or reference_outputs(proto, inputs)).items():
        scale = np.abs(expected).max() if expected.size else 1.0
        assert found[name].shape == expected.shape
        np.testing.assert_allclose(found[name], expected, rtol=2e-5, atol=2e-6 * scale)


def complex_of(x: Array) -> Array:
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def pairs(z: Array) -> Array:
    return np.stack([z.real, z.imag], axis=-1)


@pytest.mark.parametrize(("axis", "length"), list(product((1, -2), (0, 7, 15))))
@pytest.mark.parametrize("form", ["real", "complex", "one side", "inverse", "inverse to real"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transforms(
    rng: np.random.Generator, form: str, axis: int, length: int, dtype: str, tmp_path: Path
) -> None:
    parts = 1 if form in ("real", "one side") else 2
    x = values(rng, 2, 10, 9, parts, dtype=dtype)
    inverse, onesided = (
        int(form.startswith("inverse")),
        int(form in ("one side", "inverse to real")),
    )
    op = node("DFT", f"x {'n' if length else '_'} a", inverse=inverse, onesided=onesided)
    constants = {"a": np.array(axis)} | ({"n": np.array(length)} if length else {})
    proto = model(op, {"x": x.shape}, constants, opset=20, types={"x": dtype, "y": dtype})
    transform = {"inverse": np.fft.ifft, "one side": np.fft.rfft}.get(form, np.fft.fft)
    z = complex_of(x)
    z = z.real if form == "one side" else z
    n = length or None
    if form == "inverse to real":
        want = np.fft.irfft(z, n or 2 * (x.shape[axis] - 1), axis=axis if axis > 0 else 2)[
            ..., None
        ]
    else:
        want = pairs(transform(z, n, axis=axis if axis > 0 else 2))
    assert_computes(proto, {"x": x}, tmp_path, {"y": want.astype(dtype)})


@pytest.mark.parametrize("bands", [(8, 16, 8192, 0.0, 4096.0), (20, 400, 16000, 50.0, 7600.0)])
def test_mel_weights(rng: np.random.Generator, bands: tuple[float, ...], tmp_path: Path) -> None:
    names = "n l r a b"
    constants = dict(zip(names.split(), map(np.array, bands), strict=True))
    constants |= {n: constants[n].astype(np.float32) for n in "ab"}
    nodes = [node("MelWeightMatrix", names, "m"), node("MatMul", "x m", "y")]
    x = values(rng, 3, bands[1] // 2 + 1)
    assert_computes(model(nodes, {"x": x.shape}, constants), {"x": x}, tmp_path)


@pytest.mark.parametrize("form", ["real", "complex", "one side", "inverse"])
@pytest.mark.parametrize(("extent", "length"), [(360, 360), (257, 512), (400, 300)])
def test_long_transforms(
    rng: np.random.Generator, form: str, extent: int, length: int, tmp_path: Path
) -> None:
    parts = 1 if form in ("real", "one side") else 2
    x = values(rng, 2, extent, parts)
    attrs = {"inverse": int(form == "inverse"), "onesided": int(form == "one side")}
    constants = {"n": np.array(length), "a": np.array(1)}
    proto = model(node("DFT", "x n a", **attrs), {"x": x.shape}, constants, opset=20)
    z = (np.fft.ifft if form == "inverse" else np.fft.fft)(complex_of(x), length, axis=1)
    z = z[:, : length // 2 + 1] if form == "one side" else z
    assert_computes(proto, {"x": x}, tmp_path, {"y": pairs(z).astype(np.float32)})


@pytest.mark.parametrize(("parts", "onesided"), [(1, 1), (1, 0), (2, 0)])
@pytest.mark.parametrize("window", [True, False])
def test_transforms_of_frames(
    rng: np.random.Generator, parts: int, onesided: int, window: bool, tmp_path: Path
) -> None:
    x = values(rng, 2, 64, parts)
    constants: dict[str, Any] = {"s": np.array(5), "n": np.array(16)}
    constants |= {"w": np.hanning(16).astype(np.float32)} if window else {}
    op = node("STFT", f"x s {'w' if window else '_'} n", onesided=onesided)
    proto = model(op, {"x": x.shape}, constants, opset=17)
    weights = constants["w"] if window else np.ones(16)
    frames = np.stack([complex_of(x)[:, a : a + 16] * weights for a in range(0, 49, 5)], axis=1)
    z = np.fft.fft(frames, axis=2)
    want = pairs(z[:, :, :9] if onesided else z).astype(np.float32)
    assert_computes(proto, {"x": x}, tmp_path, {"y": want})


def test_transforms_that_are_none_name_the_node(tmp_path: Path) -> None:
    proto = model(node("DFT", "x", "y", onesided=1), {"x": (2, 8, 2)}, opset=20)
    with pytest.raises(AutotuneError, match=r"'DFT'.*one side of the transform of complex numbers"):
        build_network(save(proto, tmp_path))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 2, 5, 5), (8, 8)])
def test_determinants(rng: np.random.Generator, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = values(rng, *shape)
    x[..., 0, 0] = 0 if shape[-1] > 1 else 2  # the first pivot has to be another one
    assert_computes(model(node("Det", "x"), {"x": shape}, opset=22), {"x": x}, tmp_path)


def test_determinants_of_singular_matrices_are_zero(tmp_path: Path) -> None:
    x = np.array([[[0, 0], [0, 0]], [[1, 2], [2, 4]]], np.float32)
    proto = model(node("Det", "x"), {"x": x.shape}, opset=22)
    assert_computes(proto, {"x": x}, tmp_path, {"y": np.zeros(2, np.float32)})


@pytest.mark.parametrize(("exclusive", "reverse"), list(product((0, 1), (0, 1))))
@pytest.mark.parametrize(("shape", "axis"), [((3, 5), 1), ((150, 2), 0)])
def test_running_products(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    axis: int,
    exclusive: int,
    reverse: int,
    tmp_path: Path,
) -> None:
    x = (1 + 0.1 * values(rng, *shape)).astype(np.float32)
    op = node("CumProd", "x a", exclusive=exclusive, reverse=reverse)
    assert_computes(model(op, {"x": shape}, {"a": np.array(axis)}, opset=26), {"x": x}, tmp_path)


@pytest.mark.parametrize("later", [0, 3])
@pytest.mark.parametrize(
    ("op", "n_states", "attrs"),
    [
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.4, "norm_coefficient": 0.1, "mode": "standard"}),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.4, "norm_coefficient": 0.1, "mode": "nesterov"}),
        ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.2}),
        ("Adam", 2, {"alpha": 0.9, "beta": 0.9, "epsilon": 1e-2, "norm_coefficient_post": 0.1}),
    ],
)
def test_steps_of_training(
    rng: np.random.Generator,
    op: str,
    n_states: int,
    attrs: dict[str, Any],
    later: int,
    tmp_path: Path,
) -> None:
    names = [f"{kind}{n}" for kind in "xgvh"[: 2 + n_states] for n in range(2)]
    results = [f"y{kind}{n}" for kind in "xvh"[: 1 + n_states] for n in range(2)]
    arrays = {n: np.abs(values(rng, 3, 4)) for n in names}
    domain = "ai.onnx.preview.training"
    step = helper.make_node(op, ["r", "t", *names], results, domain=domain, **attrs)
    shapes = dict.fromkeys(names, (3, 4)) | {"r": (), "t": ()}
    proto = model(step, shapes, outputs=" ".join(results), types={"t": "int64"}, opset=22)
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    given = arrays | {"r": np.array(0.1, np.float32), "t": np.array(later)}
    assert_computes(proto, given, tmp_path)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (2, 2, 5), (1, 3, 2)])
def test_counts_of_terms(mode: str, least: int, most: int, skips: int, tmp_path: Path) -> None:
    x = np.array([[2, 3, 5, 6, 2, 3, 5], [5, 6, 7, 8, 2, 3, 2]], np.int32)
    op = node(
        "TfIdfVectorizer",
        "x",
        mode=mode,
        min_gram_length=least,
        max_gram_length=most,
        max_skip_count=skips,
        ngram_counts=[0, 4, 10],
        ngram_indexes=[0, 1, 2, 3, 4, 5, 6, 7],
        pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 2, 3, 2, 3, 5],
        weights=[0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    )
    assert_computes(model(op, {"x": x.shape}, types={"x": "int32"}), {"x": x}, tmp_path)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_become_channels(rng: np.random.Generator, mode: str, tmp_path: Path) -> None:
    x = values(rng, 2, 3, 4, 6)
    op = node("SpaceToDepth", "x", blocksize=2, mode=mode)
    assert_computes(model(op, {"x": x.shape}, opset=28), {"x": x}, tmp_path)
