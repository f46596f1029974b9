"""⑩ Results that lie where an operand lay: y[i] = f(…, x[i], …) overwrites an x that nobody needs.

A sum of branches then fetches one tensor less and the arena is smaller. It is right where every
element of x is read by the very statement that stores that element of y, and stored once: tiles
that overlap would read what they have written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.graph.network import Call, Network
from autotune.loopir.nodes import Buffer, Program, Store
from autotune.loopir.visitor import body_loads, statements
from autotune.network.memory import Place, live_blocks, place_of
from autotune.te.expr import Binary, Load, loads, walk


@dataclass(frozen=True, slots=True)
class Overlay:
    """The buffers of a call that share memory, and the storages behind them."""

    operand: str
    result: str
    old_root: str
    new_root: str


def overlays(network: Network, programs: Sequence[Program]) -> dict[int, Overlay]:
    """What may be overwritten, by the position of the call; `programs`: one per call."""
    ports = {place_of(network.values, p.value).root for p in (*network.inputs, *network.outputs)}
    life = {block.name: block for block in live_blocks(network, (), ports)}
    found: dict[int, Overlay] = {}
    for step, (call, program) in enumerate(zip(network.calls, programs, strict=True)):
        roots = {n: _whole(network, value) for n, value in (call.inputs | call.outputs).items()}
        for operand, result in replaceable(program):
            old, new = roots.get(operand), roots.get(result)
            if old is None or new is None or not {old.root, new.root} <= life.keys():
                continue
            alone = _n_uses(network, call, old.root) == 1
            ends_here = life[old.root].last == step == life[new.root].first
            if alone and ends_here and old.dtype == new.dtype:
                found[step] = Overlay(operand, result, old.root, new.root)
                break
    return found


def heirs(found: Mapping[int, Overlay]) -> dict[str, str]:
    """The storage in whose place another lies in the end, by the latter's name."""
    origin: dict[str, str] = {}
    for _, overlay in sorted(found.items()):
        origin[overlay.new_root] = origin.get(overlay.old_root, overlay.old_root)
    return origin


def replaceable(program: Program) -> list[tuple[str, str]]:
    """Pairs of an input and an output that may be the same memory while the program runs."""
    stores = [s for k in program.kernels for s in statements(k.body) if isinstance(s, Store)]
    reads = [x for k in program.kernels for x in body_loads(k.body)]
    return [
        (x.name, y.name)
        for y in program.buffers
        if y.role == "output" and _is_stored_once(y, stores, reads)
        for x in program.buffers
        if x.role == "input" and _is_like(x, y) and _is_read_in_place(x, y, stores, reads)
    ]


def _is_like(x: Buffer, y: Buffer) -> bool:
    return (x.tensor.shape, x.tensor.dtype, x.strides) == (
        y.tensor.shape,
        y.tensor.dtype,
        y.strides,
    )


def _is_stored_once(y: Buffer, stores: Sequence[Store], reads: Sequence[Load]) -> bool:
    """Whether no element is stored twice (tiles are shifted inwards by a minimum), or read back."""
    ours = [s for s in stores if s.tensor.name == y.name]
    shifted = (
        isinstance(e, Binary) and e.op in ("min", "max")
        for s in ours
        for index in s.indices
        for e in walk(index)
    )
    return not any(x.tensor.name == y.name for x in reads) and not any(shifted)


def _is_read_in_place(x: Buffer, y: Buffer, stores: Sequence[Store], reads: Sequence[Load]) -> bool:
    here = [
        load
        for s in stores
        if s.tensor.name == y.name
        for load in loads(s.value)
        if load.tensor.name == x.name and load.indices == s.indices
    ]
    return bool(here) and len(here) == sum(load.tensor.name == x.name for load in reads)


def _whole(network: Network, name: str) -> Place | None:
    """The place of a value that is all of a storage."""
    place = place_of(network.values, name)
    root = network.values[place.root]
    return place if place.n_elements == math.prod(root.shape) else None


def _n_uses(network: Network, call: Call, root: str) -> int:
    names = (*call.inputs.values(), *call.outputs.values())
    return sum(place_of(network.values, name).root == root for name in names)
