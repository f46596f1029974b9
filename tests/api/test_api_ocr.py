"""The server of examples/serving that reads text: lines of an image with their boxes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import autotune
from tests.serving import Server, needs, started

pytestmark = needs("fastapi", "uvicorn", "PIL")
Image: Any = None
boxes_of: Any = None
with suppress(ImportError):
    from ocr import boxes_of  # type: ignore[no-redef]
    from PIL import Image  # type: ignore[no-redef]

DETECTOR = """<ir_version: 9, opset_import: ["" : 18]>
bright (float[1,3,height,width] image) => (float[1,1,height,width] likely) {
  mean = ReduceMean <keepdims = 1> (image, channels)
  more = Add (mean, one)
  likely = Mul (more, half)
}"""
RECOGNISER = """<ir_version: 9, opset_import: ["" : 18]>
levels (float[batch,3,48,width] line) => (float[batch,places,4] likely) {
  peak = MaxPool <kernel_shape = [48, 8], strides = [48, 8]> (line)
  mean = ReduceMean <keepdims = 0> (peak, rows)
  column = Unsqueeze (mean, last)
  off = Sub (column, levels)
  square = Mul (off, off)
  sharp = Mul (square, scale)
  likely = Softmax (sharp)
}"""
LEVELS = {"a": 217, "b": 255}
"""The brightness of a character; none is black."""
ARRAYS = {
    "channels": np.array([1]),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "rows": np.array([1, 2]),
    "last": np.array([2]),
    "levels": np.array([-1, LEVELS["a"] / 127.5 - 1, 1, 0], np.float32),
    "scale": np.float32(-100),
}


def _compiled(text: str, path: Path, **dims: str) -> Path:
    model = parser.parse_model(text)
    reads = {name for node in model.graph.node for name in node.input}
    arrays = {name: np.asarray(a) for name, a in ARRAYS.items() if name in reads}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    onnx.checker.check_model(model)
    autotune.compile(model, dims=dims, check=False).artifact.save(path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("ocr")
    (folder / "characters.txt").write_text("a\nb\n")
    return (
        _compiled(DETECTOR, folder / "det.atn", height="..128/32", width="..192/32"),
        _compiled(RECOGNISER, folder / "rec.atn", batch="..2", width="..200/8"),
        folder / "characters.txt",
    )


@pytest.fixture(scope="module")
def server(models: tuple[Path, Path, Path]) -> Iterator[Server]:
    with started("ocr.py", *models) as made:
        yield made


def page(*lines: tuple[int, int, str], size: tuple[int, int] = (160, 96), scale: int = 1) -> bytes:
    """An image of lines, each 16 high, of characters 24 wide."""
    pixels = np.zeros((size[1], size[0]), np.uint8)
    for left, top, text in lines:
        for n, character in enumerate(text):
            pixels[top : top + 16, left + 24 * n : left + 24 * n + 24] = LEVELS[character]
    out = io.BytesIO()
    Image.fromarray(np.kron(pixels, np.ones((scale, scale), np.uint8))).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("scale", [1, 3])
def test_lines_are_read_from_top_to_bottom_with_their_boxes(server: Server, scale: int) -> None:
    lines = (16, 64, "ab"), (40, 8, "bab"), (100, 66, "ba")
    status, body = server.ask("/ocr", page(*lines, scale=scale))
    assert status == 200
    found = json.loads(body)
    assert [one["text"].strip() for one in found] == ["bab", "ab", "ba"]
    for one, (left, top, text) in zip(found, sorted(lines, key=lambda x: x[1]), strict=True):
        box, inside = one["box"], (left, top, left + 24 * len(text), top + 16)
        assert all(a <= scale * b + 2 for a, b in zip(box[:2], inside[:2], strict=True))
        assert all(a >= scale * b - 2 for a, b in zip(box[2:], inside[2:], strict=True))
        assert 0.5 < one["score"] <= 1


def test_an_image_without_text_has_no_lines(server: Server) -> None:
    assert server.post("/ocr", 0)[0] == 400
    status, body = server.ask("/ocr", page(size=(8, 300)))
    assert (status, json.loads(body)) == (200, [])


def test_characters_that_are_not_those_of_the_model_are_refused(
    models: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("a\nb\nc\nd\n")
    with started("ocr.py", *models[:2], tmp_path / "more.txt") as made:
        assert made.process.wait(60) == 2
        assert made.process.stderr is not None
        assert "knows 3 characters, not 4" in made.process.stderr.read()


def test_boxes_are_those_of_pixels_that_touch(rng: np.random.Generator) -> None:
    for density in np.linspace(0.05, 0.9, 60):
        is_text = rng.random((17, 23)) < density
        found = sorted(tuple(box) for box in boxes_of(is_text))
        assert found == sorted(_flooded(is_text))


def _flooded(is_text: NDArray[np.bool_]) -> Iterator[tuple[int, int, int, int]]:
    left = {(int(y), int(x)) for y, x in np.argwhere(is_text)}
    while left:
        waiting, found = [left.pop()], []
        while waiting:
            y, x = waiting.pop()
            found.append((y, x))
            beside = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= beside
            waiting += beside
        rows, columns = zip(*found, strict=True)
        box = min(columns), min(rows), max(columns) + 1, max(rows) + 1
        if min(box[2] - box[0], box[3] - box[1]) >= 3:
            yield box
