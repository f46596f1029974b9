"""Inputs bound to a constant: what they decide is folded, in every command and the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.cli.main import run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = x * 2 where rate is 16000, else a product; n says the shape of the result."""
    value = helper.make_tensor_value_info

    def branch(node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], "b", [], [value("r", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("Equal", ["rate", "known"], ["is_known"]),
        helper.make_node(
            "If",
            ["is_known"],
            ["a"],
            name="choice",
            then_branch=branch(helper.make_node("Mul", ["x", "two"], ["r"])),
            else_branch=branch(helper.make_node("MatMul", ["x", "w"], ["r"])),
        ),
        helper.make_node("Reshape", ["a", "n"], ["y"]),
    ]
    weights = {"known": np.array(16000), "two": np.float32(2), "w": np.ones((4, 4), np.float32)}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            value("x", TensorProto.FLOAT, ("batch", 4)),
            value("rate", TensorProto.INT64, ()),
            value("n", TensorProto.INT64, (2,)),
        ],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    path = tmp_path / "rated.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_what_a_constant_input_decides_is_folded(model: Path) -> None:
    options: dict[str, Any] = {"dims": {"batch": 3}, "constants": {"rate": 16000, "n": [2, 6]}}
    done = autotune.compile(model, threads=1, **options)
    assert done.report is None or done.report.error == 0
    outputs = autotune.Model(done.artifact).run({"x": X})
    assert np.array_equal(outputs["y"], 2 * X.reshape(2, 6))


def test_the_command_line_binds_inputs_up_to_the_bench(cli: Any, model: Path) -> None:
    def here(*arguments: object) -> Any:
        return cli(*arguments, cwd=model.parent)

    pytest.importorskip("onnxruntime")
    np.save(model.parent / "n.npy", np.array([6, 2]))
    open_ = here("compile", model, "--dim", "batch=3", "--no-fallback")
    assert open_.code == 1
    assert "(node 'choice'" in open_.err
    assert "--const NAME=VALUE" in open_.err
    bound = ("--dim", "batch=3", "--const", "rate=16000", "--const", "n=n.npy")
    log = ("--log", "log.jsonl")
    assert here("tune", model, *bound, *log, "--trials", "2", "--threads", "1").code == 0
    done = here("compile", model, *log, "-o", "m.atn")  # the log knows what was bound
    assert done.code == 0, done.err
    assert "agree with ONNX Runtime" in done.err
    np.save(model.parent / "x.npy", X)
    assert here("run", "m.atn", "--input", "x.npy", "-o", "y.npz").code == 0
    assert np.array_equal(np.load(model.parent / "y.npz")["y"], 2 * X.reshape(6, 2))
    timed = here("bench", "m.atn", "--against", "onnxruntime", "--time", "10ms")
    assert timed.code == 0, timed.err


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("rate", ("no value", "--const sr=16000")),
        ("rate=fast", ("no value",)),
        ("speed=1", ("no input 'speed'", "'x', 'rate', 'n'")),
        ("rate=1.5", ("int64", "whole numbers")),
        ("rate=1,2", ("shape scalar", "has 2")),
        ("n=1,2,3", ("shape 2, the constant for it has 3",)),
        ("rate=99999999999999999999", ("int64",)),
        ("rate=absent.npy", ("absent.npy",)),
    ],
)
def test_a_constant_that_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str], model: Path, value: str, parts: tuple[str, ...]
) -> None:
    assert run(["tasks", str(model), "--dim", "batch=3", "--const", value]) == 2
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert all(part in error + hint for part in parts), error + hint
