"""⑥ Static analysis of a population: facts per statement for all candidates of a sketch at once.

`analyse(dag, sketch, rows)` replays the sketch once with arrays in its holes, so every extent is an
array of shape [n]; one walk over the loops then gives, per statement, counts of instructions,
registers, footprints and cache traffic for all candidates at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from autotune.array_program import Columns
from autotune.errors import ScheduleError
from autotune.schedule.at_numbers import at_numbers
from autotune.schedule.replay import apply, replay
from autotune.schedule.state import MAX_LOCAL_BYTES, Stage, State
from autotune.schedule.steps import Steps, holes_of
from autotune.search.cost.amounts import Amount
from autotune.search.cost.nest import Nests
from autotune.search.cost.stage_facts import StageCounts, StageFacts, Statement
from autotune.search.space import Rows, Sketch
from autotune.target import Target
from autotune.te.at_numbers import Numbers
from autotune.te.dag import ComputeDAG
from autotune.te.ragged import on_average


@dataclass(frozen=True, slots=True)
class Analysis:
    """All statements of a population, and which candidates can be built at all.

    `identity`: extents of all loops and prefetch distances, shape [n, k]. Candidates of one sketch
    with equal rows are the same program: factors beyond an extent are clipped.
    """

    statements: tuple[Statement, ...]
    valid: NDArray[np.bool_]
    identity: NDArray[np.int64]


def analyse(dag: ComputeDAG, sketch: Sketch, rows: Rows, target: Target) -> Analysis:
    """Facts about the candidates `rows` of `sketch`."""
    return Population.of(dag, sketch, sketch.values(rows), len(rows), target).analysis()


@dataclass(frozen=True, slots=True)
class Population:
    """Candidates of one sketch: their stages, and the facts that decide which can be built.

    These are a third of all facts; of random rows a quarter can be built.
    """

    walks: tuple[StageFacts, ...]
    counts: tuple[StageCounts, ...]
    valid: NDArray[np.bool_]
    identity: NDArray[np.int64]

    @staticmethod
    def of(dag: ComputeDAG, sketch: Sketch, holes: Columns, n: int, target: Target) -> Population:
        """The `n` candidates with these values of holes."""
        first = next((k for k, s in enumerate(sketch.steps) if holes_of(s)), len(sketch.steps))
        state = _begun(on_average(dag), sketch.steps[:first])
        for step in sketch.steps[first:]:
            state = apply(state, step, holes)
        if any(stage.fuses or stage.bound for stage in state.stages.values()):
            raise ScheduleError("schedules with fused or bound loops are not analysed")
        walks = _walks(state, n, target)
        counts = tuple(walk.counts() for walk in walks)
        valid = _valid(state, zip(walks, counts, strict=True), target, n)
        return Population(walks, counts, valid, _identity(state, n))

    def some(self, kept: NDArray[np.intp]) -> Population:
        """Some of the candidates."""
        state = self.walks[0].state.some(kept)
        return Population(
            _walks(state, len(kept), self.walks[0].target),
            tuple(counts.some(kept) for counts in self.counts),
            self.valid[kept],
            self.identity[kept],
        )

    def analysis(self) -> Analysis:
        """All facts about them."""
        return self._analysis(self.walks)

    def analyses(self, points: Sequence[Numbers]) -> list[Analysis]:
        """All facts about them at each of these numbers; without numbers, as they are."""
        return [self._analysis(self._walks_at(p)) for p in points] or [self.analysis()]

    def _analysis(self, walks: tuple[StageFacts, ...]) -> Analysis:
        pairs = zip(walks, self.counts, strict=True)
        statements = tuple(walk.statement(counts) for walk, counts in pairs)
        return Analysis(statements, self.valid, self.identity)

    def _walks_at(self, numbers: Numbers) -> tuple[StageFacts, ...]:
        first = self.walks[0]
        return _walks(at_numbers(first.state, numbers), first.n, first.target)


@lru_cache(maxsize=64)
def _begun(dag: ComputeDAG, steps: Steps) -> State:
    """The state of all rows of a sketch before the first step that has a hole."""
    return replay(dag, steps)


def _walks(state: State, n: int, target: Target) -> tuple[StageFacts, ...]:
    nests = Nests(state, n)
    return tuple(StageFacts(nests, stage, target) for stage in state.stages.values())


def _identity(state: State, n: int) -> NDArray[np.int64]:
    columns = [i.extent for s in state.stages.values() for i in s.iters]
    columns += [d for s in state.stages.values() for _, d in s.prefetches]
    if not columns:
        return np.zeros((n, 0), np.int64)
    whole = (x if isinstance(x, np.ndarray) else np.full(n, x) for x in columns)
    return np.stack(list(whole), axis=1).astype(np.int64, copy=False)


MAX_EXPANDED = 192
"""Limit on vector instructions in the unrolled bodies of all versions, to bound compile time."""
MAX_EXPANDED_POINTWISE = 1024
"""The same limit for stages without a sum: a transform of a tile is straight-line code."""
_LEAST_EXPANDED = 8
"""Points of an expensive body that may be expanded: a power takes 130 instructions, and a structure
whose smallest tile unrolls eight terms must not lose all of its candidates."""
_ESTIMATED_LOCAL_BYTES = 0.89 * MAX_LOCAL_BYTES
"""Limit on the estimated bytes of local buffers; the estimate ignores row-stride padding."""


def _valid(
    state: State, walks: Iterable[tuple[StageFacts, StageCounts]], target: Target, n: int
) -> NDArray[np.bool_]:
    ok = np.ones(n, bool)
    local: Amount = 0.0
    for walk, s in walks:
        unit, reduces = walk.unit, bool(walk.op.reduce_axes)
        if unit is not None:
            ok = ok & (s.accumulators <= unit.most_sums)
        elif reduces:
            ok = ok & (s.accumulators + s.operands <= target.n_registers)
        usual = MAX_EXPANDED if reduces else MAX_EXPANDED_POINTWISE
        limit = max(usual, _LEAST_EXPANDED * walk.of_op.n_operations)
        ok = ok & (s.instructions * s.versions <= limit)
        local = local + s.local_bytes
    for stage in state.stages.values():
        ok = ok & ~_overlapping_reduction(stage, n)
    return ok & (local <= _ESTIMATED_LOCAL_BYTES)


def _overlapping_reduction(stage: Stage, n: int) -> NDArray[np.bool_]:
    """A reduction in blocks must not compute a point twice: its spatial splits must be exact."""
    bad = np.zeros(n, bool)
    if not stage.op.reduce_axes:
        return bad
    outer = [i for i in stage.iters[: stage.register_depth] if i.kind == "reduce"]
    if not outer:
        return bad
    extents = dict(zip((a.name for a in stage.axes), stage.axis_extents, strict=True))
    spatial = {a.name for a in stage.op.axes}
    blocked = reduce(or_, (it.extent > 1 for it in outer))
    for rel in stage.splits:
        if rel.parent in spatial and blocked is not False:
            bad = bad | blocked & (rel.overlaps(extents[rel.parent]) != 0)
    return bad
