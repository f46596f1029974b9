"""⑪ Preparation of a session's compiled network: facts of the model, and an artifact.

    facts_of(request) ─► Facts          which inputs decide, which files count, which log fits
    prepare(request, …) ─► Prepared     the artifact, in a file

Either runs here, or (`serve`) in a process of low priority, beside a session that ONNX Runtime
answers meanwhile.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.api.sources import model_bytes, model_files
from autotune.cache import artifact_store
from autotune.codec import to_json
from autotune.graph.fallback.shape_inputs import inputs_bound_by_value
from autotune.graph.reader.dimensions import (
    Outline,
    batches,
    dimension_names,
    has_row_outputs,
    is_decoder,
)
from autotune.graph.reader.model_files import model_file
from autotune.graph.reader.mosts import open_dimensions
from autotune.graph.reader.onnx_reader import external_files, read_outline
from autotune.machine import available_bytes, read_text, usable_cpus
from autotune.measure.processes.frames import Message
from autotune.measure.processes.supervisor import Handler
from autotune.measure.threads import default_threads
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact
from autotune.ort.cached import fitting_artifact, key_of_request
from autotune.ort.failures import former_failure
from autotune.ort.logs import log_beside, names_shapes
from autotune.ort.request import (
    FACTS,
    FAILED,
    BackgroundJob,
    Facts,
    Failure,
    Found,
    PreparedNetwork,
    SessionRequest,
)
from autotune.ort.sizes import OpenSizes
from autotune.records import read_log
from autotune.units import format_bytes

_SHARE = 0.75
"""Of the memory that is available, for a compilation beside a session."""
_LEAST_COPIES = 2
"""Of a model, in memory at once while it is compiled and checked: three are usual."""


def facts_of(request: SessionRequest) -> Facts:
    """Raises as `compile` does for a model or log that cannot be read."""
    files = (
        [request.model, *external_files(request.model)] if isinstance(request.model, Path) else []
    )
    with model_file(request.model, request.name) as path:
        outline = read_outline(path)
    deciding = tuple(n for n in inputs_bound_by_value(outline) if n not in request.constants)
    found = with_log(request)
    return Facts(
        deciding,
        tuple(map(str, files)),
        str(found.log) if found.log else None,
        found.threads,
        found.n_running,
        names_shapes(found.log),
        open_sizes(outline, {*deciding, *request.constants}),
    )


def open_sizes(outline: Outline, bound: Container[str] = ()) -> OpenSizes | None:
    """Open dimensions that the network of a model may follow; None where there are none.

    `bound`: inputs that have one value. Caches of a decoder grow with every call.
    """
    if is_decoder(outline):
        return None
    names = dimension_names(outline)
    known = {name: own for name, own in names.items() if name not in bound}
    found = open_dimensions(outline)
    own = {name for names in known.values() for name in names}
    mosts = {name: one.most for name, one in found.items() if name in own}
    images = tuple(name for name in mosts if found[name].kind == "image")
    rows = has_row_outputs(outline)
    return OpenSizes(known, mosts, batches(outline), images, rows) if mosts else None


def with_log(request: SessionRequest) -> SessionRequest:
    """`request` with the log beside its model, if there is one, and the threads to run on.

    Those that the caller asks for, if there are so many cores; else those of the log, or fewer
    where fewer are usable; else as many as are.
    """
    asked = min(request.threads, len(usable_cpus()))
    log, tuned = request.log, None
    if log is not None:
        in_log = read_log(log).headers
        tuned = in_log[0].n_threads if in_log else None
    elif not (request.dims or request.constants or request.operators or request.precision):
        found = log_beside(request.model, asked or None)
        log, tuned = (found.path, found.n_threads) if found else (None, None)
    n_running = asked or default_threads(tuned)
    threads = 0 if log is not None and asked in (0, tuned) else n_running
    return replace(request, log=log, threads=threads, n_running=n_running)


def prepare(request: SessionRequest, store_bytes: int | None) -> PreparedNetwork:
    """Compile a request, or find it in the cache. Raises as `compile`.

    `store_bytes`: of the cache; None: nothing is kept.
    """
    notes: list[str] = []
    store = None if store_bytes is None else artifact_store(store_bytes)
    request, artifact = fitting_artifact(request, store, notes.append)
    path = store.find(key_of_request(request)) if store else None
    told = tuple(notes)
    if path is not None:
        return PreparedNetwork(str(path), True, told, is_any_compiled(artifact))
    handle, name = tempfile.mkstemp(suffix=".atn")
    with open(handle, "wb") as file:
        artifact.write(file)
    return PreparedNetwork(name, False, told, is_any_compiled(artifact))


def is_any_compiled(artifact: Artifact) -> bool:
    """Whether something of it is machine code, not all ONNX Runtime's."""
    if not isinstance(artifact, HybridArtifact):
        return True
    parts = (artifact, *artifact.others)
    return any(s.network is not None for part in parts for s in getattr(part, "segments", ()))


def answer(job: BackgroundJob) -> Found:
    """Do a job, if it did not fail before. Raises as `compile` does."""
    former = former_failure(job)
    if former is not None:
        return former
    if job.kind == FACTS:
        return facts_of(job.request)
    return prepare(job.request, job.store_bytes)


def serve(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """The handler of a process beside a session, which takes idle time only."""
    os.nice(int(arguments["niceness"]))
    with suppress(OSError):  # rather than the session, where memory is short all the same
        Path("/proc/self/oom_score_adj").write_text("1000")
    return _reply


def _reply(message: Message) -> Message:
    job = BackgroundJob.of(message)
    room = int(_SHARE * available_bytes())
    _limit_memory(room)
    try:
        found = _too_large(job, room) or answer(job)
    except Exception as error:
        found = Failure.of(error)
    return Message(FAILED if isinstance(found, Failure) else job.kind, to_json(found))


def _too_large(job: BackgroundJob, room: int) -> Failure | None:
    """Refusal of what would end for want of memory in the middle, often by a signal."""
    model = job.request.model
    if isinstance(model, Path):
        n_bytes = sum(model_bytes(path) for path in model_files(model))
    else:
        n_bytes = len(model)
    if job.kind == FACTS or _LEAST_COPIES * n_bytes <= room:
        return None
    wanted = format_bytes(_LEAST_COPIES * n_bytes)
    text = f"compiling it takes at least {wanted} of memory, {format_bytes(room)} may be used"
    return Failure(text, "free memory, or allow the container more", is_kept=False)


def _limit_memory(room: int) -> None:
    """Let allocations fail here before those of the session do."""
    status = [line.split() for line in read_text(Path("/proc/self/status")).splitlines()]
    used = sum(int(words[1]) << 10 for words in status if words[0] == "VmData:")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = used + room
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
