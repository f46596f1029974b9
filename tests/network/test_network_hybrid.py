"""Artifacts of which a part runs in ONNX Runtime: what is read back, and what is refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.errors import ArtifactError, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact
from autotune.network.runtime.loading import loaded_anew, read_artifact
from tests import hybrid_models as models
from tests.network.artifact_mutations import read_parts, write_parts

pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved(models.BRANCH, tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def artifact(source: Path) -> Artifact:
    return autotune.compile(source, threads=1, keep_cut=True).artifact


def test_saved_and_loaded_it_is_the_same(artifact: Artifact, tmp_path: Path) -> None:
    artifact.save(tmp_path / "a.atn")
    loaded = read_artifact(tmp_path / "a.atn")
    assert isinstance(loaded, HybridArtifact)
    assert [s.network is None for s in loaded.segments] == [False, True, False]
    assert loaded.kernels == artifact.kernels
    loaded.save(tmp_path / "b.atn")
    assert (tmp_path / "a.atn").read_bytes() == (tmp_path / "b.atn").read_bytes()


def test_segments_share_the_constants_and_the_arena(artifact: Artifact, tmp_path: Path) -> None:
    artifact.save(tmp_path / "a.atn")
    model = autotune.load(tmp_path / "a.atn")
    assert isinstance(model.artifact, HybridArtifact)
    networks = [s.network for s in model.artifact.segments if s.network is not None]
    assert len({id(network.constants) for network in networks}) == 1
    # columns that fill no whole tile of a program are packed with some that are not read
    assert model.artifact.constants.nbytes < 1.5 * 3 * 256 * 256 * 4


def test_the_branch_is_taken_that_the_data_decide(artifact: Artifact, source: Path) -> None:
    from autotune.network.runtime.loading import model_of

    model = model_of(artifact)
    for x in (X, -X, 0 * X):
        out = np.empty_like(x)
        found = model.run({"x": x}, out={"y": out})
        assert found["y"] is out
        np.testing.assert_allclose(out, models.expected(source, {"x": x})["y"], 1e-4, 1e-5)
    for again in (pickle.loads(pickle.dumps(model)), loaded_anew(model)):
        constants = {id(a.constants) for a in again.artifact.over_the_constants()}
        assert constants == {id(again.artifact.constants)}
        assert again.artifact.constants.ctypes.data % 64 == 0
        assert not np.shares_memory(again.artifact.constants, artifact.constants)
        np.testing.assert_array_equal(again.run([X])["y"], model(X))
    with pytest.raises(UsageError, match="shape"):
        model.run({"x": X[:1]})
    with pytest.raises(UsageError, match="there is no input"):
        model.run({"z": X})


@pytest.mark.slow
def test_a_model_has_several_shapes(tmp_path: Path) -> None:
    path = models.saved(models.TREES, tmp_path)
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, path)
    done = autotune.compile(path, threads=1, dims={"batch": [32, 64]}, keep_cut=True)
    done.artifact.save(tmp_path / "two.atn")
    model = autotune.load(tmp_path / "two.atn")
    assert len(model.variants) == 2
    for x in (X, np.concatenate([X, -X])):
        wanted = models.expected(path, {"x": x})["y"]
        np.testing.assert_allclose(model.run({"x": x})["y"], wanted, 1e-4, 1e-5)
    with pytest.raises(UsageError, match="no variant"):
        model.run({"x": X[:8]})
    shared = autotune.compile(path, threads=1, dims={"batch": 32}, keep_cut=True).artifact
    assert done.artifact.constants.nbytes < 1.5 * shared.constants.nbytes


@pytest.mark.slow
def test_half_precision_outside_is_float_inside(tmp_path: Path) -> None:
    text = models.BRANCH.replace("float[", "float16[")
    model = models.parsed(text)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            half = onnx.numpy_helper.from_array(array.astype(np.float16), tensor.name)
            tensor.CopyFrom(half)
    path = tmp_path / "half.onnx"
    onnx.save(model, path)
    compiled = autotune.compile(path, threads=1, keep_cut=True)
    from autotune.network.runtime.loading import model_of

    found = model_of(compiled.artifact).run({"x": X.astype(np.float16)})["y"]
    assert found.dtype == np.float16
    wanted = models.expected(path, {"x": X.astype(np.float16)})["y"]
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), atol=2e-2)


def test_scalars_stay_scalars(tmp_path: Path) -> None:
    text = """
    scalar (float x, float[2,0] nothing) => (float y, float[2,0] none) {
      a = Add (x, half)
      y = com.microsoft.SampleOp (a)
      none = com.microsoft.SampleOp (nothing)
    }"""
    model = models.parsed(text)
    half = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half")
    model.graph.initializer.append(half)
    onnx.save(model, tmp_path / "scalar.onnx")
    done = autotune.compile(tmp_path / "scalar.onnx", threads=1, keep_cut=True)
    done.artifact.save(tmp_path / "scalar.atn")
    nothing = np.zeros((2, 0), np.float32)
    found = autotune.load(tmp_path / "scalar.atn").run([np.array(1, np.float32), nothing])
    assert found["y"].shape == ()
    assert found["y"] == 1.5
    assert found["none"].shape == (2, 0)


def test_an_operator_newer_than_the_compiler_keeps_its_opset(tmp_path: Path) -> None:
    text = """
    mods (float[4] x, float[4] z) => (float[4] y) {
      y = com.microsoft.SampleOp (x)
    }"""
    model = models.parsed(text)
    model.opset_import[0].version = 23
    model.ir_version = 10
    onnx.save(model, tmp_path / "new.onnx")
    artifact = autotune.compile(
        tmp_path / "new.onnx", threads=1, check=False, keep_cut=True
    ).artifact
    assert isinstance(artifact, HybridArtifact)
    inner = onnx.ModelProto.FromString(artifact.segments[0].onnx)
    assert inner.opset_import[0].version == 23


def edited(path: Path, edit: Any) -> None:
    parts = read_parts(path)
    manifest = json.loads(parts["manifest.json"])
    edit(manifest)
    write_parts(path, parts, manifest)


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["plans"][0]["segments"].reverse(),
        lambda m: m["plans"][0]["segments"][0].update(network=1),
        lambda m: m["plans"][0]["segments"][1].update(model=7),
        lambda m: m["plans"][0]["segments"][1].update(network=0),
        lambda m: m["plans"][0]["segments"].pop(),
        lambda m: m["plans"].clear(),
        lambda m: m["plans"][0]["outputs"][0].update(dtype="complex64"),
        lambda m: m["networks"].pop(),
        lambda m: m["networks"][0].update(arena_bytes=0),
        lambda m: m["image"]["rebases"].append(0),
    ],
)
def test_a_plan_that_cannot_be_is_refused(artifact: Artifact, edit: Any, tmp_path: Path) -> None:
    artifact.save(tmp_path / "a.atn")
    edited(tmp_path / "a.atn", edit)
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(tmp_path / "a.atn")


@pytest.mark.slow
def test_damage_never_ends_the_process(artifact: Artifact, tmp_path: Path) -> None:
    artifact.save(tmp_path / "a.atn")
    command = [sys.executable, "-m", "tests.network.artifact_mutations", tmp_path / "a.atn"]
    done = subprocess.run(
        [*map(str, command), "5", "60"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("keep", [False, True])
def test_a_cut_that_is_slower_than_the_whole_is_undone(
    keep: bool, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.api.compile import compiling
    from autotune.api.compile.fallback import CutTimes
    from autotune.network.runtime.loading import model_of

    found = CutTimes(2e-3, 1e-3, 0.5, is_noisy=False)
    monkeypatch.setattr(compiling, "cut_times", lambda artifact, originals: found)
    notes: list[str] = []
    made = autotune.compile(source, threads=1, keep_cut=keep, note=notes.append)
    assert isinstance(made.artifact, HybridArtifact)
    assert any(s.network is not None for s in made.artifact.segments) == keep
    assert any("the cut costs more than it saves" in note for note in notes)
    assert any("so all of the model runs in ONNX Runtime" in note for note in notes) != keep
    assert made.report is not None  # checked as it is
    assert model_of(made.artifact).run({"x": X})["y"].shape == (32, 256)


def test_a_noisy_measurement_undoes_no_cut() -> None:
    from autotune.api.compile.fallback import CutTimes

    assert CutTimes(2e-3, 1e-3, 0.5, is_noisy=False).is_slower
    assert not CutTimes(2e-3, 1e-3, 0.5, is_noisy=True).is_slower
    assert not CutTimes(1.1e-3, 1e-3, 0.5, is_noisy=False).is_slower


INSERTED = """
    <ir_version: 9, opset_import: ["" : 17]>
    g (seq(float[3]) s, optional(float[2]) o, float[256, 256] x) => (seq(float[]) t, float[256] y,
       bool has)
    { r = MatMul(x, x) h = MatMul(r, x) y = ReduceMean<keepdims = 0, axes = [1]>(h)
      t = SequenceInsert(s, y) has = OptionalHasElement(o) }
