"""⑪ Where the model of a log or artifact lies: they hold its file's name alone.

A path says whose it is, and would make files of two machines differ. On this machine the cache
folder knows where a model was, by its contents; elsewhere it lies beside what was made of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from autotune.cache import key_of, program_store
from autotune.errors import AutotuneError, LogMismatch, UsageError
from autotune.graph.reader.onnx_reader import model_hash
from autotune.records import Log


def remember(model: Path, digest: str) -> None:
    """Keep where a model with these contents lies."""
    store, key, place = program_store(), key_of("origin", digest), os.fsencode(model.absolute())
    if store.get(key) != place:
        store.put(key, place)


def origin(named: str, digest: str, made: Path | None = None) -> Path:
    """The file of the model that a log or artifact names, which may lie at `made`.

    Of the files there are, one with these contents; else the first; else the name, where no file
    is. `named`: a path in what former versions wrote.
    """
    found = [place for place in dict.fromkeys(_places(named, digest, made)) if place.is_file()]
    for place in found:
        with suppress(AutotuneError):
            if model_hash(place) == digest:
                return place
    return found[0] if found else Path(named)


def _places(named: str, digest: str, made: Path | None) -> Iterator[Path]:
    path = Path(named)
    if path.is_absolute():
        yield path
    if made is not None:
        yield made.parent / path.name
    kept = program_store().get(key_of("origin", digest))
    if kept is not None:
        yield Path(os.fsdecode(kept))
    yield Path(path.name)


_NAME_IT = "name the model: `autotune.compile(MODEL, log=LOG)`"


def require_header(log: Log, path: Path) -> None:
    """Raise LogMismatch for a log of nothing."""
    if not log.headers:
        raise LogMismatch(f"{path} has no header", "name a log that autotune has written")


def model_of_log(log: Log, log_path: Path) -> Path:
    """The model that a log was made for, wherever it lies now. Raises UsageError, LogMismatch."""
    if not log.header.model_path:
        raise UsageError("the log was made for a model in memory", _NAME_IT)
    path = origin(log.header.model_path, log.header.model_hash, log_path)
    if not path.is_file():
        raise UsageError(f"the model of the log is gone: {path}", _NAME_IT)
    if model_hash(path) != log.header.model_hash:
        raise LogMismatch(
            f"{path} is not the model that the log was made for: its contents have changed",
            f"if that is meant, {_NAME_IT}",
        )
    return path
