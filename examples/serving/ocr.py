"""A server that reads text: an image in, lines with their boxes out.

    pip install 'autotune-compiler[examples]'
    autotune compile det.onnx --dim BATCH=1 --dim HEIGHT=..960/32 --dim WIDTH=..960/32 -o det.atn
    autotune compile rec.onnx --dim BATCH=..6 --dim HEIGHT=48 --dim WIDTH=..960/8 -o rec.atn
    python examples/serving/ocr.py det.atn rec.atn characters.txt
    curl --data-binary @page.png localhost:8000/ocr

The models are those of PaddleOCR, as rapidocr's wheel has them: a detector [1, 3, H, W] whose
output [1, 1, H, W] says how likely a pixel is text, and a recogniser [batch, 3, 48, W] of lines
whose output [batch, places, characters] has no character first. Their dimensions have names of
their own, which `autotune compile` tells. Lines lie level: boxes are upright. `characters.txt` has
a character a line; rapidocr's recogniser has that text in its file:
`onnx.load(FILE).metadata_props[0].value`. What else it does: `service`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
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
_TEXT, _SURE = 0.3, 0.5
"""How likely a pixel is text, and the pixels of a line are on average, at least."""
_WIDER = 1.6
"""What the detector finds are the middles of lines: by area over circumference, so often."""
_LEAST_PIXELS = 3


class Box(NamedTuple):
    """An upright box, in pixels."""

    left: int
    top: int
    right: int
    bottom: int


class Reader(Batcher[bytes, list[dict[str, Any]]]):
    """A detector of lines and a recogniser. Raises UsageError for other kinds of models."""

    def __init__(
        self,
        detector: autotune.Model,
        recogniser: autotune.Model,
        characters: Sequence[str],
        most_waiting: int = MOST_WAITING,
    ) -> None:
        super().__init__(self._read, lambda waiting: 1, most_waiting)
        self.detector, self.recogniser = detector, recogniser
        _require(detector, 4, "maps of text")
        _require(recogniser, 3, "characters of lines")
        self.most_height, self.most_width = detector.input_info[0].shape[2:]
        self.most_rows, _, self.height, self.longest = recogniser.input_info[0].shape
        self.characters = ["", *characters, " "]
        n = recogniser.output_info[0].shape[2]
        if n not in (len(self.characters), len(self.characters) - 1):
            raise autotune.UsageError(
                f"'{recogniser.artifact.name}' knows {n - 1} characters, not {len(characters)}",
                "give the characters that it was trained with, one a line",
            )

    async def _read(self, bodies: list[bytes]) -> list[list[dict[str, Any]]]:
        return [await asyncio.to_thread(self.read, body) for body in bodies]

    def read(self, body: bytes) -> list[dict[str, Any]]:
        """Lines of an image, from top to bottom. Raises Refused."""
        image = image_of(body)
        boxes = list(self.boxes(image))
        texts = self.texts([image.crop(box) for box in boxes])
        return [
            {"box": list(box), "text": text, "score": round(score, 4)}
            for box, (text, score) in zip(boxes, texts, strict=True)
            if text
        ]

    def boxes(self, image: Image.Image) -> Iterator[Box]:
        """Boxes of lines, in reading order."""
        scale = min(1.0, self.most_width / image.width, self.most_height / image.height)
        size = [max(32, round(n * scale / 32) * 32) for n in image.size]
        resized = image.resize((size[0], size[1]), Image.Resampling.BILINEAR)
        likely = next(iter(self.detector.run([_pixels(resized)[None]]).values()))[0, 0]
        over = image.width / size[0], image.height / size[1]
        found = [box for box in boxes_of(likely > _TEXT) if _mean(likely, box) >= _SURE]
        for box in sorted(found, key=lambda b: (b.top + b.bottom, b.left)):
            whole = _wider(box)
            left, right = (round(x * over[0]) for x in (whole.left, whole.right))
            top, bottom = (round(y * over[1]) for y in (whole.top, whole.bottom))
            yield Box(max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height))

    def texts(self, lines: Sequence[Image.Image]) -> list[tuple[str, float]]:
        """Text and score of each line; those of like widths are run together."""
        widths = [min(self.longest, -(-self.height * i.width // i.height)) for i in lines]
        found: dict[int, tuple[str, float]] = {}
        order = sorted(range(len(lines)), key=lambda n: widths[n])
        for begin in range(0, len(order), self.most_rows):
            part = order[begin : begin + self.most_rows]
            width = min(self.longest, -(-widths[part[-1]] // 8) * 8)
            batch = np.zeros((len(part), 3, self.height, width), np.float32)
            for row, n in enumerate(part):
                resized = lines[n].resize((widths[n], self.height), Image.Resampling.BILINEAR)
                batch[row, :, :, : widths[n]] = _pixels(resized)
            likely = next(iter(self.recogniser.run([batch]).values()))
            found |= {n: self._text(one) for n, one in zip(part, likely, strict=True)}
        return [found[n] for n in range(len(lines))]

    def _text(self, likely: Floats) -> tuple[str, float]:
        """The likeliest character of each place; the same one again is none more (CTC)."""
        best = likely.argmax(1)
        is_new = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
        text = "".join(self.characters[k] for k in best[is_new])
        return text, float(likely.max(1)[is_new].mean()) if text else 0.0


def _require(model: autotune.Model, rank: int, what: str) -> None:
    ranks = [len(end.shape) for end in (*model.input_info, *model.output_info)]
    if ranks != [4, rank]:
        raise autotune.UsageError(
            f"'{model.artifact.name}' has not images in and {what} out",
            "give the detector first, then the recogniser",
        )


def _pixels(image: Image.Image) -> Floats:
    """[3, H, W] of BGR from -1 to 1."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray(pixels / 127.5 - 1)


