"""⑪ The composition root of tuning: settings, log, policies and measurer become one session."""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console

from autotune import __version__
from autotune.cli.console import say, say_note
from autotune.cli.display import summary_lines
from autotune.cli.models import constant_bytes, largest_bytes, total_flops, tuning_tasks
from autotune.cli.progress import JsonLines, LiveTable, Plain, Renderer
from autotune.cli.signals import ENDS, end_now, exit_code, handled
from autotune.cli.warm import warm_start
from autotune.config import TuneConfig
from autotune.errors import ExitCode, LogMismatch, NoValidSchedule
from autotune.graph.network import Network
from autotune.machine import Limits, read_limits
from autotune.measure.measurer import Measurer
from autotune.measure.memory import plan_memory, private_bytes
from autotune.measure.noise import NoiseWatch, read_usage
from autotune.measure.options import MeasureOptions
from autotune.measure.peak import measure_peaks, stay_cached
from autotune.measure.program import build_program
from autotune.network.overlays import overwritable
from autotune.records import Header, Journal, Log
from autotune.search.model import Ranker
from autotune.search.policy import Candidate, SketchPolicy, default_candidate
from autotune.search.transfer import Hall
from autotune.target import Target, difference
from autotune.tuner import (
    BatchMeasured,
    Budget,
    NoiseNoticed,
    Run,
    Scheduler,
    Session,
    SessionFinished,
    StopReason,
    TuningTask,
)

_LIBRARIES = ("llvmlite", "lightgbm", "numpy", "onnx")


def new_header(
    network: Network,
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    target: Target,
    config: TuneConfig,
) -> Header:
    """The header of the first run over a network."""
    return Header(
        run_id=secrets.token_hex(6),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model_path=str(path.resolve()),
        model_hash=network.model_hash,
        shapes=shapes,
        target=target,
        n_threads=config.threads or read_limits().n_busy,
        seed=config.seed,
        config=config.to_json(),
        versions=versions(),
        tasks=tuple(network.weights.items()),
        parts=network.parts,
        overwritten=overwritable(network),
        random_weights=network.random_weights,
    )


def next_header(log: Log, options: Mapping[str, Any]) -> Header:
    """The header of a run that goes on with a log; options that are None leave its settings."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(
        log.header,
        run_id=secrets.token_hex(6),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=TuneConfig.from_json(log.settings | given).to_json(),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of everything that may change what is generated or measured."""
    found = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"autotune": __version__, "python": platform.python_version()} | found


