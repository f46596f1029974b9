"""Damaged artifacts: bytes changed, cut off, archives built anew with other parts and digests.

An artifact is native code, so a file that somebody *forged* may do anything; one that is damaged,
or rebuilt with a manifest that does not fit, is refused.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from autotune.errors import AutotuneError
from autotune.network.runtime.loading import load
from benchmarks.outcomes import Kind, Outcome, Tell, one_line, typed
from tests.fuzz.logs import base, changed_json


def damaged(data: bytes, seed: int) -> bytes:
    """The file with a few bytes or one of its parts changed."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        return _rebuilt(data, rng)
    out = bytearray(data)
    match rng.randrange(5):
        case 0:
            return bytes(out[: rng.randrange(len(out))])
        case 1:
            at = rng.randrange(len(out))
            del out[at : at + rng.choice([1, 7, 64, 4096])]
        case 2:
            at = rng.randrange(len(out))
            out[at:at] = rng.randbytes(rng.choice([1, 64]))
        case _:
            for _ in range(rng.choice([1, 1, 3, 20])):
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _rebuilt(data: bytes, rng: random.Random) -> bytes:
    """An archive whose checksums are right again, with one of its parts changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    names = list(parts)
    name = rng.choice([*names, *["manifest.json"] * 6])
    match rng.randrange(5):
        case 0:
            del parts[name]
        case 1 if name != "manifest.json":
            changed = bytearray(parts[name])
            if changed:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            parts[name] = bytes(changed[: rng.choice([len(changed), len(changed) // 2])])
        case 2:
            other = rng.choice(names)
            parts[name], parts[other] = parts[other], parts[name]
        case _:
            text = parts["manifest.json"].decode()
            for _ in range(rng.choice([1, 1, 2])):
                text = changed_json(text, rng)
            parts["manifest.json"] = text.encode()
    out = io.BytesIO()
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(out, "w", method) as archive:
        for key in parts:
            archive.writestr(key, parts[key])
    return out.getvalue()


def judged(seed: int, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of loading and running a damaged artifact."""
    sound = base()
    folder = Path(tempfile.mkdtemp(dir=sound.folder))
    try:
        path = folder / "x.atn"
        path.write_bytes(damaged((sound.folder / "base.atn").read_bytes(), seed))
        tell("load")
        model = load(path, 1)
        tell("run")
        results = model.run(sound.inputs)
    except AutotuneError as error:
        return Outcome(*typed(error))
    except Exception as error:
        return Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, want in sound.outputs.items():
        if name not in results or not np.allclose(results[name], want, 1e-3, 1e-4):
            return Outcome(Kind.WRONG, f"output {name} differs")
    return Outcome(Kind.RIGHT)


def manifest(data: bytes) -> dict[str, object]:
    """The manifest of an artifact."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found: dict[str, object] = json.loads(archive.read("manifest.json"))
    return found
