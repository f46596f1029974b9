"""Inputs of the kinds that `real_models` are for: pages, sound, text, tokens, graphs.

Every function returns the feeds of a few inferences. All are seeded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.exports import CACHE, N_EDGES, N_FEATURES, N_POINTS, VOCABULARY

Array = NDArray[Any]
Feed = dict[str, Array]

_LETTERS = {  # rows of 5 points, most significant bit left
    "A": (14, 17, 17, 31, 17, 17, 17),
    "E": (31, 16, 16, 30, 16, 16, 31),
    "N": (17, 25, 21, 19, 17, 17, 17),
    "O": (14, 17, 17, 17, 17, 17, 14),
    "T": (31, 4, 4, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 17, 17, 14),
}
_WORDS = ("AUTOTUNE", "NO TONE", "TEN NUTS", "ATE ONE")


def _letters(word: str, scale: int) -> Array:
    """Ink (1) on paper (0), seven points high, each `scale` pixels."""
    columns: list[Array] = [np.zeros((7, 1), np.float32)]
    for letter in word:
        rows = np.array(_LETTERS.get(letter, (0,) * 7), np.uint8)[:, None]
        columns += [np.unpackbits(rows, axis=1)[:, 3:].astype(np.float32), np.zeros((7, 1))]
    return np.kron(np.concatenate(columns, axis=1), np.ones((scale, scale), np.float32))


def _written(height: int, width: int, scale: int, seed: int) -> Array:
    """Light paper with grain and lines of words, 0 to 1."""
    rng = np.random.default_rng(seed)
    ink = np.zeros((height, width), np.float32)
    for n, top in enumerate(range(scale, height - 7 * scale, 12 * scale)):
        word = _letters(_WORDS[(n + seed) % len(_WORDS)], scale)[:, : width - scale]
        left = int(rng.integers(0, max(1, width - word.shape[1])))
        ink[top : top + word.shape[0], left : left + word.shape[1]] = word
    paper = 0.9 + 0.03 * rng.standard_normal((height, width))
    return np.clip(np.where(ink > 0, 0.1, paper), 0, 1).astype(np.float32)


def page(name: str, size: int, scale: float = 2.0) -> list[Feed]:
    """Pages of `size`² in three equal channels: -1 to 1, or 0 to `scale` if that is larger."""
    shift = -1.0 if scale == 2.0 else 0.0
    pages = [_written(size, size, 3, seed)[None, None] * scale + shift for seed in range(2)]
    return [{name: np.repeat(p, 3, axis=1).astype(np.float32)} for p in pages]


def line(name: str, height: int, width: int, channels: int = 3) -> list[Feed]:
    """A line of a page, -1 to 1."""
    lines = [_written(height, width, height // 9, seed)[None, None] * 2 - 1 for seed in range(2)]
    return [{name: np.repeat(x, channels, axis=1).astype(np.float32)} for x in lines]


def photo(size: int) -> list[Feed]:
    """Patches of colour with grain, 0 to 1, in three channels."""
    rng = np.random.default_rng(0)
    patches = np.kron(rng.random((3, 8, 8)), np.ones((size // 8, size // 8)))
    grain = 0.1 * rng.standard_normal((3, size, size))
    return [{"image": np.clip(patches + grain, 0, 1).astype(np.float32)}]


def windows(n: int, state: str) -> list[Feed]:
    """Voiced sound of 16 kHz in `n` windows of 576 samples, and the state before the first.

    `state`: "state" for one tensor, "hc" for two.
    """
    rng = np.random.default_rng(0)
    feeds: list[Feed] = []
    zeros = {"state": (2, 1, 128)} if state == "state" else dict.fromkeys(state, (1, 1, 128))
    for pitch in (110.0, 190.0):
        t = np.arange(n * 576) / 16000
        phase = 2 * np.pi * (pitch * t + 2 * np.sin(5 * t))
        voiced = sum(np.sin(k * phase) / k for k in range(1, 12))
        sound = 0.15 * voiced + 0.01 * rng.standard_normal(t.shape)
        feed = {"input": sound.astype(np.float32).reshape(n, 576)}
        feeds.append(feed | {name: np.zeros(s, np.float32) for name, s in zeros.items()})
    return feeds


def files() -> list[Feed]:
    """Begin and end of text files as Magika reads them: 1024 bytes each."""
    texts = ("import os\n\ndef main():\n    print(os.getcwd())\n\n", "<p>Hello <b>you</b></p>\n")
    feeds: list[Feed] = []
    for text in texts:
        data = np.frombuffer((text * 60).encode(), np.uint8).astype(np.int32)
        feeds.append({"bytes": np.concatenate([data[:1024], data[-1024:]])[None]})
    return feeds


def sentences() -> list[Feed]:
    """Two sequences of 32 tokens, the second padded."""
    rng = np.random.default_rng(0)
    mask = np.ones((2, 32), np.int64)
    mask[1, 20:] = 0
    return [{"ids": rng.integers(0, 30000, (2, 32)) * mask, "mask": mask}]


def _caches(heads: int, length: int) -> Feed:
    rng = np.random.default_rng(1)
    shape = (1, heads, length, 32)
    return {f"{kind}{n}": rng.standard_normal(shape).astype(np.float32)
            for n in range(2) for kind in "kv"}  # fmt: skip


def growing() -> list[Feed]:
    """The 17th token, after a cache of 16."""
    ids = np.array([[VOCABULARY // 3]])
    mask = np.ones((1, 17), np.int64)
    return [{"ids": ids, "position": np.array([[16]]), "mask": mask} | _caches(2, 16)]


def static() -> list[Feed]:
    """The first, a middle and the last place of the cache."""
    places = (0, 17, CACHE - 1)
    ids = np.array([[VOCABULARY // 3]])
    return [{"ids": ids, "at": np.array([at])} | _caches(2, CACHE) for at in places]


def spectrogram() -> list[Feed]:
    """Four seconds of 80 bands."""
    rng = np.random.default_rng(0)
    return [{"mel": rng.standard_normal((1, 80, 400)).astype(np.float32)}]


def transcript() -> list[Feed]:
    """The ninth token, after a cache of eight."""
    rng = np.random.default_rng(0)
    encoded = rng.standard_normal((1, 200, 128)).astype(np.float32)
    return [{"ids": np.array([[VOCABULARY // 3]]), "encoded": encoded} | _caches(4, 8)]


def graph() -> list[Feed]:
    """Points with features, and edges of which some points have none."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N_POINTS, N_FEATURES)).astype(np.float32)
    return [{"x": x, "edges": rng.integers(0, N_POINTS - 5, (2, N_EDGES))}]


def digits() -> list[Feed]:
    """Sixteen images of 8×8 points, 0 to 16."""
    rng = np.random.default_rng(0)
    return [{"x": rng.integers(0, 17, (16, 64)).astype(np.float32)}]
