"""⑪ Display of a search by `Task.tune`: a live table, plain lines, nothing, or your function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from autotune.errors import UsageError
from autotune.tuner import Event, NoiseNoticed, SessionFinished, of_target

Show: TypeAlias = str | Callable[[Event], None]
"""`auto`, `table`, `lines`, `nothing`, or a function that is called with every event."""

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
        from autotune.display.renderers import is_screen

        with _rendered(show == "table" or (show == "auto" and is_screen())) as tell:
            yield tell
    else:
        raise UsageError(
            f"show={show!r} is no way to show a search",
            f"write one of {', '.join(_WORDS)}, or give a function of an event",
        )


@contextmanager
def _rendered(is_table: bool) -> Iterator[Callable[[Event], None]]:
    from autotune.display.lines import summary_lines
    from autotune.display.renderers import Plain, table_on_stderr

    last: list[str] = []
    renderer = table_on_stderr(time.monotonic) if is_table else Plain(_write)

    def tell(event: Event) -> None:
        renderer.show(event)
        target, own = of_target(event)
        if isinstance(own, NoiseNoticed):
            renderer.note(str(own.noise))
            last.append(f"note: {own.noise}")
        if isinstance(own, SessionFinished):
            last.extend([f"{target}:"] if target else [])
            last.extend(summary_lines(own))

    with renderer:
        yield tell
    for line in last:
        _write(line)


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
