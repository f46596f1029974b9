"""⑪ `tune` and `resume` of a model: at once, or as iterators of events.

result = autotune.tune("model.onnx", "model.jsonl", trials=200)
for event in autotune.tuning("model.onnx", "model.jsonl", trials=200): …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from autotune.api.request import (
    Note,
    ResumeRequest,
    ShownResumeRequest,
    ShownTuneRequest,
    TuneRequest,
    by_fields,
    in_a_file,
    never,
    silent,
)
from autotune.api.sources import random_weights_note
from autotune.api.tune.session import (
    OpenSession,
    PreparedModel,
    create,
    prepare,
    prepare_network,
    reopen,
    resolved,
)
from autotune.api.tune.tune_result import Events, TuneResult, run_to_end
from autotune.config import TuneConfig
from autotune.graph.network import Network
from autotune.graph.reader.model_files import is_path
from autotune.search.partial import Rule


@by_fields(ShownTuneRequest)
def tune(request: ShownTuneRequest) -> TuneResult:
    """Search for the fastest program of every part of a model, and log every measurement.

    Raises the errors of the command: UsageError, ModelError, OutputError; NoValidSchedule where no
    candidate of a task works. The words are those of the command line:
    """
    return run_to_end(partial(_tuning, request), Path(request.log), request.show)


@by_fields(TuneRequest)
def tuning(request: TuneRequest) -> Events:
    """`tune`, as an iterator of events, see `tuner.events`.

    The model is read at once, so its faults are raised here. Every measurement is in the
    log before its event comes; closing the iterator ends the session in an orderly way.
    """
    return _tuning(request)


def _tuning(request: TuneRequest) -> Events:
    log, note = Path(request.log), request.note
    config = resolved(request).config
    with in_a_file(request) as (known, path):
        prepared = prepare(known, config, log)
    for text in prepared.notes:
        note(text)
    if request.random_weights:
        note(random_weights_note(path.name))
    if not is_path(request.model):
        prepared = replace(prepared, source="")
    return _events(prepared, log, request.stop, note)


def _events(
    prepared: PreparedModel,
    log: Path,
    stop: Callable[[], bool],
    note: Note,
    rules: Sequence[Rule] = (),
) -> Events:
    with create(prepared, log) as session:
        yield from session.start(stop, note, rules).events()


def tune_network(
    network: Network,
    log: Path,
    config: TuneConfig,
    model_path: str = "",
    rules: Sequence[Rule] = (),
) -> Events:
    """`tuning` for a network that is there already; `model_path`: in the header."""
    prepared = prepare_network(network, config, log, model_path)
    return _events(prepared, log, never, silent, rules)


@by_fields(ShownResumeRequest)
def resume(request: ShownResumeRequest) -> TuneResult:
    """Go on with the session of a log.

    Raises LogMismatch for a log of another CPU, LogBusy where a process is writing it,
    NoValidSchedule where no candidate of a task works.
    """
    return run_to_end(partial(_resuming, request), Path(request.log), request.show)


@by_fields(ResumeRequest)
def resuming(request: ResumeRequest) -> Events:
    """`resume`, as an iterator of events, see `tuner.events`. The log is opened at once."""
    return _resuming(request)


def _resuming(request: ResumeRequest) -> Events:
    with ExitStack() as stack:
        session = stack.enter_context(reopen(request))
        for text in session.notes:
            request.note(text)
        return _rest(session, stack.pop_all(), request)


def _rest(session: OpenSession, stack: ExitStack, request: ResumeRequest) -> Events:
    with stack:
        yield from session.start(request.stop, request.note, request.rules).events()
