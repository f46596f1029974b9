"""Bytes of an artifact by what takes them, and an upper bound of those of its weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.cli.main import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.onnx: a convolution for which minimal filtering pays."""
    path = tmp_path_factory.mktemp("size")
    weights = np.random.default_rng(0).standard_normal((128, 128, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 128, 28, 28])],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path / "m.onnx")
    return path


def compiled(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, str]:
    command = ["compile", str(folder / "m.onnx"), "-o", str(folder / "m.atn"), "--threads", "1"]
    code = run([*command, "--format", "json", *options])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.slow
def test_a_bound_leaves_transformed_weights_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n_model = (folder / "m.onnx").stat().st_size
    code, out, err = compiled(folder, capsys)
    assert code == 0, err
    assert "weights transformed" in err
    free = json.loads(out)
    assert sum(free["bytes_by_kind"].values()) == free["bytes"] > 2 * n_model
    code, out, err = compiled(folder, capsys, "--max-size", "1.1x")
    assert code == 0, err
    assert "1 of 2 tasks takes a program with smaller weights" in err
    bound = json.loads(out)
    assert bound["bytes_by_kind"]["weights transformed"] == 0
    assert bound["bytes"] < 1.2 * n_model
    assert bound["check"] is not None


@pytest.mark.parametrize(
    ("bound", "message"), [("0.5x", "smallest form"), ("1.2", "multiple"), ("0x", "multiple")]
)
def test_a_bound_that_cannot_be_kept_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], bound: str, message: str
) -> None:
    code, _, err = compiled(folder, capsys, "--max-size", bound)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in line
