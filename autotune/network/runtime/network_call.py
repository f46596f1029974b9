"""⑩ One call of a network's machine code: addresses of arrays in, arrays of results out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.codegen.memory import Recycled
from autotune.dtypes import DTYPES
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.runtime.sizes import Memories, has_room
from autotune.network.runtime.working_memory import CallerMemory, NetworkCode, Place

Array = NDArray[Any]


class NetworkCall:
    """Calls of a network of one size in the working memory of a caller.

    `memories`: what gives arrays for outputs, by name. `rooms`: memory for the longest results of
    a network with lengths, by their base.
    """

    def __init__(
        self,
        artifact: Artifact,
        code: NetworkCode,
        n_threads: int,
        memories: Memories,
        rooms: Mapping[int, Recycled] | None = None,
    ) -> None:
        self.artifact, self.code, self.n_threads = artifact, code, n_threads
        self.memories, self.rooms = memories, rooms or {}
        self._inputs = {end.name: end for end in artifact.inputs}
        halves = [end for end in artifact.outputs if end.stored != end.dtype]
        self._halves = {end.name: end.numpy_dtype for end in halves}

    def __call__(
        self,
        working: CallerMemory,
        place: Place,
        entry: Any,
        inputs: Mapping[str, Array],
        given: Mapping[str, Array],
        places: Mapping[int, int],
    ) -> dict[str, Array]:
        """Outputs by name of the function `entry`, on C-contiguous arrays as they are stored.

        `given`: arrays that outputs are written to. `places`: addresses, by their base, of inputs
        and outputs that no array has.
        """
        arrays: dict[int, Array] = {}
        for name, array in inputs.items():
            end = self._inputs[name]
            if end.window is None:
                arrays[end.base] = array
            else:
                there = window(working.arena, end)
                there[...] = array.reshape(there.shape)
        ends = [end for end in self.artifact.outputs if end.base not in places]
        outputs: dict[str, Any] = {end.name: self._result(end, given) for end in ends}
        for base, memory in self.rooms.items():
            if base not in places:
                arrays[base] = memory.take()
        for end in ends:
            if end.window is None:
                arrays[end.base] = outputs[end.name]
        for slot, array in arrays.items():
            place.table[slot] = array.__array_interface__["data"][0]  # `ctypes` is slower
        for slot, address in places.items():
            place.table[slot] = address
        entry(place.address, self.code.n_threads(self.n_threads))
        for end in ends:
            if end.window is not None:
                there = window(arrays.get(end.base, working.arena), end)
                if outputs[end.name] is None:
                    outputs[end.name] = there
                else:
                    outputs[end.name][...] = there.reshape(end.shape)
        if self._halves:
            halves = {n: dtype for n, dtype in self._halves.items() if n in outputs}
            outputs |= rounded(outputs, halves)
        return outputs

    def _result(self, end: Endpoint, given: Mapping[str, Array]) -> Array | None:
        """An array for an output; None for one that is where kernels write it."""
        if end.name in given:
            return given[end.name]
        memory = self.memories[end.name]
        return None if has_room(memory) else memory.take()


def rounded(outputs: Mapping[str, Array], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """Outputs in half precision: too large values become infinite, as rounding has it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: outputs[name].astype(dtype) for name, dtype in dtypes.items()}


def window(storage: Array, end: Endpoint) -> Array:
    """The elements of `end` inside `storage`, in the shape in which they lie there."""
    start = storage.reshape(-1).view(np.uint8)[end.offset :]
    kind = DTYPES[end.stored].numpy
    if end.window is None:
        n_bytes = math.prod(end.shape) * kind.itemsize
        return start[:n_bytes].view(kind).reshape(end.shape)
    shape, strides = end.window
    first = start[: kind.itemsize].view(kind)
    return as_strided(first, shape, [s * kind.itemsize for s in strides])
