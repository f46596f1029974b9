"""Operators of a user's: from a file to numbers, and what is told where they do not fit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune import te
from autotune.cli.main import run
from autotune.errors import UnsupportedOperator, UsageError
from autotune.graph.network import build_network
from autotune.records import read_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "operators.py"
MODEL = """
<ir_version: 9, opset_import: ["" : 17, "com.acme" : 1]>
g (float[4, 6] x) => (float[4, 6] y, float[4] sums) {
    r = Relu(x)
    s = com.acme.Swish<beta = 2.0>(r)
    shares, sums = com.acme.RowShares(s)
    y = Add(shares, s)
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    return tmp_path


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r = np.maximum(x.astype(np.float64), 0)
    s = r / (1 + np.exp(-2 * r))
    return s / s.sum(1, keepdims=True) + s, s.sum(1)


@pytest.mark.slow
def test_from_a_file_to_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--operators", "operators.py", "--threads", "1"]
    assert run(["tune", "m.onnx", *options, "--trials", "4", "--log", "m.jsonl"]) == 0
    labels = [w.label for w in read_log(Path("m.jsonl")).workloads.values()]
    assert "com.acme.Swish" in labels
    capsys.readouterr()
    assert run(["compile", "--log", "m.jsonl", "-o", "m.atn"]) == 0  # the log knows the file
    assert "outputs agree with NumPy" in capsys.readouterr().err
    x = np.random.default_rng(0).random((4, 6), np.float32)
    found = autotune.load("m.atn").run({"x": x})
    y, sums = expected(x)
    np.testing.assert_allclose(found["y"], y, rtol=1e-5)
    np.testing.assert_allclose(found["sums"], sums, rtol=1e-5)
    assert run(["tasks", "m.onnx", "--operators", "operators.py"]) == 0
    assert "com.acme.RowShares" in capsys.readouterr().out


NORM = """
<ir_version: 9, opset_import: ["" : 17, "com.acme" : 1]>
g (float[4, 6] x, float[6] scale) => (float[4, 6] y) {
    n = com.acme.ScaledNorm<epsilon = 1e-6>(x, scale)
    y = Relu(n)
}
"""


def test_a_composition_from_a_file_to_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(onnx.parser.parse_model(NORM), "n.onnx")
    options = ["--operators", "operators.py", "--threads", "1"]
    assert run(["compile", "n.onnx", *options, "-o", "n.atn"]) == 0, capsys.readouterr().err
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    scale = np.arange(6, dtype=np.float32)
    found = autotune.load("n.atn").run({"x": x, "scale": scale})
    y = np.maximum(x / np.linalg.norm(x, axis=1, keepdims=True) * scale, 0)
    np.testing.assert_allclose(found["y"], y, rtol=1e-5, atol=1e-7)


def _refusing(rw: autotune.Rewriter) -> None:
    raise rw.refuse("it is of no use")


def _incomplete(rw: autotune.Rewriter) -> None:
    rw.result("NoSuch", rw.input(0))


COMPOSITIONS = {
    "refusing": (
        _refusing,
        r"operator 'com\.acme\.ScaledNorm' \(.*is not supported: it is of no use",
    ),
    "incomplete": (_incomplete, r"operator 'NoSuch' \(node '.*/NoSuch'"),
    "silent": (lambda rw: None, r"operator 'com\.acme\.ScaledNorm'"),
}


@pytest.mark.parametrize("case", COMPOSITIONS)
def test_a_composition_that_does_not_fit_is_told(case: str, folder: Path) -> None:
    rewrite, message = COMPOSITIONS[case]
    onnx.save(onnx.parser.parse_model(NORM), "n.onnx")
    operators = {"com.acme.ScaledNorm": autotune.Composition(rewrite)}
    with pytest.raises(UnsupportedOperator, match=message):
        build_network("n.onnx", operators=operators)


def test_a_composition_of_an_old_operator_sees_it_converted(folder: Path) -> None:
    text = """
    <ir_version: 7, opset_import: ["" : 11]>
    g (float[4, 6] x) => (float[4, 6] y) { y = Unsqueeze<axes = [0]>(x) z = Identity(y) }
    """
    seen = []
    operators = {
        "Unsqueeze": autotune.Composition(lambda rw: seen.append((rw.attr("axes"), rw.value(1))))
    }
    onnx.save(onnx.parser.parse_model(text.replace("float[4, 6] y", "float[1, 4, 6] y")), "u.onnx")
    build_network("u.onnx", operators=operators)
    assert seen[0][0] is None
    assert seen[0][1].tolist() == [0]


@pytest.mark.slow
def test_operators_of_rare_use_are_imported_when_a_model_has_one(folder: Path) -> None:
    code = "import sys, autotune; autotune.build_network(sys.argv[1]); print(*sys.modules)"
    for name, text in {"det": "y = Det(x)", "relu": "y = Relu(x)"}.items():
        shape = "float" if name == "det" else "float[3, 3]"
        head = '<ir_version: 9, opset_import: ["" : 17]>'
        model = f"{head} g (float[3, 3] x) => ({shape} y) {{ {text} }}"
        onnx.save(onnx.parser.parse_model(model), f"{name}.onnx")
        command = [sys.executable, "-c", code, f"{name}.onnx"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert ("autotune_operators" in told) == (name == "det")


def test_constant_operands_are_folded(folder: Path) -> None:
    text = MODEL.replace("r = Relu(x)", "r = Constant<value = float[4, 6] {1}>()").replace(
        "y = Add(shares, s)", "y = Add(shares, x)"
    )
    values = ", ".join(map(str, range(24)))
    onnx.save(onnx.parser.parse_model(text.replace("{1}", f"{{{values}}}")), "c.onnx")
    compiled = autotune.compile("c.onnx", threads=1, operators=["operators.py"])
    compiled.artifact.save(folder / "c.atn")
    x = np.zeros((4, 6), np.float32)
    found = autotune.load("c.atn").run({"x": x})
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    s = rows / (1 + np.exp(-2 * rows))
    np.testing.assert_allclose(found["y"], s / s.sum(1, keepdims=True), rtol=1e-5)


def test_without_a_definition_all_are_named(folder: Path) -> None:
    with pytest.raises(UnsupportedOperator, match=r"com\.acme\.Swish.*com\.acme\.RowShares"):
        build_network("m.onnx")


MISFITS: dict[str, tuple[Callable[..., Any], str]] = {
    "attribute": (lambda x: x, "unexpected keyword argument 'beta'"),
    "inputs": (lambda *, beta: None, "too many positional arguments"),
    "no_tensor": (lambda x, *, beta: 3, "must be an iterable"),
    "input_itself": (lambda x, *, beta: x, "output in0 is an input"),
    "outside": (lambda x, *, beta: te.compute(9, lambda i: x[i, 0]), "reads outside of in0"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_function_that_does_not_fit_is_told(case: str, folder: Path) -> None:
    function, message = MISFITS[case]
    with pytest.raises(UsageError, match=message) as error:
        build_network("m.onnx", operators={"com.acme.Swish": function})
    assert "custom operator 'com.acme.Swish' (node 's')" in error.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("OPERATORS = [1]\n", "is no dictionary of functions"),
        ("x = 1\n", "has no 'OPERATORS'"),
        (
            "def swish(x, beta):\n    return 1 / 0\nOPERATORS = {'com.acme.Swish': swish}\n",
            "bad.py:2: ZeroDivisionError",
        ),
    ],
)
def test_a_broken_file_is_told(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.py").write_text(text)
    assert run(["tasks", "m.onnx", "--operators", "bad.py"]) == 2
    assert message in capsys.readouterr().err
