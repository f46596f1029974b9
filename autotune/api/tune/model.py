"""⑪ `tune` and `resume` of a model: at once, or as iterators of events.

result = autotune.tune("model.onnx", "model.jsonl", trials=200)
for event in autotune.tuning("model.onnx", "model.jsonl", trials=200): …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from autotune.api.tune.in_turns import concluded
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
from autotune.tuner import NetworkTimed, SessionFinished, of_target


@by_fields(ShownTuneRequest)
def tune(request: ShownTuneRequest) -> TuneResult:
    """Search for the fastest program of every part of a model, and log every measurement.

    Raises the errors of the command: UsageError, ModelError, OutputError; NoValidSchedule where no
    candidate of a task works. The words are those of the command line:
    """
    start = partial(_tuning, request, request.compare)
    return run_to_end(start, Path(request.log), request.show)


@by_fields(TuneRequest)
def tuning(request: TuneRequest) -> Events:
    """`tune`, as an iterator of events, see `tuner.events`.

    The model is read at once, so its faults are raised here. Every measurement is in the
    log before its event comes; closing the iterator ends the session in an orderly way.
    """
    return _tuning(request)


def _tuning(request: TuneRequest, compare: bool = False) -> Events:
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
    return _created(prepared, log, _Search(request.stop, note, (), compare))


@dataclass(frozen=True, slots=True)
class _Search:
    """How a session runs: see `OpenSession.start`; `compare`: see `concluded`."""

    stop: Callable[[], bool] = never
    note: Note = silent
    rules: Sequence[Rule] = ()
    compare: bool = False

    def events(self, session: OpenSession) -> Events:
        """All of the session, then the comparison where it has come to its end."""
        ends: list[SessionFinished] = []
        tuning = session.start(self.stop, self.note, self.rules, compiles=self.compare)
        for text in session.notes_of_set_up():
            self.note(text)
        for event in tuning.events():
            yield event
            ends += [own for own in (of_target(event)[1],) if isinstance(own, SessionFinished)]
        if self.compare and not any(end.is_broken_off for end in ends):
            found = concluded(session.journal, session.log, self.stop, self.note)
            if found is not None:
                yield NetworkTimed(found)


def _created(prepared: PreparedModel, log: Path, search: _Search) -> Events:
    with create(prepared, log) as session:
        yield from search.events(session)


def tune_network(
    network: Network,
    log: Path,
    config: TuneConfig,
    model_path: str = "",
    rules: Sequence[Rule] = (),
) -> Events:
    """`tuning` for a network that is there already; `model_path`: in the header."""
    prepared = prepare_network(network, config, log, model_path)
    return _created(prepared, log, _Search(rules=rules))


@by_fields(ShownResumeRequest)
def resume(request: ShownResumeRequest) -> TuneResult:
    """Go on with the session of a log.

    Raises LogMismatch for a log of another CPU, LogBusy where a process is writing it,
    NoValidSchedule where no candidate of a task works.
    """
    start = partial(_resuming, request, request.compare)
    return run_to_end(start, Path(request.log), request.show)


@by_fields(ResumeRequest)
def resuming(request: ResumeRequest) -> Events:
    """`resume`, as an iterator of events, see `tuner.events`. The log is opened at once."""
    return _resuming(request)


def _resuming(request: ResumeRequest, compare: bool = False) -> Events:
    with ExitStack() as stack:
        session = stack.enter_context(reopen(request))
        for text in session.notes:
            request.note(text)
        search = _Search(request.stop, request.note, request.rules, compare)
        return _rest(session, stack.pop_all(), search)


def _rest(session: OpenSession, stack: ExitStack, search: _Search) -> Events:
    with stack:
        yield from search.events(session)
