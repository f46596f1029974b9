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
from autotune.errors import AutotuneError
from autotune.graph.reader.onnx_reader import model_hash


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
