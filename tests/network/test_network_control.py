"""Branches and bodies that data decide: compiled, looked at in every inference, checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import ArtifactError, NotCompilable
from autotune.graph.fallback import cut
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact, leaves
from autotune.network.runtime.hybrid_runtime import HybridModel
from autotune.network.runtime.loading import model_of, read_artifact
from tests import hybrid_models as models
from tests.control_models import SHAPE, random_model
from tests.network.artifact_mutations import read_parts, write_parts

pytest.importorskip("onnxruntime")

Array = NDArray[Any]

COUNTED = """
counted (float[4,8] x, int64 times) => (float[4,8] y, float[n,4,1] rows) {
  start = Constant <value_float = 0.5> ()
  first = Mul (x, start)
  y, rows = Loop (times, "", first) <
    body = once (int64 k, bool go, float[4,8] a) => (bool go_on, float[4,8] b, float[4,1] row) {
      f = Cast <to = 1> (k)
      s = Add (a, f)
      b = Tanh (s)
      row = ReduceMax <axes = [1]> (b)
      go_on = Identity (go)
    }
  >
}"""
UNTIL = """
until (float[4,8] x) => (float[4,8] y, int64 n) {
  always = Constant <value = bool {1}> ()
  none = Constant <value = int64 {0}> ()
  n, y = Loop ("", always, none, x) <
    body = once (int64 k, bool go, int64 m, float[4,8] a)
        => (bool more, int64 next, float[4,8] b) {
      one = Constant <value = int64 {1}> ()
      next = Add (m, one)
      h = Constant <value_float = 0.5> ()
      b = Mul (a, h)
      p = Abs (b)
      largest = ReduceMax <keepdims = 0> (p)
      limit = Constant <value_float = 0.1> ()
      more = Greater (largest, limit)
    }
  >
}"""
GROWING = """
growing (float[1,256] x, int64 times) => (float[k,256] y) {
  y = Loop (times, "", x) <
    body = once (int64 k, bool go, float[p,256] a) => (bool go_on, float[q,256] b) {
      c = MatMul (x, w1)
      d = MatMul (c, w2)
      e = Tanh (d)
      b = Concat <axis = 0> (a, e)
      go_on = Identity (go)
    }
  >
}"""
SCANNED = """
scanned (float[4,8] x, float[4,6,8] parts) => (float[4,8] y, float[6,4,1] rows) {
  y, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
    body = once (float[4,8] a, float[4,8] part) => (float[4,8] b, float[4,1] row) {
      s = ReduceSum <keepdims = 0> (part)
      z = Constant <value_float = 0.0> ()
      c = Greater (s, z)
      chosen = If (c) <
        then_branch = then () => (float[4,8] t) { t = Add (a, part) },
        else_branch = other () => (float[4,8] e) { e = Sub (a, part) }
      >
      b = Tanh (chosen)
      row = ReduceMax <axes = [1]> (b)
    }
  > (x, parts)
}"""
UNEQUAL = """
unequal (float[4,8] x) => (float[m,n] y) {
  s = ReduceSum <keepdims = 0> (x)
  z = Constant <value_float = 0.0> ()
  c = Greater (s, z)
  y = If (c) <
    then_branch = then () => (float[4,8] t) { t = Tanh (x) },
    else_branch = other () => (float[8,4] e) { e = Transpose (x) }
  >
}"""


def saved(text: str, folder: Path) -> Path:
    model = models.parsed(text)
    rng = np.random.default_rng(0)
    for name in ("w1", "w2"):
        weight = (rng.standard_normal((256, 256)) / 16).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def reloaded(artifact: Artifact, folder: Path) -> HybridModel:
    artifact.save(folder / "model.atn")
    model = autotune.load(folder / "model.atn")
    assert isinstance(model, HybridModel)
    return model


def agree(model: HybridModel, path: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    found, wanted = model.run(inputs), models.expected(path, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, 2e-4, 2e-5)
        assert found[name].dtype == array.dtype
    times = model.profile(inputs)
    assert len(times) == len(model.artifact.kernels)
    return found


def n_onnx(model: HybridModel) -> int:
    return sum(leaf.network is None for leaf in leaves(model.segments))


@pytest.fixture(params=[False, True], ids=["as it pays", "whatever can be compiled"])
def all_cuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param:
        monkeypatch.setattr(cut, "is_worth_a_cut", lambda network, n_nodes: True)
    return


@pytest.mark.parametrize("seed", range(4))
def test_random_branches_and_loops_compute_what_onnxruntime_does(
    seed: int, all_cuts: None, tmp_path: Path
) -> None:
    path = tmp_path / "random.onnx"
    onnx.save(random_model(seed), path)
    artifact = autotune.compile(path, threads=1, keep_cut=True, check=False).artifact
    model = reloaded(artifact, tmp_path)
    rng = np.random.default_rng(seed)
    for scale in (0.1, 1, 3):
        inputs = {n: (scale * rng.standard_normal(SHAPE)).astype(np.float32) for n in ("x", "z")}
        agree(model, path, inputs)


@pytest.mark.slow
def test_a_branch_that_data_decide_needs_no_onnxruntime(tmp_path: Path) -> None:
    path = models.saved(models.DECIDED, tmp_path)
    notes: list[str] = []
    done = autotune.compile(path, threads=1, fallback=False, note=notes.append)
    assert any("looked at in every inference" in note and "'if_5'" in note for note in notes)
    model = reloaded(done.artifact, tmp_path)
    assert n_onnx(model) == 0
    rng = np.random.default_rng(0)
    for _ in range(8):
        x = rng.standard_normal((1, 256)) + rng.standard_normal((32, 256)) / 8
        agree(model, path, {"x": x.astype(np.float32)})
    (decided,) = model.steps.decisions()
    assert min(decided.n_runs) > 0


def test_what_is_not_compiled_in_a_branch_is_still_refused_without_fallback(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotCompilable, match="SampleOp"):
        autotune.compile(models.saved(models.BRANCH, tmp_path), threads=1, fallback=False)


def test_a_loop_runs_as_often_as_an_input_says(tmp_path: Path) -> None:
    path = saved(COUNTED, tmp_path)
    artifact = autotune.compile(path, threads=1, fallback=False).artifact
    model = reloaded(artifact, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for n in (0, 1, 5, -3):
        agree(model, path, {"x": x, "times": np.array(n)})


def test_a_loop_ends_where_its_condition_does(tmp_path: Path) -> None:
    path = saved(UNTIL, tmp_path)
    model = reloaded(autotune.compile(path, threads=1, fallback=False).artifact, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for scale in (0.01, 1, 1000):
        found = agree(model, path, {"x": x * np.float32(scale)})
        assert found["y"].base is None or found["y"].flags.writeable


def test_a_loop_of_no_iterations_gives_arrays_of_its_own(tmp_path: Path) -> None:
    text = """
    kept (float[4,8] x, int64 times) => (float[4,8] y, float[4,8] z) {
      y, z = Loop (times, "", x, x) <
        body = once (int64 k, bool go, float[4,8] a, float[4,8] c)
            => (bool go_on, float[4,8] b, float[4,8] d) {
          b = Neg (a)
          d = Tanh (c)
          go_on = Identity (go)
        }
      >
    }"""
    model = model_of(autotune.compile(saved(text, tmp_path), threads=1, fallback=False).artifact)
    x = np.ones((4, 8), np.float32)
    found = model.run({"x": x, "times": np.array(0)})
    assert not any(np.shares_memory(a, b) for a in found.values() for b in (x,))
    assert not np.shares_memory(found["y"], found["z"])


def test_what_grows_from_iteration_to_iteration_is_left_to_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "is_worth_a_cut", lambda network, n_nodes: True)
    path = saved(GROWING, tmp_path)
    model = reloaded(autotune.compile(path, threads=1, keep_cut=True).artifact, tmp_path)
    assert n_onnx(model) == 1  # the concatenation; the products are compiled
    assert any(leaf.network is not None for leaf in leaves(model.segments))
    x = np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32)
    for n in (0, 1, 4):
        agree(model, path, {"x": x, "times": np.array(n)})


def test_branches_inside_of_a_scan_are_decided_row_by_row(tmp_path: Path) -> None:
    path = saved(SCANNED, tmp_path)
    model = reloaded(autotune.compile(path, threads=1, fallback=False).artifact, tmp_path)
    rng = np.random.default_rng(0)
    shapes = {"x": (4, 8), "parts": (4, 6, 8)}
    agree(model, path, {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
    decided = {step.control.op: step.n_runs for step in model.steps.decisions()}
    assert decided["Loop"] == [12]  # of two inferences, one of them profiled
    assert min(decided["If"]) > 0


def test_branches_inside_of_a_function_are_compiled(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    called (float[4,8] x) => (float[4,8] y) {
      a = my.Halves (x)
      b = Tanh (a)
      y = my.Halves (b)
    }
    <domain: "my", opset_import: ["" : 17]>
    Halves (v) => (w) {
      s = ReduceSum <keepdims = 0> (v)
      z = Constant <value_float = 0.0> ()
      c = Greater (s, z)
      w = If (c) <
        then_branch = then () => (t) { t = Exp (v) },
        else_branch = other () => (e) { e = Neg (v) }
      >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "called.onnx")
    artifact = autotune.compile(tmp_path / "called.onnx", threads=1, fallback=False).artifact
    model = reloaded(artifact, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for array in (np.abs(x), -np.abs(x)):
        agree(model, tmp_path / "called.onnx", {"x": array})


def test_branches_of_unequal_shapes_give_what_they_make(tmp_path: Path) -> None:
    path = saved(UNEQUAL, tmp_path)
    artifact = autotune.compile(path, threads=1, fallback=False).artifact
    model = reloaded(artifact, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    shapes = {agree(model, path, {"x": sign * np.abs(x)})["y"].shape for sign in (1, -1)}
    assert shapes == {(4, 8), (8, 4)}


def test_the_check_names_the_branches_that_its_inputs_do_not_take(tmp_path: Path) -> None:
    text = """
    rare (float[4,8] x) => (float[4,8] y) {
      s = ReduceMax <keepdims = 0> (x)
      z = Constant <value_float = 99.0> ()
      c = Greater (s, z)
      y = If (c) <
        then_branch = then () => (float[4,8] t) { t = Tanh (x) },
        else_branch = other () => (float[4,8] e) { e = Exp (x) }
      >
    }"""
    path = saved(text, tmp_path)
    report = autotune.compile(path, threads=1, fallback=False).report
    assert report is not None
    untaken = [note for note in report.notes if "no input leads there" in note]
    assert len(untaken) == 1
    assert "the then branch of If 'if_3'" in untaken[0]
    assert "else" not in untaken[0]
    large = {"x": np.full((4, 8), 100, np.float32)}
    report = autotune.compile(path, threads=1, fallback=False, check_inputs=large).report
    assert report is not None
    assert not [note for note in report.notes if "no input leads there" in note]


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = saved(COUNTED, tmp_path_factory.mktemp("decided"))
    return autotune.compile(path, threads=1, fallback=False).artifact


def test_a_file_with_what_is_decided_is_saved_as_it_was(decided: Artifact, tmp_path: Path) -> None:
    decided.save(tmp_path / "a.atn")
    loaded = read_artifact(tmp_path / "a.atn")
    assert isinstance(loaded, HybridArtifact)
    loaded.save(tmp_path / "b.atn")
    assert (tmp_path / "a.atn").read_bytes() == (tmp_path / "b.atn").read_bytes()


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: c.update(op="Scan"),
        lambda c: c.update(op="If"),
        lambda c: c["bodies"].clear(),
        lambda c: c["bodies"].append(c["bodies"][0]),
        lambda c: c["operands"].pop(),
        lambda c: c["operands"].append("nobody"),
        lambda c: c["results"].pop(),
        lambda c: c["bodies"][0]["inputs"].clear(),
        lambda c: c["bodies"][0]["outputs"].pop(),
        lambda c: c["bodies"][0]["segments"].clear(),
        lambda c: c.update(constants={"x": 3}),
    ],
)
def test_a_body_that_cannot_be_is_refused(decided: Artifact, edit: Any, tmp_path: Path) -> None:
    decided.save(tmp_path / "a.atn")
    parts = read_parts(tmp_path / "a.atn")
    manifest = json.loads(parts["manifest.json"])
    (control,) = (s["control"] for s in manifest["plans"][0]["segments"] if "control" in s)
    edit(control)
    write_parts(tmp_path / "a.atn", parts, manifest)
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(tmp_path / "a.atn")
