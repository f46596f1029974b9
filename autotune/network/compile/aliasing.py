"""⑩ Buffer aliasing: y[i] = f(…, x[i], …) is stored in the buffer of x when this is its last use.

An in-place sum of branches writes no third tensor, and the arena gets smaller. `loopir.in_place`
decides whether a program may overwrite an operand; the live ranges of the network decide whether
the operand is still needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from autotune.graph.network import Network, TaskCall
from autotune.loopir.in_place import Pairs, replaceable
from autotune.loopir.nodes import Program
from autotune.network.compile.memory import Block, StoragePlace, live_blocks, place_of


@dataclass(frozen=True, slots=True)
class Alias:
    """Two ports of a call that share memory, and their storages.

    `old_root`: storage of the operand; `new_root`: storage of the result.
    """

    operand: str
    result: str
    old_root: str
    new_root: str


def aliases(
    network: Network, programs: Sequence[Program], pairs: Sequence[Pairs | None]
) -> dict[int, Alias]:
    """The alias of each call that computes in place, by index of the call; one program per call.

    `pairs`: results of `loopir.in_place.read_in_place` by program, where known.
    """
    life = _lives(network)
    found: dict[int, Alias] = {}
    each = zip(network.calls, programs, pairs, strict=True)
    for step, (call, program, known) in enumerate(each):
        possible = {(o.operand, o.result): o for o in _possible(network, life, call, step)}
        pair = next((p for p in replaceable(program, known) if p in possible), None)
        if pair is not None:
            found[step] = possible[pair]
    return found


def overwritable(network: Network) -> dict[str, tuple[str, ...]]:
    """Operands that the result may overwrite at every call of the task, by task key."""
    life = _lives(network)
    found: dict[str, set[str]] = {}
    steps = [*enumerate(network.calls), *((c.parts[-1], c.whole) for c in network.chains)]
    for step, call in steps:
        here = {alias.operand for alias in _possible(network, life, call, step)}
        found[call.task] = found.get(call.task, here) & here
    return {task: tuple(sorted(names)) for task, names in found.items() if names}


def alias_roots(found: Mapping[int, Alias]) -> dict[str, str]:
    """Aliased storage → the storage whose memory it uses, with chains of aliases resolved."""
    origin: dict[str, str] = {}
    for _, alias in sorted(found.items()):
        origin[alias.new_root] = origin.get(alias.old_root, alias.old_root)
    return origin


def _lives(network: Network) -> dict[str, Block]:
    """Live range of each storage that is not an input or output of the network, by name."""
    ports = {place_of(network.values, p.value).root for p in (*network.inputs, *network.outputs)}
    return {block.name: block for block in live_blocks(network, (), ports)}


def _possible(
    network: Network, life: Mapping[str, Block], call: TaskCall, step: int
) -> Iterator[Alias]:
    """Pairs of an operand whose live range ends at `step` and a result whose range begins there."""
    for (operand, x), (result, y) in product(call.inputs.items(), call.outputs.items()):
        old, new = _whole(network, x), _whole(network, y)
        if old is None or new is None or not {old.root, new.root} <= life.keys():
            continue
        alone = _n_uses(network, call, old.root) == 1
        ends_here = life[old.root].last == step == life[new.root].first
        if alone and ends_here and old.dtype == new.dtype:
            yield Alias(operand, result, old.root, new.root)


def _whole(network: Network, name: str) -> StoragePlace | None:
    """Place of a value that covers its whole storage; None for a strided view."""
    place = place_of(network.values, name)
    root = network.values[place.root]
    return place if place.n_elements == math.prod(root.shape) else None


def _n_uses(network: Network, call: TaskCall, root: str) -> int:
    names = (*call.inputs.values(), *call.outputs.values())
    return sum(place_of(network.values, name).root == root for name in names)
