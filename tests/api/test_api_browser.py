"""The pages of `examples/browser`, in a browser: a classifier and a decoder."""

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
from autotune.network.runtime.loading import model_of
from benchmarks.web import browser, served, shown
from tests.decoders import decoder

PAGE = Path(__file__).parents[2] / "examples/browser"
SIZE, N_CLASSES = 32, 7
PICTURE = (210, 120, 30)  # red, green, blue of all points
WATCH = """<!doctype html>
<iframe id="page" src="PAGE"></iframe>
<script>
const look = () => {
  const rows = [...page.contentDocument.querySelectorAll("ROWS")];
  const status = page.contentDocument.querySelector("#status")?.textContent;
  const texts = [status, rows.map((row) => [...row.querySelectorAll("span, data")]
      .map((part) => part.textContent).join("|") || row.textContent)];
  if (/DONE/.test(status)) fetch("/told", {method: "POST", body: JSON.stringify(texts)});
  else setTimeout(look, 100);
};
look();
</script>"""
"""Tells what the page shows as soon as its status says that it is done, however late that is."""


def told_by(folder: Path, page: str, rows: str, done: str) -> tuple[str, list[str]]:
    """The status and the rows of `page`, in a copy of the examples in `folder`."""
    command = browser()
    assert command is not None
    shutil.copytree(PAGE, folder, dirs_exist_ok=True)
    text = WATCH.replace("PAGE", page).replace("ROWS", rows).replace("DONE", done)
    (folder / "watch.html").write_text(text)
    with served(folder) as (address, told), shown(command, f"{address}/watch.html"):
        status, found = json.loads(told.get(timeout=300))
    return status, found


@pytest.fixture(autouse=True)
def _needs() -> None:
    if browser() is None:
        pytest.skip("no browser is installed")
    if find_spec("ziglang") is None and shutil.which("wasm-ld") is None:
        pytest.skip("neither ziglang nor wasm-ld is installed")


def test_the_page_shows_the_classes_of_a_picture(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).normal(size=(3, N_CLASSES)).astype(np.float32)
    artifact = autotune.compile(classifier(weights), target="wasm32", check=False).artifact
    autotune.export(artifact, tmp_path / "classifier", "classifier")
    (tmp_path / "labels.json").write_text(json.dumps([f"kind {n}" for n in range(N_CLASSES)]))
    (tmp_path / "picture.bmp").write_bytes(bitmap())
    _, told = told_by(tmp_path, "index.html?picture=picture.bmp", "#classes li", "ms on")
    rows = [row.split("|") for row in told]
    found = [(name, float(share.removesuffix(" %")) / 100) for name, share in rows]
    scores = (np.array(PICTURE, np.float32) - 127) / 128 @ weights
    shares = np.exp(scores) / np.exp(scores).sum()
    expected = [(f"kind {n}", shares[n]) for n in np.argsort(-shares)[:5]]
    assert [name for name, _ in found] == [name for name, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-3)


def test_a_decoder_in_the_browser_finds_the_tokens_of_python(tmp_path: Path) -> None:
    model, prompt, n = decoder(layers=4, mask=False), [3, 1, 4], 8
    made = autotune.compile(model, target="wasm32", threads=2, capacity=32, check=False)
    autotune.export(made.artifact, tmp_path / "decoder", "decoder")
    here = autotune.compile(model, threads=1, capacity=32, check=False).artifact
    session, tokens = model_of(here).session(), list(prompt)
    for k in range(n):
        tokens.append(int(session.step(np.array([tokens[-1:] if k else prompt]))[0, -1].argmax()))
    status, found = told_by(tmp_path, "tokens.html?prompt=3,1,4&n=8", "#tokens li", "tokens a")
    assert list(map(int, found)) == tokens
    assert len({*tokens[3:]}) > 2  # other tokens than one again and again
    assert status.endswith("on 2 threads")


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
