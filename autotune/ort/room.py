"""⑪ Limits of a session's compiled networks: their number, and their memory.

Room.of(most_shapes=16).leaving([n_bytes, …])     # how many of the least recently used ones go
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.machine import read_limits
from autotune.pages import SHARED, require_memory

MOST_SHAPES = 16
_SHARE = 4
"""The networks of a session take at most a fourth of the memory that this process may use."""


@dataclass(frozen=True, slots=True)
class Room:
    """`most_shapes`, `most_bytes`: of all networks together; `memory`: see `autotune.load`."""

    most_shapes: int
    most_bytes: int
    memory: str = SHARED

    @staticmethod
    def of(
        most_shapes: int = MOST_SHAPES, most_bytes: int | None = None, memory: str = SHARED
    ) -> Room:
        """Raises UsageError for no room at all, or a kind of memory that there is not."""
        require_memory(memory)
        if most_bytes is None:
            most_bytes = read_limits().memory_bytes // _SHARE
        if min(most_shapes, most_bytes) < 1:
            what = "most_shapes" if most_shapes < 1 else "most_bytes"
            raise UsageError("there is no room for a compiled model", f"{what} is 1 or more")
        return Room(most_shapes, most_bytes, memory)

    def leaving(self, sizes: Sequence[int]) -> int:
        """Number of networks to evict, of these sizes in bytes, oldest first; the last stays."""
        n, total = len(sizes), sum(sizes)
        for gone, size in enumerate(sizes):
            is_enough = n - gone <= self.most_shapes and total <= self.most_bytes
            if is_enough or gone == n - 1:
                return gone
            total -= size
        return 0
