"""⑥ Static analysis of a population: facts per statement for all candidates of a sketch at once.

`analyse(dag, sketch, rows)` replays the sketch once with arrays in its holes, so every extent is an
array of shape [n]; one walk over the loops then gives, per statement, counts of instructions,
registers, footprints and cache traffic for all candidates at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import dtype_bytes
from autotune.errors import ScheduleError
from autotune.schedule.at_numbers import at_numbers
from autotune.schedule.replay import apply, replay
from autotune.schedule.state import MAX_LOCAL_BYTES, Stage, State
from autotune.schedule.steps import Steps, holes_of
from autotune.search.cost.array_program import Columns
from autotune.search.cost.caches import Caches
from autotune.search.cost.instructions import ADDED, lookups, operations, widening
from autotune.search.cost.nest import (
    Access,
    Array,
    Loop,
    Nest,
    full,
    guarded,
    local_bytes,
    needed_shares,
    product,
)
from autotune.search.cost.streams import lateness
from autotune.search.space import Rows, Sketch
from autotune.target import Target
from autotune.target.isa import MultiplyAdd, TileUnit
from autotune.te.arith import linear
from autotune.te.at_numbers import Numbers
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Binary, Expr, Load, variables
from autotune.te.products import dot_form, products_of
from autotune.te.ragged import on_average


@dataclass(frozen=True, slots=True)
class Statement:
    """Static facts about one stage for n candidates; arrays have shape [n].

    `steps`: executions of the expanded innermost body; `tiles`: how often a register tile is
    started; `accumulators`, `operands`: vector registers that must live at once; `instructions`:
    arithmetic per step; `loads`: distinct elements or vectors loaded per step; `guards`: those of
    them that each step chooses anew; `narrow_guards`: of these, those of floats of 16 bits where a
    step has several terms; `chain`: dependent operations per step; `traffic`: bytes that miss L1,
    L2 and L3; `local_bytes`: size of its local buffer; `reloads`: 1 where the reduction
    runs in blocks and tiles are loaded again;
    `cold_bytes`: bytes of constants, which no cache holds when the statement starts; `versions`:
    copies of the body that split tails make; `prefetch`: distance in bytes, NEXT_PANEL or 0;
    `late`: share of the time of reading constants that this adds; `early`: whether activations are
    fetched before they are needed. `unit`: whose registers the
    accumulators are, where they are matrices; an instruction then takes `heights` cycles, the rows
    of one of them, and `lines` are loaded per step, one for each row of an operand. `port_cycles`:
    those that a multiply-add takes a port.
    """

    name: str
    reduces: bool
    flops: float
    steps: Array
    tiles: Array
    accumulators: Array
    operands: Array
    instructions: Array
    loads: Array
    guards: Array
    narrow_guards: Array
    stores: Array
    chain: Array
    lanes: Array
    waste: Array
    traffic: tuple[Array, Array, Array]
    unique_bytes: Array
    chunks: Array
    local_bytes: Array
    inner_trips: Array
    reloads: Array
    cold_bytes: float
    versions: Array
    prefetch: Array
    late: Array
    early: NDArray[np.bool_]
    heights: Array
    lines: Array
    unit: TileUnit | None
    port_cycles: float


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
class _Counts:
    """Facts about one stage that decide whether its candidates can be built: see `Statement`."""

    lanes: Array
    accumulators: Array
    chain: Array
    loads: Array
    operands: Array
    instructions: Array
    versions: Array
    local_bytes: Array

    def some(self, kept: NDArray[np.intp]) -> _Counts:
        """Those of some of the candidates."""
        return _Counts(*(getattr(self, f.name)[kept] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Population:
    """Candidates of one sketch: their stages, and the facts that decide which can be built.

    These are a third of all facts; of random rows a quarter can be built.
    """

    walks: tuple[_Walk, ...]
    counts: tuple[_Counts, ...]
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

    def _analysis(self, walks: tuple[_Walk, ...]) -> Analysis:
        pairs = zip(walks, self.counts, strict=True)
        statements = tuple(walk.statement(counts) for walk, counts in pairs)
        return Analysis(statements, self.valid, self.identity)

    def _walks_at(self, numbers: Numbers) -> tuple[_Walk, ...]:
        first = self.walks[0]
        return _walks(at_numbers(first.state, numbers), first.n, first.target)


@lru_cache(maxsize=64)
def _begun(dag: ComputeDAG, steps: Steps) -> State:
    """The state of all rows of a sketch before the first step that has a hole."""
    return replay(dag, steps)


def _walks(state: State, n: int, target: Target) -> tuple[_Walk, ...]:
    return tuple(_Walk(state, stage, n, target) for stage in state.stages.values())


def _identity(state: State, n: int) -> NDArray[np.int64]:
    columns = [full(i.extent, n) for s in state.stages.values() for i in s.iters]
    columns += [full(d, n) for s in state.stages.values() for _, d in s.prefetches]
    return np.stack(columns, axis=1).astype(np.int64) if columns else np.zeros((n, 0), np.int64)


MAX_EXPANDED = 192
"""Limit on vector instructions in the unrolled bodies of all versions, to bound compile time."""
MAX_EXPANDED_POINTWISE = 1024
"""The same limit for stages without a sum: a transform of a tile is straight-line code."""
_LEAST_EXPANDED = 8
"""Points of an expensive body that may be expanded: a power takes 130 instructions, and a structure
whose smallest tile unrolls eight terms must not lose all of its candidates."""
_BUSY = 8.0
"""Independent multiply-adds in flight that keep two ports busy: a latency of four cycles each.
Half as many where a vector takes its port for two."""
_ESTIMATED_LOCAL_BYTES = 0.89 * MAX_LOCAL_BYTES
"""Limit on the estimated bytes of local buffers; the estimate ignores row-stride padding."""


def _valid(
    state: State, walks: Iterable[tuple[_Walk, _Counts]], target: Target, n: int
) -> NDArray[np.bool_]:
    ok = np.ones(n, bool)
    local = np.zeros(n)
    for walk, s in walks:
        unit, reduces = walk.unit, bool(walk.op.reduce_axes)
        if unit is not None:
            ok = ok & (s.accumulators <= unit.most_sums)
        elif reduces:
            ok = ok & (s.accumulators + s.operands <= target.n_registers)
        usual = MAX_EXPANDED if reduces else MAX_EXPANDED_POINTWISE
        limit = max(usual, _LEAST_EXPANDED * operations(walk.op))
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
    blocked = np.zeros(n, bool)
    for it in outer:
        blocked = blocked | (full(it.extent, n) > 1)
    for rel in stage.splits:
        if rel.parent in spatial:
            bad = bad | blocked & full(rel.overlaps(extents[rel.parent]), n).astype(bool)
    return bad


class _Walk:
    """Facts about one stage."""

    def __init__(self, state: State, stage: Stage, n: int, target: Target) -> None:
        self.state, self.stage, self.n, self.target = state, stage, n, target
        self.op: Compute = stage.op
        self.nest = Nest(state, stage, n)
        self.loops, self.reads = self.nest.loops, self.nest.reads

    def counts(self) -> _Counts:
        """The facts that decide whether candidates can be built."""
        expanded = [x for x in self.loops if x.own and x.annotation == "unroll"]
        spatial = [x.extent for x in expanded if x.kind == "spatial"]
        reduce = [x.extent for x in expanded if x.kind == "reduce"]
        accumulators, chain = product(spatial, self.n), product(reduce, self.n)
        loads, operands = self._loads(accumulators, chain)
        instructions = accumulators * chain * self._work()
        return _Counts(
            lanes=product([x.extent for x in self.loops if x.annotation == "vectorize"], self.n),
            accumulators=accumulators,
            chain=chain,
            loads=loads,
            operands=operands,
            instructions=instructions - self._shared_lookups(expanded) + self._widening(),
            versions=self._versions(),
            local_bytes=local_bytes(self.stage, self.n),
        )

    def statement(self, counts: _Counts) -> Statement:
        """All facts about this stage, of which `counts` are known."""
        rolled = [x for x in self.loops if not (x.own and x.annotation)]
        steps = product([x.extent for x in rolled], self.n)
        blocked = {i.name for i in self.stage.iters[: self.stage.register_depth]}
        inner = [x for x in rolled if x.own and x.kind == "reduce" and x.name not in blocked]
        guards, narrow_guards = self._guards()
        caches = Caches(self.nest, self.target)
        return Statement(
            name=self.op.name,
            reduces=bool(self.op.reduce_axes),
            flops=float(_points(self.op) * self._work()),
            steps=steps * self._useful(counts.accumulators, counts.lanes) * self._needed(),
            tiles=steps / product([x.extent for x in inner], self.n),
            accumulators=counts.accumulators,
            operands=counts.operands,
            instructions=counts.instructions,
            loads=counts.loads,
            guards=guards,
            narrow_guards=np.where(counts.chain > 1, narrow_guards, 0.0),
            stores=counts.accumulators,
            chain=counts.chain,
            lanes=counts.lanes,
            waste=self._waste(),
            traffic=caches.traffic(),
            unique_bytes=caches.footprint(),
            chunks=product([x.extent for x in self.loops if x.parallel], self.n),
            local_bytes=counts.local_bytes,
            inner_trips=inner[-1].extent if inner else np.ones(self.n),
            reloads=self._reloads(),
            cold_bytes=float(self._constant_bytes()),
            versions=counts.versions,
            prefetch=self._prefetch(),
            late=lateness(self.stage, self.op, self.n),
            early=self._early(),
            heights=product([x.extent for x in self.loops if x.own and x.is_rows], self.n),
            lines=self._lines(counts),
            unit=self.unit,
            port_cycles=self._port_cycles(),
        )

    @cached_property
    def unit(self) -> TileUnit | None:
        """Tile unit whose registers hold the accumulators, if they are matrices."""
        units = (f.unit for f in self.target.isa.forms if f.unit)
        return next(units, None) if self.stage.has_tile else None

    # --- counts -------------------------------------------------------------------------------

    def _work(self) -> float:
        """Instructions for an element and a term, or for the terms of a dot instruction."""
        if self._axes_marked("dot"):
            form = self._dot_form
            return len(products_of(self.op)) * (1 if form is None or form.accumulates else ADDED)
        return max(1, operations(self.op))

    @cached_property
    def _dot_form(self) -> MultiplyAdd | None:
        """The instruction of a `dot` loop; of tiles, None."""
        extents = [int(full(e, self.n)[0]) for e in self._axes_marked("dot").values()]
        is_dot = extents and not self.stage.has_tile
        return dot_form(self.op, extents[0]) if is_dot else None

    def _widening(self) -> Array:
        """Instructions per expanded body that widen the operands of multiply-adds."""
        total, inner = np.zeros(self.n), self._register_extents
        if self.unit is not None or not self.op.reduce_axes:
            return total
        for access in self.reads:
            lanes = self._uses_lanes(access.load)
            cost = widening(self._dot_form, access.load.tensor.dtype, lanes)
            total = total + cost * self._elements(access, inner) if cost else total
        return total

    def _shared_lookups(self, expanded: list[Loop]) -> Array:
        """Instructions of look-ups in an expanded body that are those of another point of it."""
        total = np.zeros(self.n)
        points = product([x.extent for x in expanded], self.n)
        for cost, axes in lookups(self.op):
            own = [x.extent for x in expanded if x.name.partition(".")[0] in axes]
            total = total + cost * (points - product(own, self.n))
        return total

    def _loads(self, accumulators: Array, chain: Array) -> tuple[Array, Array]:
        """Distinct loads per expanded body, and registers that its operands need.

        Those of one of the `chain` terms that it adds up, where no other term has them too.
        """
        vectors, splats, has_splats = np.zeros(self.n), np.zeros(self.n), False
        inner = self._register_extents
        term = inner | {a.name: np.ones(self.n) for a in self.op.reduce_axes}
        counts = [self._elements(access, inner) for access in self.reads]
        is_expanded = any(x.own and x.kind == "reduce" and x.annotation for x in self.loops)
        of_term = [self._elements(x, term) for x in self.reads] if is_expanded else counts
        pairs = zip(counts, of_term, strict=True)
        shared = reduce(np.logical_or, (a < b * chain for a, b in pairs), chain < 1)
        for access, count, alone in zip(self.reads, counts, of_term, strict=True):
            each = np.minimum(np.where(shared, count, alone), accumulators)
            if self._uses_lanes(access.load):
                vectors = vectors + each
            else:
                splats, has_splats = splats + each, True
        total = sum(counts, np.zeros(self.n))
        held = np.minimum(vectors, 4.0) if is_expanded else vectors
        if has_splats:  # the smaller operand set stays in registers
            held = np.minimum(held, splats) + 1.0
        if self._dot_form is not None and not self._dot_form.accumulates:
            held = held + 1.0  # a product before it is added
        return np.maximum(total, 1.0), held

    def _lines(self, counts: _Counts) -> Array:
        """Rows of the matrices that one step loads: those of the result, or groups of terms.

        Panels of columns are outside: rows for which no registers are left are loaded for each.
        """
        marked = [x for x in self.loops if x.own and x.annotation == "tile"]
        heights = {x.kind: x.extent for x in marked}
        if not marked or self.unit is None:
            return np.zeros(self.n)
        rows, panels, inner = np.zeros(self.n), np.zeros(self.n), self._register_extents
        for access in self.reads:
            if self._uses_lanes(access.load):
                panels = panels + self._elements(access, inner)
            else:
                rows = rows + self._elements(access, inner)
        left = self.unit.n_registers - 1 - counts.accumulators
        again = np.where(rows / counts.chain > left, np.maximum(panels / counts.chain, 1.0), 1.0)
        lines: Array = rows * again * heights["spatial"] + panels * heights["reduce"]
        return lines

    def _port_cycles(self) -> float:
        form = self._dot_form
        return 1.0 if form is None else self.target.core.cycles_of(form)

    def _guards(self) -> tuple[Array, Array]:
        """Distinct loads per expanded body of which each step chooses anew whether to make them.

        All of them, and those of floats of 16 bits.
        """
        inner = self._register_extents
        rolled = [x for x in self.loops if not (x.own and x.annotation)]
        step = rolled[-1].name.partition(".")[0] if rolled and rolled[-1].own else None
        chosen = {x for x, axes in guarded(self.op) if step is None or step in axes}
        none = np.zeros(self.n)
        counts = {x.load: self._elements(x, inner) for x in self.reads if x.load in chosen}
        narrow = (n for x, n in counts.items() if x.tensor.dtype in ("bfloat16", "float16"))
        return sum(counts.values(), none), sum(narrow, none)

    def _needed(self) -> Array:
        """Share of the steps that execute: predicate hoisting removes those that add zero."""
        inner = self._register_extents
        share = np.ones(self.n)
        for axes, part in needed_shares(self.op):
            same = product([inner[a] for a in axes], self.n) == 1
            share = share * np.where(same, part, 1.0)
        return share

    @cached_property
    def _register_extents(self) -> dict[str, Array]:
        """Columns that each axis takes inside the expanded body."""
        leaf_depth = [k for k, i in enumerate(self.stage.iters) if i.annotation]
        first = min(leaf_depth, default=len(self.stage.iters))
        rolled = {i.name for i in self.stage.iters[first:] if not i.annotation}
        if rolled:
            return {a.name: np.ones(self.n) for a in self.stage.axes}
        inner = self.stage.inner_extents(first - 1)
        return {k: full(v, self.n) for k, v in inner.items()}

    def _uses_lanes(self, load: Load) -> bool:
        """Whether lanes read different elements, not a short pattern that repeats."""
        axis = self._lane_axis()
        return axis is not None and any(axis in _outside_mod(i) for i in load.indices)

    def _lane_axis(self) -> str | None:
        """The axis that the vector loop is a part of."""
        return next(iter(self._axes_marked("vectorize")), None)

    def _axes_marked(self, mark: str) -> dict[str, Array]:
        """The axes that loops marked so are parts of; names of axes may have dots themselves."""
        found = {}
        for x in self.loops:
            if x.own and x.annotation == mark:
                names = (a.name for a in self.stage.axes if f"{x.name}.".startswith(f"{a.name}."))
                found[max(names, key=len)] = x.extent
        return found

    def _elements(self, access: Access, inner: dict[str, Array]) -> Array:
        """Distinct elements, vectors where it uses lanes, that `access` touches over `inner`.

        The terms of one dot instruction are loaded together, and so is a matrix.
        """
        together = self._together
        total = one = np.ones(self.n)
        for size, index, spread in access.dimensions:
            extent = self.nest.distinct(index, size, spread, inner)
            if not together.keys().isdisjoint(variables(index)):
                inside = {k: together.get(k, one) for k in inner}
                extent = np.ceil(extent / self.nest.distinct(index, size, 0, inside))
            total = total * extent
        return total

    @cached_property
    def _together(self) -> dict[str, Array]:
        """Columns of each axis per instruction: the lanes."""
        found: dict[str, Array] = {}
        for mark in ("vectorize", "dot", "tile"):
            for name, extent in self._axes_marked(mark).items():
                found[name] = found.get(name, np.ones(self.n)) * extent
        return found

    def _useful(self, accumulators: Array, lanes: Array) -> Array:
        """Share of the tile grid that is computed; split tails skip the rest.

        A tail of few accumulators waits for each of them, so it is no cheaper than `_BUSY` are.
        """
        busy = _BUSY / vector_passes(lanes, self.target)
        least = np.minimum(busy / accumulators, 1.0) if self.op.reduce_axes else 0.0
        share = np.ones(self.n)
        for extent, tile, whole, rest in self._tails:
            last = np.where(rest > 0, np.maximum(rest / tile, least), 0.0)
            share = share * (whole + last) / np.ceil(extent / tile)
        return share

    @cached_property
    def _tails(self) -> list[tuple[Array, Array, Array, Array]]:
        """Of each split with a remainder: extent, tile, whole tiles, and what is left.

        A quotient of whole numbers is rounded to one only where it is one.
        """
        found = []
        for rel, extent in self.nest.splits_around:
            if rel.tail == "split":
                tile = full(rel.factors[-1], self.n)
                whole = np.floor(extent / tile)
                found.append((extent, tile, whole, extent - whole * tile))
        return found

    def _versions(self) -> Array:
        """Copies of the loops: each split with a remainder doubles the body of its tile loops."""
        copies = np.ones(self.n)
        for _, _, _, rest in self._tails:
            copies = copies * np.where(rest > 0, 2.0, 1.0)
        return copies

    def _waste(self) -> Array:
        """Points computed over points needed; tiles that are shifted inwards recompute some."""
        waste = np.ones(self.n)
        for rel, extent in self.nest.splits_around:
            count = extent
            for level, factor in enumerate(reversed(rel.factors)):
                f = full(factor, self.n)
                outer = np.ceil(count / f)
                if level or rel.tail == "shift":
                    waste = waste * (outer * f) / count
                count = outer
        return waste

    def _prefetch(self) -> Array:
        """Prefetch distance of the first packed constant."""
        found = [d for name, d in self.stage.prefetches if name in self.stage.packs]
        return full(found[0], self.n) if found else np.zeros(self.n)

    def _early(self) -> NDArray[np.bool_]:
        """Whether activations that the stage reads or writes are prefetched."""
        found = [d for name, d in self.stage.prefetches if name not in self.stage.packs]
        return full(found[0], self.n) != 0 if found else np.zeros(self.n, bool)

    def _reloads(self) -> Array:
        """1 where a reduction loop stands outside the tiles: accumulators pass through memory."""
        if not self.op.reduce_axes:
            return np.zeros(self.n)
        outer = self.stage.iters[: self.stage.register_depth]
        trips = product([full(i.extent, self.n) for i in outer if i.kind == "reduce"], self.n)
        return (trips > 1).astype(np.float64)

    def _constant_bytes(self) -> int:
        constants = {p.name for p in self.state.dag.placeholders if p.constant}
        most = _points(self.op)  # a gather reads few rows of a large constant (embeddings)
        return sum(
            min(x.tensor.size, most) * dtype_bytes(x.tensor.dtype)
            for x in self.op.reads
            if x.tensor.name in constants
        )


def vector_passes(lanes: Array, target: Target) -> Array:
    """Cycles for which a vector of `lanes` floats occupies a port."""
    passes: Array = np.maximum(32.0 * lanes / target.port_bits, 1.0)
    return passes


@lru_cache(maxsize=1024)
def _outside_mod(e: Expr) -> set[str]:
    terms = linear(e).terms
    return set().union(*(variables(a) for a, _ in terms if not _is_mod(a)))


def _is_mod(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op == "mod"


def _points(op: Compute) -> int:
    total = 1
    for a in op.axes + op.reduce_axes:
        total *= a.extent
    return total
