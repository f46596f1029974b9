"""⑪ Compilations in the user's cache folder: what is asked for again is neither read nor searched.

    kept_or_made(request, make) ─► Compiled

The key is a digest of all that the result depends on: contents of the model, of a log and of files
of operators, what a store holds for this CPU, options, threads, CPU, versions of packages. What
other things decide is not kept: inputs of the user's own, a runner, the times of a cut model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

import numpy as np

from autotune.api.compile.compiled import Compiled, with_facts
from autotune.api.operators import GROUP
from autotune.api.origins import model_of_log, remember, require_header
from autotune.api.request import CompileRequest, Dims, Values
from autotune.cache import (
    ARTIFACT_BYTES,
    artifact_store,
    key_of,
    package_key,
    program_store,
    told_store,
)
from autotune.codec import from_json, to_json
from autotune.errors import AutotuneError
from autotune.files import open_input, paths_of
from autotune.graph.constant_values import constants_to_json
from autotune.graph.reader.grown import GENAI_CONFIGURATION
from autotune.graph.reader.onnx_reader import model_hash
from autotune.measure.threads import default_threads
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact
from autotune.network.check.accuracy import Report
from autotune.network.runtime.loading import read_artifact
from autotune.records import read_log
from autotune.records.store import store_to_read
from autotune.target import host_target
from autotune.target.tiles import denial

_MOST_BYTES = ARTIFACT_BYTES // 8
"""Of a kept artifact: a larger one would take the place of many."""
_PACKAGES = ("llvmlite", "numpy", "onnx", "onnxruntime")
"""On which an artifact or its check depends."""
_DECIDING = ("check_inputs", "like", "runner", "verify")
"""Settings with which nothing is kept: what they name may change, or is to be done each time."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a compilation said beside its artifact. `kinds`: see `Artifact.constant_kinds`."""

    notes: tuple[str, ...]
    kinds: Mapping[str, int]
    report: Report | None


@dataclass(frozen=True, slots=True)
class _Identity:
    """A digest of all that a result depends on; the model's file and its contents."""

    key: str
    model: Path
    digest: str


def kept_or_made(
    request: CompileRequest,
    make: Callable[[CompileRequest], Compiled],
    has_own: bool = False,
    is_passing: bool = False,
) -> Compiled:
    """What `make` gives of `request`, now or before; then its notes are told again.

    `has_own`: inputs for the check are the user's, and nothing is kept. `is_passing`: so is the
    place of the model, by which nothing is told. Raises as `make`.
    """
    of = None if has_own else _identity(request, is_passing)
    if of is None:
        return make(request)
    found = _found(of.key)
    if found is not None:
        told, artifact, place = found
        for text in told.notes:
            request.note(text)
        remember(of.model, of.digest)
        known = with_facts(artifact, model_path=str(of.model), constant_kinds=told.kinds)
        return Compiled(known, told.report, place)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        request.note(text)

    done = make(replace(request, note=note))
    is_cut = isinstance(done.artifact, HybridArtifact)
    if not is_cut and _identity(request, is_passing) == of:  # no file has changed meanwhile
        _keep(of.key, done, tuple(notes))
    return done


def model_of_request(request: CompileRequest) -> Path:
    """The model's file, which a log may know. Raises UsageError, LogMismatch."""
    if request.model is not None:
        return Path(request.model)  # type: ignore[arg-type]
    place = Path(request.log or "")
    log = read_log(place)
    require_header(log, place)
    return model_of_log(log, place)


def _identity(request: CompileRequest, is_passing: bool) -> _Identity | None:
    """That of the result of a request, if it may be kept."""
    with suppress(AutotuneError):  # of a model or log that cannot be compiled
        if _is_kept(request):
            model = model_of_request(request).absolute()
            digest = model_hash(model, program_store())
            place = ascii("" if is_passing else str(model))
            return _Identity(_key(request, model, place, digest), model, digest)
    return None


