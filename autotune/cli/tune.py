"""⑪ `autotune tune`: start a log and search."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import common_options, put, put_json, say, say_more, say_note, stage
from autotune.cli.option_types import FILE, SEED, THREADS, Preset
from autotune.cli.options import (
    args_option,
    compare_option,
    environment_of,
    events_option,
    exactness_options,
    fallback_option,
    format_option,
    operators_option,
    rules_option,
    runner_option,
    source_options,
    state_options,
    store_option,
    target_option,
    time_option,
    trials_option,
    warm_start_option,
)
from autotune.config import option_of
from autotune.errors import UsageError
from autotune.units import counted

if TYPE_CHECKING:
    from autotune.api.request import TuneRequest
    from autotune.api.tune.session import OpenSession, PreparedModel
    from autotune.config import Resolved
    from autotune.records import Header


@click.command("tune")
@click.argument("model", required=False, type=FILE)
@click.option("--log", "log_path", type=FILE, help="Log to write.  [logs/MODEL-DATE.jsonl]")
@trials_option
@time_option
@click.option(
    "--threads", type=THREADS, help="Threads that the model will run on.  [as many as are usable]"
)
@source_options
@state_options
@args_option
@click.option("--preset", type=Preset(), help="quick, full, ci, or a TOML file.")
@click.option("--seed", type=SEED, help="Same seed, same search.  [0]")
@target_option("CPU to generate code for: a name or a file of `autotune target`.  [native]")
@runner_option
@exactness_options
@warm_start_option
@store_option
@rules_option
@operators_option
@fallback_option
@click.option(
    "--resume-or-start",
    is_flag=True,
    help="Go on with --log where it exists, up to this budget in total; else start it.",
)
@click.option("--dry-run", is_flag=True, help="Show tasks and settings; measure nothing.")
@compare_option
@events_option
@format_option
@common_options
def command(
    model: Path | None,
    log_path: Path | None,
    arguments: str | None,
    resume_or_start: bool,
    dry_run: bool,
    compare: bool,
    events: str | None,
    style: str,
    **options: Any,
) -> int:
    """Search for the fastest program of every part of MODEL, and log every measurement.

    MODEL is an ONNX file, or FILE.py:FUNCTION for a computation of `autotune.te`, which is called
    with --args.

    Without MODEL, tunes the ResNet-50 that comes with the onnx package, with random weights.
    Without a budget, searches for ten minutes. Stops at the first limit that is reached; a log can
    be resumed at any time. Prints the path of the log.
    """
    from autotune.api.request import TuneRequest
    from autotune.api.sources import model_path
    from autotune.api.tune.session import prepare, prepare_network, resolved
    from autotune.cli.models import read_workload, say_random_weights
    from autotune.cli.sessions import run_session

    if resume_or_start and log_path is None:
        raise UsageError("--resume-or-start is for --log", "name the log: --log model.jsonl")
    request = TuneRequest(model, "", **options, note=say_note)
    settings = _traced(resolved(request))
    n_threads = 0 if settings.config.runner else settings.config.threads
    task = read_workload(model, arguments, n_threads)
    log_path = log_path or default_log(task.name if task else model_path(model).stem)
    is_there = resume_or_start and log_path.exists()
    place = None if dry_run or is_there else log_path
    if task is not None:
        prepared = prepare_network(task.network(), settings.config, place, source=task.source)
    else:
        with stage("reading the model"):
            prepared = prepare(request, settings.config, place)
        for text in prepared.notes:
            say_note(text)
    network = prepared.network
    title = network.name if task else Path(prepared.source).name
    if network.random_weights:
        say_random_weights(title)
    from autotune.cli.tasks import settings_json, settings_text, task_texts, tasks_json

    if dry_run and style == "json":
        found = tasks_json(prepared.networks, prepared.variants, prepared.others)
        put_json({"tasks": found, "settings": settings_json(settings)})
        return 0
    if dry_run:
        put(task_texts(prepared.networks, prepared.variants, prepared.others))
        put("")
        put(settings_text(settings))
        return 0
    say_more(settings_text(settings))
    with _opened(prepared, request, log_path, is_there) as session:
        for text in session.notes if is_there else ():
            say_note(text)
        if events is None:
            say(
                f"{title}: {counted(len(session.log.workloads), 'task')}, {prepared.target.cpu}, "
                f"{_threads_text(session.header)}, seed {prepared.config.seed}, "
                f"log {session.journal.path}"
            )
        return run_session(session, events, style, compare)


def _traced(settings: Resolved) -> Resolved:
    """The settings with the environment variables that gave them, in the place of options."""
    given = {
        name: variable
        for name, variable in environment_of(click.get_current_context()).items()
        if settings.sources.get(name) == option_of(name)
    }
    return replace(settings, sources=settings.sources | given)


def _opened(
    prepared: PreparedModel, request: TuneRequest, path: Path, is_there: bool
) -> AbstractContextManager[OpenSession]:
    """The session of a new log, or that of the log that exists."""
    from autotune.api.request import ResumeRequest
    from autotune.api.tune.session import create, reopen_for

    if not is_there:
        return create(prepared, path)
    asked = ResumeRequest(
        path,
        max_error=request.max_error,
        warm_start=request.warm_start,
        store=request.store,
    )
    return reopen_for(prepared, asked)


def _threads_text(header: Header) -> str:
    """Their number; where it was not asked for, what it follows from."""
    from autotune.measure.threads import explained_threads
    from autotune.threads import Threads

    default = Threads(header.n_threads) if header.config["threads"] else explained_threads()
    return str(default)


def default_log(stem: str) -> Path:
    """`logs/<stem>-<date>.jsonl`, made unique by a number where it exists already."""
    name = f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    path = Path("logs") / f"{name}.jsonl"
    n = 1
    while path.exists():
        n += 1
        path = Path("logs") / f"{name}-{n}.jsonl"
    return path
