"""④ Context of the passes of lowering, beside the program: the schedule of its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from autotune.loopir.instance import loop_var
from autotune.loopir.nodes import Body, For, Program, Stmt
from autotune.loopir.visitor import kernel_ranges, map_statements
from autotune.schedule.state import Stage, State
from autotune.te.arith import Ranges
from autotune.te.expr import Reduce


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A stage that accumulates in a register tile by `op`, a reduction of `autotune.te.expr`."""

    stage: str
    op: str


@dataclass(frozen=True)
class Lowering:
    """A schedule while it is lowered: its `state`, and `exact`, the same with plain sums.

    `exact` is `state` where no stage is computed by minimal filtering (see `guarding`).
    """

    state: State
    exact: State

    def stage(self, name: str) -> Stage | None:
        """The stage that computes `name`; None for inputs and for buffers that lowering adds."""
        return self.state.stages.get(name) or self.exact.stages.get(name)

    @cached_property
    def accumulations(self) -> dict[str, Accumulation]:
        """The loops that run on a register tile and accumulate into it, by variable."""
        found: dict[str, Accumulation] = {}
        for stage in self._stages():
            if isinstance(stage.op.body, Reduce):
                made = Accumulation(stage.name, stage.op.body.op)
                found |= {loop_var(stage, it): made for it in stage.iters[stage.register_depth :]}
        return found

    def _stages(self) -> Iterator[Stage]:
        yield from self.exact.stages.values()
        yield from self.state.stages.values()


Rewrite: TypeAlias = Callable[[For, str, Ranges], Body]
"""A loop nest that accumulates, by which reduction, and the loops around it -> its replacement."""


def map_accumulations(program: Program, lowering: Lowering, f: Rewrite) -> Program:
    """`program` with every loop nest that accumulates into a register tile rewritten by `f`.

    Nests of stages that are computed inside of such a nest are rewritten before it.
    """
    loops = lowering.accumulations
    if not loops:
        return program
    kernels = (
        replace(k, body=_mapped(k.body, loops, f, kernel_ranges(k))) for k in program.kernels
    )
    return replace(program, kernels=tuple(kernels))


def _mapped(body: Body, loops: Mapping[str, Accumulation], f: Rewrite, ranges: Ranges) -> Body:
    def one(stmt: Stmt, ranges: Ranges) -> Body | None:
        if not isinstance(stmt, For) or stmt.var not in loops:
            return None
        found = loops[stmt.var]
        others = {var: each for var, each in loops.items() if each != found}
        inside = {**ranges, stmt.var: (0, stmt.extent - 1)}
        nest = replace(stmt, body=_mapped(stmt.body, others, f, inside))
        return f(nest, found.op, ranges)

    return map_statements(body, one, ranges)
