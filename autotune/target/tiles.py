"""Floor 0: permission of the system to use matrix tiles (AMX).

Linux saves the 8 KiB of tile registers only for processes that asked for them; without permission
the first instruction is a fault. Threads and forked children have it from their process, a program
that is started does not. So it is asked for in every process that loads machine code or describes
this CPU.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from enum import Enum
from functools import cache

from autotune.target import cpuid

TILE_REQUEST = (158, 0x1023, 18)
"""Words of the system call: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
FEATURE = "amx-tile"
"""LLVM's name of the feature that has the registers."""


class Permission(Enum):
    """Whether this process may use tiles."""

    NO_TILES = "this CPU has no matrix tiles"
    GRANTED = "granted"
    DENIED = "the system does not let this process use the matrix tiles (AMX) of this CPU"


@cache
def tile_permission() -> Permission:
    """Ask for tiles where the CPU has them; once per process, which children inherit."""
    if not cpuid.features().get(FEATURE, False):
        return Permission.NO_TILES
    return Permission.GRANTED if request_tiles() else Permission.DENIED


def denial() -> tuple[str, ...]:
    """A note where the CPU has tiles and the system denies them; else none."""
    if tile_permission() is not Permission.DENIED:
        return ()
    return (f"{Permission.DENIED.value}: products use vectors",)


def request_tiles() -> bool:
    """Ask Linux for the state of tiles (`arch_prctl`); False where it refuses or is no Linux."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = (ctypes.c_long(n) for n in TILE_REQUEST)
    return int(libc.syscall(*numbers)) == 0
