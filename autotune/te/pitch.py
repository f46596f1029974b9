"""② How far apart the rows of an activation lie in memory.

A cache finds a line by bits of its address that lie below 4 KiB: elements a multiple of that apart
share one set, and it keeps as few of them as it has ways. A register tile that goes down a dozen
such rows throws out what it has just fetched. So rows of that length are a line further apart.
"""

from __future__ import annotations

import math

from autotune.te.expr import dtype_bytes

Shape = tuple[int, ...]

CACHE_LINE = 64
"""Bytes that a cache moves at once."""
SET_BYTES = 4096
"""Addresses a multiple of this apart share a set of L1."""


def dense(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def spaced(shape: Shape, dtype: str) -> Shape:
    """Row-major strides in elements, rows a line further apart where they would share a set."""
    strides = dense(shape)
    long = [n for n, extent in enumerate(shape) if extent != 1]
    if len(long) < 2 or shape[long[-1]] * dtype_bytes(dtype) % SET_BYTES:
        return strides
    row = shape[long[-1]]
    pitch = row + CACHE_LINE // dtype_bytes(dtype)
    return tuple(s // row * pitch if n < long[-1] else s for n, s in enumerate(strides))


def spanned(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
