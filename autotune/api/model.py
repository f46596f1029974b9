"""⑪ What `autotune tune` and `resume` do: at once, or as iterators of events.

result = autotune.tune("model.onnx", "model.jsonl", trials=200)
for event in autotune.tuning("model.onnx", "model.jsonl", trials=200): …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.api.bindings import Dims
from autotune.api.session import (
    OpenSession,
    Prepared,
    create,
    logs_to_learn,
    prepare,
    prepare_network,
    reopen,
    rule_files,
)
from autotune.api.showing import Show
from autotune.api.sources import random_weights_note
from autotune.api.tune_result import Events, TuneResult, run_to_end
from autotune.config import TuneConfig, resolve
from autotune.files import Files, paths_of
from autotune.graph.network import Network
from autotune.graph.reader.model_files import ModelSource, is_path, model_file
from autotune.search.partial import Rule

Shapes = dict[str, tuple[int, ...]]


def tune(
    model: ModelSource,
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    preset: str | None = None,
    seed: int | None = None,
    target: str | None = None,
    max_error: float | None = None,
    precision: str | None = None,
    warm_start: Files = (),
    rules: Files = (),
    operators: Files = (),
    fallback: bool = True,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    show: Show = "auto",
) -> TuneResult:
    """Search for the fastest program of every part of `model`, and log every measurement.

    `model`: the path of an ONNX file, its bytes, or an `onnx.ModelProto`. `log`: a new file. The
    other words are those of the command line; `dims`: extents of dimensions by name, see
    `bindings`; `constants`: inputs that are the same in every inference, by name. `fallback`: what
    cannot be compiled is left to ONNX Runtime. `stop` is asked between measurements, `note` told
    what a user should know. `show`: "table", a live one; "lines", one per batch; "auto", a table
    where stderr is a terminal, else lines; "nothing"; or a function of each event, see `tuning`.
    Raises what the command reports: UsageError, ModelError, OutputError; NoValidSchedule where no
    candidate of a task works.
    """
    given = {name: value for name, value in locals().items() if name != "show"}
    return run_to_end(partial(tuning, **given), Path(log), show)


def tuning(
    model: ModelSource,
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    preset: str | None = None,
    seed: int | None = None,
    target: str | None = None,
    max_error: float | None = None,
    precision: str | None = None,
    warm_start: Files = (),
    rules: Files = (),
    operators: Files = (),
    fallback: bool = True,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
) -> Events:
    """`tune`, as an iterator of events, see `tuner.events`.

    The model is read at once, so what is wrong with it is raised here. Every measurement is in the
    log before its event comes; closing the iterator ends the session in an orderly way.
    """
    options = {
        "trials": trials,
        "time_s": time_s,
        "threads": threads,
        "seed": seed,
        "target": target,
        "max_error": max_error,
        "precision": precision,
        "warm_start": logs_to_learn(paths_of(warm_start)),
        "rules": rule_files(paths_of(rules)),
        "operators": tuple(str(path.resolve()) for path in paths_of(operators)) or None,
    }
    with model_file(model) as path:
        prepared = prepare(
            path,
            resolve(preset, options).config,
            Path(log),
            shapes=shapes,
            dims=dims,
            constants=constants,
            random_weights=random_weights,
            fallback=fallback,
        )
    for text in prepared.notes:
        note(text)
    if random_weights:
        note(random_weights_note(path.name))
    if not is_path(model):
        prepared = replace(prepared, source="")
    return _events(prepared, Path(log), stop, note)


def _events(
    prepared: Prepared,
    log: Path,
    stop: Callable[[], bool],
    note: Callable[[str], None],
    rules: Sequence[Rule] = (),
) -> Events:
    with create(prepared, log) as session:
        yield from session.start(stop, note, rules).events()


def tune_network(
    network: Network,
    log: Path,
    config: TuneConfig,
    model_path: str = "",
    shapes: Shapes | None = None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    rules: Sequence[Rule] = (),
) -> Events:
    """`tuning` for a network that is there already; `model_path`: what the header names."""
    prepared = prepare_network(network, config, log, source=model_path, shapes=shapes)
    return _events(prepared, log, stop, note, rules)


def resume(
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    max_error: float | None = None,
    warm_start: Files = (),
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    rules: Sequence[Rule] = (),
    show: Show = "auto",
) -> TuneResult:
    """Go on with the session of `log`: what is left of its budget, or `trials` or `time_s` more.

    `show`: see `tune`. Raises LogMismatch for a log of another CPU, LogBusy where somebody is
    writing it, NoValidSchedule where no candidate of a task works.
    """
    given = {name: value for name, value in locals().items() if name != "show"}
    return run_to_end(partial(resuming, **given), Path(log), show)


def resuming(
    log: str | Path,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    max_error: float | None = None,
    warm_start: Files = (),
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
    rules: Sequence[Rule] = (),
) -> Events:
    """`resume`, as an iterator of events, see `tuner.events`. The log is opened at once."""
    with ExitStack() as stack:
        learnt = paths_of(warm_start)
        opened = reopen(
            Path(log), trials=trials, time_s=time_s, max_error=max_error, warm_start=learnt
        )
        session = stack.enter_context(opened)
        for text in session.notes:
            note(text)
        return _rest(session, stack.pop_all(), stop, note, rules)


def _rest(
    session: OpenSession,
    stack: ExitStack,
    stop: Callable[[], bool],
    note: Callable[[str], None],
    rules: Sequence[Rule],
) -> Events:
    with stack:
        yield from session.start(stop, note, rules).events()
