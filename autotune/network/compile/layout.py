"""⑩ Addresses: the slot of the table and the bytes after it, for everything a kernel touches.

Slots: the arena, the constants, then the user's own arrays where a port is the whole of a storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.codegen.pack import pack
from autotune.dtypes import stored_dtype
from autotune.errors import CodegenError
from autotune.extent import Extents, Length
from autotune.graph.network import Network, Port, TaskCall
from autotune.loopir.nodes import Buffer, Kernel, Packing, Program
from autotune.network.artifact.artifact import Endpoint, KernelInfo
from autotune.network.artifact.table import ARENA, CONSTANTS, FIRST_BOUND
from autotune.network.compile.conflicts import BufferAccess, access, done_before
from autotune.network.compile.durations import estimated_s
from autotune.network.compile.entry import Launch, Pointer
from autotune.network.compile.memory import (
    StoragePlace,
    align,
    fold_strides,
    live_blocks,
    place_of,
    plan_arena,
)
from autotune.te.evaluate import derive


@dataclass(frozen=True, slots=True)
class Unit:
    """A call with its program; calls with equal programs have the same symbol prefix.

    `program`: bodies of its kernels are not looked at. `cycles`: of each kernel, see `durations`.
    """

    call: TaskCall
    program: Program
    prefix: str
    cycles: tuple[float, ...]


def value_name(call: TaskCall, buffer: Buffer) -> str | None:
    """The value behind an input or output buffer; None for other buffers and constants."""
    match buffer.role:
        case "output":
            return call.outputs[buffer.name]
        case "input":
            return call.inputs.get(buffer.name)
        case _:
            return None


KINDS = AS_THEY_ARE, PACKED, TRANSFORMED = "as they are", "packed", "transformed"
"""Kinds of stored constants: in the order of the model, in that of a program, derived."""


class ConstantPool:
    """All constants one after another, aligned, each content once, packed where they stay.

    `units`: those whose constants come. `kinds`: how many bytes are stored as the model has them,
    packed, and transformed.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self.kinds: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._bytes: NDArray[np.uint8] = aligned((_most_bytes(units),), "uint8")
        self._places: dict[tuple[int, bytes], list[int]] = {}  # by some of their bytes
        self._known: dict[object, int] = {}
        self._sources: list[NDArray[Any]] = []  # an id is one as long as its array lives
        self._end = 0

    def offset(self, unit: Unit, buffer: Buffer) -> int:
        """Byte offset of a constant as a program wants it; equal orders of an array pack once."""
        order = _order(unit, buffer)
        if order not in self._known:
            self._sources += unit.call.constants.values()
            self._known[order] = self._add(unit, buffer)
        return self._known[order]

    def data(self) -> NDArray[np.uint8]:
        """All bytes; the gaps are zero."""
        return self._bytes[: self._end]

    def _add(self, unit: Unit, buffer: Buffer) -> int:
        """Write a constant behind the others, unless its bytes are there already."""
        begin, n_bytes = self._end, buffer.tensor.n_bytes
        place = self._bytes[begin : begin + n_bytes]
        out = place.view(buffer.tensor.dtype).reshape(buffer.tensor.shape)
        constant(unit.program, unit.call.constants, buffer, out)
        same = self._places.setdefault(_sample(place), [])
        for known in same:
            if np.array_equal(self._bytes[known : known + n_bytes], place):
                place[:] = 0
                return known
        same.append(begin)
        self._end += align(n_bytes)
        self.kinds[_kind(unit, buffer)] += align(n_bytes)
        return begin


_ALL = 1 << 48
"""Bytes of any buffer."""
_SAMPLED = 4096
"""Bytes of a constant that are looked at before all are."""