def _mean(likely: Floats, box: Box) -> float:
    inside = likely[box.top : box.bottom, box.left : box.right]
    return float(inside[inside > _TEXT].mean())


def _wider(box: Box) -> Box:
    width, height = box.right - box.left, box.bottom - box.top
    by = round(width * height * _WIDER / (2 * (width + height)))
    return Box(box.left - by, box.top - by, box.right + by, box.bottom + by)


def boxes_of(is_text: NDArray[np.bool_]) -> Iterator[Box]:
    """Boxes around pixels that touch each other, corners included."""
    found: list[list[int]] = []
    above: list[tuple[int, int, int]] = []
    joined: list[int] = []

    def whole(n: int) -> int:
        while joined[n] != n:
            n = joined[n]
        return n

    for y, row in enumerate(is_text):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        here = []
        for left, right in edges.reshape(-1, 2).tolist():
            n = len(found)
            found.append([left, y, right, y + 1])
            joined.append(n)
            for begin, end, other in above:
                if begin <= right and left <= end:
                    a, b = whole(other), whole(n)
                    joined[b] = a
                    if a != b:
                        one, more = found[a], found[b]
                        found[a] = [*map(min, one[:2], more[:2]), *map(max, one[2:], more[2:])]
            here.append((left, right, n))
        above = here
    for n, box in enumerate(found):
        if joined[n] == n and min(box[2] - box[0], box[3] - box[1]) >= _LEAST_PIXELS:
            yield Box(*box)


def app() -> FastAPI:
    """The application, of the environment's DETECTOR, RECOGNISER, CHARACTERS and THREADS."""
    characters = Path(os.environ["CHARACTERS"]).read_text("utf-8").split("\n")
    characters = characters[:-1] if characters[-1] == "" else characters
    detector, recogniser = model_of("DETECTOR"), model_of("RECOGNISER")
    reader = Reader(detector, recogniser, characters)

    async def read(body: bytes) -> Response:
        (found,) = await reader.answers([body])
        return Response(json.dumps(found), media_type="application/json")

    service = Service(recogniser.artifact.name, reader, _MOST_BYTES)
    service.post("/ocr", read)
    return service.app


def main() -> None:
    """Serve a reader of text."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("detector", type=Path)
    parser.add_argument("recogniser", type=Path)
    parser.add_argument("characters", type=Path, help="what the recogniser knows, one a line")
    serve("ocr:app", parser)


if __name__ == "__main__":
    main()
