"""⑤ Memory of kernels: aligned to cache lines and vectors, and in large pages.

Each row of a matrix may be in a page of its own. With more pages than the TLB has entries every row
costs a page walk, in a virtual machine a nested one: up to half the time of a kernel whose weights
stream from memory.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.pages import CACHE_LINE, LARGE_FROM, LARGE_PAGE

Array = NDArray[Any]

ALIGNMENT = CACHE_LINE
"""Bytes; also those of the widest vector."""

_RECYCLED_FROM = 32 << 20
"""Bytes from which on malloc takes every array from the system, page by page, and gives it back."""


def aligned(shape: tuple[int, ...], dtype: str | np.dtype[Any]) -> Array:
    """Zeroed array whose data start at a multiple of `ALIGNMENT` bytes.

    Raises MemoryError when there is no room.
    """
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    large = n_bytes >= LARGE_FROM
    alignment = LARGE_PAGE if large else ALIGNMENT
    raw = _mapped(n_bytes + alignment) if large else np.zeros(n_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


class Recycled:
    """Allocates arrays of one kind; reuses a large one as soon as it has no other reference.

    Threads may share it, without a lock that a fork could leave taken.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str | np.dtype[Any]) -> None:
        self._shape, self._dtype = shape, dtype
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._is_large = n_bytes >= _RECYCLED_FROM
        self._spare: list[Array] = []
        self._unused = 0

    @property
    def dtype(self) -> str | np.dtype[Any]:
        """Of the elements."""
        return self._dtype

    def take(self) -> Array:
        """An array of undefined content. Raises MemoryError without room for it."""
        if not self._is_large:
            return np.empty(self._shape, self._dtype)
        try:
            array = self._spare.pop()  # no other thread gets it meanwhile
        except IndexError:
            array = None
        if array is None or self._n_holders(array) > self._unused:
            array = aligned(self._shape, self._dtype)
            self._unused = self._n_holders(array)
        view = array.view()
        self._spare[:] = [array]
        return view

    def _n_holders(self, array: Array) -> int:
        """References to the owner of the memory of `array`: every view of a view has one."""
        return sys.getrefcount(array.base)


def _mapped(n_bytes: int) -> Array:
    """Zeros in pages as large as the system gives; it gets them back with the last view."""
    try:
        memory = mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {n_bytes} bytes") from error
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
