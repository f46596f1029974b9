"""⑪ Artifacts of models in the user's cache folder: compiled once, by the first process.

    cached_artifact(request, store) ─► Artifact

The key of an artifact is a digest of all that it depends on: the contents of model, log and files
of operators, shapes, constants, precision, limit of errors, threads, this CPU, and this package.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from autotune.api.bindings import arrays_of
from autotune.api.compile import compiling
from autotune.api.compile.kept import settings_of
from autotune.api.opening import NotOpened, lengths_of
from autotune.api.operators import operators_of
from autotune.api.request import Note
from autotune.cache import FileStore, key_of, package_key
from autotune.errors import (
    AutotuneError,
    LogMismatch,
    ModelError,
    NotCompilable,
    UnsupportedOperator,
    UsageError,
)
from autotune.files import paths_of
from autotune.graph.bound_model import BoundModel
from autotune.graph.reader.constant_inputs import bind_constants
from autotune.graph.reader.model_files import model_file
from autotune.graph.reader.onnx_reader import model_hash, read_outline
from autotune.network.artifact.artifact import Artifact
from autotune.network.runtime.loading import read_artifact
from autotune.ort.request import SessionRequest, SizesRefused
from autotune.pages import SHARED
from autotune.target import host_target


def key_of_request(request: SessionRequest) -> str:
    """A digest of all that the artifact depends on. Raises UsageError for missing files."""
    settings = {
        **settings_of(request),
        "mosts": None if request.mosts is None else sorted(request.mosts.items()),
        "held": sorted(request.held.items()),
        "threads": request.threads,
    }
    return key_of(
        hash_of(request.model),
        host_target().key,
        package_key(),
        json.dumps(settings, sort_keys=True),
    )


def compiled(request: SessionRequest, note: Note, cache: bool) -> Artifact:
    """Compile and check it; where no oracle can run it on anything, it stays unchecked.

    `cache`: keep its programs. Raises as `compiling.compile`, and SizesRefused where one network is
    asked for all sizes and cannot be.
    """
    with model_file(request.model, request.name) as path:
        threads: Any = request.threads or None
        known = replace(request, model=path, threads=threads, note=note, cache=cache)
        return _compiled(known) if request.mosts is None else _of_all_sizes(known, path)


def _compiled(request: SessionRequest) -> Artifact:
    try:
        return compiling.compiled_anew(request).artifact
    except NotCompilable:
        raise
    except ModelError as error:  # of the model, then it comes again
        artifact = compiling.compiled_anew(replace(request, check=False)).artifact
        request.note(f"not checked: {error.message}")
        return artifact


def _of_all_sizes(request: SessionRequest, path: Path) -> Artifact:
    """With the most general ranges of dimensions that there can be. Raises SizesRefused."""
    outline = read_outline(path)
    bind_constants(outline, request.constants)
    operators = operators_of(map(str, paths_of(request.operators)))
    constants = arrays_of(request.constants)
    model = BoundModel(path, bool(request.random_weights), operators, constants)
    reason = "no dimension is open"
    try:
        for dims in lengths_of(model, outline, request.mosts or {}, request.held):
            try:
                return _compiled(replace(request, dims=dims))
            except UsageError as error:
                reason = error.message
                if isinstance(error.__cause__, UnsupportedOperator):
                    break
    except NotOpened as error:
        reason = str(error)
    except NotCompilable as error:
        raise SizesRefused(error.message, error.hint) from error
    raise SizesRefused(reason, "sizes are compiled one by one, as they come")


def cached_artifact(
    request: SessionRequest, store: FileStore | None, note: Note, memory: str = SHARED
) -> Artifact:
    """The artifact of `request`: from `store`, or compiled now, once for all threads and processes
    that ask for it at the same time. `memory`: as for `read_artifact`. Raises as
    `compiling.compile`.
    """
    if store is None:
        return compiled(request, note, cache=False)
    key = key_of_request(request)
    found = _kept(store, key, memory)
    if found is not None:
        return found
    with store.locked(key):
        found = _kept(store, key, memory)  # by another, while this one waited
        if found is None:
            made = compiled(request, note, cache=True)
            with suppress(OSError), store.writing(key) as file:  # else it is compiled again
                made.write(file)
            found = _kept(store, key, memory) or made
        return found


def fitting_artifact(
    request: SessionRequest, store: FileStore | None, note: Note, memory: str = SHARED
) -> tuple[SessionRequest, Artifact]:
    """`cached_artifact`, without the log where it does not fit the shapes of the request; and the
    request that it is for.
    """
    try:
        return request, cached_artifact(request, store, note, memory)
    except LogMismatch as error:
        if request.log is None or not (request.shapes or request.mosts is not None):
            raise
        note(f"{error.message}: compiled without it")
        return fitting_artifact(request.without_log(), store, note, memory)


def _kept(store: FileStore, key: str, memory: str) -> Artifact | None:
    path = store.find(key)
    if path is None:
        return None
    try:
        return read_artifact(path, memory)
    except AutotuneError:  # damaged, or removed just now
        store.remove(key)
        return None


def hash_of(model: Path | bytes) -> str:
    """SHA-256 of a model, as logs and artifacts have it. Raises UsageError for a missing file."""
    return model_hash(model) if isinstance(model, Path) else sha256(model).hexdigest()
