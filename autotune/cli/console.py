"""⑪ Output of commands: data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from autotune.cli.streams import silence
from autotune.cli.waiting import Waiting, has_colours, is_screen
from autotune.cli.wording import as_options
from autotune.errors import NoteForbidden, OutputError
from autotune.printable import MOST_OF_CELL, folded, one_line, printable, shortened

_F = TypeVar("_F", bound=Callable[..., Any])
_LINE_EVERY_S = 10.0
STDOUT_HINT = "send the output to a place with room"


@dataclass(slots=True)
class Invocation:
    """Settings of every command of one invocation, and the notes that it ends with under strict."""

    debug: bool = False
    strict: bool = False
    quiet: bool = False
    verbose: bool = False
    begun_s: float = field(default_factory=time.monotonic)
    late_notes: list[str] = field(default_factory=list)

    waiting: Waiting = field(default_factory=lambda: Waiting(sys.stderr.isatty(), is_screen()))
    """The line that tells of work while nothing else is said."""


def invocation() -> Invocation:
    """The settings of the command that runs in this thread; the usual ones outside of any."""
    context = click.get_current_context(silent=True)
    found = context.find_object(Invocation) if context else None
    return found or Invocation(waiting=Waiting(False))


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Work that takes long may be inside: a terminal then says `text`."""
    with invocation().waiting.stage(text):
        yield


def say(text: str, head: str = "", is_prose: bool = False) -> None:
    """Tell the person at the terminal something that is not data, in the words of the command.

    With --quiet nothing; with --verbose below the seconds since the command began. `head`: what is
    before the text, in colours. `is_prose`: a narrower terminal has it folded between words.
    """
    state = invocation()
    if state.quiet:
        return
    age = f"[{time.monotonic() - state.begun_s:6.1f} s] " if state.verbose else ""
    _tell(text, age + head, is_prose)


def say_more(text: str) -> None:
    """Tell what only --verbose asks for."""
    if invocation().verbose:
        say(text)


def _tell(text: str, head: str = "", is_prose: bool = False) -> None:
    invocation().waiting.pause()
    text = as_options(printable(text))
    if is_prose:
        text = folded(text, is_screen(), len(click.unstyle(head)))
    click.echo(head + text, err=True, color=has_colours())


def say_error(message: str, hint: str = "") -> None:
    """The two lines of every failure."""
    _tell(one_line(message), _styled("error:", "red"), is_prose=True)
    if hint:
        _tell(one_line(hint), _styled("hint:", "cyan"))


def _styled(text: str, colour: str) -> str:
    return f"{click.style(text, fg=colour, bold=True) if has_colours() else text} "


def tell_note(message: str) -> None:
    """A note as one line; a terminal has it folded between words."""
    say(shortened(one_line(message)), _styled("note:", "yellow"), is_prose=True)


def say_note(message: str, is_shown: bool = False) -> None:
    """Something worth knowing that is no failure. Raises NoteForbidden with --strict.

    `is_shown`: a display tells it.
    """
    if invocation().strict:
        raise NoteForbidden(message, "without --strict this is a note")
    if not is_shown:
        tell_note(message)


def say_late_note(message: str, is_shown: bool = False) -> None:
    """A note about figures that exist: with --strict they are written, and the command fails."""
    if not is_shown:
        tell_note(message)
    invocation().late_notes.append(message)


def put(text: str) -> None:
    """Write data for people. Raises OutputError where stdout does not take it."""
    _put(printable(text))


def _put(text: str) -> None:
    invocation().waiting.pause()
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise OutputError(f"cannot write to stdout: {error.strerror}", STDOUT_HINT) from error


def put_path(path: Path) -> None:
    """Write the path of a file that is whole: nothing is lost where stdout does not take it."""
    try:
        _put(str(path))
    except OutputError as error:
        say_note(f"{error.message}; {path} is written")


def put_json(data: Any) -> None:
    """Write data as indented JSON."""
    put(json_text(data, indent=2))


def json_text(data: Any, indent: int | None = None) -> str:
    """JSON that stdout can encode and no terminal obeys, also where that means escapes."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if printable(text) != text:
        return json.dumps(data, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=indent)
    return text


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Progress of long work: for a person a line that changes, for a log one now and then."""
    state = invocation()
    if state.quiet:
        yield lambda n, total: None
        return
    if state.waiting.is_on:
        with state.waiting.stage(what) as say_now:
            yield lambda n, total: say_now(f"{what}: {n} of {total}")
        return
    said_s = time.monotonic()

    def tell(n: int, total: int) -> None:
        nonlocal said_s
        if time.monotonic() > said_s + _LINE_EVERY_S:
            said_s = time.monotonic()
            say(f"{what}: {n} of {total}")

    yield tell


def columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    least: Sequence[str] = (),
) -> str:
    """A plain table; `right` names the columns that are aligned at their right edge.

    `least`: those that a terminal too narrow for all goes without, in this order.
    """
    rows = [[shortened(one_line(cell), MOST_OF_CELL) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    if least and sum(widths) + 2 * (len(head) - 1) > _stdout_width():
        kept = [i for i, title in enumerate(head) if title != least[0]]
        narrower = [[row[i] for i in kept] for row in rows]
        return columns([head[i] for i in kept], narrower, right, least[1:])
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if title in right else cell.ljust(width)
            for cell, width, title in zip(row, widths, head, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _stdout_width() -> float:
    """Columns of the terminal that stdout is; no limit where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def common_options(function: _F) -> _F:
    """`--strict`, `--quiet`, `--verbose` and `--debug`, on every command."""
    for name, (words, text) in reversed(_COMMON.items()):
        function = click.option(
            name,
            *words,
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_remember,
            help=text,
        )(function)
    return function


_COMMON = {
    "strict": (("--strict",), "Notes are errors, exit code 7: fallbacks, defaults, noise."),
    "quiet": (("-q", "--quiet"), "Write data and errors alone."),
    "verbose": (("-v", "--verbose"), "Tell settings and times as well."),
    "debug": (("--debug",), "Show tracebacks."),
}
"""Fields of `Invocation`, their options and what those do."""


def _remember(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        state = context.ensure_object(Invocation)
        setattr(state, parameter.name or "", True)
        state.waiting.is_on &= not state.quiet
