"""⑪ Signals that ask the process to end: at once, or for a session after its current measurement.

At once means without unwinding, for an exception that a signal raises can come up anywhere, also
where it is swallowed or printed. Nothing needs it: files that are being written have no name yet or
are removed here, logs are whole after every line, and worker processes end with their session.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDS = {
    signal.SIGHUP: "hung up",
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
}
_SHELL_BASE = 128  # shells add it to the number of a signal
_SHOW_CURSOR = "\r\x1b[K\x1b[?25h"


def exit_code(number: int) -> int:
    """Exit code of a process that signal `number` has ended: 129, 130, 143."""
    return _SHELL_BASE + number


def end_at_signals() -> None:
    """From now on, SIGHUP, SIGINT and SIGTERM end the process: one line, and the exit code.

    A SIGHUP that is ignored, as `nohup` sets it, stays so. (Shells ignore SIGINT for what they run
    in the background, but its sender means it.)
    """
    for kind in _heeded():
        signal.signal(kind, lambda number, _: end_now(number))


def ignore_signals() -> None:
    """From now on, nothing but the end of the process itself ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)


def end_now(number: int, hint: str = "") -> None:
    """Leave nothing behind and end at once, as signal `number` demands."""
    # A signal may come while that module is being imported: then there are no pending files yet.
    remove_pending_files = getattr(sys.modules.get("autotune.files"), "remove_pending_files", None)
    if remove_pending_files is not None:
        remove_pending_files()
    lines = [f"error: {ENDS[signal.Signals(number)]}", *([f"hint: {hint}"] if hint else [])]
    with suppress(OSError):
        text = "\n".join(lines) + "\n"
        text = (_SHOW_CURSOR if os.isatty(2) else "") + text
        os.write(2, text.encode(errors="surrogateescape"))
    os._exit(exit_code(number))


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that ask the process to end go to `handle` inside of the block."""
    old = [(kind, signal.signal(kind, handle)) for kind in _heeded()]
    try:
        yield
    finally:
        for kind, handler in old:
            signal.signal(kind, handler)


def _heeded() -> list[signal.Signals]:
    is_deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [kind for kind in ENDS if not (kind is signal.SIGHUP and is_deaf)]
