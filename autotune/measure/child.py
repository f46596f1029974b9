"""⑦ The child's side of a worker process: answer requests until the parent is gone.

Started by `autotune.measure.process`. A child never outlives its parent: the kernel kills it when
the parent dies, and a thread that waits for the parent's end of a pipe to close ends it where the
kernel's signal does not come (it is bound to the parent's *thread*). Interrupts from the terminal
are the parent's business, so the child ignores them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[Any], Any]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """The handler exists; requests may come."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised: the full text of the exception."""

    text: str


def main() -> None:
    """Entry point: `argv` holds sys.path, the two file descriptors and the parent's pid."""
    channel, lifeline, parent = (int(a) for a in sys.argv[2:5])
    _die_with(parent, lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    serve(Connection(channel))


def serve(connection: Connection[Any, Any]) -> None:
    """First message: a callable that makes the handler; all others: its requests."""
    try:
        handler = _guarded(connection.recv(), ())
        connection.send(handler if isinstance(handler, Failed) else Ready())
        while not isinstance(handler, Failed):
            connection.send(_guarded(handler, (connection.recv(),)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent closed its end


def _guarded(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception:
        return Failed(traceback.format_exc())


def _die_with(parent: int, lifeline: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl took effect
        os._exit(1)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the parent is gone
    os._exit(1)


def _limit_memory() -> None:
    """No core dumps; what does not fit in memory fails, before the system kills something."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = total if hard == resource.RLIM_INFINITY else min(total, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