def _is_kept(request: CompileRequest) -> bool:
    """Whether its result may be kept."""
    if request.log is not None and read_log(Path(request.log)).settings.get("operators"):
        return False  # files that may change
    is_decided = any(_is_given(getattr(request, name)) for name in _DECIDING)
    return request.cache and not is_decided and request.target in (None, "native")


def _is_given(value: object) -> bool:
    """Whether an argument is one; arrays are, whatever they hold."""
    is_list = isinstance(value, str | Sequence | Mapping)  # an array is none
    return value is not None and value is not False and (not is_list or bool(value))


def _key(request: CompileRequest, path: Path, place: str, digest: str) -> str:
    """A digest of all that the result depends on. Raises UsageError for missing files."""
    target, beside = host_target(), path.parent / GENAI_CONFIGURATION
    settings = {
        **settings_of(request),
        "check": request.check,
        "keep_cut": request.keep_cut,
        "max_size": request.max_size,
        "sharing": request.sharing,
        "random_weights": request.random_weights,
        "threads": request.threads or (None if request.log else default_threads()),
        "target": to_json(target),
        "beside": file_hash(beside) if beside.is_file() else None,
        "denial": denial(),
        "told_store": ascii(told_store()),  # of which a note may speak
        "versions": [*map(_version, _PACKAGES)],
    }
    text = json.dumps(settings, sort_keys=True)
    return key_of("compiled", digest, place, package_key(), text)


def settings_of(request: CompileRequest) -> dict[str, Any]:
    """What every request asks for, as JSON. Raises UsageError for missing files."""
    store = store_to_read(request.store)
    shapes, constants = request.shapes or {}, request.constants or {}
    return {
        "shapes": sorted((name, list(shape)) for name, shape in shapes.items()),
        "dims": _dims_json(request.dims or {}),
        "constants": constants_to_json({n: np.asarray(a) for n, a in constants.items()}),
        "precision": request.precision,
        "max_error": request.max_error,
        "fallback": request.fallback,
        "capacity": request.capacity,
        "sessions": list(request.sessions),
        "state": sorted((request.state or {}).items()),
        "cache_type": request.cache_type,
        "scores": request.scores,
        "ragged": request.ragged,
        "log": file_hash(Path(request.log)) if request.log else None,
        "stored": store.state(host_target().key) if store else "",
        "operators": [file_hash(path) for path in paths_of(request.operators)],
        "installed": sorted((e.name, e.value) for e in entry_points(group=GROUP)),
    }


def file_hash(path: Path) -> str:
    """SHA-256 of a file. Raises UsageError for a missing one."""
    with open_input(path) as file:
        return sha256(file.read()).hexdigest()


def _dims_json(dims: Dims) -> list[Any]:
    """Dimensions in their order, which is that of the variants."""
    return [[name, _values_json(values)] for name, values in dims.items()]


def _values_json(values: Values) -> Any:
    if isinstance(values, Mapping):
        return [list(pair) for pair in values.items()]
    return values if isinstance(values, int | str) else list(values)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _found(key: str) -> tuple[_Told, Artifact, Path] | None:
    text, path = program_store().get(key), artifact_store().find(key)
    if text is None or path is None:
        return None
    try:
        return from_json(_Told, json.loads(text)), read_artifact(path), path
    except (AutotuneError, ValueError):  # damaged, removed just now, or of another form
        artifact_store().remove(key)
        return None


def _keep(key: str, done: Compiled, notes: tuple[str, ...]) -> None:
    """Keep what was compiled, if there is room."""
    if done.artifact.constants.nbytes > _MOST_BYTES:
        return
    told = _Told(notes, done.artifact.constant_kinds, done.report)
    with suppress(OSError):
        with artifact_store().writing(key) as file:
            done.artifact.write(file)
        program_store().put(key, json.dumps(to_json(told)).encode())
