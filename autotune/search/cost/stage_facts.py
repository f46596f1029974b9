"""⑥ Static facts of one stage for all candidates of a population: what it computes and touches.

A stage is counted in two steps: `counts` decide which candidates can be built, and `statement` is
made of those that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial, reduce
from math import prod
from operator import or_

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import dtype_bytes
from autotune.schedule.region import larger, smaller
from autotune.schedule.state import Stage
from autotune.search.cost.amounts import (
    Amount,
    Array,
    choose,
    full,
    product,
    rounded_down,
    rounded_up,
)
from autotune.search.cost.caches import Caches
from autotune.search.cost.instructions import ADDED, lookups, operations, widening
from autotune.search.cost.nest import Access, Loop, Nest, Nests, guarded, local_bytes, needed_shares
from autotune.search.cost.streams import lateness
from autotune.target import Target
from autotune.target.isa import MultiplyAdd, TileUnit
from autotune.te.dag import Compute
from autotune.te.expr import Load
from autotune.te.products import dot_form, products_of


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
class StageCounts:
    """Facts about one stage that decide whether its candidates can be built: see `Statement`."""

    lanes: Amount
    accumulators: Amount
    chain: Amount
    loads: Amount
    operands: Amount
    instructions: Amount
    versions: Amount
    local_bytes: Amount

    def some(self, kept: NDArray[np.intp]) -> StageCounts:
        """Those of some of the candidates."""
        found = (getattr(self, name) for name in _COUNTED)
        return StageCounts(*(x[kept] if isinstance(x, np.ndarray) else x for x in found))


_COUNTED = tuple(f.name for f in fields(StageCounts))


_BUSY = 8.0
"""Independent multiply-adds in flight that keep two ports busy: a latency of four cycles each.
Half as many where a vector takes its port for two."""


class StageFacts:
    """Facts about one stage."""

    def __init__(self, nests: Nests, stage: Stage, target: Target) -> None:
        self.state, self.stage, self.n, self.target = nests.state, stage, nests.n, target
        self.amount = nests.amount
        self.op: Compute = stage.op
        self.reduce_axes = stage.op.reduce_axes
        self.nest = Nest(nests, stage)
        self.loops, self.own, self.reads = self.nest.loops, self.nest.own, self.nest.reads
        self.of_op = _facts_of(stage.op)
        self._marked = self._axes_marked()
        self._lane_axis = next(iter(self._marked.get("vectorize", ())), None)
        self._found: dict[int, Amount] = {}

    def counts(self) -> StageCounts:
        """The facts that decide whether candidates can be built."""
        expanded = [x for x in self.own if x.annotation == "unroll"]
        accumulators = product(x.extent for x in expanded if x.kind == "spatial")
        chain = product(x.extent for x in expanded if x.kind == "reduce")
        loads, operands = self._loads(accumulators, chain)
        instructions = accumulators * chain * self._work
        return StageCounts(
            lanes=product(x.extent for x in self.loops if x.annotation == "vectorize"),
            accumulators=accumulators,
            chain=chain,
            loads=loads,
            operands=operands,
            instructions=instructions - self._shared_lookups(expanded) + self._widening(),
            versions=self._versions(),
            local_bytes=local_bytes(self.stage, self.amount),
        )

    def statement(self, counts: StageCounts) -> Statement:
        """All facts about this stage, of which `counts` are known."""
        rolled = self.nest.rolled
        steps = product(x.extent for x in rolled)
        blocked = {i.name for i in self.stage.iters[: self.stage.register_depth]}
        inner = [
            x for x in self.own if not x.annotation and x.kind == "reduce" and x.name not in blocked
        ]
        guards, narrow_guards = self._guards()
        caches = Caches(self.nest, self.target)
        each = partial(full, n=self.n)
        accumulators = each(counts.accumulators)
        return Statement(
            name=self.op.name,
            reduces=bool(self.reduce_axes),
            flops=float(self.of_op.n_points * self._work),
            steps=each(steps * self._useful(counts.accumulators, counts.lanes) * self._needed()),
            tiles=each(steps / product(x.extent for x in inner)),
            accumulators=accumulators,
            operands=each(counts.operands),
            instructions=each(counts.instructions),
            loads=each(counts.loads),
            guards=each(guards),
            narrow_guards=each(choose(counts.chain > 1, narrow_guards, 0.0)),
            stores=accumulators,
            chain=each(counts.chain),
            lanes=each(counts.lanes),
            waste=each(self._waste()),
            traffic=caches.traffic(),
            unique_bytes=caches.footprint(),
            chunks=each(product(x.extent for x in self.loops if x.parallel)),
            local_bytes=each(counts.local_bytes),
            inner_trips=each(inner[-1].extent if inner else 1.0),
            reloads=each(self._reloads()),
            cold_bytes=float(self._constant_bytes()),
            versions=each(counts.versions),
            prefetch=each(self._prefetch()),
            late=lateness(self.stage, self.op, self.n),
            early=self._early(),
            heights=each(product(x.extent for x in self.own if x.is_rows)),
            lines=each(self._lines(counts)),
            unit=self.unit,
            port_cycles=self._port_cycles(),
        )

    @cached_property
    def unit(self) -> TileUnit | None:
        """Tile unit whose registers hold the accumulators, if they are matrices."""
        units = (f.unit for f in self.target.isa.forms if f.unit)
        return next(units, None) if self.stage.has_tile else None

    # --- counts -------------------------------------------------------------------------------

    @cached_property
    def _work(self) -> float:
        """Instructions for an element and a term, or for the terms of a dot instruction."""
        if self._marked.get("dot"):
            form = self._dot_form
            return len(products_of(self.op)) * (1 if form is None or form.accumulates else ADDED)
        return max(1, self.of_op.n_operations)

    @cached_property
    def _dot_form(self) -> MultiplyAdd | None:
        """The instruction of a `dot` loop; of tiles, None."""
        marked = self._marked.get("dot")
        if not marked or self.stage.has_tile:
            return None
        return dot_form(self.op, int(full(next(iter(marked.values())), self.n)[0]))

    def _widening(self) -> Amount:
        """Instructions per expanded body that widen the operands of multiply-adds."""
        total: Amount = 0.0
        if self.unit is not None or not self.reduce_axes:
            return total
        for access in self.reads:
            lanes = self._uses_lanes(access)
            cost = widening(self._dot_form, access.load.tensor.dtype, lanes)
            total = total + cost * self._elements(access) if cost else total
        return total

    def _shared_lookups(self, expanded: list[Loop]) -> Amount:
        """Instructions of look-ups in an expanded body that are those of another point of it."""
        total: Amount = 0.0
        points = product(x.extent for x in expanded)
        for cost, axes in self.of_op.lookups:
            own = product(x.extent for x in expanded if x.name.partition(".")[0] in axes)
            total = total + cost * (points - own)
        return total

    def _loads(self, accumulators: Amount, chain: Amount) -> tuple[Amount, Amount]:
        """Distinct loads per expanded body, and registers that its operands need.

        Those of one of the `chain` terms that it adds up, where no other term has them too.
        """
        vectors: Amount = 0.0
        splats: Amount = 0.0
        has_splats = False
        term = self._register_extents | {a.name: 1.0 for a in self.reduce_axes}
        counts = [self._elements(access) for access in self.reads]
        is_expanded = any(x.kind == "reduce" and x.annotation for x in self.own)
        of_term = [self._elements_over(x, term) for x in self.reads] if is_expanded else counts
        pairs = zip(counts, of_term, strict=True)
        shared = reduce(or_, (a < b * chain for a, b in pairs), chain < 1)
        for access, count, alone in zip(self.reads, counts, of_term, strict=True):
            each = smaller(choose(shared, count, alone), accumulators)
            if self._uses_lanes(access):
                vectors = vectors + each
            else:
                splats, has_splats = splats + each, True
        total = sum(counts)
        held = smaller(vectors, 4.0) if is_expanded else vectors
        if has_splats:  # the smaller operand set stays in registers
            held = smaller(held, splats) + 1.0
        if self._dot_form is not None and not self._dot_form.accumulates:
            held = held + 1.0  # a product before it is added
        return larger(total, 1.0), held

    def _lines(self, counts: StageCounts) -> Amount:
        """Rows of the matrices that one step loads: those of the result, or groups of terms.

        Panels of columns are outside: rows for which no registers are left are loaded for each.
        """
        marked = [x for x in self.own if x.annotation == "tile"]
        heights = {x.kind: x.extent for x in marked}
        if not marked or self.unit is None:
            return 0.0
        rows: Amount = 0.0
        panels: Amount = 0.0
        for access in self.reads:
            if self._uses_lanes(access):
                panels = panels + self._elements(access)
            else:
                rows = rows + self._elements(access)
        left = self.unit.n_registers - 1 - counts.accumulators
        again = choose(rows / counts.chain > left, larger(panels / counts.chain, 1.0), 1.0)
        return rows * again * heights["spatial"] + panels * heights["reduce"]

    def _port_cycles(self) -> float:
        form = self._dot_form
        return 1.0 if form is None else self.target.core.cycles_of(form)

    def _guards(self) -> tuple[Amount, Amount]:
        """Distinct loads per expanded body of which each step chooses anew whether to make them.

        All of them, and those of floats of 16 bits.
        """
        found = self.of_op.guarded
        if not found:
            return 0.0, 0.0
        rolled = [x for x in self.own if not x.annotation]
        step = rolled[-1].name.partition(".")[0] if rolled else None
        chosen = {x for x, axes in found if step is None or step in axes}
        counts = {x.load: self._elements(x) for x in self.reads if x.load in chosen}
        narrow = (n for x, n in counts.items() if x.tensor.dtype in ("bfloat16", "float16"))
        return sum(counts.values()), sum(narrow)

    def _needed(self) -> Amount:
        """Share of the steps that execute: predicate hoisting removes those that add zero."""
        inner = self._register_extents
        share: Amount = 1.0
        for axes, part in self.of_op.needed_shares:
            same = product(inner[a] for a in axes) == 1
            share = share * choose(same, part, 1.0)
        return share

    @cached_property
    def _register_extents(self) -> dict[str, Amount]:
        """Columns that each axis takes inside the expanded body."""
        leaf_depth = [k for k, i in enumerate(self.stage.iters) if i.annotation]
        first = min(leaf_depth, default=len(self.stage.iters))
        if not all(i.annotation for i in self.stage.iters[first:]):
            return {a.name: 1.0 for a in self.stage.axes}
        inner = self.stage.inner_extents(first - 1)
        return {k: self.amount(v) for k, v in inner.items()}

    def _uses_lanes(self, access: Access) -> bool:
        """Whether lanes read different elements, not a short pattern that repeats."""
        return self._lane_axis in access.outside_mod

    def _axes_marked(self) -> dict[str, dict[str, Amount]]:
        """The axes that marked loops are parts of, by mark; names of axes may have dots."""
        found: dict[str, dict[str, Amount]] = {}
        for x in self.own:
            if x.annotation:
                names = (a.name for a in self.stage.axes if f"{x.name}.".startswith(f"{a.name}."))
                found.setdefault(x.annotation, {})[max(names, key=len)] = x.extent
        return found

    def _elements(self, access: Access) -> Amount:
        """Distinct elements, vectors where it uses lanes, of the expanded body."""
        found = self._found.get(id(access))
        if found is None:
            found = self._found[id(access)] = self._elements_over(access, self._register_extents)
        return found

    def _elements_over(self, access: Access, inner: dict[str, Amount]) -> Amount:
        """Distinct elements, vectors where it uses lanes, that `access` touches over `inner`.

        The terms of one dot instruction are loaded together, and so is a matrix.
        """
        together = self._together
        total: Amount = 1.0
        for index in access.dimensions:
            extent = index.distinct(inner)
            if not together.keys().isdisjoint(index.names):
                inside = {k: together.get(k, 1.0) for k in inner}
                extent = rounded_up(extent / index.alone.distinct(inside))
            total = total * extent
        return total

    @cached_property
    def _together(self) -> dict[str, Amount]:
        """Columns of each axis per instruction: the lanes."""
        found: dict[str, Amount] = {}
        for mark in ("vectorize", "dot", "tile"):
            for name, extent in self._marked.get(mark, {}).items():
                found[name] = found.get(name, 1.0) * extent
        return found

    def _useful(self, accumulators: Amount, lanes: Amount) -> Amount:
        """Share of the tile grid that is computed; split tails skip the rest.

        A tail of few accumulators waits for each of them, so it is no cheaper than `_BUSY` are.
        """
        share: Amount = 1.0
        if not self._tails:
            return share
        busy = _BUSY / vector_passes(lanes, self.target)
        least = smaller(busy / accumulators, 1.0) if self.reduce_axes else 0.0
        for extent, tile, whole, rest in self._tails:
            last = choose(rest > 0, larger(rest / tile, least), 0.0)
            share = share * (whole + last) / rounded_up(extent / tile)
        return share

    @cached_property
    def _tails(self) -> list[tuple[Amount, Amount, Amount, Amount]]:
        """Of each split with a remainder: extent, tile, whole tiles, and what is left.

        A quotient of whole numbers is rounded to one only where it is one.
        """
        found = []
        for rel, extent in self.nest.splits_around:
            if rel.tail == "split":
                tile = self.amount(rel.factors[-1])
                whole = rounded_down(extent / tile)
                found.append((extent, tile, whole, extent - whole * tile))
        return found

    def _versions(self) -> Amount:
        """Copies of the loops: each split with a remainder doubles the body of its tile loops."""
        return product(choose(rest > 0, 2.0, 1.0) for _, _, _, rest in self._tails)

    def _waste(self) -> Amount:
        """Points computed over points needed; tiles that are shifted inwards recompute some."""
        waste: Amount = 1.0
        for rel, extent in self.nest.splits_around:
            count = extent
            for level, factor in enumerate(reversed(rel.factors)):
                f = self.amount(factor)
                outer = rounded_up(count / f)
                if level or rel.tail == "shift":
                    waste = waste * (outer * f) / count
                count = outer
        return waste

    def _prefetch(self) -> Amount:
        """Prefetch distance of the first packed constant."""
        found = [d for name, d in self.stage.prefetches if name in self.stage.packs]
        return self.amount(found[0]) if found else 0.0

    def _early(self) -> NDArray[np.bool_]:
        """Whether activations that the stage reads or writes are prefetched."""
        found = [d for name, d in self.stage.prefetches if name not in self.stage.packs]
        return full(found[0], self.n) != 0 if found else np.zeros(self.n, bool)

    def _reloads(self) -> Amount:
        """1 where a reduction loop stands outside the tiles: accumulators pass through memory."""
        if not self.reduce_axes:
            return 0.0
        outer = self.stage.iters[: self.stage.register_depth]
        trips = product(self.amount(i.extent) for i in outer if i.kind == "reduce")
        return choose(trips > 1, 1.0, 0.0)

    def _constant_bytes(self) -> int:
        constants = {p.name for p in self.state.dag.placeholders if p.constant}
        most = self.of_op.n_points  # a gather reads few rows of a large constant (embeddings)
        return sum(
            min(x.tensor.size, most) * dtype_bytes(x.tensor.dtype)
            for x in self.op.reads
            if x.tensor.name in constants
        )


def vector_passes(lanes: Amount, target: Target) -> Amount:
    """Cycles for which a vector of `lanes` floats occupies a port."""
    return larger(32.0 * lanes / target.port_bits, 1.0)


@dataclass(frozen=True, slots=True)
class _OfOp:
    """What is the same for all schedules of a computation."""

    n_points: int
    n_operations: int
    lookups: tuple[tuple[int, frozenset[str]], ...]
    guarded: tuple[tuple[Load, frozenset[str]], ...]
    needed_shares: tuple[tuple[frozenset[str], float], ...]


@lru_cache(maxsize=256)
def _facts_of(op: Compute) -> _OfOp:
    n_points = prod(a.extent for a in op.axes + op.reduce_axes)
    return _OfOp(n_points, operations(op), lookups(op), guarded(op), needed_shares(op))
