from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.cli.main import run
from tests.forking import Cli, Outcome

sys.path.insert(0, str(Path(__file__).parent))  # for `kills`


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that starts the command line in a process of its own is slow: seconds for each."""
    for item in items:
        if {"cli", "tuned", "artifact"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def mlp(seed: int = 0, batch: int | str = 4) -> onnx.ModelProto:
    """x[n, 8] @ w1[8, 16] -> relu -> @ w2[16, 8]."""
    rng = np.random.default_rng(seed)
    weights = {"w1": (8, 16), "w2": (16, 8)}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 8]) for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "mlp", ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`here("tasks", path)` runs the command in this process, which is faster than `cli`."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        told = capsys.readouterr()
        return Outcome(code, told.out, told.err)

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    onnx.save(mlp(), path)
    return path


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, cli: Cli, model: Path) -> Path:
    """A log of a short real session."""
    path = tmp_path_factory.mktemp("tuned") / "mlp.jsonl"
    done = cli("tune", model, "--log", path, "--trials", 16, "--threads", 1, "--preset", "ci")
    assert done.code == 0, done.err
    return path


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory, cli: Cli, tuned: Path) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "mlp.atn"
    done = cli("compile", "--log", tuned, "-o", path)
    assert done.code == 0, done.err
    return path