@dataclass(slots=True)
class StopFlag:
    """Set by the first signal that asks to end: the session ends after what it is measuring."""

    log: Path
    number: int = 0
    """Of the signal; 0 before there is one."""
    is_shown: bool = False
    """Whether the display tells of it: a line on stderr would be drawn over."""

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.number != 0

    def installed(self) -> AbstractContextManager[None]:
        """Handle signals inside the block; a second one ends the process at once."""
        return handled(self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            end_now(number, f"go on with: autotune resume {self.log}")
        self.number = number
        if not self.is_shown:
            with suppress(OSError):
                say("\nfinishing the current measurement; once more to stop at once")


def run_session(
    journal: Journal, log: Log, header: Header, budget: Budget, events: str | None
) -> int:
    """Tune what `header` says, within `budget`; returns the exit code.

    `log` is what is replayed first: empty of records for a new session.
    """
    config = TuneConfig.from_json(header.config)
    options = measure_options(log, config)
    peaks = measure_peaks(header.target, header.n_threads, options.evict)
    tasks = tuning_tasks(log, peaks)
    # one thread trains on a few thousand rows in 0.2 s; OpenMP's threads, which spin, take many
    # seconds as soon as anything else runs on the machine
    ranker = Ranker(config.seed)
    warm = warm_start(config.warm_start, header, config.max_error, log, ranker)
    if config.warm_start and events is None:
        say(str(warm))
    stop = StopFlag(journal.path)
    renderer = make_renderer(events, stop)
    build = partial(build_program, overwritten=header.overwritten)
    measuring = Measurer(header.target, header.n_threads, options, build)
    with stop.installed(), measuring as measurer:
        session = make_session(journal, header, tasks, budget, measurer, ranker, warm.first, stop)
        session.replay(log.within(config.max_error))
        watch = NoiseWatch(read_usage)
        session.noise = watch.to_json
        finished = _show(session, renderer, watch)
    journal.check()
    return _conclude(finished, journal.path, log, stop, quiet=events is not None)


def measure_options(log: Log, config: TuneConfig, limits: Limits | None = None) -> MeasureOptions:
    """Time-outs of the settings, and caches in the state in which this network leaves them.

    Raises UsageError where `limits` (those of this process by default) leave too little memory.
    """
    header = log.header
    n_bytes, flops = constant_bytes(log), total_flops(log)
    plan = plan_memory(limits or read_limits(), private_bytes(), largest_bytes(log))
    return MeasureOptions(
        n_builders=plan.n_builders,
        builder_bytes=plan.builder_bytes,
        worker_bytes=plan.worker_bytes,
        evict=not stay_cached(header.target, header.n_threads, n_bytes, flops),
        build_timeout_s=config.build_timeout_s,
        run_timeout_s=config.run_timeout_s,
        max_error=config.max_error,
        seed=config.seed,
    )


def make_session(
    journal: Journal,
    header: Header,
    tasks: list[TuningTask],
    budget: Budget,
    measurer: Measurer,
    ranker: Ranker,
    first: Mapping[str, Sequence[Candidate]],
    stop: Callable[[], bool],
) -> Session:
    """Wire search and measurement together."""
    config = TuneConfig.from_json(header.config)
    hall = Hall()

    def policy_of(task: TuningTask) -> SketchPolicy:
        rng = np.random.default_rng([config.seed, int(task.key, 16)])
        return SketchPolicy(task.dag, header.target, header.n_threads, ranker, rng, hall)

    def default(task: TuningTask) -> Candidate | None:
        with suppress(NoValidSchedule):
            return default_candidate(task.dag, header.target, header.n_threads, config.max_error)
        return None

    return Session(
        run=Run(header.run_id, header.target.key, header.n_threads),
        tasks=tasks,
        policy_of=policy_of,
        measurer=measurer,
        sink=journal,
        budget=budget,
        scheduler=Scheduler(tasks, config.batch, config.patience),
        clock=time.monotonic,
        model=ranker,
        stop=stop,
        batch=config.batch,
        default=default,
        first=first,
    )


def make_renderer(events: str | None, stop: StopFlag) -> Renderer:
    """The way to show events that fits where stdout and stderr go."""
    if events == "jsonl":
        return JsonLines()
    if sys.stderr.isatty():
        stop.is_shown = True
        return LiveTable(Console(stderr=True), time.monotonic, stop)
    return Plain()


def _show(session: Session, renderer: Renderer, watch: NoiseWatch) -> SessionFinished:
    finished: Any = None
    with renderer, closing(session.events()) as events:  # the end is written while the log is open
        for event in events:
            renderer.show(event)
            finished = event
            noise = watch.look() if isinstance(event, BatchMeasured) else None
            if noise is not None:
                renderer.show(NoiseNoticed(noise))
                say_note(str(noise))
    assert isinstance(finished, SessionFinished)
    return finished


def _conclude(finished: SessionFinished, path: Path, log: Log, stop: StopFlag, quiet: bool) -> int:
    if not quiet:
        for line in summary_lines(finished):
            say(line)
        say(f"log: {path}")
    ids = {key: i for i, (key, _) in enumerate(log.header.tasks)}
    if finished.untried:
        say_note(f"{len(finished.untried)} tasks were not reached; compile takes their default")
    if finished.reason is StopReason.INTERRUPTED:
        number = stop.number or signal.SIGINT
        say(f"{ENDS[signal.Signals(number)]}; go on with: autotune resume {path}")
        return exit_code(number)
    if finished.invalid:
        names = ", ".join(str(ids[key]) for key in finished.invalid)
        raise NoValidSchedule(
            f"no candidate of task {names} was valid ({_causes(finished)})",
            f"see why: autotune explain {path} --task {ids[finished.invalid[0]]}",
        )
    if not quiet:
        say(f"next: autotune compile --log {path}")
    return ExitCode.OK


def _causes(finished: SessionFinished) -> str:
    return ", ".join(f"{n} {status}" for status, n in finished.failures.items())


def require_same_machine(header: Header, target: Target) -> None:
    """Raise LogMismatch when a log was measured on another CPU than this one."""
    if header.target.key != target.key:
        raise LogMismatch(
            f"the log was measured on another CPU: {difference(header.target, target)}",
            "use it there, or start a new log here: autotune tune",
        )
