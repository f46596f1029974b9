"""A benchmark of tokens writes a row for each runtime."""

from __future__ import annotations

import csv
from pathlib import Path

import onnx
from click.testing import CliRunner

from benchmarks.tokens import main
from tests.decoders import decoder


def test_each_runtime_has_a_row_of_times(tmp_path: Path) -> None:
    out = tmp_path / "tokens.csv"
    onnx.save(decoder(), tmp_path / "m.onnx")
    words = [str(tmp_path / "m.onnx"), "--machine", "X", "--past", "6", "--tokens", "2"]
    done = CliRunner().invoke(main, [*words, "--seconds", "0.05", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["runtime"] for row in rows] == ["autotune", "onnxruntime"]
    for row in rows:
        assert (row["machine"], row["past"]) == ("X", "6")
        assert min(float(row["prompt_ms"]), float(row["token_ms"])) > 0
