"""⑪ A line on the terminal that says what goes on, where nothing else was said for a second."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.printable import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_SILENT_S = 1.0
_LOOKS_EVERY_S = 0.25


def is_screen() -> bool:
    """Whether stderr is a terminal on which lines can be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def has_colours() -> bool:
    """Whether stderr is to have colours: NO_COLOR and FORCE_COLOR decide, else the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_screen()


class Waiting:
    """A line on stderr about the stage of a command that is going on, with its seconds.

    A context manager around the command; does nothing where `is_on` is false. Whoever writes to
    the terminal calls `pause` first, which removes the line until it was silent for long again.
    On a terminal that is no screen (`is_screen`), each stage is written once, as a line that stays.
    """

    def __init__(
        self,
        is_on: bool,
        is_screen: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_on, self.is_screen = is_on, is_screen
        self.console: Console | None = None
        """By default that of stderr."""
        self._clock = clock
        self._stages: list[tuple[str, float]] = []
        self._said_s = clock()
        self._n_held = 0
        self._written: float | None = None
        """Begin of the stage that was written last."""
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Waiting:
        if self.is_on:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.pause()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def stage(self, text: str) -> Iterator[Callable[[str], None]]:
        """What goes on inside the block; a function that replaces it by a further text."""
        at = len(self._stages)
        self._stages.append((text, self._clock()))

        def replaced(new: str) -> None:
            self._stages[at] = (new, self._stages[at][1])

        try:
            yield replaced
        finally:
            del self._stages[at:]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Without the line inside of the block, which has a display of its own."""
        self._n_held += 1
        self.pause()
        try:
            yield
        finally:
            self._n_held -= 1
            self.pause()

    def pause(self) -> None:
        """Remove the line, if it is there."""
        with self._lock:
            self._said_s = self._clock()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def look(self) -> None:
        """Show the line where nothing was said for long enough."""
        with self._lock:
            is_silent = self._clock() - self._said_s >= _SILENT_S
            if not self.is_on or not is_silent or not self._stages or self._n_held:
                return
            if not self.is_screen:
                self._write_once()
            elif self._live is None:
                self._live = self._started()

    def _write_once(self) -> None:
        stage = self._stages[-1]
        if stage[1] != self._written:
            self._written = stage[1]
            sys.stderr.write(f"{one_line(stage[0])} …\n")
            sys.stderr.flush()

    def _started(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        # what is written to stdout is data, and never goes through this console
        live = Live(
            console=self.console or Console(stderr=True, no_color=not has_colours()),
            get_renderable=self._text,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start(refresh=True)
        return live

    def _text(self) -> Text:
        from rich.text import Text

        stages = self._stages  # the main thread changes it
        text, begin = stages[-1] if stages else ("", 0.0)
        line = f"{one_line(text)}, {self._clock() - begin:.0f} s"
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS_EVERY_S):
            self.look()
