"""③ A schedule applied to a DAG: stages, their loops, and where they are computed.

A `State` is a light loop structure, not a program: it is cheap to build, immutable, and made only
by `replay(dag, steps)`. Printing it shows the loop nests. Extents are ints, or integer arrays with
one entry per candidate when `replay` is given arrays for the holes of a sketch: the structure is
then that of the whole population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.brief import brief
from autotune.errors import ScheduleError
from autotune.schedule.region import Depth, Extent, deeper, smaller
from autotune.schedule.steps import LAUNCH_INDICES
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, Tensor

MAX_LOCAL_BYTES = 3 << 19
"""Local buffers live on the stack of a thread, of which the smallest common size is 2 MiB."""


@dataclass(frozen=True, slots=True)
class Iterator:
    """One loop of a stage. `kind`: spatial or reduce; `annotation`: "", unroll, vectorize,
    dot, tile, or the index of a launch that it is bound to."""

    name: str
    extent: Extent
    kind: str
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class SplitRelation:
    """`parent` was split into `children` (outermost first) with inner `factors`."""

    parent: str
    children: tuple[str, ...]
    factors: tuple[Extent, ...]
    tail: str

    def overlaps(self, extent: Extent) -> Extent:
        """Whether tiles of a parent of this extent compute some point twice; per candidate.

        A tile that does not fit moves back over its neighbour, but for the innermost level of a
        split whose remainder has a version of its own (`tail`).
        """
        found: Extent = np.asarray(0)
        for level, nominal in enumerate(reversed(self.factors)):
            factor = smaller(nominal, extent)
            if level or self.tail != "split":
                found = found | (extent % factor != 0)
            extent = -(-extent // factor)
        return found


@dataclass(frozen=True, slots=True)
class FuseRelation:
    """Loops `outer` and `inner` became `loop`; `extents`: theirs, outer first."""

    loop: str
    outer: str
    inner: str
    extents: tuple[Extent, Extent]


@dataclass(frozen=True, slots=True)
class Attach:
    """A stage is computed inside loop `iter` of stage `target`."""

    target: str
    iter: str


@brief
@dataclass(frozen=True, slots=True)
class Stage:
    """A computation, its loops outermost first, and where it is computed (`attach` None: root).

    `axis_extents`: extents of the operation's own axes, spatial then reduce; smaller than the
    tensor's for an attached stage. `n_parallel`: how many outermost loops form the parallel range.
    `blocks`: of those of `packs` that are stored so (see `Pack`).
    `scope`: "shared" for results in the memory of a block of a GPU's threads.
    """

    op: Compute
    iters: tuple[Iterator, ...]
    axis_extents: tuple[Extent, ...]
    splits: tuple[SplitRelation, ...] = ()
    fuses: tuple[FuseRelation, ...] = ()
    attach: Attach | None = None
    n_parallel: int = 0
    packs: tuple[str, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    prefetches: tuple[tuple[str, Extent], ...] = ()
    scope: str = ""

    @property
    def prefetched_activations(self) -> tuple[str, ...]:
        """Tensors of prefetch steps that are not packed; for one candidate."""
        return tuple(n for n, d in self.prefetches if n not in self.packs and int(d))

    def looped(
        self, iters: tuple[Iterator, ...], splits: tuple[SplitRelation, ...] | None = None
    ) -> Stage:
        """The stage with other loops: `replace`, at a fifth of its price."""
        return Stage(
            self.op,
            iters,
            self.axis_extents,
            self.splits if splits is None else splits,
            self.fuses,
            self.attach,
            self.n_parallel,
            self.packs,
            self.blocks,
            self.prefetches,
            self.scope,
        )

    @property
    def name(self) -> str:
        """Name of the tensor that the stage computes."""
        return self.op.name

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the operation, spatial then reduce."""
        return self.op.axes + self.op.reduce_axes

    def iter(self, name: str) -> Iterator:
        """The loop called `name`. Raises ScheduleError when there is none."""
        return self.iters[self.position(name)]

    def position(self, name: str) -> int:
        """Depth of loop `name`, 0 outermost."""
        for n, it in enumerate(self.iters):
            if it.name == name:
                return n
        raise ScheduleError(f"stage {self.name} has no loop '{name}'")

    def ragged(self, name: str) -> Axis | None:
        """The reduction axis called `name` whose length is loaded, if it is one."""
        for axis in self.op.reduce_axes:
            if axis.limit is not None and axis.name == name:
                return axis
        return None

    @property
    def has_versions(self) -> bool:
        """Whether a remainder of some split has loops of its own."""
        return any(rel.tail == "split" for rel in self.splits)

    @property
    def register_depth(self) -> int:
        """Depth from which only reduction loops and expanded spatial loops follow.

        A reduction runs in registers below it: `loopir` keeps its accumulators there and `search`
        counts them. 0 where nothing is reduced.
        """
        first = next((n for n, it in enumerate(self.iters) if it.kind == "reduce"), 0)
        rolled = (
            n
            for n, it in enumerate(self.iters)
            if n >= first and it.kind == "spatial" and not it.annotation
        )
        return max((n + 1 for n in rolled), default=first)

    @property
    def has_tile(self) -> bool:
        """Whether the innermost loops are one instruction on matrices."""
        return any(it.annotation == "tile" for it in self.iters)

    @property
    def routed_depth(self) -> int | None:
        """Depth from which the terms of a reduction go to the places that they tell.

        None where it is no scattered reduction, or where some loop over its places is split, or
        outside of a loop over its terms.
        """
        found = self.op.route
        if found is None or self.fuses:
            return None
        depths = {it.name: n for n, it in enumerate(self.iters) if not it.annotation}
        terms = [n for n, it in enumerate(self.iters) if it.kind == "reduce"]
        if not found.places.keys() <= depths.keys():
            return None
        is_inside = max(terms) < min(depths[name] for name in found.places)
        return min(terms) if is_inside and min(terms) >= self.n_parallel else None

    def axis_of(self, loop: str) -> str:
        """The axis of the operation that a loop runs over, through all splits."""
        parent = next((r.parent for r in self.splits if loop in r.children), None)
        return loop if parent is None else self.axis_of(parent)

    @property
    def bound(self) -> dict[str, Iterator]:
        """The loops that are bound, by the index of the launch."""
        return {it.annotation: it for it in self.iters if it.annotation in LAUNCH_INDICES}

    def inner_extents(self, depth: Depth) -> dict[str, Extent]:
        """Number of values of each axis while the loops deeper than `depth` run."""
        leaf = {it.name: deeper(n, depth, it.extent) for n, it in enumerate(self.iters)}
        relations = {r.parent: r for r in reversed(self.splits)}
        for fused in reversed(self.fuses):
            whole = _cover(relations, fused.loop, leaf)
            for name, extent in zip((fused.outer, fused.inner), fused.extents, strict=True):
                leaf[name] = smaller(whole, extent)
        sizes = zip(self.axes, self.axis_extents, strict=True)
        return {a.name: smaller(_cover(relations, a.name, leaf), size) for a, size in sizes}

    def map_extents(self, of: Callable[[Extent], Extent]) -> Stage:
        """The stage with `of` of every extent, factor and distance."""
        iters = (Iterator(i.name, of(i.extent), i.kind, i.annotation) for i in self.iters)
        splits = (
            SplitRelation(r.parent, r.children, tuple(map(of, r.factors)), r.tail)
            for r in self.splits
        )
        fuses = (
            FuseRelation(f.loop, f.outer, f.inner, (of(f.extents[0]), of(f.extents[1])))
            for f in self.fuses
        )
        return replace(
            self,
            iters=tuple(iters),
            axis_extents=tuple(map(of, self.axis_extents)),
            splits=tuple(splits),
            fuses=tuple(fuses),
            prefetches=tuple((name, of(distance)) for name, distance in self.prefetches),
        )


