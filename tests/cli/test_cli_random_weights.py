"""Random weights replace a model's own only on demand, and everybody says so."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import Cli

NOTE = "note: {} comes without weights: random ones are used"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x·w + b + 1, where the 1 is a ConstantOfShape."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((8, 8)), "b": rng.standard_normal(8)}
    one = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"]),
        helper.make_node("ConstantOfShape", ["s"], ["o"], value=one),
        helper.make_node("Add", ["g", "o"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in ("x", "y")]
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([2, 8]), "s"))
    graph = helper.make_graph(nodes, "filled", ports[:1], ports[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path_factory.mktemp("filled") / "filled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def random_log(tmp_path_factory: pytest.TempPathFactory, cli: Cli, filled: Path) -> Path:
    log = tmp_path_factory.mktemp("log") / "filled.jsonl"
    done = cli("tune", filled, "--random-weights", "--trials", 2, "--log", log, "--preset", "ci")
    assert done.code == 0, done.err
    assert NOTE.format("filled.onnx") in done.err
    return log


def manifest(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as file:
        found: dict[str, Any] = json.loads(file.read("manifest.json"))
        return found


def header(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text().splitlines()[0])
    return found


def outputs(cli: Cli, artifact: Path, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    np.save(artifact.with_suffix(".npy"), x)
    out = artifact.with_suffix(".npz")
    done = cli("run", artifact, "--input", artifact.with_suffix(".npy"), "-o", out)
    assert done.code == 0, done.err
    found: np.ndarray[Any, Any] = np.load(out)["y"]
    return found


def test_the_weights_of_a_small_model_are_its_own(cli: Cli, filled: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "filled.atn"
    done = cli("compile", filled, "-o", artifact)
    assert done.code == 0, done.err
    assert "random" not in done.err
    assert manifest(artifact)["random_weights"] is False
    w, b = (numpy_helper.to_array(t) for t in onnx.load(filled).graph.initializer[:2])
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    np.testing.assert_allclose(outputs(cli, artifact, x), x @ w + b + 1, atol=1e-5)


def test_random_weights_are_said_everywhere(cli: Cli, random_log: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "filled.atn"
    note = NOTE.format("filled.onnx")
    assert header(random_log)["random_weights"] is True
    assert note in cli("resume", random_log, "--trials", 1).err
    # without the option: the log knows
    done = cli("compile", "--log", random_log, "-o", artifact)
    assert done.code == 0, done.err
    assert note in done.err
    assert manifest(artifact)["random_weights"] is True
    for words in (["run"], ["bench", "--time", "0.01s"]):
        done = cli(words[0], artifact, *words[1:])
        assert NOTE.format("filled") in done.err
    done = cli("bench", artifact, "--time", "0.01s", "--against", "onnxruntime", "--format", "json")
    assert json.loads(done.out)["onnxruntime"]["max_error"] < 1e-5  # both have the same ones


def test_a_log_of_another_model_does_not_make_weights_random(
    cli: Cli, filled: Path, random_log: Path, tmp_path: Path
) -> None:
    artifact = tmp_path / "other.atn"
    other = onnx.load(filled)
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros(8, np.float32), "b"))
    onnx.save(other, tmp_path / "other.onnx")
    done = cli("compile", tmp_path / "other.onnx", "--log", random_log, "-o", artifact)
    assert done.code == 0, done.err
    assert "random ones" not in done.err
    assert manifest(artifact)["random_weights"] is False


def test_a_model_that_has_weights_keeps_them(cli: Cli, model: Path) -> None:
    done = cli("tasks", model, "--random-weights")
    assert done.code == 2
    assert "error: the model has weights of its own" in done.err
    assert "hint: leave out --random-weights" in done.err


def test_the_default_model_gets_random_weights(cli: Cli) -> None:
    done = cli("tasks")
    assert done.code == 0, done.err
    assert NOTE.format("light_resnet50.onnx") in done.err
