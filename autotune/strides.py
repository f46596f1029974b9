"""Floor 0: Strides of tensors in memory, and row-stride padding.

Address bits below 4 KiB select the set of an L1 cache, so elements a multiple of 4 KiB apart
compete for the ways of one set. A register tile that walks down a dozen such rows evicts its own
lines. Rows whose length is a multiple of 4 KiB are therefore stored one cache line further apart.
"""

from __future__ import annotations

import math

from autotune.dtypes import dtype_bytes
from autotune.pages import CACHE_LINE

Shape = tuple[int, ...]

SET_BYTES = 4096
"""Addresses a multiple of this apart share a set of L1."""


def dense(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def padded_strides(shape: Shape, dtype: str) -> Shape:
    """Row-major strides in elements, rows padded by a cache line where they would share a set."""
    strides = dense(shape)
    long = [n for n, extent in enumerate(shape) if extent != 1]
    if len(long) < 2 or shape[long[-1]] * dtype_bytes(dtype) % SET_BYTES:
        return strides
    row = shape[long[-1]]
    padded = row + CACHE_LINE // dtype_bytes(dtype)
    return tuple(s // row * padded if n < long[-1] else s for n, s in enumerate(strides))


def spanned(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
