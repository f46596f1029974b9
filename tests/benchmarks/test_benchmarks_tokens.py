"""A benchmark of tokens feeds a cache back and writes a row for each runtime."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
from click.testing import CliRunner

from benchmarks.tokens import main, plain_loop


def decoder(path: Path) -> Path:
    """Tokens behind a cache of tokens, (batch, 1, places, 1)."""
    axes = oh.make_tensor("axes", 7, [2], [1, 3])
    nodes = [
        oh.make_node("Cast", ["input_ids"], ["x"], to=1),
        oh.make_node("Unsqueeze", ["x", "axes"], ["new"]),
        oh.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        oh.make_node("ReduceSum", ["present.0.key"], ["logits"]),
    ]
    value = oh.make_tensor_value_info
    inputs = [
        value("input_ids", 7, ["batch", "n"]),
        value("past_key_values.0.key", 1, ["batch", 1, "past", 1]),
    ]
    outputs = [
        value("logits", 1, [1, 1, 1, 1]),
        value("present.0.key", 1, ["batch", 1, "past + n", 1]),
    ]
    graph = oh.make_graph(nodes, "decoder", inputs, outputs, [axes])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_each_runtime_has_a_row_of_times(tmp_path: Path) -> None:
    out = tmp_path / "tokens.csv"
    words = [str(decoder(tmp_path / "m.onnx")), "--machine", "X", "--past", "6", "--tokens", "2"]
    done = CliRunner().invoke(main, [*words, "--rounds", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert (row["machine"], row["runtime"], row["past"]) == ("X", "onnxruntime", "6")
    assert min(float(row["prompt_ms"]), float(row["token_ms"])) > 0


def test_each_sequence_begins_without_places(tmp_path: Path) -> None:
    begin = plain_loop(decoder(tmp_path / "m.onnx"), 1)
    first, second = begin(), begin()
    prompt = np.array([[1, 2, 3]])
    sums = [np.sum(step(prompt)["logits"]) for step in (first, second, first)]
    assert sums == [6, 6, 12]
