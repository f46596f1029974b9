"""The page of `examples/browser` classifies a picture in a browser."""

from __future__ import annotations

import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper
import pytest

import autotune
from benchmarks.web import browser, served, shown

PAGE = Path(__file__).parents[2] / "examples/browser"
SIZE, N_CLASSES = 32, 7
PICTURE = (210, 120, 30)  # red, green, blue of all points
WATCH = """<!doctype html>
<iframe id="page" src="index.html?picture=picture.bmp"></iframe>
<script>
const look = () => {
  const rows = [...page.contentDocument.querySelectorAll("#classes li")];
  const texts = rows.map((row) => ["span", "data"].map((n) => row.querySelector(n).textContent));
  if (rows.length) fetch("/told", {method: "POST", body: JSON.stringify(texts)});
  else setTimeout(look, 100);
};
look();
</script>"""
"""Tells what the page shows as soon as it shows something, however late that is."""


def test_the_page_shows_the_classes_of_a_picture(tmp_path: Path) -> None:
    command = browser()
    if command is None:
        pytest.skip("no browser is installed")
    if find_spec("ziglang") is None and shutil.which("wasm-ld") is None:
        pytest.skip("neither ziglang nor wasm-ld is installed")
    weights = np.random.default_rng(3).normal(size=(3, N_CLASSES)).astype(np.float32)
    shutil.copytree(PAGE, tmp_path, dirs_exist_ok=True)
    artifact = autotune.compile(classifier(weights), target="wasm32", check=False).artifact
    autotune.export(artifact, tmp_path / "classifier", "classifier")
    (tmp_path / "labels.json").write_text(json.dumps([f"kind {n}" for n in range(N_CLASSES)]))
    (tmp_path / "picture.bmp").write_bytes(bitmap())
    (tmp_path / "watch.html").write_text(WATCH)
    with served(tmp_path) as (address, told), shown(command, f"{address}/watch.html"):
        rows = json.loads(told.get(timeout=300))
    found = [(name, float(share.removesuffix(" %")) / 100) for name, share in rows]
    scores = (np.array(PICTURE, np.float32) - 127) / 128 @ weights
    shares = np.exp(scores) / np.exp(scores).sum()
    expected = [(f"kind {n}", shares[n]) for n in np.argsort(-shares)[:5]]
    assert [name for name, _ in found] == [name for name, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-3)


def classifier(weights: np.ndarray) -> onnx.ModelProto:
    """Scores of the mean colour."""
    nodes = [
        oh.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0),
        oh.make_node("MatMul", ["mean", "weights"], ["scores"]),
    ]
    value = oh.make_tensor_value_info
    graph = oh.make_graph(
        nodes,
        "classifier",
        [value("image", onnx.TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [value("scores", onnx.TensorProto.FLOAT, [1, N_CLASSES])],
        [
            onnx.numpy_helper.from_array(weights, "weights"),
            onnx.numpy_helper.from_array(np.array([2, 3]), "axes"),
        ],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)


def bitmap(width: int = 40, height: int = 30) -> bytes:
    """A picture of one colour as a BMP file."""
    points = bytes(PICTURE[::-1]) * (width * height)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(points), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(points), 0, 0, 54) + head + points
