"""Floor 0: pages of memory: machine code, and files that processes share.

No page is writable and executable at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError

Bytes = NDArray[np.uint8]

CACHE_LINE = 64
"""Bytes that a cache moves at once."""

LARGE_PAGE, LARGE_FROM = 2 << 20, 1 << 20
"""Bytes of a page that the system may give to large memory, and what memory is large."""

SHARED, PRIVATE = MEMORIES = ("shared", "private")
"""Memory of the constants of a network: see `network.runtime.loading.load`."""

READ, WRITE, EXECUTE = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC


def require_memory(memory: str) -> None:
    """Raise UsageError for a kind of memory that there is not."""
    if memory not in MEMORIES:
        raise UsageError(f"there is no memory '{memory}'", f"use one of: {', '.join(MEMORIES)}")


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = pointer, size, number, number, number, ctypes.c_int64
    libc.mprotect.argtypes = pointer, size, number
    libc.munmap.argtypes = pointer, size
    return libc


_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """Memory for NumPy arrays; the pages go with the last of them."""

    def __init__(self, n_bytes: int, protection: int, flags: int, file: int, offset: int) -> None:
        address = _libc().mmap(None, n_bytes, protection, flags, file, offset)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (n_bytes,),
            "data": (address, not protection & WRITE),
        }
        # threads of other libraries may still read them while the interpreter ends
        weakref.finalize(self, _libc().munmap, address, n_bytes).atexit = False


def private_pages(n_bytes: int) -> Bytes:
    """Zeros that can be written, in whole pages. Raises OSError without room for them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.asarray(_Mapping(max(n_bytes, 1), READ | WRITE, flags, -1, 0))


def shared_file(file: int, begin: int, n_bytes: int) -> Bytes:
    """Bytes of an open file that can only be read: all processes that map them share the memory.

    They are those of the file that was opened, also once its name leads to another one. Shortening
    it removes them: the next access beyond its end is a bus error. Raises OSError.
    """
    first = begin - begin % mmap.ALLOCATIONGRANULARITY
    size = begin + n_bytes - first
    return np.asarray(_Mapping(max(size, 1), READ, mmap.MAP_SHARED, file, first))[begin - first :]


class SharedPages:
    """Some pages of an array that others show as well; each writes to copies of its own.

    `runs`: begin and end in bytes, of whole pages. Raises OSError without room for them.
    """

    def __init__(self, pages: Bytes, runs: Iterable[tuple[int, int]]) -> None:
        self.runs = tuple(runs)
        self._file = os.memfd_create("autotune")
        weakref.finalize(self, os.close, self._file)
        at = 0
        for begin, end in self.runs:
            while begin < end:
                n = os.pwrite(self._file, pages[begin:end].data, at)
                begin, at = begin + n, at + n

    def show_in(self, pages: Bytes) -> None:
        """Let these runs of other pages be the same memory. Raises OSError."""
        flags, at = mmap.MAP_PRIVATE | _MAP_FIXED, 0
        for begin, end in self.runs:
            where = pages.ctypes.data + begin
            found = _libc().mmap(where, end - begin, READ | WRITE, flags, self._file, at)
            if found == _FAILED:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
            at += end - begin


def protect(pages: Bytes, spans: Iterable[tuple[int, int, int]]) -> None:
    """Give whole pages their access: begin, end and protection. Raises OSError."""
    start = pages.ctypes.data
    for begin, end, allowed in spans:
        if end > begin and _libc().mprotect(start + begin, end - begin, allowed):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
