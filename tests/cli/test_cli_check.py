"""`compile --check-input`: a file of the user's, looked at before the work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.conftest import Cli

Arrays = dict[str, NDArray[Any]]


def test_the_check_takes_a_file(cli: Cli, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.full((4, 8), 7.5, np.float32))
    out = tmp_path / "m.atn"
    done = cli("compile", model, "-o", out, "--check-input", tmp_path / "x.npz")
    assert done.code == 0, done.err
    assert "outputs agree with ONNX Runtime on given, normal, uniform inputs" in done.err
    done = cli("compile", model, "-o", out, "--no-check", "--check-input", tmp_path / "x.npz")
    assert done.code == 2
    assert "error: --check-input is for the check" in done.err


def test_the_check_takes_a_folder_and_reports_in_json(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for n in range(3):
        np.save(folder / f"{n}.npy", rng.standard_normal((4, 8)).astype(np.float32))
    np.savez(folder / "many.npz", x=rng.standard_normal((8, 8)).astype(np.float32))
    out = tmp_path / "m.atn"
    done = cli("compile", model, "-o", out, "--check-input", folder, "--format", "json")
    assert done.code == 0, done.err
    assert "outputs agree with ONNX Runtime on 5 given, normal, uniform inputs" in done.err
    found = json.loads(done.out)
    assert found["artifact"] == str(out)
    assert found["check"]["n_given"] == 5
    (output,) = found["check"]["outputs"]
    assert 0 <= output["rms"] <= output["error"] < 1e-5
    empty = tmp_path / "empty"
    empty.mkdir()
    done = cli("compile", model, "-o", out, "--check-input", empty)
    assert done.code == 2
    assert "has no .npz or .npy files" in done.err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((4, 8), np.float32)}, "there is no input 'z'; the input is 'x'"),
        ({"x": np.zeros((4, 9), np.float32)}, "input 'x' has shape (4, 9), expected (4, 8)"),
        ({"x": np.zeros((4, 8))}, "input 'x' has dtype float64, expected float32"),
        (None, "x.npz is no NumPy array"),
    ],
)
def test_a_file_that_does_not_fit(
    cli: Cli, model: Path, tmp_path: Path, arrays: Arrays | None, message: str
) -> None:
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 and no more")
    if arrays is not None:
        np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    done = cli("compile", model, "-o", tmp_path / "m.atn", "--check-input", tmp_path / "x.npz")
    assert done.code == 2, done.err
    assert message in done.err
    assert "hint: " in done.err
    assert not (tmp_path / "m.atn").exists()