def _cover(relations: Mapping[str, SplitRelation], name: str, leaf: Mapping[str, Extent]) -> Extent:
    """Values of a loop, or of what was split into loops, that these extents of loops reach."""
    relation = relations.get(name)
    if relation is None:
        return leaf[name]
    cover = _cover(relations, relation.children[0], leaf)
    for child, factor in zip(relation.children[1:], relation.factors, strict=True):
        inner, is_one = _cover(relations, child, leaf), isinstance(cover, int) and cover == 1
        cover = inner if is_one else (cover - 1) * factor + inner
    return cover


@dataclass(frozen=True, slots=True)
class Transformed:
    """Sum `name` computed from the transformed data of stage `data`, as by minimal filtering.

    `watched`: points that tell whether the data are finite and bounded, by axis of that stage.
    """

    name: str
    data: str
    watched: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A DAG with one sum computed another way, and the functions of its derived constants.

    `parts`: constants that are the sum of others up to the error of the algorithm.
    """

    dag: ComputeDAG
    derived: tuple[Compute, ...]
    transformed: tuple[Transformed, ...]
    parts: tuple[tuple[str, tuple[Tensor, ...]], ...] = ()


@brief
@dataclass(frozen=True)
class State:
    """Stages in topological order over the DAG as rewritten by the steps.

    `derived`: constants that the steps made out of those of the task, to be evaluated in order.
    `transformed`: the sums that are not computed as they are defined. `parts`: constants of the
    task that are sums of derived ones, largest first, up to the error of the algorithm.
    """

    dag: ComputeDAG
    stages: dict[str, Stage]
    derived: tuple[Compute, ...] = ()
    transformed: tuple[Transformed, ...] = ()
    parts: tuple[tuple[str, tuple[Tensor, ...]], ...] = ()
    _extents: dict[tuple[str, str, Depth], tuple[Extent, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Answers of `required_extents`."""

    def __getitem__(self, name: str) -> Stage:
        try:
            return self.stages[name]
        except KeyError:
            raise ScheduleError(f"no stage '{name}'") from None

    def some(self, candidates: np.ndarray) -> State:
        """The states of some candidates of a population, by their numbers."""

        known: dict[int, np.ndarray] = {}

        def of(extent: Extent) -> Extent:
            if not isinstance(extent, np.ndarray):
                return extent
            if id(extent) not in known:
                known[id(extent)] = extent[candidates]
            return known[id(extent)]

        stages = {name: stage.map_extents(of) for name, stage in self.stages.items()}
        return State(self.dag, stages, self.derived, self.transformed, self.parts)

    def attached_at(self, target: str, iterator: str) -> list[Stage]:
        """Stages computed inside that loop, in topological order."""
        where = Attach(target, iterator)
        return [s for s in self.stages.values() if s.attach == where]

    def root_of(self, name: str) -> str:
        """The root stage in whose loops stage `name` is computed."""
        attach = self[name].attach
        return self.root_of(attach.target) if attach else name

    def __str__(self) -> str:
        return print_state(self)


