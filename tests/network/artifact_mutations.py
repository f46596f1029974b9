"""Damaged artifacts in a process of their own: `python -m … FILE SEED COUNT`.

Prints what is tried, so that the last line of a process that died names it, and at the end how many
there were of each outcome.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autotune.errors import AutotuneError
from autotune.network.runtime.loading import load
from autotune.network.runtime.runtime import random_inputs

Parts = dict[str, bytes]

_UNDESCRIBED = ("manifest.json", "seal", "image.seal")
"""Parts that a manifest has no digests of."""

WILD: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        2,
        3,
        7,
        63,
        64,
        65,
        1 << 20,
        1 << 31,
        (1 << 48) - 1,
        1 << 63,
        1 << 200,
        -(1 << 63),
    ),
    *(0.5, 1e300, float("nan"), True, None, "", "x", "float64", "\ud800", "../x", "x" * 5000),
    *([], {}, [1], [[1], [1]], {"bytes": 1}, [[[[[[]]]]]]),
)


def read_parts(path: Path) -> Parts:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_parts(path: Path, parts: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Write parts with another manifest and its seal."""
    text = json.dumps(manifest).encode()
    seal = hashlib.sha256(text).hexdigest().encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (parts | {"manifest.json": text, "seal": seal}).items():
            file.writestr(name, data)


def rebuilt(path: Path, parts: Parts, manifest: dict[str, Any], wild: bool = False) -> None:
    """Write parts with the digests that they have; `wild`: as the manifest says."""
    if not wild:
        described = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in parts.items()
            if name not in _UNDESCRIBED
        }
        manifest = manifest | {"parts": described}
    write_parts(path, parts, manifest)


def flip(rng: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 2, 8)))]
    for at in places:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"flip {places}"


def cut(rng: random.Random, path: Path) -> str:
    data = path.read_bytes()
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    way = rng.choice(("end", "middle", "zeros", "twice", "front"))
    path.write_bytes(
        {
            "end": data[:a],
            "middle": data[:a] + data[b:],
            "zeros": data[:a] + bytes(b - a) + data[b:],
            "twice": data[:b] + data[a:],
            "front": data[a:],
        }[way]
    )
    return f"cut {way} {a} {b}"


def swap(rng: random.Random, path: Path) -> str:
    """Exchange the contents of two parts, or lose one, with right digests."""
    parts = read_parts(path)
    names = [n for n in parts if n not in _UNDESCRIBED]
    a, b = rng.sample(names, 2)
    manifest = json.loads(parts["manifest.json"])
    way = rng.choice(("swap", "same", "lose", "shorter", "longer", "noise"))
    match way:
        case "swap":
            parts[a], parts[b] = parts[b], parts[a]
        case "same":
            parts[a] = parts[b]
        case "lose":
            del parts[a]
        case "shorter":
            parts[a] = parts[a][: rng.randrange(len(parts[a]))]
        case "longer":
            parts[a] += rng.randbytes(64)
        case _:
            at = rng.randrange(len(parts[a]))
            parts[a] = parts[a][:at] + rng.randbytes(1) + parts[a][at + 1 :]
    manifest["constant_bytes"] = len(parts.get("constants.bin", b""))
    rebuilt(path, parts, manifest)
    return f"{way} {a} {b}"


def edit(rng: random.Random, path: Path) -> str:
    """Give values of the manifest others, with right digests."""
    parts = read_parts(path)
    manifest = json.loads(parts["manifest.json"])
    told = [_edit(rng, manifest) for _ in range(rng.choice((1, 1, 2, 3)))]
    rebuilt(path, parts, manifest, wild=True)
    return f"edit {told}"


def _edit(rng: random.Random, node: Any) -> str:
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = rng.choice(keys)
    if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.9:
        return f"{key}/{_edit(rng, node[key])}"
    way = rng.random()
    if way < 0.1:
        del node[key]
        return f"{key} gone"
    old = node[key]
    is_int = type(old) is int
    node[key] = (
        old + rng.choice((-64, -4, -1, 1, 4, 64)) if is_int and way < 0.5 else rng.choice(WILD)
    )
    return f"{key} = {node[key]!r:.40}"


MUTATIONS: tuple[Callable[[random.Random, Path], str], ...] = (flip, cut, swap, edit, edit)


def outcome(path: Path, expected: Mapping[str, Any]) -> str:
    try:
        model = load(path)
        found = model.run(random_inputs(model.input_info))
    except AutotuneError as error:
        is_one_line = "\n" not in error.message and error.hint
        return type(error).__name__ if is_one_line else f"badly said: {error}"
    right = found.keys() == expected.keys()
    return (
        "right" if right and all(np.array_equal(found[n], expected[n]) for n in found) else "wrong"
    )


def main(source: Path, seed: int, count: int) -> None:
    whole = source.read_bytes()
    model = load(source)
    expected = model.run(random_inputs(model.input_info))
    path = source.with_name(f"damaged{seed}.atn")
    counts: Counter[str] = Counter()
    for n in range(count):
        rng = random.Random(seed * 100_000 + n)
        path.write_bytes(whole)
        told = rng.choice(MUTATIONS)(rng, path)
        print(n, told, flush=True)
        counts[outcome(path, expected)] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
