"""⑤ Reset in the child of a fork: locks, and memory of threads that do not exist there."""

from __future__ import annotations

import mmap
import os
import weakref
from functools import cache
from typing import Protocol

import numpy as np

_WIPED_IN_CHILDREN = 18  # MADV_WIPEONFORK


class Renewable(Protocol):
    """An object with a lock or state that a fork may copy while it is in use."""

    def renew(self) -> None:
        """Called in the child of a fork, while it has one thread."""
        ...


class Forks:
    """The forks of this process: get it by `forks()`."""

    def __init__(self) -> None:
        self.is_child = False
        """Whether this process was forked by one that had called `forks`."""
        self._members: weakref.WeakSet[Renewable] = weakref.WeakSet()

    def join(self, member: Renewable) -> None:
        """Renew `member` in the child of every later fork, while it exists."""
        self._members.add(member)

    def after(self) -> None:
        """In the child."""
        self.is_child = True
        for member in list(self._members):
            member.renew()


@cache
def forks() -> Forks:
    """Those of this process."""
    found = Forks()
    os.register_at_fork(after_in_child=found.after)
    return found


class WipedMemory:
    """Zeros at an address that never changes; zeros again in the child of a fork."""

    def __init__(self, n_bytes: int) -> None:
        self._memory = mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)
        try:
            self._memory.madvise(_WIPED_IN_CHILDREN)
        except OSError:  # an old system
            forks().join(self)

    def renew(self) -> None:
        """Zeros again."""
        self._memory.seek(0)
        self._memory.write(bytes(len(self._memory)))
