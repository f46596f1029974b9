"""Sessions of a model with several shapes and a fixed state: the variant of each call's inputs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import autotune
from autotune.errors import ArtifactError, MissingDependency, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.library import write_library
from autotune.network.runtime.loading import model_of
from autotune.toolchain import toolchain

STREAM = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[t,b,3] x, float[b,3] h) => (float[t,b,3] y, float[b,3] hn) {
        axes = Constant <value_ints: ints = [0]> ()
        s = ReduceSum <keepdims: int = 0> (x, axes)
        a = Add (s, h)
        hn = Tanh (a)
        y = Add (x, h)
    }"""


def compiled(**dims: Any) -> Artifact:
    told = {"dims": dims, "state": {"h": "hn"}, "threads": 1, "check": False}
    return autotune.compile(onnx.parser.parse_model(STREAM), **told).artifact


def expected(x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + h, np.tanh(x.sum(axis=0) + h)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(t=[4, 1, 3], b=2)


def test_frames_of_any_number_take_their_variant(
    artifact: Artifact, rng: np.random.Generator
) -> None:
    session, h = model_of(artifact).session(), np.zeros((2, 3), np.float32)
    for n in rng.integers(0, 6, 40):
        x = rng.standard_normal((n, 2, 3)).astype(np.float32)
        if n in (1, 3, 4):
            y, h = expected(x, h)
            np.testing.assert_allclose(session.step(x), y, rtol=1e-5)
        else:
            with pytest.raises(UsageError, match=f"no variant is for inputs of shape x {n}x2x3"):
                session.step(x)
    for wrong in (np.zeros((3, 3), np.float32), np.zeros((4, 2, 2), np.float32)):
        with pytest.raises(UsageError, match="shape"):
            session.step(wrong)


def test_sessions_together_have_frames_of_their_own(
    artifact: Artifact, rng: np.random.Generator
) -> None:
    model, h = model_of(artifact), [np.zeros((2, 3), np.float32)] * 2
    sessions = [model.session() for _ in h]
    for n in (3, 1, 4):
        x = rng.standard_normal((2 * n, 2, 3)).astype(np.float32)
        found = model.step_together(sessions, x)
        for k in range(2):
            y, h[k] = expected(x[k * n : (k + 1) * n], h[k])
            np.testing.assert_allclose(found[k * n : (k + 1) * n], y, rtol=1e-5)
    with pytest.raises(UsageError, match=r"no variant|shape"):
        model.step_together(sessions, np.zeros((5, 2, 3), np.float32))


def test_a_state_is_of_one_shape(tmp_path: Path) -> None:
    """Variants that have another one are not for it; each has sessions of its own."""
    found = compiled(t=1, b=[1, 2])
    model = model_of(found)
    one, two = np.ones((1, 1, 3), np.float32), np.ones((1, 2, 3), np.float32)
    for n, (fits, other) in enumerate(((one, two), (two, one))):
        session = model.variants[n].session()
        np.testing.assert_allclose(session.step(fits), fits)
        with pytest.raises(UsageError, match="shape"):
            session.step(other)
    with pytest.raises(ArtifactError, match="states of other shapes"):
        write_library(found, "net", tmp_path, tools(), False)


def tools() -> Any:
    try:
        return toolchain(None, "x86_64")
    except MissingDependency as error:
        pytest.skip(str(error))


class _Inputs(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("x_shape", ctypes.c_int64 * 3))


def test_a_library_takes_the_variant_of_the_shape(
    artifact: Artifact, tmp_path: Path, rng: np.random.Generator
) -> None:
    write_library(artifact, "net", tmp_path, tools(), False)
    library: Any = ctypes.CDLL(str(tmp_path / "libnet.so"))
    model, session, h = ctypes.c_void_p(), ctypes.c_void_p(), np.zeros((2, 3), np.float32)
    assert library.net_create(None, ctypes.byref(model)) == 0
    assert library.net_open(model, ctypes.byref(session)) == 0
    for n in (4, 1, 2, 3, 5, 4):
        x = rng.standard_normal((n, 2, 3)).astype(np.float32)
        y, given = np.zeros_like(x), _Inputs(x.ctypes.data, (ctypes.c_int64 * 3)(*x.shape))
        out = (ctypes.c_void_p * 1)(y.ctypes.data)
        one = ctypes.c_int64(1)
        status = library.net_step(session, one, ctypes.byref(given), out)
        assert status == (0 if n in (1, 3, 4) else 4)  # OTHER_SHAPE
        if not status:
            wanted, h = expected(x, h)
            np.testing.assert_allclose(y, wanted, rtol=1e-5)
    library.net_close(session)
    library.net_destroy(model)
