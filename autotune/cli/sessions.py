"""⑪ Show a running session: its events, the signals that end it, its summary and exit code."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from autotune.api.te.workloads import parse_source
from autotune.api.tune.in_turns import concluded
from autotune.api.tune.session import OpenSession
from autotune.api.tune.several import SeveralTunings
from autotune.api.tune.tune_result import require_valid
from autotune.api.tune.tuning import Tuning
from autotune.cli.console import (
    invocation,
    put_json,
    put_path,
    say,
    say_late_note,
    say_note,
    stage,
    tell_note,
)
from autotune.cli.progress import JsonLines
from autotune.cli.signals import ENDS, end_now, exit_code, handled
from autotune.cli.waiting import is_screen
from autotune.codec import to_json
from autotune.display.lines import in_turns_text, summary_lines
from autotune.display.renderers import Plain, Renderer, table_on_stderr
from autotune.errors import ExitCode
from autotune.printable import folded
from autotune.records import InTurns
from autotune.tuner import (
    Budget,
    DeviceLeftOut,
    NetworkTimed,
    NoiseNoticed,
    OfTarget,
    SessionFinished,
    SessionStarted,
    StopReason,
    event_to_json,
    of_target,
)
from autotune.units import counted, format_duration


@dataclass(slots=True)
class StopFlag:
    """Set by the first signal that asks to end: the session ends after its current measurement."""

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


@dataclass(slots=True)
class Notes:
    """Notes of a session: shown at once, and again below its summary."""

    texts: list[str] = field(default_factory=list)
    renderer: Renderer | None = None

    def __call__(self, text: str) -> None:
        """Take a note."""
        say_note(text, self._take(text))

    def late(self, text: str) -> None:
        """Take a note about figures that exist."""
        say_late_note(text, self._take(text))

    def _take(self, text: str) -> bool:
        self.texts.append(text)
        return self.renderer is not None and self.renderer.note(text)

    def show_in(self, renderer: Renderer) -> None:
        """From now on notes are shown there, where it does so; so are those up to now."""
        self.renderer = renderer
        for text in self.texts:
            renderer.note(text)


def run_session(
    session: OpenSession, events: str | None, style: str = "text", compare: bool = True
) -> int:
    """Run `session` and show its events; returns the exit code.

    On stdout: the `events` alone, or the path of the log, with `style` "json" its runs as well.
    `compare`: compile its network at the end, and time it in turns with the untuned one.
    """
    path = session.journal.path
    stop = StopFlag(path)
    notes = Notes()
    with stage("measuring peak rates, learning from earlier logs"):
        compare = compare and parse_source(session.header.model_path) is None
        tuning = session.start(stop, notes, compiles=compare)
    for text in session.notes_of_set_up():
        notes.late(text)
    if events is None:
        age_s = time.monotonic() - session.begun_s
        say(f"set-up took {format_duration(age_s)}, which counts as time of the session")
    if (session.config.warm_start or tuning.warm.n_records) and events is None:
        say(str(tuning.warm))
    renderer = make_renderer(events, stop)
    notes.show_in(renderer)
    with stop.installed():
        with invocation().waiting.held() if stop.is_shown else nullcontext():
            finished, bound_s = _show(tuning, renderer, notes)
        in_turns = None
        if events is None and style == "text":
            put_path(path)
        said = () if events is not None else notes.texts
        try:
            code = _conclude(finished, path, stop, said, quiet=events is not None)
            if code == ExitCode.OK and compare:
                in_turns = _compare(session, stop, renderer if events else None, bound_s)
        finally:
            if events is None and style == "json":
                put_json(_session_json(path, finished, in_turns))
    return code


_COMPARING = "compiling the network tuned and untuned"


def _compare(
    session: OpenSession, stop: StopFlag, renderer: Renderer | None, bound_s: float | None
) -> InTurns | None:
    """The last line: the compiled network beside the untuned one. `renderer`: of events.

    `bound_s`: of the network, where it is known.
    """

    @contextmanager
    def begin() -> Iterator[None]:
        if renderer is None:
            say(f"{_COMPARING}, then timing both in turns")
        with stage(_COMPARING):
            yield

    found = concluded(session.journal, session.log, stop, say_late_note, begin)
    if found is None:
        return None
    if renderer is None:
        say(folded(in_turns_text(found, bound_s), is_screen()))
    else:
        renderer.show(NetworkTimed(found))
    return found


def budget_text(budget: Budget) -> str:
    """`64 trials or 10m00s`."""
    trials = [] if budget.trials is None else [counted(budget.trials, "trial")]
    time_s = [] if budget.time_s is None else [format_duration(budget.time_s)]
    return " or ".join([*trials, *time_s])


def added(budget: Budget) -> str:
    """Options that add as much again."""
    if budget.trials is not None:
        return f"--trials {budget.trials}"
    return f"--time {round(budget.time_s or 0.0)}s"


def _session_json(
    path: Path, found: dict[str, SessionFinished], in_turns: InTurns | None
) -> dict[str, Any]:
    runs = [event_to_json(OfTarget(key, e) if key else e) for key, e in found.items()]
    compared: Any = None if in_turns is None else to_json(in_turns)
    return {"log": str(path), "runs": runs, "in_turns": compared}


def make_renderer(events: str | None, stop: StopFlag) -> Renderer:
    """The way to show events that fits where stdout and stderr go."""
    if events == "jsonl":
        return JsonLines()
    if invocation().quiet:
        return Renderer()
    if is_screen():
        stop.is_shown = True
        return table_on_stderr(time.monotonic, stop)
    return Plain(say)


def _show(
    tuning: Tuning | SeveralTunings, renderer: Renderer, notes: Notes
) -> tuple[dict[str, SessionFinished], float | None]:
    """The last event of each run, by the key of its CPU; "" where there is one run. Of one, the
    bound of its network as well."""
    finished: dict[str, SessionFinished] = {}
    bound_s = None
    with renderer, closing(tuning.events()) as events:
        for event in events:
            renderer.show(event)
            target, own = of_target(event)
            if isinstance(own, NoiseNoticed):
                notes.late(str(own.noise))
            if isinstance(own, DeviceLeftOut):
                notes.late(str(own))
            if isinstance(own, SessionFinished):
                finished[target] = own
            if isinstance(own, SessionStarted) and not target:
                bound_s = own.bound_s
    return finished, bound_s


def _conclude(
    found: dict[str, SessionFinished],
    path: Path,
    stop: StopFlag,
    notes: Sequence[str],
    quiet: bool,
) -> int:
    for target, finished in found.items():
        if not quiet:
            for line in [*([f"{target}:"] if target else []), *summary_lines(finished)]:
                say(folded(line, is_screen()))
        if finished.untried:
            untried = counted(len(finished.untried), "task")
            say_late_note(f"{untried} not reached; compile takes the default")
    for note in notes:
        tell_note(note)
    if any(finished.reason is StopReason.INTERRUPTED for finished in found.values()):
        number = stop.number or signal.SIGINT
        say(f"{ENDS[signal.Signals(number)]}; go on with: autotune resume {path}")
        return exit_code(number)
    for finished in found.values():
        require_valid(finished, path)
    for target in () if quiet else found:
        chosen = f" --target {target}" if target else ""
        say(f"next: autotune compile --log {path}{chosen}")
    return ExitCode.OK
