"""⑨ A session's events on the screen: a live display, or one line per batch."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.text import Text

from autotune.display.lines import (
    LEGEND,
    batch_line,
    built_line,
    display,
    gained_text,
    more_text,
    outlook_text,
    share_text,
    task_table,
)
from autotune.display.view import View
from autotune.printable import one_line
from autotune.tuner import (
    BatchMeasured,
    CandidateBuilt,
    DefaultsMeasured,
    DevicesChanged,
    Event,
    FinalistsMeasured,
    NetworkChosen,
    NetworkTried,
    SessionStarted,
    of_target,
)
from autotune.units import format_duration

_BUILDING_S = 10.0
"""Between two lines, while candidates are built."""


class Renderer:
    """Shows events as they come; a context manager around the whole session. This one is silent."""

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up."""

    def show(self, event: Event) -> None:
        """Show one event."""

    def note(self, text: str) -> bool:
        """Show what a user should know; False where another has to say it."""
        return False


class Plain(Renderer):
    """One line per batch, given to `write`: for pipes, files and CI."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._views: defaultdict[str, View] = defaultdict(View)
        self._write = write
        self._told_s = 0.0

    def show(self, event: Event) -> None:
        """One line for the outlook, a batch and the finals, none for other events.

        Building for long has one now and then.
        """
        target, event = of_target(event)
        view, of = self._views[target], f"{target}: " if target else ""
        was_final = view.is_final
        view.apply(event)
        if isinstance(event, SessionStarted) and event.in_turns is not None:
            self._write(of + gained_text(event.in_turns))
        if isinstance(event, SessionStarted | DefaultsMeasured) and event.outlook is not None:
            self._write(of + outlook_text(event.outlook))
        elif isinstance(event, CandidateBuilt):
            if event.elapsed_s - self._told_s >= _BUILDING_S and event.n_done < event.n_batch:
                self._told_s = event.elapsed_s
                self._write(of + built_line(view, event))
        elif isinstance(event, BatchMeasured):
            self._told_s = event.elapsed_s
            self._write(of + batch_line(view, event))
        elif isinstance(event, FinalistsMeasured) and not was_final:
            at = format_duration(event.elapsed_s)
            share = share_text(view, event.elapsed_s)
            self._write(f"{of}{at:>7}  {share}measuring the finalists again")
        elif isinstance(event, NetworkTried | NetworkChosen):
            self._write(of + view.in_network)
        elif isinstance(event, DevicesChanged):
            self._write(f"{of}devices: {', '.join(event.devices) or 'none'}")


class LiveTable(Renderer):
    """A display that is redrawn in place, with a clock that runs between events."""

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._views: defaultdict[str, View] = defaultdict(View)
        self._early: list[str] = []
        self._stop = stop
        self._clock = clock
        self._shown_at = clock()
        self._live: AbstractContextManager[Any] = nullcontext()
        self._console = console
        self._size = console.size

    def __enter__(self) -> LiveTable:
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=4,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)
        for target, view in self._views.items():
            if view.rows:
                table = task_table(view, width=self._console.width)
                self._console.print(*([Text(one_line(target))] if target else []), table, sep="\n")
                if more := more_text(view, table):
                    self._console.print(more)
                self._console.print(LEGEND, no_wrap=True, overflow="ellipsis")

    def note(self, text: str) -> bool:
        """Show a note above the table."""
        first = next(iter(self._views.values()), None)
        (self._early if first is None else first.notes).append(text)
        return True

    def show(self, event: Event) -> None:
        """Remember; the next redraw shows it."""
        target, event = of_target(event)
        view = self._views[target]
        view.apply(event)
        view.notes[:0], self._early = self._early, []
        self._shown_at = self._clock()

    def _draw(self) -> RenderableType:
        """The display; on an empty screen where the terminal has wrapped the last one."""
        size = self._console.size
        if size != self._size:
            self._size = size
            self._console.control(Control.home(), Control.clear())
        more_s, views = self._clock() - self._shown_at, self._views or {"": View()}
        parts: list[RenderableType] = []
        for target, view in views.items():
            view.is_stopping = self._stop()
            height = size.height // len(views) - bool(target)
            parts += [Text(one_line(target))] if target else []
            parts.append(display(view, view.elapsed_s + more_s, size.width, height))
        return Group(*parts)


def is_screen() -> bool:
    """Whether stderr is a terminal on which lines can be redrawn."""
    return sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal


def table_on_stderr(
    clock: Callable[[], float], stop: Callable[[], bool] = lambda: False
) -> LiveTable:
    """A live table on stderr. `clock`: seconds, monotonic; `stop`: whether an end is asked for."""
    return LiveTable(Console(stderr=True), clock, stop)
