"""⑩ Results that lie where an operand lay: y[i] = f(…, x[i], …) overwrites an x that nobody needs.

A sum of branches then fetches one tensor less and the arena is smaller. Whether a program can do
that, `loopir.in_place` says; whether somebody still needs x, the network does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from autotune.graph.network import Call, Network
from autotune.loopir.in_place import replaceable
from autotune.loopir.nodes import Program
from autotune.network.memory import Block, Place, live_blocks, place_of


@dataclass(frozen=True, slots=True)
class Overlay:
    """The buffers of a call that share memory, and the storages behind them."""

    operand: str
    result: str
    old_root: str
    new_root: str


def overlays(network: Network, programs: Sequence[Program]) -> dict[int, Overlay]:
    """What is overwritten, by the position of the call; `programs`: one per call."""
    life = _lives(network)
    found: dict[int, Overlay] = {}
    for step, (call, program) in enumerate(zip(network.calls, programs, strict=True)):
        possible = {(o.operand, o.result): o for o in _possible(network, life, call, step)}
        pair = next((p for p in replaceable(program) if p in possible), None)
        if pair is not None:
            found[step] = possible[pair]
    return found


def overwritable(network: Network) -> dict[str, tuple[str, ...]]:
    """Operands, by task, that the result may overwrite wherever the task is called."""
    life = _lives(network)
    found: dict[str, set[str]] = {}
    steps = [*enumerate(network.calls), *((c.parts[-1], c.whole) for c in network.chains)]
    for step, call in steps:
        here = {overlay.operand for overlay in _possible(network, life, call, step)}
        found[call.task] = found.get(call.task, here) & here
    return {task: tuple(sorted(names)) for task, names in found.items() if names}


def heirs(found: Mapping[int, Overlay]) -> dict[str, str]:
    """The storage in whose place another lies in the end, by the latter's name."""
    origin: dict[str, str] = {}
    for _, overlay in sorted(found.items()):
        origin[overlay.new_root] = origin.get(overlay.old_root, overlay.old_root)
    return origin


def _lives(network: Network) -> dict[str, Block]:
    """When each storage that is not the user's is busy, by name."""
    ports = {place_of(network.values, p.value).root for p in (*network.inputs, *network.outputs)}
    return {block.name: block for block in live_blocks(network, (), ports)}


def _possible(
    network: Network, life: Mapping[str, Block], call: Call, step: int
) -> Iterator[Overlay]:
    """Pairs of an operand that ends with the call and of a result that begins with it."""
    for (operand, x), (result, y) in product(call.inputs.items(), call.outputs.items()):
        old, new = _whole(network, x), _whole(network, y)
        if old is None or new is None or not {old.root, new.root} <= life.keys():
            continue
        alone = _n_uses(network, call, old.root) == 1
        ends_here = life[old.root].last == step == life[new.root].first
        if alone and ends_here and old.dtype == new.dtype:
            yield Overlay(operand, result, old.root, new.root)


def _whole(network: Network, name: str) -> Place | None:
    """The place of a value that is all of a storage."""
    place = place_of(network.values, name)
    root = network.values[place.root]
    return place if place.n_elements == math.prod(root.shape) else None


def _n_uses(network: Network, call: Call, root: str) -> int:
    names = (*call.inputs.values(), *call.outputs.values())
    return sum(place_of(network.values, name).root == root for name in names)
