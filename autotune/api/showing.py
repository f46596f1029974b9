"""⑪ Display of a search by `Task.tune`: a live table, plain lines, nothing, or your function."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from autotune.errors import UsageError
from autotune.printable import folded, printable
from autotune.tuner import (
    DeviceLeftOut,
    Event,
    NetworkTimed,
    NoiseNoticed,
    SessionFinished,
    of_target,
)

if TYPE_CHECKING:
    from autotune.display.renderers import Renderer

Show: TypeAlias = str | Callable[[Event], None]
"""`auto` (a table in terminals and notebooks), `table`, `lines`, `nothing`, or a function, which
is called with every event."""

_SILENT_S = 2.0
"""Set-up that takes longer is told."""
_WORDS = ("auto", "table", "lines", "nothing")


@contextmanager
def showing(show: Show) -> Iterator[Callable[[Event], None]]:
    """A function that shows each event of one search as `show` says; see `Task.tune`.

    Everything goes to stderr, as with `autotune tune`; the summary follows when the search has
    ended. Raises UsageError for a word that is none of them.
    """
    if callable(show):
        yield show
    elif show == "nothing":
        yield lambda event: None
    elif show in _WORDS:
        with _rendered(show) as tell:
            yield tell
    else:
        raise UsageError(
            f"show={show!r} is no way to show a search",
            f"write one of {', '.join(_WORDS)}, or give a function of an event",
        )


@contextmanager
def _rendered(show: str) -> Iterator[Callable[[Event], None]]:
    from autotune.display.lines import in_turns_text, summary_lines
    from autotune.display.renderers import Plain

    last: list[str] = []
    renderer = _table(show) or Plain(_write)
    is_table = not isinstance(renderer, Plain)
    silences: list[threading.Timer] = []

    def silence(text: str) -> None:
        """Say `text` where nothing else is said for long, and no table is there."""
        if not is_table:
            silences.append(threading.Timer(_SILENT_S, _write, (text,)))
            silences[-1].daemon = True
            silences[-1].start()

    def end_silence() -> None:
        for timer in silences:
            timer.cancel()

    def tell(event: Event) -> None:
        end_silence()
        renderer.show(event)
        target, own = of_target(event)
        if isinstance(own, NoiseNoticed):
            renderer.note(str(own.noise))
            last.append(f"note: {own.noise}")
        if isinstance(own, DeviceLeftOut):
            renderer.note(str(own))
            last.append(f"note: {own}")
        if isinstance(own, SessionFinished):
            last.extend([f"{target}:"] if target else [])
            last.extend(summary_lines(own))
            silence("compiling the network tuned and untuned …")
        if isinstance(own, NetworkTimed):
            last.append(in_turns_text(own.in_turns))

    silence("reading the model, measuring peak rates …")
    try:
        with renderer:
            yield tell
    finally:
        end_silence()
    for line in last:
        _write(folded(line, is_table))


def _table(show: str) -> Renderer | None:
    """A table that is redrawn, in a notebook or on a terminal; None where lines are wanted."""
    from autotune.display.notebook import NotebookTable, kernel_output
    from autotune.display.renderers import is_screen, table_on_stderr

    put = kernel_output() if show != "lines" else None
    if put is not None:
        return NotebookTable(put, time.monotonic)
    is_wanted = show == "table" or (show == "auto" and is_screen())
    return table_on_stderr(time.monotonic) if is_wanted else None


def _write(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()
