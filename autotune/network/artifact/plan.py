"""⑩ The plan of an artifact's calls: which words of a caller's shapes and arrays go where.

    plan = call_plan(artifact)
    plan.words   ─►  `codegen.ports_code`, in Python, in C and in WebAssembly

Machine code finds the numbers of a call by it, and copies arrays into windows and out of them. A
plan has no address, so it is the same in every process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.codegen.team import ports_code as code
from autotune.dtypes import dtype_bytes
from autotune.extent import Extent, Length
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.strides import dense


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Words of a plan, for tables whose addresses of the network take `table_words`.

    `n_lengths`, `inputs` and `outputs`: what a table has places for, behind those. `rooms`: bytes
    of the memory for the longest of each output, 0 where it needs none.
    """

    words: tuple[int, ...]
    table_words: int
    n_lengths: int
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    rooms: tuple[int, ...]

    @property
    def arrays(self) -> int:
        """The first word of the table for addresses of arrays; that of shapes follows them."""
        return self.table_words + max(1, self.n_lengths)

    @property
    def shapes(self) -> int:
        """The first word of the table for addresses of shapes."""
        return self.arrays + len(self.inputs) + len(self.outputs)

    @property
    def first_room(self) -> int:
        """The first word of the table for addresses of rooms."""
        return self.shapes + len(self.inputs) + len(self.outputs)

    @property
    def all_words(self) -> int:
        """Words of a whole table."""
        return self.first_room + len(self.outputs)


def call_plan(artifact: Artifact) -> CallPlan:
    """That of calls of one variant, with the inputs that a caller gives."""
    inputs, outputs, lengths = artifact.own_inputs, artifact.outputs, artifact.lengths
    numbers = {name: n * code.WORD for n, name in enumerate(lengths)}
    bases = {end.name: end.base for end in artifact.inputs}
    ports = [*inputs, *outputs]
    of_state = artifact.state.ports if artifact.state is not None else frozenset()
    places = [
        code.BOUND if end.window is None and end.name in of_state else _place(end, n >= len(inputs))
        for n, end in enumerate(ports)
    ]
    found = zip(outputs, places[len(inputs) :], strict=True)
    rooms = tuple(_bytes(end) if place == code.ROOM else 0 for end, place in found)
    made = CallPlan((), artifact.n_bases + 2, len(lengths), inputs, outputs, rooms)
    ports_at = code.PLAN_BYTES + code.WORD * len(lengths)
    head = [len(inputs), len(ports), len(lengths), ports_at]
    head += [code.WORD * n for n in (made.table_words, made.arrays, made.shapes, made.first_room)]
    records: list[int] = []
    axes: list[int] = []
    first = ports_at + code.PORT_BYTES * len(ports)
    for end, place in zip(ports, places, strict=True):
        shape, moved = list(_axes(end, numbers)), list(_window(end, numbers))
        records += [end.base, end.offset, place]
        records += [ord(end.numpy_dtype.kind), dtype_bytes(end.stored)]
        records += [len(end.shape), first + code.WORD * len(axes)]
        axes += [word for axis in shape for word in axis]
        records += [len(moved), first + code.WORD * len(axes)]
        axes += [word for axis in moved for word in axis]
    words = (*head, *(bases[port] for port in lengths.values()), *records, *axes)
    return CallPlan(words, made.table_words, len(lengths), inputs, outputs, rooms)


_HALVES = {"float16": code.HALF, "bfloat16": code.BFLOAT}


def halves_of(end: Endpoint) -> int:
    """What the elements of a caller's array are to a call: `PLAIN` ones, or halves of a kind."""
    return _HALVES.get(end.dtype, code.PLAIN) if end.stored != end.dtype else code.PLAIN


def _place(end: Endpoint, is_output: bool) -> int:
    if end.window is not None:
        return code.WINDOW
    return code.ROOM if end.extents and is_output else code.BOUND


def _axes(end: Endpoint, numbers: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """The axes of a port's shape."""
    return _records(end.extents or end.shape, [0] * len(end.shape), numbers)


def _window(end: Endpoint, numbers: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """The axes of the window of a port, none where it is the caller's array."""
    if end.window is None and not end.extents:
        return iter(())
    shape, strides = end.window or (end.shape, dense(end.shape))
    item = dtype_bytes(end.stored)
    return _records(end.extents or shape, [stride * item for stride in strides], numbers)


def _records(
    extents: Sequence[Extent], strides: Sequence[int], numbers: Mapping[str, int]
) -> Iterator[tuple[int, ...]]:
    for extent, stride in zip(extents, strides, strict=True):
        if isinstance(extent, Length):
            bounds = extent.least, extent.most
            yield numbers[extent.name], extent.factor, extent.offset, *bounds, stride
        else:
            yield 0, 0, extent, 0, 0, stride


def _bytes(end: Endpoint) -> int:
    return math.prod(end.shape) * dtype_bytes(end.stored)
