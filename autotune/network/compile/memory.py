"""⑩ Memory plan of activations: one arena whose layout is fixed before the first inference.

A network's calls run one after another, so a piece of storage is busy from the first call that
writes it to the last call that touches it. Storages that are never busy at the same time may share
bytes. Planning is greedy by size with best fit (Pisarchyk and Lee 2020, "Efficient Memory
Management for Deep Neural Net Inference").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from autotune.codegen.memory import ALIGNMENT
from autotune.dtypes import dtype_bytes
from autotune.errors import CodegenError
from autotune.graph.network import Network
from autotune.graph.tasks.storage import Activation
from autotune.strides import dense, spanned


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that is busy from step `first` to step `last`, both included."""

    name: str
    n_bytes: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """Whether both are busy at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Byte offset of every block in an arena of `n_bytes` (a multiple of the alignment)."""

    offsets: dict[str, int]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A value resolved to its storage: where in `root` it starts, and its strides, in elements."""

    root: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def offset_bytes(self) -> int:
        """Bytes from the start of the storage to the first element."""
        return self.offset * dtype_bytes(self.dtype)

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements are contiguous and row-major."""
        return fold_strides(self.shape, self.strides, self.shape) == dense(self.shape)


def align(n_bytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def plan_arena(blocks: Iterable[Block]) -> ArenaPlan:
    """Give every block an aligned offset so that no two busy at one step overlap.

    Largest first; each goes into the smallest gap that holds it between the blocks placed before.
    The order of `blocks` does not matter.
    """
    placed: list[tuple[int, Block]] = []
    for block in sorted(blocks, key=lambda b: (-b.n_bytes, b.first, b.name)):
        rivals = sorted((o, o + align(b.n_bytes)) for o, b in placed if b.meets(block))
        placed.append((_best_fit(align(block.n_bytes), rivals), block))
    end = max((offset + align(b.n_bytes) for offset, b in placed), default=0)
    return ArenaPlan({b.name: offset for offset, b in placed}, end)


def _best_fit(n_bytes: int, taken: Sequence[tuple[int, int]]) -> int:
    """Offset of the smallest gap between the sorted spans `taken` that holds `n_bytes`."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        gap = start - end
        if gap >= n_bytes and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return best[1] if best else end


def place_of(values: Mapping[str, Activation], name: str) -> StoragePlace:
    """Follow the parents of a value to the storage that holds it.

    Raises CodegenError when the window reaches outside that storage.
    """
    value = root = values[name]
    offset = 0
    while root.parent is not None:
        offset += root.offset
        root = values[root.parent]
    strides = tuple(value.strides)
    if 0 in value.shape:
        return StoragePlace(root.name, offset, tuple(value.shape), strides, value.dtype)
    last = sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True))
    if offset < 0 or offset + last >= spanned(root.shape, root.strides):
        raise CodegenError(f"internal: value '{name}' reaches outside of its storage '{root.name}'")
    return StoragePlace(root.name, offset, tuple(value.shape), strides, value.dtype)


def fold_strides(
    shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]
) -> tuple[int, ...]:
    """Strides (elements) of the same elements seen as `new_shape`, by NumPy's own rule.

    A dimension of extent 1 gets the stride it would have in dense storage, so that equal layouts
    have equal strides. Raises CodegenError where no strides express the new shape.
    """
    view = as_strided(np.empty(1, np.int8), tuple(shape), tuple(strides))
    try:
        new = view.reshape(tuple(new_shape), copy=False).strides
    except ValueError:
        text = f"strides {tuple(strides)} of shape {tuple(shape)} cannot be seen as"
        raise CodegenError(f"internal: {text} shape {tuple(new_shape)} without a copy") from None
    pairs = zip(new_shape, new, dense(tuple(new_shape)), strict=True)
    return tuple(d if n == 1 else s for n, s, d in pairs)


def live_blocks(
    network: Network,
    workspaces: Sequence[Mapping[str, int]],
    elsewhere: Collection[str] = (),
    alias_roots: Mapping[str, str] = MappingProxyType({}),
) -> list[Block]:
    """Everything the arena must hold, with the calls during which it is busy.

    `workspaces[i]`: bytes of the temporaries of call i by a name of their own. Storages named in
    `elsewhere` are bound to arrays of the user and take no room; those in `alias_roots` use the
    memory of another storage (see `compile.aliasing`). Step -1 is before the first call
    (inputs are written), step `len(calls)` after the last (outputs are read).
    """
    busy: dict[str, list[int]] = {}

    def touch(name: str, step: int) -> None:
        root = place_of(network.values, name).root
        busy.setdefault(alias_roots.get(root, root), []).append(step)

    for port in network.inputs:
        touch(port.value, -1)
    for step, call in enumerate(network.calls):
        for name in (*call.inputs.values(), *call.outputs.values()):
            touch(name, step)
    for port in network.outputs:
        touch(port.value, len(network.calls))
    return [
        Block(root, _storage_bytes(network.values[root]), min(steps), max(steps))
        for root, steps in busy.items()
        if root not in elsewhere
    ] + [
        Block(name, n_bytes, step, step)
        for step, sizes in enumerate(workspaces)
        for name, n_bytes in sizes.items()
    ]


def _storage_bytes(value: Activation) -> int:
    return spanned(value.shape, value.strides) * dtype_bytes(value.dtype)
