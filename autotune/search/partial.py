"""⑥ A sketch while rules build it, and the operations that several rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from autotune.schedule.replay import apply
from autotune.schedule.state import State, initial
from autotune.schedule.steps import (
    NEXT_PANEL,
    Annotate,
    ComputeAt,
    Hole,
    Pack,
    Prefetch,
    Reorder,
    Split,
    Step,
)
from autotune.search.space import Parameter, Role
from autotune.strides import dense
from autotune.target import Target
from autotune.te.arith import linear, offset
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, loads, variables
from autotune.te.numbers import elements

MAX_TILE = 32
"""Most iterations of one unrolled axis of a register tile."""
_SHORT = (2, 4)
"""Extents of an axis whose elements are stored between one another."""
MAX_VECTORS = 16
"""Most vectors of channels in a register tile."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A sketch while it is being built: the steps so far, their state, and which stages are done.

    `state`: the loop structure that `steps` make, with every hole at its smallest value.
    `structure`: the tags of each rule that was applied, in order. `is_foreign`: whether a rule of
    the user's is among them.
    """

    state: State
    steps: tuple[Step, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    structure: tuple[tuple[str, ...], ...] = ()
    done: frozenset[str] = frozenset()
    is_foreign: bool = False

    def add(self, *steps: Step, done: Iterable[str] = (), tags: tuple[str, ...] = ()) -> Partial:
        """Apply steps, mark stages as done, add the tags of a rule.

        Raises ScheduleError for a step that cannot be applied.
        """
        smallest = {p.name: p.domain[0] for p in self.parameters}
        state = reduce(lambda state, step: apply(state, step, smallest), steps, self.state)
        structure = (*self.structure, tags) if tags else self.structure
        is_done = self.done.union(done)
        added = (*self.steps, *steps)
        return Partial(state, added, self.parameters, structure, is_done, self.is_foreign)

    def hole(self, name: str, domain: tuple[int, ...], role: Role) -> Partial:
        """Declare a parameter; steps that name it are added later."""
        return replace(self, parameters=(*self.parameters, Parameter(name, domain, role)))


def begin(dag: ComputeDAG) -> Partial:
    """The sketch of no steps."""
    return Partial(initial(dag))


def split_into_vectors(
    p: Partial, op: Compute, target: Target, prefix: str, gather: bool = False
) -> Partial:
    """Split the innermost axis of a pointwise stage into vectors, a few of them unrolled.

    One that does not read neighbours has no vectors, or (`gather`) collects their elements.
    """
    last = op.axes[-1]
    lanes = lanes_of(last.extent, target) if gather or advances(op, last) else 1
    if lanes == 1:
        hole = f"{prefix}.{last.name}.unroll"
        out = p.hole(hole, tuple(u for u in (1, 2, 4, 8) if u <= last.extent), Role.VECTORS)
        out = out.add(Split(op.name, last.name, (Hole(hole),)))
        return out.add(Annotate(op.name, f"{last.name}.1", "unroll"))
    hole = f"{prefix}.{last.name}.vectors"
    out = p.hole(hole, tuple(u for u in (1, 2, 4, 8) if u * lanes <= last.extent), Role.VECTORS)
    out = out.add(Split(op.name, last.name, (Hole(hole), lanes)))
    out = out.add(Annotate(op.name, f"{last.name}.1", "unroll"))
    return out.add(Annotate(op.name, f"{last.name}.2", "vectorize"))


def place_producer(p: Partial, name: str, target_stage: str, loop: str, target: Target) -> Partial:
    """A pointwise producer computed for each block, vectorised over its innermost axis.

    Where that is short and does not advance, over the one outside of it: vectors are interleaved.
    """
    op = p.state[name].op
    out = p.add(ComputeAt(name, target_stage, loop), done=(name,))
    last = op.axes[-1]
    lanes = lanes_of(last.extent, target)
    if last.extent in _SHORT and len(op.axes) > 1 and not advances(op, last):
        outer, axis = [a.name for a in op.axes[:-2]], op.axes[-2]
        lanes = lanes_of(axis.extent, target)
        if lanes > 1 and advances(op, axis):
            out = out.add(Split(name, axis.name, (lanes,)))
            order = (*outer, f"{axis.name}.0", last.name, f"{axis.name}.1")
            out = out.add(Reorder(name, order), Annotate(name, last.name, "unroll"))
            return out.add(Annotate(name, f"{axis.name}.1", "vectorize"))
    if lanes == 1 or not advances(op, last):
        return out
    out = out.add(Split(name, last.name, (lanes,)))
    return out.add(Annotate(name, f"{last.name}.1", "vectorize"))


def unroll_last(
    p: Partial, anchor: Compute, last: Axis, reduction: list[str], prefix: str = ""
) -> tuple[Partial, list[str], list[str]]:
    """Unroll a few steps of the innermost reduction loop."""
    domain = tuple(u for u in (1, 2, 4, 8) if last.extent % u == 0)
    if last.extent <= 8:
        return p, reduction, [last.name]
    if len(domain) == 1:
        return p, reduction, []
    hole = f"{prefix}k.unroll"
    out = p.hole(hole, domain, Role.UNROLL).add(Split(anchor.name, last.name, (Hole(hole),)))
    names = [*reduction[:-1], f"{last.name}.0"]
    return out, names, [f"{last.name}.1"]


def pack_constants(p: Partial, anchor: Compute) -> Partial:
    """Store the constants that `anchor` reads in its order, and prefetch them."""
    out = p
    for name in constants_of(p.state, anchor):
        hole = f"{name}.prefetch"
        if all(q.name != hole for q in out.parameters):  # another product may read it too
            out = out.hole(hole, (NEXT_PANEL, 0, 512, 2048, 8192), Role.PREFETCH)
        out = out.add(Pack(name, anchor.name), Prefetch(name, anchor.name, Hole(hole)))
    return out


def constants_of(state: State, op: Compute) -> list[str]:
    """The constants that `op` reads in an order that is known."""
    reads = state[op.name].op.reads
    chosen = {x.tensor.name for x in reads if any(map(loads, x.indices))}
    names = [n for n in dict.fromkeys(x.tensor.name for x in reads) if n not in chosen]
    return [n for n in names if state.dag.is_constant(n)]


def batch_and_rows(op: Compute) -> tuple[list[str], list[str]]:
    """Axes that all loads use, and those that the weights do not; the last is the channel.

    Numbers of the call use none.
    """
    used = [{v for i in x.indices for v in variables(i)} for x in elements(op)]
    names = [a.name for a in op.axes[:-1]]
    batch = [n for n in names if all(n in u for u in used)]
    return batch, [n for n in names if n not in batch]


def advances(op: Compute, axis: Axis) -> bool:
    """Whether all loads move by one element, or not at all, along `axis`."""
    for x in op.reads:
        form = offset(x.indices, dense(x.tensor.shape))
        if not form.is_opaque_in(axis.name) and form.coefficient(axis.name) == 1:
            continue
        if any(axis.name in variables(i) for i in x.indices[:-1]):
            return False
        if x.indices and linear(x.indices[-1]).is_opaque_in(axis.name):
            return False
    return True


# --- domains ----------------------------------------------------------------------------------


def lanes_of(extent: int, target: Target) -> int:
    """Widest vector that fits the extent."""
    lanes = target.lanes
    while lanes > extent:
        lanes //= 2
    return lanes


def channel_holes(p: Partial, channel: Axis, target: Target, most: int = MAX_VECTORS) -> Partial:
    """Holes for lanes, vectors of a register tile and register tiles of a block of `channel`.

    `most`: vectors of a register tile.
    """
    widths = lanes_domain(channel.extent, target)
    count = -(-channel.extent // widths[0])
    vectors = tuple(range(1, min(count, most) + 1))
    p = p.hole("lanes", widths, Role.LANES).hole("vectors", vectors, Role.VECTORS)
    return p.hole("panels", count_domain(count), Role.TILES)


def lanes_domain(extent: int, target: Target) -> tuple[int, ...]:
    """Lanes of a vector of channels: as many as there are, or half of them where some were idle."""
    lanes = lanes_of(extent, target)
    return (lanes // 2, lanes) if extent % lanes and lanes > 4 else (lanes,)


def panel_domain(extent: int, target: Target) -> tuple[int, ...]:
    """Channels of a register tile that are a whole number of the narrowest vectors."""
    least = lanes_domain(extent, target)[0]
    return tuple(range(least, min(extent, least * MAX_VECTORS) + 1, least))


def split_channel(p: Partial, op: Compute, channel: Axis) -> tuple[Partial, tuple[str, ...]]:
    """Split `channel` of `op` by `channel_holes`: its loops of blocks, panels, vectors and lanes.

    Where the vectors of a panel do not divide all of them, the last panel has fewer.
    """
    c = channel.name
    out = p.add(Split(op.name, c, (Hole("lanes"),)))
    out = out.add(Split(op.name, f"{c}.0", (Hole("panels"), Hole("vectors")), "split"))
    return out, (f"{c}.0.0", f"{c}.0.1", f"{c}.0.2", f"{c}.1")


def tile_domain(extent: int) -> tuple[int, ...]:
    """Sizes of one unrolled axis of a register tile."""
    return tuple(range(1, min(extent, MAX_TILE) + 1))


def count_domain(extent: int) -> tuple[int, ...]:
    """Numbers of tiles in a block: small numbers, divisors, then powers of two, then all."""
    small = set(range(1, min(extent, 8) + 1))
    divisors = {d for d in range(1, extent + 1) if extent % d == 0 and d <= 512}
    powers = {1 << k for k in range(extent.bit_length())}
    return tuple(sorted(n for n in small | divisors | powers if n <= extent))


Rule: TypeAlias = Callable[[Partial, str, Target], list[Partial] | None]
"""A sketch rule: None to skip the stage of that name, else successors of the partial sketch."""
