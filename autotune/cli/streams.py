"""⑪ Standard streams that are closed, full, or cannot hold every character.

Data that cannot be written is an error. A message on a closed stderr is not: a session goes on
when its terminal is gone. A pipe without a reader ends the command, with an exit code of its own.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_ERRORS = "autotune"
STDOUT_ERRORS = (errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Of an error that names no file: it is stdout that is closed, full or gone."""
_BYTES = range(0xDC80, 0xDD00)  # Python's surrogates for bytes of a name that are no UTF-8


def prepare_streams() -> None:
    """Open closed streams, and let any text be written to stdout and stderr.

    Also keeps a file that is opened later from becoming stdout, if that was closed.
    """
    # writing to stdout then fails as it would if it were closed; stderr just loses what is said
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)
    codecs.register_error(_ERRORS, _escape)
    sys.stdin = sys.stdin or _text(0, "r")
    sys.stdout = sys.stdout or _text(1, "w")
    stderr = sys.stderr or _text(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ERRORS)
    if isinstance(stderr, io.TextIOWrapper):
        encoding = stderr.encoding
        sys.stderr = _Forgiving(stderr.detach(), encoding, _ERRORS, line_buffering=True)


def settle_streams() -> None:
    """Flush; an error must not come once more on the way out."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(stream)


def silence(stream: TextIO) -> None:
    """The reader is gone, or nothing can be written: from now on it goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Forgiving(io.TextIOWrapper):
    """Stderr, whose full disk or lost terminal is no failure."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            return self._lose(error, len(text))

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lose(error, 0)

    def _lose(self, error: OSError, n: int) -> int:
        if isinstance(error, BrokenPipeError):
            raise error
        silence(self)
        return n


def _text(number: int, mode: str) -> Any:
    return open(number, mode, encoding="utf-8", closefd=False)


def _escape(error: UnicodeError) -> tuple[bytes, int]:
    """Bytes of a file name as they were; any other character as a Python string shows it."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    parts = [
        bytes([ord(c) - _BYTES.start + 0x80]) if ord(c) in _BYTES else c.encode("unicode_escape")
        for c in error.object[error.start : error.end]
    ]
    return b"".join(parts), error.end