"""


def test_sequences_and_optionals_are_inputs(tmp_path: Path) -> None:
    import onnxruntime

    proto = onnx.parser.parse_model(INSERTED)
    onnx.save(proto, tmp_path / "m.onnx")
    done = autotune.compile(tmp_path / "m.onnx", keep_cut=True)
    assert done.report is not None
    done.artifact.save(tmp_path / "m.atn")
    model = autotune.load(tmp_path / "m.atn")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    three = np.arange(3, dtype=np.float32)
    for sequence, held in (([three, three + 1], three[:2]), ([], None)):
        feed = {"s": sequence, "o": held, "x": x}
        found = model.run(feed)
        expected = dict(zip(("t", "y", "has"), session.run(None, feed), strict=True))
        assert len(found["t"]) == len(expected["t"]) == len(sequence) + 1
        for ours, theirs in zip(found["t"], expected["t"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-2)
        assert found["has"] == expected["has"] == (held is not None)


@pytest.mark.parametrize("is_input", [True, False])
@pytest.mark.parametrize(
    "name", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E8M0", "BFLOAT16", "INT4", "UINT4", "UINT2"]
)
def test_small_types_pass_between_segments(name: str, is_input: bool, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(name)
    make, port = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    if is_input:
        kinds = number, 7
        nodes = [make("Cast", ["x"], ["f"], to=1), make("NonZero", ["f"], ["y"])]
    else:
        kinds = 1, number
        nodes = [make("NonZero", ["x"], ["n"]), make("Cast", ["n"], ["m"], to=1)]
        nodes += [make("Cast", ["m"], ["y"], to=number)]
    inputs, outputs = [port("x", kinds[0], [5])], [port("y", kinds[1], None)]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    opset = onnx.helper.make_opsetid("", 25)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset]), tmp_path / "m.onnx")
    autotune.compile(tmp_path / "m.onnx").artifact.save(tmp_path / "m.atn")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    numbers = np.array([1, 2, 1, 2, 1] if is_input else [0, 1, 1, 0, 0], np.float32)
    found = autotune.load(tmp_path / "m.atn").run({"x": numbers.astype(dtype if is_input else "f")})
    if is_input:
        np.testing.assert_array_equal(found["y"], [[0, 1, 2, 3, 4]])
    else:
        assert found["y"].dtype == dtype
        np.testing.assert_array_equal(found["y"].astype(np.float32), [[1, 2]])
