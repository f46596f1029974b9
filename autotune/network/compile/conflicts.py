"""⑩ Order of kernels: those that may begin before the previous one is done.

A kernel has to wait for another one when one of them writes bytes that the other touches. Branches
of a network are independent until they join, and often write side by side into one concatenated
tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.dtypes import dtype_bytes


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """Bytes of one buffer that a kernel accesses, from slot `base` of the address table.

    All of it lies in [start, stop), in rows of `width` bytes at multiples of `row_stride`
    (0: one row). `writes` when the kernel may write any of it.
    """

    base: int
    start: int
    stop: int
    row_stride: int
    width: int
    writes: bool

    def conflicts(self, other: BufferAccess) -> bool:
        """Whether both may access a byte that one of them writes; conservative."""
        if self.base != other.base or not (self.writes or other.writes):
            return False
        if self.stop <= other.start or other.stop <= self.start:
            return False
        row_stride = math.gcd(self.row_stride, other.row_stride)
        if row_stride == 0:
            return True
        ahead = (other.start - self.start) % row_stride
        return ahead < self.width or -ahead % row_stride < other.width


def access(
    base: int,
    start: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    writes: bool,
) -> BufferAccess:
    """Describe a strided window; `start` in bytes, `strides` in elements."""
    size = dtype_bytes(dtype)
    dims = sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1)
    width, row_stride = 1, 0
    for stride, extent in dims:
        if stride == width:
            width *= extent
        else:
            row_stride = math.gcd(row_stride, stride)
    last = sum(s * (n - 1) for s, n in dims)
    return BufferAccess(
        base, start, start + (last + 1) * size, row_stride * size, width * size, writes
    )


def done_before(kernels: Sequence[Sequence[BufferAccess]]) -> list[int]:
    """For every kernel, the number of first kernels that must be done before it begins.

    Those up to the last one that it conflicts with; never fewer than for the kernel before it.
    """
    out: list[int] = []
    n_done = 0
    for n, accesses in enumerate(kernels):
        for other in range(n - 1, n_done - 1, -1):
            if any(a.conflicts(b) for a in accesses for b in kernels[other]):
                n_done = other + 1
                break
        out.append(n_done)
    return out
