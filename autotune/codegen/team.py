"""⑤ Parallel regions of libgomp, also in a process that a fork made.

    run = Team().call
    run(entry, table, n_threads)        # `entry` is machine code that opens a parallel region

libgomp keeps the worker threads of a thread in storage of that thread. A fork copies the storage
but not the workers, so a region that the forked thread opens waits for ever for threads that do not
exist. Any other thread of the new process gets workers of its own, so there the call is made from a
helper thread. This holds for whoever used libgomp before the fork (LightGBM, NumPy's BLAS).
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import llvmlite.binding as llvm

from autotune.errors import MissingDependency

T = TypeVar("T")

_PF_FORKNOEXEC = 0x40
_FLAGS = 6
"""Position of the kernel's flags of a process in its `stat`, behind the name."""


class Renewable(Protocol):
    """An object with a lock or state that a fork may copy while it is in use."""

    def renew(self) -> None:
        """Called in the child of a fork, while it has one thread."""
        ...


class Team:
    """Where this process can open parallel regions. One per process: `team`."""

    def __init__(self, forked_thread: int = 0) -> None:
        self.forked_thread = forked_thread
        """Id of the thread that came here through a fork; 0 in a process that was started."""
        self._helper: ThreadPoolExecutor | None = None
        self._members: weakref.WeakSet[Renewable] = weakref.WeakSet()

    def join(self, member: Renewable) -> None:
        """Reset `member` in the child of every later fork, while it exists."""
        self._members.add(member)

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` on a thread whose parallel regions get their workers."""
        if not self.forked_thread or self.forked_thread != threading.get_ident():
            return function(*arguments)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "autotune-team")
        return self._helper.submit(function, *arguments).result()

    def after_fork(self) -> None:
        """Record, in the child, its only thread."""
        self.forked_thread = threading.get_ident()
        self._helper = None  # its thread is in the parent
        for member in list(self._members):
            member.renew()


@cache
def team() -> Team:
    """The team of this process, made before libgomp is loaded where nobody else has loaded it.

    A process that a fork made before that is recognised by the kernel's flags; its main thread is
    the one that was forked. Where libgomp was not there yet it cannot have had workers.
    """
    suspect = _is_forked() and _has_libgomp()
    found = Team((threading.main_thread().ident or 0) if suspect else 0)
    os.register_at_fork(after_in_child=found.after_fork)
    return found


def _is_forked(stat: Path = Path("/proc/self/stat")) -> bool:
    """Whether this process was forked and has started no program since."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return bool(int(stat.read_text().rpartition(")")[2].split()[_FLAGS]) & _PF_FORKNOEXEC)
    return False


def _has_libgomp(maps: Path = Path("/proc/self/maps")) -> bool:
    try:
        return "libgomp" in maps.read_text()
    except OSError:
        return True


def load_libgomp() -> None:
    """Make libgomp's symbols known to machine code; raises MissingDependency."""
    try:
        llvm.load_library_permanently("libgomp.so.1")
    except RuntimeError as error:
        raise MissingDependency(
            "libgomp.so.1 is not installed", "on Debian and Ubuntu: apt-get install libgomp1"
        ) from error
