"""Models of which a part runs in ONNX Runtime, through the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from tests import hybrid_models as models

Cli = Callable[..., Any]

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(1)
INPUTS: dict[str, dict[str, Any]] = {
    models.DETECTOR: {"image": RNG.standard_normal((1, 3, 64, 64)).astype(np.float32)},
    models.BRANCH: {"x": RNG.standard_normal((32, 256)).astype(np.float32)},
    models.TREES: {"x": RNG.standard_normal((64, 256)).astype(np.float32)},
    models.SCALED: {"x": RNG.standard_normal((64, 256)).astype(np.float32)},
    models.WORDS: {"word": RNG.choice(["cat", "dog", "else"], 32).astype(object)},
    models.ENCODED: {"x": np.array([0, 1, 0, 2], np.float32)},
}


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        found, wanted = list(found.items()), list(wanted.items())
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
        return
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif wanted.dtype == object:
        assert found.tolist() == wanted.tolist()
    else:
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", list(INPUTS))
def test_outputs_are_those_of_onnxruntime(cli: Cli, text: str, tmp_path: Path) -> None:
    path = models.saved(text, tmp_path)
    done = cli("compile", path, "-o", "m.atn", "--threads", "1", "--keep-cut", cwd=tmp_path)
    assert done.code == 0, done.err
    assert re.search(r"nodes runs? in ONNX Runtime", done.err)
    assert "outputs agree with ONNX Runtime" in done.err
    model = autotune.load(tmp_path / "m.atn")
    for _ in range(2):  # arrays of the first inference are not those of the second
        found = model.run(INPUTS[text])
        for name, wanted in models.expected(path, INPUTS[text]).items():
            same(found[name], wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "option", "told"),
    [
        (models.BRANCH, "--keep-cut", "If (node 'if_5'): com.microsoft.SampleOp: not supported"),
        (models.DECIDED, "--no-fallback", "looked at in every inference"),
    ],
)
def test_all_of_the_command_line_takes_a_cut_model(
    text: str, option: str, told: str, cli: Cli, tmp_path: Path
) -> None:
    path = models.saved(text, tmp_path)
    inputs = INPUTS[models.BRANCH]

    def here(*arguments: object) -> Any:
        done = cli(*arguments, cwd=tmp_path)
        assert done.code == 0, done.err
        return done

    assert "MatMul+Relu" in here("tasks", path).out
    budget = ("--trials", "3", "--threads", "1")
    assert told in here("tune", path, "--log", "log.jsonl", *budget).err
    done = here("compile", "--log", "log.jsonl", "-o", "m.atn", option)
    assert told in done.err
    is_cut = option == "--keep-cut"
    assert ("ONNX Runtime takes" in done.err) == is_cut
    np.save(tmp_path / "x.npy", inputs["x"])
    here("run", "m.atn", "--input", "x.npy", "-o", "y.npz")
    with np.load(tmp_path / "y.npz") as outputs:
        wanted = models.expected(path, inputs)
        np.testing.assert_allclose(outputs["y"], wanted["y"], 1e-4, 1e-5)
    rows = json.loads(
        here("bench", "m.atn", "--per-task", "--time", "10ms", "--format", "json").out
    )
    assert any(row["key"].startswith("onnxruntime.") for row in rows["tasks"]) == is_cut
    against = here(
        "bench", "m.atn", "--against", "onnxruntime", "--time", "10ms", "--format", "json"
    )
    assert json.loads(against.out)["onnxruntime"]["max_error"] < 1e-4


@pytest.mark.sampled(0)
def test_lists_of_maps_are_printed_and_written_as_a_matrix(cli: Cli, tmp_path: Path) -> None:
    path = models.saved(models.SCALED, tmp_path)
    assert cli("compile", path, "-o", "m.atn", cwd=tmp_path).code == 0
    np.save(tmp_path / "x.npy", INPUTS[models.SCALED]["x"])
    done = cli("run", "m.atn", "--input", "x.npy", "-o", "y.npz", cwd=tmp_path)
    assert done.code == 0, done.err
    with np.load(tmp_path / "y.npz") as outputs:
        wanted = [[*row.values()] for row in models.expected(path, INPUTS[models.SCALED])["y"]]
        np.testing.assert_allclose(outputs["y"], wanted, 1e-4, 1e-6)
        assert outputs["y.keys"].tolist() == list(range(256))
    assert "64x256" in cli("run", "m.atn", cwd=tmp_path).out
    against = cli("bench", "m.atn", "--against", "onnxruntime", "--time", "10ms", cwd=tmp_path)
    assert against.code == 0, against.err


def test_a_branch_that_is_never_taken_may_not_fit_the_shapes(cli: Cli, tmp_path: Path) -> None:
    text = """
    rates (float[a,b] x, bool is_high) => (float[c,d] y) {
      y = If (is_high) <
        then_branch = high () => (float[c,d] t) { t = MatMul (x, w1) },
        else_branch = low () => (float[c,d] e) { e = MatMul (x, square) }
      >
    }"""
    model = models.parsed(text)
    for name, shape in {"w1": (256, 256), "square": (8, 8)}.items():
        tensor = onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)
        model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "rates.onnx")
    arguments = ("compile", "rates.onnx", "--shape", "x:4x256", "-o", "m.atn")
    done = cli(*arguments, cwd=tmp_path)
    assert "--const NAME=VALUE" in done.err
    np.savez(tmp_path / "high.npz", x=np.ones((4, 256), np.float32), is_high=np.array(True))
    done = cli(*arguments, "--check-input", "high.npz", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "on given" in done.err
    assert "Unable to handle" not in done.err  # a number is an array as well
    bound = cli(*arguments, "--const", "is_high=true", cwd=tmp_path)
    assert bound.code == 0
    assert "in ONNX Runtime (docs" not in bound.err


def test_inputs_that_decide_shapes_are_named_with_the_option(cli: Cli, tmp_path: Path) -> None:
    text = """
    reshaped (float[2,6] x, int64[2] to, int64[64] places) => (float[p,q] y) {
      a = Reshape (x, to)
      y = Relu (a)
    }"""
    arguments = ("compile", models.saved(text, tmp_path), "-o", "m.atn", "--no-check")
    done = cli(*arguments, cwd=tmp_path)
    assert done.code == 0
    assert "can be bound: --const to=VALUE\n" in done.err
    bound = cli(*arguments, "--const", "to=3,4", cwd=tmp_path)
    assert bound.code == 0
    assert "ONNX Runtime" not in bound.err


def test_where_nothing_is_computed_tune_does_not_blame_onnxruntime(
    cli: Cli, tmp_path: Path
) -> None:
    text = "empty (float[0,6] x) => (float[0,6] y) { y = Relu (x) }"
    done = cli("tune", models.saved(text, tmp_path), "--time", "2s", cwd=tmp_path)
    assert done.code == 1
    assert "nothing to tune in empty.onnx: it computes nothing at these shapes" in done.err
    assert "ONNX Runtime" not in done.err


def test_no_fallback_names_all_that_is_missing(cli: Cli, tmp_path: Path) -> None:
    text = models.DETECTOR.replace(
        "e = Sigmoid (d)", "e0 = Sigmoid (d)\n  e = RandomNormalLike (e0)"
    )
    done = cli("compile", models.saved(text, tmp_path), "--no-fallback", cwd=tmp_path)
    assert done.code == 1
    for part in ("'RandomNormalLike' (1 node", "'com.microsoft.Unique' (1 node"):
        assert part in done.err
    assert not list(tmp_path.glob("*.atn"))


def test_without_onnxruntime_there_is_one_line(cli: Cli, tmp_path: Path) -> None:
    path = models.saved(models.TREES, tmp_path)
    assert cli("compile", path, "-o", "m.atn", cwd=tmp_path).code == 0
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "onnxruntime.py").write_text("raise ImportError('not here')\n")
    lacking = {"PYTHONPATH": f"{hidden}:{Path(autotune.__file__).parent.parent}"}
    for arguments in (("compile", path, "-o", "n.atn"), ("run", "m.atn"), ("tune", path)):
        done = cli(*arguments, cwd=tmp_path, **lacking)
        assert done.code == 1, done.err
        lines = done.err.splitlines()[-2:]
        assert lines[0].startswith("error: ")
        assert "onnxruntime" in lines[0]
        assert lines[1].startswith("hint: pip install 'autotune-compiler[fallback]'")
    assert not (tmp_path / "n.atn").exists()


def test_what_onnxruntime_does_not_know_either_is_refused(cli: Cli, tmp_path: Path) -> None:
    text = models.TREES.replace("a = MatMul", "x0 = nobody.Knows (x)\n  a = MatMul").replace(
        "(x, w1)", "(x0, w1)"
    )
    done = cli("compile", models.saved(text, tmp_path), cwd=tmp_path)
    assert done.code == 1
    assert "'nobody.Knows'" in done.err.splitlines()[-2]


def test_a_model_with_nothing_to_tune_says_so(cli: Cli, tmp_path: Path) -> None:
    done = cli("tune", models.saved(models.ENCODED, tmp_path), cwd=tmp_path)
    assert done.code == 1
    assert "nothing to tune" in done.err.splitlines()[-2]
    assert not (tmp_path / "logs").exists()
