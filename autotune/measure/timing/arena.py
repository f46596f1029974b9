"""⑦ Memory of one candidate: its buffers one after another, with poison around each.

    [guard][input][guard][constant][guard][output][guard]…

Buffers start at multiples of 64 bytes; a guard starts at the byte after its buffer. Guards, the
padding of rows, outputs and workspace are filled with a NaN of one bit pattern (poison). A missing
store leaves poison in an output, a store out of bounds changes a guard, and a load out of bounds
makes results NaN. A result that aliases an operand has no memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.codegen.memory import ALIGNMENT
from autotune.loopir.nodes import Buffer
from autotune.measure.timing.executor import SharedBlock, local_block

Array = NDArray[Any]

GUARD_BYTES = 1024
"""At least this much poison on both sides of every buffer."""

_POISON = np.frombuffer(np.uint32(0x7FE57FDE).tobytes(), np.uint8)
"""A NaN of every type of floats, each half of it too."""


class Arena:
    """Storage for `buffers`; constants are zero until filled.

    `shared`: an operand and the result that lies in its place, or nothing. `allocate`: gives the
    memory.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        shared: Sequence[str] = (),
        allocate: Callable[[int], SharedBlock] = local_block,
    ) -> None:
        self._start: dict[str, int] = {}
        self._buffers = {b.name: b for b in buffers}
        self._apart = [b for b in buffers if b.name not in shared[1:]]
        end = 0
        for buffer in self._apart:
            self._start[buffer.name] = _align(end + GUARD_BYTES)
            end = self._start[buffer.name] + buffer.n_bytes
        self._block = allocate(_align(end + GUARD_BYTES))
        self._memory = self._block.array
        self._guards = self._gaps(end)
        for low, high in self._guards:
            self._memory[low:high] = _poison(low, high)
        for buffer in self._apart:
            if buffer.role != "constant":
                start = self._start[buffer.name]
                self._memory[start : start + buffer.n_bytes] = _poison(0, buffer.n_bytes)
        for operand, result in pairwise(shared):
            self._start[result] = self._start[operand]

    def address(self, name: str) -> int:
        """Address of buffer `name`."""
        return self._block.address + self._start[name]

    def push(self, name: str | None = None) -> None:
        """Let code see what was written to buffer `name`, or to all."""
        begin = self._start[name] if name else 0
        self._block.push(begin, begin + self._buffers[name].n_bytes if name else None)

    def pull(self) -> None:
        """See what code has written."""
        self._block.pull()

    def view(self, name: str) -> Array:
        """The elements of buffer `name`, in the shape of its tensor."""
        buffer = self._buffers[name]
        start = self._start[name]
        flat = self._memory[start : start + buffer.n_bytes].view(buffer.tensor.dtype)
        strides = [s * flat.itemsize for s in buffer.strides]
        return as_strided(flat, buffer.tensor.shape, strides)

    def damage(self) -> str:
        """Description of the first overwritten guard zone; "" if all are intact."""
        names = ["the first buffer", *(b.name for b in self._apart)]
        for (low, high), name in zip(self._guards, names, strict=True):
            wrong = np.flatnonzero(self._memory[low:high] != _poison(low, high))
            if wrong.size:
                side = "before" if low == 0 else "after the end of"
                return f"out-of-bounds write: {wrong.size} bytes {side} {name} changed"
        return ""

    def _gaps(self, end: int) -> list[tuple[int, int]]:
        starts = [*(self._start[b.name] for b in self._apart), _align(end + GUARD_BYTES)]
        ends = [0, *(self._start[b.name] + b.n_bytes for b in self._apart)]
        return list(zip(ends, starts, strict=True))


def _poison(low: int, high: int) -> Array:
    """The pattern as it stands in bytes [low, high) of the arena."""
    n_words = (high - low) // _POISON.size + 2
    return np.tile(_POISON, n_words)[low % _POISON.size :][: high - low]


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
