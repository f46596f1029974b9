"""Floor 0: text of models, logs and names as it may be shown: bounded, and without commands.

    printable("a\\x1b[2Jb")       -> r"a\\x1b[2Jb"     nothing clears a terminal or sets its title
    one_line("a\\nerror: b")      -> r"a\\nerror: b"   nothing forges a line
    shortened("x" * 10**7)       -> "xxx… (10,000,000 characters) …xxx"

Names in a file are whatever its author wrote. Control characters, those of terminals of 8 bits and
those that change the direction of writing are shown as escapes. Bytes of file names that are no
UTF-8 stay as they are.
"""

from __future__ import annotations

import re
import shutil
import textwrap

MOST_OF_MESSAGE = 2000
"""Characters of an error, a hint or a note."""
MOST_OF_CELL = 200
"""Characters of a cell of a table."""

LEAST_WIDTH = 20
"""Columns of a terminal that text is folded for."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BREAK = re.compile(r"[\t\n]")
_HALVES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")
_RAW = re.compile(r"[\udc80-\udcff]")


def printable(text: str) -> str:
    """`text` with control characters as escapes, but line breaks and tabs."""
    if _RAW.search(text):  # bytes that together are a character
        text = _HALVES.sub(_escape, text)
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """`text` with all control characters as escapes."""
    return _BREAK.sub(_escape, printable(text))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def shortened(text: str, most: int = MOST_OF_MESSAGE) -> str:
    """`text`, or its beginning and end where it has more than `most` characters."""
    if len(text) <= most:
        return text
    middle = f"… ({len(text):,} characters) …"
    n_end = max(0, (most - len(middle)) // 4)
    n_begin = max(0, most - len(middle) - n_end)
    return f"{text[:n_begin]}{middle}{text[len(text) - n_end :]}"


def folded(line: str, is_screen: bool, n_before: int = 0) -> str:
    """A line for people, on a terminal folded between words, below which the rest is indented.

    `n_before`: columns of what is written before it.
    """
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    if not is_screen or len(line) + n_before <= width:
        return line
    lines = textwrap.wrap(
        line,
        width,
        initial_indent=" " * n_before,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[n_before:]
