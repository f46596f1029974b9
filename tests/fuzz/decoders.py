"""Random small decoders beside ONNX Runtime with its outputs fed back, through every door.

Sessions (prompts of any length, generation, files of states, forks), several sessions in a step,
the class in the place of ONNX Runtime's with its own caches and those of others, and a library of
C. A decoder may be refused; what is computed is right.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import autotune
from autotune.errors import AutotuneError, MissingDependency, NotCompilable, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.library import write_library
from autotune.network.runtime.loading import load
from autotune.network.runtime.runtime import Model
from autotune.toolchain import toolchain
from benchmarks.outcomes import Kind, Outcome, Tell, one_line, typed
from tests.random_decoders import Decoder, Plain, different, draw

Array = np.ndarray
_TIE = 1e-3
"""Scores that are as close are no greedy choice."""


class Differs(Exception):
    """Of something that a door gave."""


def judged(seed: int, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of a random decoder."""
    folder = Path(tempfile.mkdtemp(prefix="decoder-"))
    try:
        return _judged(seed, folder, tell)
    except AutotuneError as error:
        return Outcome(*typed(error))
    except Differs as error:
        return Outcome(Kind.WRONG, one_line(f"{error} of {draw(np.random.default_rng(seed))}"))
    except Exception as error:
        return Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judged(seed: int, folder: Path, tell: Tell) -> Outcome:
    rng = np.random.default_rng(seed)
    decoder = draw(rng)
    tell("oracle")
    plain = decoder.plain()
    plain(decoder.tokens(rng, 2))
    tell("compile")
    path = folder / "decoder.onnx"
    onnx.save(decoder.model(), path)
    sessions = (2,) if rng.random() < 0.3 else ()
    try:
        artifact = _compiled(path, decoder, sessions)
    except NotCompilable:
        if not sessions:
            raise
        artifact, sessions = _compiled(path, decoder, ()), ()
    artifact.save(folder / "decoder.atn")
    tell("steps")
    model = load(folder / "decoder.atn", 1)
    _steps(decoder, model, plain, folder, rng)
    if sessions:
        _together(decoder, model, rng)
    tell("generate")
    _generated(decoder, model, plain, rng)
    if rng.random() < 0.4:
        tell("session")
        _dropped_in(decoder, path, plain, rng)
    if rng.random() < 0.1:
        tell("library")
        _library(decoder, artifact, folder, rng)
    return Outcome(Kind.RIGHT)


def _compiled(path: Path, decoder: Decoder, sessions: tuple[int, ...]) -> Artifact:
    told = {**decoder.arguments(), "sessions": sessions, "scores": decoder.scores}
    return autotune.compile(path, **told, check=decoder.seed % 4 == 0).artifact