def initial(dag: ComputeDAG) -> State:
    """One root stage per computation, one loop per axis."""
    return State(dag, {op.name: fresh(op) for op in dag.computes})


def fresh(op: Compute, extents: tuple[Extent, ...] | None = None) -> Stage:
    """A root stage with one loop per axis, of the tensor's own extents unless others are given."""
    axes = op.axes + op.reduce_axes
    sizes = extents or tuple(a.extent for a in axes)
    kinds = ["spatial"] * len(op.axes) + ["reduce"] * len(op.reduce_axes)
    iters = tuple(Iterator(a.name, e, k) for a, e, k in zip(axes, sizes, kinds, strict=True))
    return Stage(op, iters, sizes)


def print_state(state: State) -> str:
    """The loop nests, attached stages inside the loops that host them."""
    lines: list[str] = []
    for stage in state.stages.values():
        if stage.attach is None:
            _print_stage(state, stage, 0, lines)
    return "\n".join(lines)


def _print_stage(state: State, stage: Stage, depth: int, lines: list[str]) -> None:
    for n, it in enumerate(stage.iters):
        kind = "parallel" if n < stage.n_parallel else it.annotation or "for"
        mark = " (reduce)" if it.kind == "reduce" else ""
        lines.append(f"{'  ' * depth}{kind} {it.name} in {it.extent}{mark}")
        depth += 1
        for inner in state.attached_at(stage.name, it.name):
            _print_stage(state, inner, depth, lines)
    packed = f" [packed {', '.join(stage.packs)}]" if stage.packs else ""
    scope = f" [{stage.scope}]" if stage.scope else ""
    lines.append(f"{'  ' * depth}{stage.name} = …{packed}{scope}")
