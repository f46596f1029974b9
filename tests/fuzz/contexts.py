"""Damaged contexts of ONNX Runtime: bytes of a model that names a compiled network are changed.

The host answers as before, or with an error of ONNX Runtime's. It never dies, and never gives
other numbers.
"""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import autotune
from benchmarks.outcomes import Kind, Outcome, Tell
from tests.network.provider_client import exported, inputs_of

_NAMES = ("cache", "halves", "lengths")
"""Of one node: what damage to ONNX Runtime's own nodes changes is like in any model."""


def judged(seed: int, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of a session of a damaged context."""
    name = _NAMES[seed % len(_NAMES)]
    place, feeds, sound = _base(name)
    folder = Path(place.name) / "out"
    changed = folder / f"changed{seed}.onnx"
    changed.write_bytes(_damaged((folder / "net_ctx.onnx").read_bytes(), seed))
    tell("session")
    try:
        found = _run(changed, feeds)
    except Exception as error:  # ONNX Runtime's own have many bases
        return Outcome(Kind.REFUSED, str(error).partition("\n")[0])
    finally:
        changed.unlink()
    same = len(found) == len(sound) and all(map(np.array_equal, found, sound))
    return Outcome(Kind.RIGHT) if same else Outcome(Kind.WRONG, "other numbers")


def _damaged(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    out = bytearray(data)
    at = rng.randrange(len(out))
    match rng.randrange(8):
        case 0:
            return bytes(out[:at])
        case 1:
            del out[at : at + rng.choice([1, 2, 7])]
        case 2:
            out[at:at] = rng.randbytes(rng.choice([1, 2, 9]))
        case _:
            for _ in range(rng.choice([1, 1, 2, 3])):
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


@cache
def _base(
    name: str,
) -> tuple[tempfile.TemporaryDirectory[str], dict[str, np.ndarray[Any, Any]], list[Any]]:
    """The folder of a context, inputs, and what they give."""
    place = tempfile.TemporaryDirectory()
    folder, feeds = exported(name, Path(place.name), 1), inputs_of(name, 3)
    return place, feeds, _run(folder / "net_ctx.onnx", feeds)


def _run(model: Path, feeds: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.add_provider_for_devices(_devices(), {})
    found: list[Any] = ort.InferenceSession(model, settings).run(None, feeds)
    return found


@cache
def _devices() -> list[Any]:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    ort.register_execution_provider_library("autotune", str(autotune.onnxruntime_provider()))
    return [d for d in ort.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]
