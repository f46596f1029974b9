"""Networks over tokens by the command line: tasks, logs, artifacts of them, batches of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import autotune
from tests.small_encoders import LONGEST, MOST_ROWS, Encoder

DIMS = ["--dim", f"batch=..{MOST_ROWS}", "--dim", f"sequence=..{LONGEST}"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ragged") / "encoder.onnx"
    onnx.save(Encoder(1).proto(), str(path))
    return path


def test_a_log_of_rows_compiles_to_rows(cli: Any, model: Path, tmp_path: Path) -> None:
    """Of the tasks over tokens, by the log alone, and bench takes a batch of rows."""
    log, out = tmp_path / "log.jsonl", tmp_path / "encoder.atn"
    budget = ["--trials", "3", "--no-compare", "--threads", "1"]
    done = cli("tune", model, "--ragged", *DIMS, "--log", log, *budget)
    assert done.code == 0, done.err
    done = cli("compile", model, "--log", log, "-o", out, "--no-check")
    assert done.code == 0, done.err
    assert autotune.load(out).is_ragged
    done = cli("bench", out, "--rows", "3,1,7", "--time", "10ms", "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["autotune"]["median_s"] > 0


def test_tasks_are_those_over_tokens(cli: Any, model: Path) -> None:
    plain, packed = (cli("tasks", model, *DIMS, *more) for more in ([], ["--ragged"]))
    assert packed.code == 0, packed.err
    tokens = MOST_ROWS * LONGEST
    assert f"{tokens}x" in packed.out
    assert "Gather" in packed.out
    assert plain.out != packed.out


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x", "'x' is no batch of rows"),
        ("0~5", "'0~5' is no batch of rows"),
        ("3,0", "'3,0' has no lengths of rows"),
        ("1,1,1,1,1,1", "6 rows are no batch of 1 to 5"),
    ],
)
def test_rows_that_are_no_batch(cli: Any, encoder: Path, rows: str, message: str) -> None:
    done = cli("bench", encoder, "--rows", rows)
    assert done.code == 2
    assert message in done.err
    assert "hint:" in done.err


@pytest.fixture(scope="module")
def encoder(model: Path) -> Path:
    path = model.with_suffix(".atn")
    dims = {"batch": f"..{MOST_ROWS}", "sequence": f"..{LONGEST}"}
    autotune.compile(model, dims=dims, ragged=True, check=False).artifact.save(path)
    return path
