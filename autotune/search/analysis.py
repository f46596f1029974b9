"""⑥ What can be told of a whole population from the loop structure that its candidates share.

`analyse(dag, sketch, rows)` replays the sketch once with arrays in its holes, so every extent is an
array of shape [n]; one walk over the loops then gives, per statement, counts of instructions,
registers, footprints and cache traffic for all candidates at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from autotune.schedule.region import Extent, UnboundedIndex, span
from autotune.schedule.state import SplitRelation, Stage, State, replay, required_extents
from autotune.search.operations import operations
from autotune.search.space import Rows, Sketch
from autotune.target import Target
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import (
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    dtype_bytes,
    variables,
    walk,
)

Array = NDArray[np.float64]
CACHE_LINE = 64
RUN_START_BYTES = 96
"""Bytes that could come from beyond L2 while the prefetcher finds out that a run has begun."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a statement, as all candidates see it; `axes`: axes that it advances."""

    name: str
    extent: Array
    kind: str
    annotation: str
    parallel: bool
    own: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """Static facts about one stage for n candidates; arrays have shape [n].

    `steps`: executions of the expanded innermost body; `tiles`: how often a register tile is
    started; `accumulators`, `operands`: vector registers that must live at once; `instructions`:
    arithmetic per step; `loads`: distinct elements or vectors loaded per step; `guards`: those of
    them that a condition chooses; `chain`: dependent operations per step; `traffic`: bytes that
    miss L1, L2 and L3; `local_bytes`: size of its local buffer; `reloads`: 1 where the reduction
    runs in blocks and tiles are loaded again;
    `cold_bytes`: bytes of constants, which no cache holds when the statement starts; `versions`:
    copies of the body that split tails make; `prefetch`: distance in bytes, NEXT_CHUNK or 0.
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
    n = len(rows)
    state = replay(dag, sketch.steps, sketch.values(rows))
    statements = tuple(_Walk(state, s, n, target).statement() for s in state.stages.values())
    return Analysis(statements, _valid(state, statements, target, n), _identity(state, n))


def _identity(state: State, n: int) -> NDArray[np.int64]:
    columns = [_full(i.extent, n) for s in state.stages.values() for i in s.iters]
    columns += [_full(d, n) for s in state.stages.values() for _, d in s.prefetches]
    return np.stack(columns, axis=1).astype(np.int64) if columns else np.zeros((n, 0), np.int64)


MAX_EXPANDED = 192
"""Most vector instructions in the expanded bodies of all versions: more only costs compile time."""
MAX_EXPANDED_POINTWISE = 1024
"""The same where nothing is accumulated: a transform of a whole tile is one straight piece."""
MAX_LOCAL_BYTES = 1_400_000
"""Most bytes of local buffers, see loopir.lower."""


def _valid(
    state: State, statements: Iterable[Statement], target: Target, n: int
) -> NDArray[np.bool_]:
    ok = np.ones(n, bool)
    local = np.zeros(n)
    for s in statements:
        if s.reduces:
            ok &= s.accumulators + s.operands <= target.n_registers
        limit = MAX_EXPANDED if s.reduces else MAX_EXPANDED_POINTWISE
        ok &= s.instructions * s.versions <= limit
        local += s.local_bytes
    for stage in state.stages.values():
        ok &= ~_overlapping_reduction(stage, n)
    return ok & (local <= MAX_LOCAL_BYTES)


def _overlapping_reduction(stage: Stage, n: int) -> NDArray[np.bool_]:
    """A reduction in blocks must not compute a point twice: its spatial splits must be exact."""
    bad = np.zeros(n, bool)
    if not stage.op.reduce_axes:
        return bad
    outer = [i for i in stage.iters[: _register_depth(stage)] if i.kind == "reduce"]
    if not outer:
        return bad
    extents = dict(zip((a.name for a in stage.axes), stage.axis_extents, strict=True))
    spatial = {a.name for a in stage.op.axes}
    blocked = np.zeros(n, bool)
    for it in outer:
        blocked |= _full(it.extent, n) > 1
    for rel in stage.splits:
        if rel.parent not in spatial:
            continue
        count = _full(extents[rel.parent], n)
        for level, factor in enumerate(reversed(rel.factors)):
            f = _full(factor, n)
            if level or rel.tail == "shift":
                bad |= blocked & (count % f != 0)
            count = np.ceil(count / f)
    return bad


def _register_depth(stage: Stage) -> int:
    """Depth below which the reduction runs in registers (see loopir.lower)."""
    first = next((k for k, i in enumerate(stage.iters) if i.kind == "reduce"), 0)
    depth = first
    for k in range(first, len(stage.iters)):
        if stage.iters[k].kind == "spatial" and not stage.iters[k].annotation:
            depth = k + 1
    return depth


@dataclass(frozen=True, slots=True)
class Access:
    """Loads of one tensor that differ by constants only: the lowest, and how far the others go."""

    load: Load
    spreads: tuple[int, ...]

    @property
    def dimensions(self) -> Iterator[tuple[int, Expr, int]]:
        """Extent, index and spread of each dimension."""
        return zip(self.load.tensor.shape, self.load.indices, self.spreads, strict=True)


@lru_cache(maxsize=256)
def _accesses(op: Compute) -> tuple[Access, ...]:
    """All loads of a computation, in groups."""
    groups: dict[object, list[tuple[Load, tuple[int, ...]]]] = {}
    for load in dict.fromkeys(op.reads):
        forms = [linear(i) for i in load.indices]
        key = (load.tensor.name, tuple(frozenset(f.terms) for f in forms))
        groups.setdefault(key, []).append((load, tuple(f.const for f in forms)))
    return tuple(_access(group) for group in groups.values())


@lru_cache(maxsize=256)
def _guarded(op: Compute) -> frozenset[Load]:
    """The loads that a condition chooses, which nothing but running the loops can tell."""
    body = op.body.body if isinstance(op.body, Reduce) else op.body
    chosen = [e for e in walk(body) if isinstance(e, Select) and not isinstance(e.cond, Const)]
    inside = (x for e in chosen for branch in (e.a, e.b) for x in walk(branch))
    return frozenset(x for x in inside if isinstance(x, Load))


def _access(group: list[tuple[Load, tuple[int, ...]]]) -> Access:
    columns = list(zip(*(consts for _, consts in group), strict=True))
    first = min(group, key=lambda item: item[1])[0]
    return Access(first, tuple(max(c) - min(c) for c in columns))


def _full(x: Extent, n: int) -> Array:
    return x.astype(np.float64) if isinstance(x, np.ndarray) else np.full(n, x, np.float64)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes that are touched of a tensor, in how many contiguous runs, and what holds them.

    `held`: size of the local buffer; infinite for a tensor in memory.
    """

    n_bytes: Array
    n_runs: Array
    held: Array

    def missing(self, size: float, amount: Array) -> Array:
        """The `amount` of this part that a cache of `size` bytes has to fetch."""
        return np.where(self.held <= size, 0.0, amount)


