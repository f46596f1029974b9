"""A model at several shapes through the commands: tasks, compile, run, bench."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from autotune.cli.main import run
from tests.cli.conftest import Cli, mlp


@pytest.fixture(scope="module")
def folder(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.onnx, whose batch `n` is open, and m.atn for a batch of 1 and of 4."""
    path = tmp_path_factory.mktemp("variants")
    onnx.save(mlp(batch="n"), path / "m.onnx")
    done = cli("compile", "m.onnx", "--dim", "n=1,4", "-o", "m.atn", "--threads", 1, cwd=path)
    assert done.code == 0, done.err
    assert "2 variants" in done.err
    return path


def test_run_takes_the_variant_of_its_input(cli: Cli, folder: Path) -> None:
    for batch, code in ((1, 0), (4, 0), (3, 2)):
        np.save(folder / "x.npy", np.ones((batch, 8), np.float32))
        done = cli("run", "m.atn", "--input", "x.npy", "-o", "y.npz", cwd=folder)
        assert done.code == code, done.err
        if code == 0:
            (y,) = np.load(folder / "y.npz").values()
            assert y.shape[0] == batch
        else:
            assert "no variant is for inputs of shape x 3x8" in done.err
            assert "x 1x8; x 4x8" in done.err


def test_bench_measures_every_variant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(folder / "m.atn")
    assert run(["bench", out, "--time", "5ms", "--format", "json"]) == 0
    variants = json.loads(capsys.readouterr().out)["variants"]
    assert [v["inputs"] for v in variants] == [{"x": [1, 8]}, {"x": [4, 8]}]
    assert all(v["autotune"]["median_s"] > 0 for v in variants)
    assert run(["bench", out, "--time", "5ms", "--per-task"]) == 0
    assert "x 4x8:" in capsys.readouterr().out


def test_tasks_are_listed_for_every_variant(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tasks", str(folder / "m.onnx"), "--dim", "n=1:0.9,4:0.1"]
    assert run(command) == 0
    text = capsys.readouterr().out
    assert "x 1x8: 90 % of inferences" in text
    assert "x 4x8: 10 % of inferences" in text
    assert run([*command, "--format", "json"]) == 0
    tasks = json.loads(capsys.readouterr().out)
    assert [t["id"] for t in tasks] == list(range(len(tasks)))
    assert {t["share"] for t in tasks} == {0.9, 0.1}
