"""The server of detectors: boxes in pixels of the image that was sent, and bodies that are none."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import autotune
from tests.serving import Server, needs, started

pytestmark = needs("fastapi", "uvicorn", "PIL")
Image: Any = None
with suppress(ImportError):
    from PIL import Image  # type: ignore[no-redef]

SIDE, CLASSES = 32, 2
TEXT = f"""<ir_version: 9, opset_import: ["" : 18]>
m (float[1,3,{SIDE},{SIDE}] image) => (float[1,{4 + CLASSES},5] boxes) {{
  mean = GlobalAveragePool (image)
  bright = ReduceMax <keepdims = 0> (mean, all)
  boxes = Mul (known, bright)
}}"""
BOXES = np.array(
    [
        [8, 8, 8, 8, 0.9, 0.1],
        [9, 8, 8, 8, 0.8, 0.1],  # overlaps the first one, of its class
        [9, 8, 8, 8, 0.1, 0.7],  # overlaps it, of another class
        [24, 24, 4, 4, 0.6, 0.1],
        [4, 24, 4, 4, 0.1, 0.1],  # too unlikely
    ],
    np.float32,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("detector")
    model = parser.parse_model(TEXT)
    arrays = {"known": BOXES.T[None].copy(), "all": np.array([0, 1, 2, 3])}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    onnx.checker.check_model(model)
    autotune.compile(model, check=False).artifact.save(folder / "model.atn")
    (folder / "names.txt").write_text("cat\ndog\n")
    with started("detector.py", folder / "model.atn", "--labels", folder / "names.txt") as made:
        yield made


def image(width: int, height: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    if Image is None:
        return b""
    file = io.BytesIO()
    colour = {"L": 255, "RGBA": (255, 255, 255, 255)}.get(mode, (255, 255, 255))
    Image.new(mode, (width, height), colour).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "scale"),
    [
        (image(SIDE, SIDE), 1.0),
        (image(4 * SIDE, 4 * SIDE, "JPEG"), 0.25),
        (image(SIDE, SIDE, "PNG", "RGBA"), 1.0),
        (image(SIDE // 2, SIDE // 2, "PNG", "L"), 2.0),
    ],
    ids=["png", "jpeg", "transparent", "grey"],
)
def test_boxes_are_in_pixels_of_the_image(body: bytes, scale: float, server: Server) -> None:
    status, answer = server.ask("/detect", body)
    found = json.loads(answer)
    assert status == 200
    assert [(one["label"], round(one["score"], 2)) for one in found] == [
        ("cat", 0.9),
        ("dog", 0.7),
        ("cat", 0.6),
    ]
    assert np.allclose(found[0]["box"], np.array([4, 4, 12, 12]) / scale, atol=0.1)


def test_a_dark_image_has_no_boxes(server: Server) -> None:
    body = image(SIDE, 1)  # padding is black, and the mean with it
    assert server.ask("/detect", body) == (200, b"[]")


NO_IMAGES = {"empty": b"", "text": b"no image", "cut": image(9, 9)[:40], "png": image(9, 9)[:8]}


@pytest.mark.parametrize("body", NO_IMAGES.values(), ids=NO_IMAGES.keys())
def test_what_is_no_image_is_refused(body: bytes, server: Server) -> None:
    assert server.ask("/detect", body) == (400, b"the body is no image\n")


def test_an_image_of_too_many_pixels_is_refused(server: Server) -> None:
    header = b"IHDR" + struct.pack(">II", 20_000, 4_000) + image(9, 9)[24:29]
    body = image(9, 9)[:12] + header + struct.pack(">I", zlib.crc32(header)) + image(9, 9)[33:]
    status, answer = server.ask("/detect", body)
    assert (status, answer) == (413, b"an image has at most 50000000 pixels\n")
