"""Random numbers times zero: nothing is drawn, and what they multiply keeps its NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import NotCompilable
from autotune.network.runtime.loading import model_of

onnxruntime = pytest.importorskip("onnxruntime")

CONSTANTS = {
    "none": np.array(0, np.float32),
    "nones": np.zeros((4, 6), np.float32),
    "no": np.array(0, np.int32),
    "first": np.array([0]),
    "half": np.array(0.5, np.float32),
    "infinite": np.array(np.inf, np.float32),
}
UNUSED = [
    "r = RandomNormalLike (x)  z = Mul (r, none)",
    "r = RandomNormal <shape = [4, 1], mean = 2.0> ()  z = Mul (nones, r)",
    "u = RandomUniformLike <low = -3.0> (x)  r = Neg (u)  z = Mul (r, nones)",
    "p = Sigmoid (x)  u = Bernoulli (p)  z = Mul (u, none)",
    """n = Multinomial <sample_size = 6> (x)  m = Mul (n, no)  z = Cast <to = 1> (m)""",
    "r = RandomNormalLike (x)  e = Exp (x)  a = Mul (r, e)  b = Mul (x, a)  z = Mul (b, none)",
    """r = RandomNormalLike (x)  t = Transpose (r)  u = Transpose (t)  s = Add (u, half)
    h = Tanh (s)  q = Mul (h, s)  z = Mul (q, none)""",
    "unread = RandomNormalLike (x)  z = Relu (x)",
]
USED = [
    "r = RandomNormalLike (x)  z = Mul (r, half)",
    "r = RandomNormalLike (x)  e = Exp (r)  z = Mul (e, none)",
    "r = RandomNormalLike (x)  a = Mul (r, infinite)  z = Add (a, none)",
]


def saved(body: str, folder: Path) -> Path:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    drawn (float[4,6] x) => (float[4,6] y) {{ {body}  y = Add (x, z) }}"""
    model = onnx.parser.parse_model(text)
    tensors = (onnx.numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())
    model.graph.initializer.extend(tensors)
    onnx.save(model, folder / "drawn.onnx")
    return folder / "drawn.onnx"


@pytest.mark.parametrize("body", UNUSED)
def test_draws_that_nothing_depends_on_need_no_fallback(body: str, tmp_path: Path) -> None:
    path = saved(body, tmp_path)
    done = autotune.compile(path, threads=1, fallback=False)
    assert done.report is not None
    assert not [note for note in done.report.notes if "not checked" in note]
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    special = x.copy()
    special[0, :3] = np.nan, 200, -np.inf  # of which the exponential is infinite, or zero
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for array in (x, special) if "Multinomial" not in body else (x,):
        (wanted,) = session.run(None, {"x": array})
        found = model_of(done.artifact).run({"x": array})["y"]
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)


@pytest.mark.parametrize("body", USED)
def test_draws_that_matter_are_drawn(body: str, tmp_path: Path) -> None:
    path = saved(body, tmp_path)
    with pytest.raises(NotCompilable, match="Random"):
        autotune.compile(path, threads=1, fallback=False)
    done = autotune.compile(path, threads=1)
    assert done.report is not None
    assert any("depends on random numbers" in note for note in done.report.notes)


def test_a_zero_that_a_user_binds_frees_a_network_of_its_noise(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    speech (float[2,16,8] x, float[3] scales) => (float[2,16,8] y) {
      place = Constant <value_int = 0> ()
      scale = Gather (scales, place)
      deviation = Exp (x)
      r = RandomNormalLike (x)
      a = Mul (r, deviation)
      noise = Mul (a, scale)
      y = Add (x, noise)
    }"""
    path = tmp_path / "speech.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    zeros = {"scales": np.zeros(3, np.float32)}
    artifact = autotune.compile(path, threads=1, fallback=False, constants=zeros).artifact
    x = np.random.default_rng(0).standard_normal((2, 16, 8)).astype(np.float32)
    np.testing.assert_array_equal(model_of(artifact).run({"x": x})["y"], x)