def _sample(data: NDArray[np.uint8]) -> tuple[int, bytes]:
    """Equal for equal arrays, and hardly ever for others."""
    return data.nbytes, data[:: max(1, data.nbytes // _SAMPLED)].tobytes()


def _packing(unit: Unit, buffer: Buffer) -> Packing | None:
    return next((p for p in unit.program.packs if p.packed.name == buffer.name), None)


def _source(unit: Unit, buffer: Buffer) -> NDArray[Any] | None:
    """The array of the model behind a constant buffer; None for one derived from others."""
    packing = _packing(unit, buffer)
    return unit.call.constants.get(packing.source.name if packing else buffer.name)


def _kind(unit: Unit, buffer: Buffer) -> str:
    if _source(unit, buffer) is None:
        return TRANSFORMED
    return PACKED if _packing(unit, buffer) else AS_THEY_ARE


def _order(unit: Unit, buffer: Buffer) -> object:
    """Identity of the bytes of a constant: equal for equal arrays in equal orders."""
    packing, source = _packing(unit, buffer), _source(unit, buffer)
    order = (packing.packed.shape, packing.axes, packing.indices) if packing else ()
    if source is not None:
        return id(source), source.shape, buffer.tensor.dtype, order
    arrays = tuple((name, id(array)) for name, array in unit.call.constants.items())
    name = packing.source.name if packing else buffer.name
    return arrays, unit.program.derived, name, buffer.tensor.dtype, order


def _most_bytes(units: Iterable[Unit]) -> int:
    """Of all constants, if no two arrays of different origin are equal."""
    found = {
        _order(unit, buffer): align(buffer.tensor.n_bytes)
        for unit in units
        for buffer in unit.program.buffers
        if buffer.role != "workspace" and value_name(unit.call, buffer) is None
    }
    return sum(found.values())


class NetworkLayout:
    """The plan of one network: bound ports, arena, constants, and every kernel's addresses.

    `slots`: storage → slot of the table, for those that the user's arrays replace.
    `alias_roots`: aliased storage → the storage whose memory it uses (see `compile.aliasing`).
    `constants`: where all constants go, which several networks may share.
    """

    def __init__(
        self,
        network: Network,
        units: Sequence[Unit],
        alias_roots: Mapping[str, str],
        constants: ConstantPool,
    ) -> None:
        self.network = network
        self.alias_roots = alias_roots
        self.constants = constants
        self.owners = _bind(network)
        self.slots = {root: FIRST_BOUND + n for n, root in enumerate(self.owners)}
        self.n_bases = FIRST_BOUND + len(self.slots)
        slot_of = {port: self.slots[root] for root, port in self.owners.items()}
        buffers = network.state.buffers if network.state else {}
        self._appended = {slot_of[rows]: slot_of[buffer] for buffer, rows in buffers.items()}
        blocks = live_blocks(network, _workspaces(units), self.slots, self.alias_roots)
        self.plan = plan_arena(blocks)
        self.kernels = tuple(
            KernelInfo(u.call.task, u.call.label, u.prefix + k.name, k.extent)
            for u, k in _kernels(units)
        )
        self.launches = self._launches(units)

    def endpoint(self, port: Port) -> Endpoint:
        """The port as an artifact describes it."""
        place = place_of(self.network.values, port.value)
        is_native = port.dtype == place.dtype != stored_dtype(port.dtype)
        fits = is_native or stored_dtype(port.dtype) == place.dtype
        if not fits or place.n_elements != math.prod(port.shape):
            raise CodegenError(f"internal: port '{port.name}' does not fit value '{port.value}'")
        at = self._pointer(place)
        shape = tuple(port.shape)
        window = None
        if self.owners.get(place.root) != port.name:
            window = place.shape, place.strides
            if self._extents(port)[0]:  # lengths are in the port's own dimensions
                window = shape, fold_strides(*window, shape)
        where = at.base, at.offset, window
        given, written = self._extents(port)
        found = Endpoint(
            port.name, shape, port.dtype, *where, port.limit, is_native, given, written
        )
        return replace(found, below=port.below) if port.below else found

    def _extents(self, port: Port) -> tuple[Extents, Extents]:
        """The extents of a port by the lengths of inputs, the others at their most; and all of them
        where the network writes one."""
        written = self.network.written
        known = tuple(
            e.longest if isinstance(e, Length) and e.name in written else e for e in port.extents
        )
        given = known if any(isinstance(e, Length) for e in known) else ()
        return given, tuple(port.extents) if known != tuple(port.extents) else ()

    def _pointer(self, place: StoragePlace) -> Pointer:
        if place.root in self.slots:
            return Pointer(self.slots[place.root], place.offset_bytes)
        root = self.alias_roots.get(place.root, place.root)
        return Pointer(ARENA, self.plan.offsets[root] + place.offset_bytes)

    def _launches(self, units: Sequence[Unit]) -> tuple[Launch, ...]:
        touched: list[list[BufferAccess]] = []
        times_s = [
            estimated_s(u.program, kernel, n_cycles)
            for u in units
            for kernel, n_cycles in zip(u.program.kernels, u.cycles, strict=True)
        ]
        pointers: list[tuple[Pointer, ...]] = []
        for step, unit in enumerate(units):
            at = {b.name: self._argument(step, unit, b) for b in unit.program.buffers}
            for kernel in unit.program.kernels:
                pointers.append(tuple(at[name][0] for name in kernel.buffers))
                touched.append([at[name][1] for name in kernel.buffers])
        return tuple(
            Launch(kernel.symbol, kernel.extent, arguments, after, time_s)
            for kernel, arguments, after, time_s in zip(
                self.kernels, pointers, done_before(touched), times_s, strict=True
            )
        )

    def _argument(self, step: int, unit: Unit, buffer: Buffer) -> tuple[Pointer, BufferAccess]:
        at = self._address(step, unit, buffer)
        writes = buffer.role in ("output", "workspace")
        shape, dtype = buffer.tensor.shape, buffer.tensor.dtype
        if at.base in self._appended:  # somewhere in that buffer
            return at, BufferAccess(self._appended[at.base], 0, _ALL, 0, _ALL, writes)
        return at, access(at.base, at.offset, shape, buffer.strides, dtype, writes)

    def _address(self, step: int, unit: Unit, buffer: Buffer) -> Pointer:
        if buffer.role == "workspace":
            return Pointer(ARENA, self.plan.offsets[_workspace(step, buffer)])
        name = value_name(unit.call, buffer)
        if name is not None:
            return self._pointer(place_of(self.network.values, name))
        return Pointer(CONSTANTS, self.constants.offset(unit, buffer))


def _kernels(units: Sequence[Unit]) -> Iterator[tuple[Unit, Kernel]]:
    return ((unit, kernel) for unit in units for kernel in unit.program.kernels)


def _workspaces(units: Sequence[Unit]) -> list[dict[str, int]]:
    return [
        {_workspace(step, b): b.n_bytes for b in unit.program.buffers if b.role == "workspace"}
        for step, unit in enumerate(units)
    ]


def _workspace(step: int, buffer: Buffer) -> str:
    return f"call {step}: {buffer.name}"


def constant(
    program: Program,
    values: Mapping[str, NDArray[Any]],
    buffer: Buffer,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The array of a constant buffer, packed as the program wants it; `values`: those of a call.

    `out`: contiguous zeros of the buffer's shape, to write it to.
    """
    packing = next((p for p in program.packs if p.packed.name == buffer.name), None)
    tensor = packing.source if packing else buffer.tensor
    if any(tensor.name == op.name for op in program.derived):
        values = derive(program.derived, values)
    if tensor.name not in values:
        raise CodegenError(f"internal: a call has no value for the constant '{tensor.name}'")
    source = np.asarray(values[tensor.name], tensor.dtype).reshape(tensor.shape)
    if packing:
        return pack(packing, source, out)
    if out is None:
        return source
    np.copyto(out, source)
    return out


def _bind(network: Network) -> dict[str, str]:
    """Storages that the user's arrays replace: root → name of the port.

    A port is bound when it is the whole of a storage, inputs before outputs; a storage that holds
    an input as well as an output is the input's, and the output is copied. An input with lengths is
    not: kernels may read what lies behind them, where a caller's array has ended.
    """
    bound: dict[str, str] = {}
    rows = network.state.buffers.values() if network.state else ()
    inputs = {place_of(network.values, p.value).root for p in network.inputs}
    for port in (*network.inputs, *network.outputs):
        place = place_of(network.values, port.value)
        root = network.values[place.root]
        taken = place.root in bound or (place.root in inputs and port not in network.inputs)
        is_placed = place.is_dense or port.name in rows
        is_short = bool(port.extents) and port in network.inputs
        whole = is_placed and not is_short and place.n_elements == math.prod(root.shape)
        if whole and not taken:
            bound[place.root] = port.name
    return bound