class _Walk:
    """Facts about one stage."""

    def __init__(self, state: State, stage: Stage, n: int, target: Target) -> None:
        self.state, self.stage, self.n, self.target = state, stage, n, target
        self.op: Compute = stage.op
        self.reads = _accesses(stage.op)
        self.chain = self._chain()
        self.loops = [loop for s, depth in self.chain for loop in self._own_loops(s, depth)]

    def _chain(self) -> list[tuple[Stage, int]]:
        """The stage and its hosts, outermost first, each with how many of its loops surround it."""
        out = [(self.stage, len(self.stage.iters))]
        stage = self.stage
        while stage.attach:
            host = self.state[stage.attach.target]
            out.insert(0, (host, host.position(stage.attach.iter) + 1))
            stage = host
        return out

    def _own_loops(self, stage: Stage, depth: int) -> list[Loop]:
        own = stage.name == self.stage.name
        return [
            Loop(
                it.name, _full(it.extent, self.n), it.kind, it.annotation, k < stage.n_parallel, own
            )
            for k, it in enumerate(stage.iters[:depth])
        ]

    def statement(self) -> Statement:
        """Everything about this stage."""
        expanded = [x for x in self.loops if x.own and x.annotation == "unroll"]
        lanes = _product([x.extent for x in self.loops if x.annotation == "vectorize"], self.n)
        spatial = [x for x in expanded if x.kind == "spatial"]
        reduce = [x for x in expanded if x.kind == "reduce"]
        accumulators = _product([x.extent for x in spatial], self.n)
        chain = _product([x.extent for x in reduce], self.n)
        rolled = [x for x in self.loops if not (x.own and x.annotation)]
        steps = _product([x.extent for x in rolled], self.n)
        blocked = {i.name for i in self.stage.iters[: _register_depth(self.stage)]}
        inner = [x for x in rolled if x.own and x.kind == "reduce" and x.name not in blocked]
        work = max(1, operations(self.op))
        loads, operands = self._loads(accumulators)
        guards = self._guards()
        return Statement(
            name=self.op.name,
            reduces=bool(self.op.reduce_axes),
            flops=float(_points(self.op) * work),
            steps=steps * self._useful(),
            tiles=steps / _product([x.extent for x in inner], self.n),
            accumulators=accumulators,
            operands=operands,
            instructions=accumulators * chain * work,
            loads=loads,
            guards=guards,
            stores=accumulators,
            chain=chain,
            lanes=lanes,
            waste=self._waste(),
            traffic=self._traffic(),
            unique_bytes=self._footprint(0),
            chunks=_product([x.extent for x in self.loops if x.parallel], self.n),
            local_bytes=_local_bytes(self.stage, self.n),
            inner_trips=inner[-1].extent if inner else np.ones(self.n),
            reloads=self._reloads(),
            cold_bytes=float(self._constant_bytes()),
            versions=self._versions(),
            prefetch=self._prefetch(),
        )

    # --- counts -------------------------------------------------------------------------------

    def _loads(self, accumulators: Array) -> tuple[Array, Array]:
        """Distinct loads per expanded body, and registers that its operands need."""
        total, vectors = np.zeros(self.n), np.zeros(self.n)
        inner = self._register_extents()
        for access in self.reads:
            count = self._elements(access, inner, skip_lanes=True)
            total += count
            vector = self._uses_lanes(access.load)
            vectors += np.minimum(count, accumulators) if vector else 0
        broadcast = 1.0 if any(not self._uses_lanes(x.load) for x in self.reads) else 0.0
        window = any(x.own and x.kind == "reduce" and x.annotation for x in self.loops)
        held = np.minimum(vectors, 4.0) if window else vectors
        return np.maximum(total, 1.0), held + broadcast

    def _guards(self) -> Array:
        """Distinct loads per expanded body that are made only where a condition holds (padding)."""
        inner = self._register_extents()
        guarded = _guarded(self.op)
        counts = [
            self._elements(x, inner, skip_lanes=True) for x in self.reads if x.load in guarded
        ]
        return reduce(np.add, counts) if counts else np.zeros(self.n)

    def _register_extents(self) -> dict[str, Array]:
        """Values that each axis takes inside the expanded body."""
        leaf_depth = [k for k, i in enumerate(self.stage.iters) if i.annotation]
        first = min(leaf_depth, default=len(self.stage.iters))
        rolled = {i.name for i in self.stage.iters[first:] if not i.annotation}
        if rolled:
            return {a.name: np.ones(self.n) for a in self.stage.axes}
        inner = self.stage.inner_extents(first - 1)
        return {k: _full(v, self.n) for k, v in inner.items()}

    def _uses_lanes(self, load: Load) -> bool:
        axis = self._lane_axis()
        return axis is not None and any(axis in variables(i) for i in load.indices)

    def _lane_axis(self) -> str | None:
        for x in self.loops:
            if x.own and x.annotation == "vectorize":
                return x.name.split(".")[0] if "." in x.name else x.name
        return None

    def _elements(self, access: Access, inner: dict[str, Array], skip_lanes: bool) -> Array:
        """Distinct elements (vectors, with `skip_lanes`) that `access` touches over `inner`."""
        axis = self._lane_axis()
        total = np.ones(self.n)
        for size, index, spread in access.dimensions:
            extent = self._distinct(index, size, spread, inner)
            if skip_lanes and axis is not None and axis in variables(index):
                lanes = _product(
                    [x.extent for x in self.loops if x.annotation == "vectorize"], self.n
                )
                extent = np.ceil(extent / lanes)
            total = total * extent
        return total

    def _distinct(self, index: Expr, size: int, spread: int, inner: dict[str, Array]) -> Array:
        """Most values that an index takes: its span, less what strides skip."""
        points = _product([inner[v] for v in variables(index) & set(inner)], self.n)
        try:
            reach: Extent = span(index, inner) + 1
        except UnboundedIndex:
            reach = size
        most = points * (1 + spread) if spread else points
        return np.minimum(np.minimum(reach + spread, most), size)

    def _splits(self) -> Iterator[tuple[Stage, SplitRelation]]:
        """Splits whose tile loop surrounds this statement."""
        for stage, depth in self.chain:
            names = {i.name for i in stage.iters[:depth]}
            for rel in stage.splits:
                if rel.children[-2] in names:
                    yield stage, rel

    def _useful(self) -> Array:
        """Share of the tile grid that is really computed: split tails do not compute the rest."""
        share = np.ones(self.n)
        for stage, rel in self._splits():
            if rel.tail == "split":
                extent = self._extent_of(stage, rel.parent)
                tile = _full(rel.factors[-1], self.n)
                share = share * extent / (np.ceil(extent / tile) * tile)
        return share

    def _versions(self) -> Array:
        """Copies of the loops: each split with a remainder doubles what its tile loops surround."""
        copies = np.ones(self.n)
        for stage, rel in self._splits():
            if rel.tail == "split":
                extent = self._extent_of(stage, rel.parent)
                copies = copies * np.where(extent % _full(rel.factors[-1], self.n), 2.0, 1.0)
        return copies

    def _waste(self) -> Array:
        """Points computed over points needed: tiles shifted inwards compute some twice."""
        waste = np.ones(self.n)
        for stage, rel in self._splits():
            count = self._extent_of(stage, rel.parent)
            for level, factor in enumerate(reversed(rel.factors)):
                f = _full(factor, self.n)
                outer = np.ceil(count / f)
                if level or rel.tail == "shift":
                    waste = waste * (outer * f) / count
                count = outer
        return waste

    def _extent_of(self, stage: Stage, name: str) -> Array:
        for axis, extent in zip(stage.axes, stage.axis_extents, strict=True):
            if axis.name == name:
                return _full(extent, self.n)
        children = next(r for r in stage.splits if name in r.children)
        k = children.children.index(name)
        if k == 0:
            return np.ones(self.n)
        return _full(children.factors[k - 1], self.n)

    def _prefetch(self) -> Array:
        """Prefetch distance of the first packed constant."""
        found = self.stage.prefetches
        return _full(found[0][1], self.n) if found else np.zeros(self.n)

    def _reloads(self) -> Array:
        """1 where a reduction loop stands outside the tiles: accumulators pass through memory."""
        if not self.op.reduce_axes:
            return np.zeros(self.n)
        outer = self.stage.iters[: _register_depth(self.stage)]
        trips = _product([_full(i.extent, self.n) for i in outer if i.kind == "reduce"], self.n)
        return (trips > 1).astype(np.float64)

    def _constant_bytes(self) -> int:
        constants = {p.name for p in self.state.dag.placeholders if p.constant}
        return sum(x.tensor.n_bytes for x in self.op.reads if x.tensor.name in constants)

    # --- caches -------------------------------------------------------------------------------

    def _traffic(self) -> tuple[Array, Array, Array]:
        """Bytes fetched from beyond L1, L2 and L3.

        The body of loop d fits a cache when its footprint does; then each tensor moves once per
        run of loop d, over all runs of the loops outside it. A local buffer that fits is no
        traffic at all: who fills it finds and leaves it there.
        """
        depths = [k for k, x in enumerate(self.loops) if not (x.own and x.annotation)]
        depths.append(len(self.loops))
        parts = [self._parts(d) for d in depths]
        feet = [self._total(p.n_bytes for p in at) for at in parts]
        trips = [np.ones(self.n), *accumulate((x.extent for x in self.loops), np.multiply)]
        outside = [trips[d] for d in depths]
        result = []
        sizes = (self.target.l1_bytes, self.target.l2_bytes, self.target.l3_bytes)
        for level, size in enumerate(0.8 * s for s in sizes):
            n_bytes = [self._total(p.missing(size, p.n_bytes) for p in at) for at in parts]
            n_runs = [self._total(p.missing(size, p.n_runs) for p in at) for at in parts]
            moved, pieces = n_bytes[-1] * outside[-1], n_runs[-1] * outside[-1]
            for k in range(len(depths) - 2, -1, -1):
                fits = feet[k + 1] <= size
                moved = np.where(fits, n_bytes[k] * outside[k], moved)
                pieces = np.where(fits, n_runs[k + 1] * outside[k + 1], pieces)
            if level:  # L2 is near enough not to mind where a run begins
                moved = moved + RUN_START_BYTES * np.minimum(pieces, moved / CACHE_LINE)
            result.append(moved)
        return result[0], result[1], result[2]

    def _footprint(self, depth: int) -> Array:
        """Bytes touched by the loops from `depth` inwards."""
        return self._total(p.n_bytes for p in self._parts(depth))

    def _total(self, parts: Iterable[Array]) -> Array:
        return reduce(np.add, parts)

    def _parts(self, depth: int) -> list[_Part]:
        """What the loops from `depth` inwards touch of each tensor."""
        inner = self._inner_extents(depth)
        parts = [self._part(x, inner) for x in self.reads]
        out = self.op.tensor
        extents = [inner[a.name] for a in self.op.axes]
        parts.append(self._contiguous(out.name, out.dtype, extents, out.shape, 1))
        return parts

    def _part(self, access: Access, inner: dict[str, Array]) -> _Part:
        tensor = access.load.tensor
        extents = [self._distinct(i, size, spread, inner) for size, i, spread in access.dimensions]
        if tensor.name in self.stage.packs:  # stored in the order in which it is read
            n_bytes = _product(extents, self.n) * dtype_bytes(tensor.dtype)
            return _Part(n_bytes, np.ones(self.n), np.full(self.n, np.inf))
        return self._contiguous(tensor.name, tensor.dtype, extents, tensor.shape, CACHE_LINE)

    def _contiguous(
        self, name: str, dtype: str, extents: list[Array], shape: tuple[int, ...], line: int
    ) -> _Part:
        """A box of a tensor: how many contiguous runs it has, of at least `line` bytes each."""
        run, n_runs = np.full(self.n, float(dtype_bytes(dtype))), np.ones(self.n)
        whole = np.ones(self.n, bool)
        for extent, size in zip(reversed(extents), reversed(shape), strict=True):
            run = np.where(whole, run * extent, run)
            n_runs = np.where(whole, n_runs, n_runs * extent)
            whole = whole & (extent >= size)
        held = self._held(name)
        return _Part(np.minimum(n_runs * np.maximum(run, line), held), n_runs, held)

    def _held(self, name: str) -> Array:
        """Bytes of the local buffer of a stage; infinite where it has none."""
        stage = self.state.stages.get(name)
        if stage is None or stage.attach is None:
            return np.full(self.n, np.inf)
        return _local_bytes(stage, self.n)

    def _inner_extents(self, depth: int) -> dict[str, Array]:
        """Values that each own axis takes while all loops from `depth` inwards run."""
        seen = 0
        for stage, count in self.chain:
            if stage.name == self.stage.name:
                inner = stage.inner_extents(depth - seen - 1)
                return {k: _full(v, self.n) for k, v in inner.items()}
            if depth < seen + count:
                return self._host_extents(stage, depth - seen)
            seen += count
        raise AssertionError("the chain ends with the stage itself")

    def _host_extents(self, host: Stage, depth: int) -> dict[str, Array]:
        """What the host needs of this stage while its own loops from `depth` inwards run."""
        needed = required_extents(self.state, self.stage.name, host, depth - 1)
        names = (a.name for a in self.stage.axes)
        return {n: _full(e, self.n) for n, e in zip(names, needed, strict=True)}


def _local_bytes(stage: Stage, n: int) -> Array:
    """Size of the local buffer of an attached stage; 0 at the root."""
    if stage.attach is None:
        return np.zeros(n)
    spatial = stage.axis_extents[: len(stage.op.axes)]
    size = _product([_full(e, n) for e in spatial], n)
    return size * dtype_bytes(stage.op.tensor.dtype)


def _product(parts: list[Array], n: int) -> Array:
    return reduce(np.multiply, parts) if parts else np.ones(n)


def _points(op: Compute) -> int:
    total = 1
    for a in op.axes + op.reduce_axes:
        total *= a.extent
    return total
