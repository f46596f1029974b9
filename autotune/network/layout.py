"""⑩ Addresses: the slot of the table and the bytes after it, for everything a kernel touches.

Slots: the arena, the constants, then the user's own arrays where a port is the whole of a storage.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.codegen.pack import pack
from autotune.dtypes import stored_dtype
from autotune.errors import CodegenError
from autotune.graph.network import Call, Network, Port
from autotune.loopir.nodes import Buffer, Kernel, Program
from autotune.network.artifact import Endpoint, KernelInfo
from autotune.network.conflicts import Access, access, done_before
from autotune.network.durations import estimated_s
from autotune.network.entry import ARENA, CONSTANTS, FIRST_BOUND, Launch, Pointer
from autotune.network.memory import Place, align, live_blocks, place_of, plan_arena
from autotune.target import Target
from autotune.te.evaluate import derive


@dataclass(frozen=True, slots=True)
class Unit:
    """A call with its program; calls with equal programs have the same symbol prefix."""

    call: Call
    program: Program
    prefix: str


def value_name(call: Call, buffer: Buffer) -> str | None:
    """The value behind an input or output buffer; None for other buffers and constants."""
    match buffer.role:
        case "output":
            return call.outputs[buffer.name]
        case "input":
            return call.inputs.get(buffer.name)
        case _:
            return None


KINDS = AS_THEY_ARE, PACKED, TRANSFORMED = "as they are", "packed", "transformed"
"""Why constants are stored: in the order of the model, in that of a program, computed from them."""


@dataclass(slots=True)
class ConstantPool:
    """All constants one after another, aligned, each content once.

    `kinds`: how many bytes are stored as the model has them, packed, and transformed.
    """

    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    _offsets: dict[bytes, int] = field(default_factory=dict)
    _arrays: list[NDArray[Any]] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)
    _sources: list[NDArray[Any]] = field(default_factory=list)
    _end: int = 0

    def offset(self, unit: Unit, buffer: Buffer) -> int:
        """Byte offset of a constant as a program wants it; equal orders of an array pack once."""
        packing = next((p for p in unit.program.packs if p.packed.name == buffer.name), None)
        source = unit.call.constants.get(packing.source.name if packing else buffer.name)
        if source is None:  # derived from others
            return self.add(constant(unit.program, unit.call.constants, buffer), TRANSFORMED)
        order = (packing.packed.shape, packing.axes, packing.indices) if packing else ()
        key = id(source), source.shape, buffer.tensor.dtype, order
        if key not in self._known:
            kind = PACKED if packing else AS_THEY_ARE
            self._known[key] = self.add(constant(unit.program, unit.call.constants, buffer), kind)
            self._sources.append(source)  # an id is one as long as its array lives
        return self._known[key]

    def add(self, array: NDArray[Any], kind: str) -> int:
        """Byte offset of `array`, which is stored unless its bytes are there already."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.sha256(flat.data).digest()
        if digest not in self._offsets:
            self._offsets[digest] = self._end
            self._arrays.append(flat)
            self._end += align(flat.nbytes)
            self.kinds[kind] += align(flat.nbytes)
        return self._offsets[digest]

    def data(self) -> NDArray[np.uint8]:
        """All bytes; the gaps are zero."""
        out: NDArray[np.uint8] = aligned((self._end,), "uint8")
        for start, flat in zip(self._offsets.values(), self._arrays, strict=True):
            out[start : start + flat.nbytes] = flat
        return out


class Layout:
    """The plan of one network: bound ports, arena, constants, and every kernel's addresses.

    `slots`: storage → slot of the table, for those that the user's arrays replace.
    `alias_roots`: aliased storage → the storage whose memory it uses (see `network.aliasing`).
    `constants`: where all constants go, which several networks may share. `target`: for estimates.
    """

    def __init__(
        self,
        network: Network,
        units: Sequence[Unit],
        alias_roots: Mapping[str, str],
        constants: ConstantPool,
        target: Target,
    ) -> None:
        self.network = network
        self.target = target
        self.alias_roots = alias_roots
        self.constants = constants
        self.owners = _bind(network)
        self.slots = {root: FIRST_BOUND + n for n, root in enumerate(self.owners)}
        self.n_bases = FIRST_BOUND + len(self.slots)
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
        window = None if self.owners.get(place.root) == port.name else (place.shape, place.strides)
        shape = tuple(port.shape)
        return Endpoint(
            port.name, shape, port.dtype, at.base, at.offset, window, port.limit, is_native
        )

    def _pointer(self, place: Place) -> Pointer:
        if place.root in self.slots:
            return Pointer(self.slots[place.root], place.offset_bytes)
        root = self.alias_roots.get(place.root, place.root)
        return Pointer(ARENA, self.plan.offsets[root] + place.offset_bytes)

    def _launches(self, units: Sequence[Unit]) -> tuple[Launch, ...]:
        touched: list[list[Access]] = []
        times_s = [estimated_s(u.program, k, self.target) for u, k in _kernels(units)]
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

    def _argument(self, step: int, unit: Unit, buffer: Buffer) -> tuple[Pointer, Access]:
        at = self._address(step, unit, buffer)
        writes = buffer.role in ("output", "workspace")
        shape, dtype = buffer.tensor.shape, buffer.tensor.dtype
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


def constant(program: Program, values: Mapping[str, NDArray[Any]], buffer: Buffer) -> NDArray[Any]:
    """The array of a constant buffer, packed as the program wants it; `values`: those of a call."""
    packing = next((p for p in program.packs if p.packed.name == buffer.name), None)
    tensor = packing.source if packing else buffer.tensor
    if any(tensor.name == op.name for op in program.derived):
        values = derive(program.derived, values)
    if tensor.name not in values:
        raise CodegenError(f"internal: a call has no value for the constant '{tensor.name}'")
    source = np.asarray(values[tensor.name], tensor.dtype).reshape(tensor.shape)
    return pack(packing, source) if packing else source


def _bind(network: Network) -> dict[str, str]:
    """Storages that the user's arrays replace: root → name of the port.

    A port is bound when it is the whole of a storage, inputs before outputs; a storage that holds
    an input as well as an output is the input's, and the output is copied.
    """
    bound: dict[str, str] = {}
    inputs = {place_of(network.values, p.value).root for p in network.inputs}
    for port in (*network.inputs, *network.outputs):
        place = place_of(network.values, port.value)
        root = network.values[place.root]
        taken = place.root in bound or (place.root in inputs and port not in network.inputs)
        whole = place.is_dense and place.n_elements == math.prod(root.shape)
        if whole and not taken:
            bound[place.root] = port.name
    return bound
