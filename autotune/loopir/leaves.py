"""④ What is inside of all loops of a stage: a store, the parts of a reduction, a scattered term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.errors import ScheduleError
from autotune.loopir.instance import Instance, Ranges, loop_var
from autotune.loopir.nodes import Body, If, Let, Store
from autotune.schedule.state import Iterator
from autotune.te.arith import simplify
from autotune.te.expr import (
    Const,
    Expr,
    Load,
    Reduce,
    Tensor,
    binary,
    idx,
    maximum,
    minimum,
    substitute,
    variables,
)
from autotune.te.reductions import REDUCE_BINARY, identity
from autotune.te.routes import Route

Emit = Callable[[Instance, Ranges], Body]


@dataclass(frozen=True, slots=True)
class Leaf:
    """Loop body callback: the statements inside all loops of a stage."""

    emit: Emit

    def __call__(self, inst: Instance, ranges: Ranges) -> Body:
        """The statements of a version of the stage."""
        return self.emit(inst, ranges)


class Update(Leaf):
    """The leaf of a reduction whose accumulator is already in place."""


@dataclass(frozen=True, slots=True)
class Placed(Update):
    """The leaf of a scattered reduction, inside of the loops of axes that are `routed`."""

    route: Route
    routed: tuple[str, ...]

    def place(self, inst: Instance, body: Body, ranges: Ranges) -> Body:
        """`body`, the loops inside of the routed ones, at the place of a term."""
        stage, values = inst.stage, inst.axis_values()
        own = {f"{stage.name}.{n}.place" for n in self.routed}
        within = stage.iters[stage.position(self.routed[0]) :]
        own |= {loop_var(stage, i) for i in within}
        lets: list[Let] = []
        for name in self.routed:
            at = simplify(substitute(self.route.places[name], values), ranges)
            if variables(at) & own:
                raise ScheduleError(f"{stage.name}: the place along {name} depends on loops inside")
            if stage.op.limits:  # what intervals know of it
                extent = next(a.extent for a in stage.op.axes if a.name == name)
                at = maximum(minimum(at, idx(extent - 1)), idx(0))
            lets.append(Let(f"{stage.name}.{name}.place", at))
        guard = simplify(substitute(self.route.guard, values), ranges)
        if variables(guard) & own:
            raise ScheduleError(f"{stage.name}: whether a term counts depends on loops inside")
        placed = (*lets, *body)
        return placed if guard == Const(True, "bool") else (If(guard, placed),)


@dataclass(frozen=True, slots=True)
class ReductionParts:
    """The four leaves of a reduction; `accumulator` says where a version of the tile keeps it."""

    reduce: Reduce
    accumulator: Callable[[Instance, Ranges], tuple[Tensor, tuple[Expr, ...]]]

    def reset(self, inst: Instance, ranges: Ranges) -> Body:
        """acc = identity."""
        acc, at = self.accumulator(inst, ranges)
        return (Store(acc, at, identity(self.reduce.op, acc.dtype)),)

    def resume(self, inst: Instance, ranges: Ranges) -> Body:
        """acc = the element of the tensor."""
        return (Store(*self.accumulator(inst, ranges), Load(*inst.target(ranges))),)

    def update(self, inst: Instance, ranges: Ranges) -> Body:
        """acc = acc ⊕ one term."""
        acc, at = self.accumulator(inst, ranges)
        value = simplify(substitute(self.reduce.body, inst.axis_values()), ranges)
        total = binary(REDUCE_BINARY[self.reduce.op], Load(acc, at), value)
        return (Store(acc, at, total),)

    def finish(self, inst: Instance, ranges: Ranges) -> Body:
        """The tensor = acc."""
        return (Store(*inst.target(ranges), Load(*self.accumulator(inst, ranges))),)


def accumulator_of(
    inst: Instance, _: Ranges, tile: tuple[Iterator, ...], shape: tuple[int, ...]
) -> tuple[Tensor, tuple[Expr, ...]]:
    """One element per point of the tile, whatever the version."""
    op = inst.stage.op
    at = tuple(inst.loop_value(i) for i in tile)
    return Tensor(f"{op.name}.acc", shape, op.tensor.dtype), at


def filled(inst: Instance, ranges: Ranges) -> Body:
    """A store of the constant that a stage is."""
    tensor, where = inst.target(ranges)
    return (Store(tensor, where, inst.stage.op.body),)
