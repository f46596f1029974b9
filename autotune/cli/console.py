"""⑪ Output of commands: data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from autotune.cli.streams import silence
from autotune.cli.wording import as_options
from autotune.errors import OutputError

_F = TypeVar("_F", bound=Callable[..., Any])
_LINE_EVERY_S = 5.0
STDOUT_HINT = "send the output to a place with room"


@dataclass(slots=True)
class Invocation:
    """Settings of every command of one invocation."""

    debug: bool = False


def say(text: str) -> None:
    """Tell the person at the terminal something that is not data, in the words of the command."""
    click.echo(as_options(text), err=True)


def say_error(message: str, hint: str = "") -> None:
    """The two lines of every failure."""
    say(f"{_styled('error:', 'red')} {_line(message)}")
    if hint:
        say(f"{_styled('hint:', 'cyan')} {_line(hint)}")


def _line(text: str) -> str:
    """Text from anywhere as one line that does nothing to the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _styled(text: str, colour: str) -> str:
    return text if "NO_COLOR" in os.environ else click.style(text, fg=colour, bold=True)


def say_note(message: str) -> None:
    """Something worth knowing that is no failure."""
    say(f"{_styled('note:', 'yellow')} {message}")


def put(text: str) -> None:
    """Write data. Raises OutputError where stdout does not take it."""
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
        put(str(path))
    except OutputError as error:
        say_note(f"{error.message}; {path} is written")


def put_json(data: Any) -> None:
    """Write data as indented JSON."""
    put(json_text(data, indent=2))


def json_text(data: Any, indent: int | None = None) -> str:
    """JSON that stdout can encode, also where that means escapes."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=indent)
    return text


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Progress of long work: for a person a line that changes, for a log one now and then."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(what) as status:
            yield lambda n, total: status.update(f"{what}: {n} of {total}")
        return
    said_s = time.monotonic()

    def tell(n: int, total: int) -> None:
        nonlocal said_s
        if time.monotonic() > said_s + _LINE_EVERY_S:
            said_s = time.monotonic()
            say(f"{what}: {n} of {total}")

    yield tell


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """A plain table; `right` names the columns that are aligned at their right edge."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if title in right else cell.ljust(width)
            for cell, width, title in zip(row, widths, head, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def debug_option(function: _F) -> _F:
    """`--debug`, on every command."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.ensure_object(Invocation).debug |= value

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=remember,
        help="Show tracebacks.",
    )(function)