def _require(what: str, found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    atol = 5e-3 if any(a.dtype == np.float16 for a in expected.values()) else 1e-4
    wrong = different(found, expected, atol)
    if wrong:
        raise Differs(f"{what}: {'; '.join(wrong)}")


def _lengths(rng: np.random.Generator, room: int) -> list[int]:
    """Numbers of new places of some calls, which the capacity has room for."""
    found: list[int] = []
    for _ in range(6):
        if not room:
            break
        found.append(int(rng.integers(1, min(room, 18) + 1)))
        room -= found[-1]
    return found


def _steps(
    decoder: Decoder, model: Model, plain: Plain, folder: Path, rng: np.random.Generator
) -> None:
    """Prompts of any length, over a file of the state and a fork."""
    session = model.session()
    plain.reset()
    for k, n in enumerate(_lengths(rng, decoder.capacity)):
        tokens = decoder.tokens(rng, n)
        name = "input_ids"
        found, expected = session.run({name: tokens}), decoder.given(plain(tokens))
        _require(f"step {k} of {n} places behind {session.length - n}", found, expected)
        if rng.random() < 0.3:
            session.save(folder / "state.npz")
            session = model.session()
            session.load(folder / "state.npz")
        elif rng.random() < 0.2:
            session = session.fork()
    for n in (0, decoder.capacity + 1):
        try:
            session.run({"input_ids": np.zeros((1, n), np.int64)})
        except UsageError:
            continue
        raise Differs(f"a step of {n} places is none")


def _together(decoder: Decoder, model: Model, rng: np.random.Generator) -> None:
    """Three sessions, of which two are advanced in one step."""
    sessions, plains = [model.session() for _ in range(3)], [decoder.plain() for _ in range(3)]
    for session, plain in zip(sessions, plains, strict=True):
        tokens = decoder.tokens(rng, int(rng.integers(1, 4)))
        session.run({"input_ids": tokens})
        plain(tokens)
    tokens = np.concatenate([decoder.tokens(rng, 1) for _ in sessions])
    found = model.step_together(sessions, tokens)
    ends = sessions[0].output_info
    named = dict(zip([e.name for e in ends], found if len(ends) > 1 else (found,), strict=True))
    for n, plain in enumerate(plains):
        expected = plain(tokens[n : n + 1])
        rows = {name: array[n : n + 1] for name, array in named.items()}
        _require(f"session {n} of three", rows, expected)


def _generated(decoder: Decoder, model: Model, plain: Plain, rng: np.random.Generator) -> None:
    """Greedy tokens, until two scores are alike."""
    n = int(rng.integers(1, min(decoder.capacity, 10)))
    session, tokens = model.session(), decoder.tokens(rng, n)
    plain.reset()
    for token in session.generate(tokens, 8):
        scores = plain(tokens)["logits"].reshape(-1, decoder.vocabulary)[-1]
        best = np.sort(scores)[-2:]
        if best[-1] - best[0] < _TIE:
            return
        if token != scores.argmax():
            raise Differs(f"token {token} behind {session.length} places, not {scores.argmax()}")
        tokens = np.array([[token]])


def _dropped_in(decoder: Decoder, path: Path, plain: Plain, rng: np.random.Generator) -> None:
    """The session in the place of ONNX Runtime's: caches of both, copies, and begun anew."""
    session = autotune.InferenceSession(str(path), **decoder.arguments())
    names = [output.name for output in session.get_outputs()]
    plain.reset()
    ours = plain.caches
    for k, n in enumerate(_lengths(rng, decoder.capacity)):
        tokens, length = decoder.tokens(rng, n), plain.length
        theirs = plain.caches
        given = theirs if rng.random() < 0.3 else ours
        given = {name: a.copy() if rng.random() < 0.2 else a for name, a in given.items()}
        found = session.run(names, decoder.feed(tokens, length) | given)
        named, expected = dict(zip(names, found, strict=True)), plain(tokens)
        _require(f"call {k} of {n} places behind {length}", named, expected)
        ours = {name: named[output] for name, output in decoder.pairs.items()}
        if rng.random() < 0.2:
            plain.reset()
            ours = plain.caches
    if rng.random() < 0.1:  # compiled for its shapes
        tokens, length = decoder.tokens(rng, decoder.capacity), plain.length
        if length + tokens.shape[1] > 60:
            return
        found = session.run(names, decoder.feed(tokens, length) | ours)
        _require("a call beyond", dict(zip(names, found, strict=True)), plain(tokens))


def _library(decoder: Decoder, artifact: Artifact, folder: Path, rng: np.random.Generator) -> None:
    """Sessions of a library of C give the bits of those in Python."""
    try:
        write_library(artifact, "net", folder / "library", toolchain(None, "x86_64"), False)
    except MissingDependency:
        return
    except AutotuneError as error:  # what has no place behind another one
        if "has no place behind" not in error.message:
            raise
        return
    library: Any = ctypes.CDLL(str(folder / "library" / "libnet.so"))
    model, theirs = ctypes.c_void_p(), ctypes.c_void_p()
    status = [library.net_create(None, ctypes.byref(model))]
    status.append(library.net_open(model, ctypes.byref(theirs)))
    session = Model(artifact, 1).session()
    for n in _lengths(rng, decoder.capacity):
        tokens = decoder.tokens(rng, n)
        expected = session.run({"input_ids": tokens})
        made = {end.name: np.empty_like(expected[end.name]) for end in session.output_info}
        given = (ctypes.c_void_p * 1)(tokens.ctypes.data)
        out = (ctypes.c_void_p * len(made))(*(a.ctypes.data for a in made.values()))
        status.append(library.net_step(theirs, ctypes.c_int64(n), given, out))
        if any(not np.array_equal(made[name], expected[name]) for name in made):
            raise Differs(f"the library's step of {n} places behind {session.length - n}")
    library.net_close(theirs)
    library.net_destroy(model)
    if any(status):
        raise Differs(f"statuses of the library: {status}")
