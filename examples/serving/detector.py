"""A server of a detector (YOLOv8 and what is exported like it): an image in, boxes out.

    pip install 'autotune-compiler[examples]'
    autotune compile yolo.onnx -o model.atn
    python examples/serving/detector.py model.atn [--labels names.txt] [--least 0.25]
    curl --data-binary @photo.jpg localhost:8000/detect

The model has an input [1, 3, H, W] of RGB from 0 to 1 and an output [1, 4 + classes, n]: centre and
size of boxes in pixels of the input, then a score for each class. What else it does: `service`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fastapi import FastAPI, Response
from images import image_of
from numpy.typing import NDArray
from PIL import Image
from service import Service, model_of, serve
from waiting import MOST_WAITING, Batcher

import autotune

Floats = NDArray[np.float32]
_MOST_BYTES = 20_000_000
_OVERLAP = 0.45
"""Boxes of a class that overlap more (intersection over union) are one."""


class Fitted(NamedTuple):
    """An image as the model takes it, and the scale of its pixels there."""

    pixels: Floats
    scale: float


class Detector(Batcher[bytes, list[dict[str, Any]]]):
    """A detector behind a decoder of images. Raises UsageError for another kind of model."""

    def __init__(
        self,
        model: autotune.Model,
        labels: Sequence[str] = (),
        least: float = 0.25,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        super().__init__(self._detected, lambda waiting: 1, most_waiting)
        shapes = [end.shape for end in (*model.input_info, *model.output_info)]
        is_known = len(shapes) == 2 and [*map(len, shapes)] == [4, 3] and shapes[0][:2] == (1, 3)
        if not is_known:
            raise autotune.UsageError(
                f"'{model.artifact.name}' has not an image in and boxes out",
                "export a detector for one image: input [1, 3, H, W], output [1, 4 + classes, n]",
            )
        self.model, self.labels, self.least = model, labels, least
        self.height, self.width = shapes[0][2:]

    async def _detected(self, bodies: list[bytes]) -> list[list[dict[str, Any]]]:
        return [await asyncio.to_thread(self.detect, body) for body in bodies]

    def detect(self, body: bytes) -> list[dict[str, Any]]:
        """Boxes of an image, the best one first. Raises Refused."""
        fitted = self.fitted(body)
        found = self.model.run([fitted.pixels])
        return self.boxes(next(iter(found.values()))[0], fitted.scale)

    def fitted(self, body: bytes) -> Fitted:
        """The image at the upper left of the model's input, as large as it gets."""
        image = image_of(body)
        scale = min(self.width / image.width, self.height / image.height)
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        pixels = np.zeros((1, 3, self.height, self.width), np.float32)
        resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR), np.float32)
        pixels[0, :, : size[1], : size[0]] = resized.transpose(2, 0, 1) / 255
        return Fitted(pixels, scale)

    def boxes(self, found: Floats, scale: float) -> list[dict[str, Any]]:
        """Boxes of [4 + classes, n] above the least score that overlap no better one."""
        scores = found[4:].max(0)
        kept = np.flatnonzero(scores >= self.least)
        kept = kept[np.argsort(-scores[kept], kind="stable")]
        kinds, (x, y, w, h) = found[4:, kept].argmax(0), found[:4, kept]
        corners = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1)
        return [
            {
                "box": [round(float(v) / scale, 1) for v in corners[k]],
                "label": self.labels[kinds[k]] if self.labels else int(kinds[k]),
                "score": round(float(scores[kept[k]]), 4),
            }
            for k in _apart(corners, kinds)
        ]


def _apart(corners: Floats, kinds: NDArray[np.int64]) -> list[int]:
    """Numbers of boxes, best ones first, that overlap no better one of their class."""
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    left, found = np.ones(len(corners), bool), []
    for k in range(len(corners)):
        if left[k]:
            found.append(k)
            low = np.maximum(corners[:, :2], corners[k, :2])
            high = np.minimum(corners[:, 2:], corners[k, 2:])
            both = np.prod(np.clip(high - low, 0, None), axis=1)
            left &= (both <= _OVERLAP * (areas + areas[k] - both)) | (kinds != kinds[k])
    return found


def app() -> FastAPI:
    """The application, of the environment's MODEL, LABELS, LEAST and THREADS."""
    model, file = model_of(), os.environ.get("LABELS")
    labels = Path(file).read_text("utf-8").splitlines() if file else ()
    detector = Detector(model, labels, float(os.environ.get("LEAST", "0.25")))

    async def detect(body: bytes) -> Response:
        (found,) = await detector.answers([body])
        return Response(json.dumps(found), media_type="application/json")

    service = Service(model.artifact.name, detector, _MOST_BYTES)
    service.post("/detect", detect)
    return service.app


def main() -> None:
    """Serve a detector."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--labels", type=Path, help="names of the classes, a line each")
    parser.add_argument("--least", type=float, help="score of a box, at least")
    serve("detector:app", parser)


if __name__ == "__main__":
    main()
