"""③ A schedule applied to a DAG: stages, their loops, and where they are computed.

A `State` is a light loop structure, not a program: it is cheap to build, immutable, and made only
by `replay(dag, steps)`. Printing it shows the loop nests. Extents are ints, or integer arrays with
one entry per candidate when `replay` is given arrays for the holes of a sketch: the structure is
then that of the whole population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ScheduleError
from autotune.schedule.region import Extent, UnboundedIndex, span
from autotune.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Hole,
    Pack,
    Parallel,
    Prefetch,
    Reorder,
    RFactor,
    Size,
    Split,
    Step,
    Steps,
    Winograd,
)
from autotune.schedule.winograd import rewrite
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG, Op
from autotune.te.expr import (
    Axis,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    add,
    compare,
    identity,
    idx,
    map_expr,
    minimum,
    mul,
    select,
    substitute,
)

Holes = Mapping[str, int | NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Iterator:
    """One loop of a stage. `kind`: spatial or reduce; `annotation`: "", unroll or vectorize."""

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


@dataclass(frozen=True, slots=True)
class Attach:
    """A stage is computed inside loop `iter` of stage `target`."""

    target: str
    iter: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A computation, its loops outermost first, and where it is computed (`attach` None: root).

    `axis_extents`: extents of the operation's own axes, spatial then reduce; smaller than the
    tensor's for an attached stage. `n_parallel`: how many outermost loops form the parallel range.
    """

    op: Compute
    iters: tuple[Iterator, ...]
    axis_extents: tuple[Extent, ...]
    splits: tuple[SplitRelation, ...] = ()
    attach: Attach | None = None
    n_parallel: int = 0
    packs: tuple[str, ...] = ()
    prefetches: tuple[tuple[str, Extent], ...] = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """Tensors touched in front of the reduction that the stage consumes; for one candidate."""
        return tuple(n for n, d in self.prefetches if n not in self.packs and int(d))

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

    def inner_extents(self, depth: int) -> dict[str, Extent]:
        """How many values each axis takes while the loops deeper than `depth` run."""
        leaf = {it.name: it.extent if n > depth else 1 for n, it in enumerate(self.iters)}
        extents = dict(zip((a.name for a in self.axes), self.axis_extents, strict=True))
        return {a.name: np.minimum(self._cover(a.name, leaf), extents[a.name]) for a in self.axes}

    def _cover(self, name: str, leaf: Mapping[str, Extent]) -> Extent:
        relation = next((r for r in self.splits if r.parent == name), None)
        if relation is None:
            return leaf[name]
        cover = self._cover(relation.children[0], leaf)
        for child, factor in zip(relation.children[1:], relation.factors, strict=True):
            cover = (cover - 1) * factor + self._cover(child, leaf)
        return cover


@dataclass(frozen=True)
class State:
    """Stages in topological order over the DAG as rewritten by the steps.

    `derived`: constants that the steps made out of those of the task, to be evaluated in order.
    """

    dag: ComputeDAG
    stages: dict[str, Stage]
    derived: tuple[Compute, ...] = ()
    _extents: dict[tuple[str, str, int], tuple[Extent, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Answers of `required_extents`."""

    def __getitem__(self, name: str) -> Stage:
        try:
            return self.stages[name]
        except KeyError:
            raise ScheduleError(f"no stage '{name}'") from None

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
    return State(dag, {op.name: _fresh(op) for op in dag.computes})


def replay(dag: ComputeDAG, steps: Steps, holes: Holes | None = None) -> State:
    """Apply `steps` in order. Raises ScheduleError for a step that cannot be applied."""
    state = initial(dag)
    for step in steps:
        state = _APPLY[type(step)](state, step, holes or {})
    return state


def bind(steps: Steps, holes: Mapping[str, int]) -> Steps:
    """The concrete schedule that fills the holes of a sketch with numbers."""
    return tuple(_bind(s, holes) for s in steps)


def _bind(step: Step, holes: Mapping[str, int]) -> Step:
    match step:
        case Split(factors=factors):
            return replace(step, factors=tuple(int(_size(f, holes)) for f in factors))
        case RFactor(factor=factor):
            return replace(step, factor=int(_size(factor, holes)))
        case Prefetch(distance=distance):
            return replace(step, distance=int(_size(distance, holes)))
        case _:
            return step


def _size(size: Size, holes: Holes) -> Extent:
    return holes[size.name] if isinstance(size, Hole) else size


def _plain(extent: Extent) -> Extent:
    return int(extent) if np.ndim(extent) == 0 else extent


def _fresh(op: Compute, extents: tuple[Extent, ...] | None = None) -> Stage:
    axes = op.axes + op.reduce_axes
    sizes = extents or tuple(a.extent for a in axes)
    kinds = ["spatial"] * len(op.axes) + ["reduce"] * len(op.reduce_axes)
    iters = tuple(Iterator(a.name, e, k) for a, e, k in zip(axes, sizes, kinds, strict=True))
    return Stage(op, iters, sizes)


def _with(state: State, stage: Stage) -> State:
    return replace(state, stages=state.stages | {stage.name: stage})


# --- loop steps -------------------------------------------------------------------------------


def _split(state: State, step: Split, holes: Holes) -> State:
    stage = state[step.stage]
    at = stage.position(step.iter)
    if step.tail not in ("shift", "split"):
        raise ScheduleError(f"unknown tail '{step.tail}', expected 'shift' or 'split'")
    if state.attached_at(stage.name, step.iter):
        raise ScheduleError(f"split loop {step.iter} of {stage.name} before placing stages in it")
    old = stage.iters[at]
    factors: list[Extent] = []
    extent: Extent = old.extent
    for size in reversed(step.factors):
        factors.insert(0, _plain(np.minimum(np.maximum(_size(size, holes), 1), extent)))
        extent = _plain(-(-extent // factors[0]))
    sizes = [extent, *factors]
    children = tuple(f"{old.name}.{n}" for n in range(len(sizes)))
    new = tuple(replace(old, name=c, extent=e) for c, e in zip(children, sizes, strict=True))
    relation = SplitRelation(old.name, children, tuple(factors), step.tail)
    return _with(
        state,
        replace(
            stage,
            iters=stage.iters[:at] + new + stage.iters[at + 1 :],
            splits=(*stage.splits, relation),
        ),
    )


def _reorder(state: State, step: Reorder, _: Holes) -> State:
    stage = state[step.stage]
    if sorted(step.iters) != sorted(i.name for i in stage.iters):
        raise ScheduleError(f"reorder of {stage.name} must name all of its loops once")
    return _with(state, replace(stage, iters=tuple(stage.iter(n) for n in step.iters)))


def _parallel(state: State, step: Parallel, _: Holes) -> State:
    stage = state[step.stage]
    outer = stage.iters[: step.n]
    if stage.attach or len(outer) < step.n or any(i.kind == "reduce" for i in outer):
        raise ScheduleError(f"only outer spatial loops of a root stage run in parallel: {step}")
    return _with(state, replace(stage, n_parallel=step.n))


def _annotate(state: State, step: Annotate, _: Holes) -> State:
    stage = state[step.stage]
    at = stage.position(step.iter)
    if step.kind not in ("unroll", "vectorize"):
        raise ScheduleError(f"unknown annotation '{step.kind}'")
    if step.kind == "vectorize" and stage.iters[at].kind == "reduce":
        raise ScheduleError("a reduction loop is vectorised by rfactor, not by annotation")
    marked = replace(stage.iters[at], annotation=step.kind)
    return _with(state, replace(stage, iters=(*stage.iters[:at], marked, *stage.iters[at + 1 :])))


# --- location ---------------------------------------------------------------------------------


def _compute_at(state: State, step: ComputeAt, _: Holes) -> State:
    stage, target = state[step.stage], state[step.target]
    if stage.splits:
        raise ScheduleError(f"place {stage.name} before splitting its loops")
    if stage.name in state.dag.outputs:
        raise ScheduleError(f"{stage.name} is an output and stays at the root")
    needed = required_extents(state, stage.name, target, target.position(step.iter))
    placed = replace(
        _fresh(stage.op, needed), attach=Attach(step.target, step.iter), packs=stage.packs
    )
    return _with(state, placed)


def required_extents(state: State, name: str, target: Stage, depth: int) -> tuple[Extent, ...]:
    """Extents of what one iteration of loop `depth` of `target` reads of tensor `name`.

    Reduction axes keep their extents. Quotients take regions to be tiles of the divisor: lowering
    computes the exact region. Every reader must be computed inside that loop, else ScheduleError.
    """
    key = (name, target.name, depth)
    if key not in state._extents:
        state._extents[key] = _required_extents(state, name, target, depth)
    return state._extents[key]


def _required_extents(state: State, name: str, target: Stage, depth: int) -> tuple[Extent, ...]:
    op = state[name].op
    reads = [
        (load, _extents_inside(state, state[reader.name], target, depth))
        for reader in state.dag.consumers(name)
        for load in dict.fromkeys(reader.reads)
        if load.tensor.name == name
    ]
    spans = (_needed(reads, d, size) for d, size in enumerate(op.tensor.shape))
    return (*map(_plain, spans), *(a.extent for a in op.reduce_axes))


def _needed(reads: list[tuple[Load, dict[str, Extent]]], dim: int, size: int) -> Extent:
    """How many elements of dimension `dim` the loads reach, each with the extents around it."""
    first: dict[frozenset[tuple[Expr, int]], int] = {}
    last: dict[frozenset[tuple[Expr, int]], Extent] = {}
    for load, inner in reads:
        form = linear(load.indices[dim])
        try:
            reach: Extent = span(load.indices[dim], inner, aligned=True)
        except UnboundedIndex:
            return size
        terms = frozenset(form.terms)
        first[terms] = min(first.get(terms, form.const), form.const)
        last[terms] = np.maximum(last.get(terms, form.const), form.const + reach)
    longest: Extent = 1
    for form_terms, end in last.items():
        longest = np.maximum(longest, end - first[form_terms] + 1)
    return np.minimum(longest, size)


def _extents_inside(state: State, reader: Stage, target: Stage, depth: int) -> dict[str, Extent]:
    if reader.name == target.name:
        return reader.inner_extents(depth)
    attach = reader.attach
    while attach and attach.target != target.name:
        attach = state[attach.target].attach
    if attach is None or target.position(attach.iter) < depth:
        raise ScheduleError(f"{reader.name} reads outside loop {depth} of {target.name}")
    needed = required_extents(state, reader.name, target, depth)
    return dict(zip((a.name for a in reader.axes), needed, strict=True))


def _compute_inline(state: State, step: ComputeInline, _: Holes) -> State:
    op = state[step.stage].op
    if op.reduce_axes or op.name in state.dag.outputs:
        raise ScheduleError(f"{op.name} reduces or is an output: it cannot be inlined")

    def one(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor.name == op.name:
            at = (map_expr(i, one) for i in e.indices)
            return substitute(op.body, {a.name: i for a, i in zip(op.axes, at, strict=True)})
        return None

    ops = [_map_body(o, one) for o in state.dag.ops if o.name != op.name]
    return _with_dag(state, ComputeDAG(tuple(ops), state.dag.outputs))


def _map_body(op: Op, f: Callable[[Expr], Expr | None]) -> Op:
    return replace(op, body=map_expr(op.body, f)) if isinstance(op, Compute) else op


def _with_dag(state: State, dag: ComputeDAG) -> State:
    """Stages for a rewritten DAG: known ones keep their loops, new ones start fresh."""
    stages = {}
    for op in dag.computes:
        old = state.stages.get(op.name)
        same = old is not None and old.op.axes == op.axes and old.op.reduce_axes == op.reduce_axes
        stages[op.name] = replace(old, op=op) if old is not None and same else _fresh(op)
    return replace(state, dag=dag, stages=stages)


# --- steps that rewrite the DAG ---------------------------------------------------------------


def _insert(dag: ComputeDAG, new: Op, before: str, changed: Compute) -> ComputeDAG:
    if any(op.name == new.name for op in dag.ops):
        raise ScheduleError(f"there is a tensor '{new.name}' already")
    ops: list[Op] = []
    for op in dag.ops:
        if op.name == before:
            ops.append(new)
        ops.append(changed if op.name == changed.name else op)
    return ComputeDAG(tuple(ops), dag.outputs)


def _cache_read(state: State, step: CacheRead, _: Holes) -> State:
    reader = state[step.reader].op
    source = next((x.tensor for x in reader.reads if x.tensor.name == step.tensor), None)
    if source is None:
        raise ScheduleError(f"{reader.name} does not read a tensor '{step.tensor}'")
    axes = tuple(Axis(f"d{n}", e) for n, e in enumerate(source.shape))
    everything = Load(source, tuple(a.var for a in axes))
    copy = Compute(Tensor(step.name, source.shape, source.dtype), axes, everything)

    def one(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor.name == source.name:
            return Load(copy.tensor, e.indices)
        return None

    changed = replace(reader, body=map_expr(reader.body, one))
    return _with_dag(state, _insert(state.dag, copy, reader.name, changed))


def _cache_write(state: State, step: CacheWrite, _: Holes) -> State:
    op = state[step.stage].op
    cache = replace(op, tensor=Tensor(step.name, op.tensor.shape, op.tensor.dtype))
    changed = replace(op, body=Load(cache.tensor, tuple(a.var for a in op.axes)))
    return _with_dag(state, _insert(state.dag, cache, op.name, changed))


def _rfactor(state: State, step: RFactor, holes: Holes) -> State:
    op = state[step.stage].op
    factor = _size(step.factor, holes)
    if not isinstance(op.body, Reduce) or isinstance(factor, np.ndarray):
        raise ScheduleError("rfactor needs a reduction and one factor")
    last = op.body.axes[-1]
    if last.extent < factor:
        raise ScheduleError(f"rfactor {factor} is more than {last.name}<{last.extent}")
    inner, outer = Axis(f"{last.name}.r", factor), Axis(last.name, -(-last.extent // factor))
    first = mul(outer.var, idx(factor))
    if last.extent % factor:  # the last part begins early, and skips what the one before had
        at: Expr = add(minimum(first, idx(last.extent - factor)), inner.var)
        neutral = identity(op.body.op, op.tensor.dtype)
        body = select(compare("lt", at, first), neutral, substitute(op.body.body, {last.name: at}))
    else:
        at = add(first, inner.var)
        body = substitute(op.body.body, {last.name: at})
    axes = (*op.axes, inner)
    partial = Compute(
        Tensor(step.name, tuple(a.extent for a in axes), op.tensor.dtype),
        axes,
        Reduce(op.body.op, body, (*op.body.axes[:-1], outer)),
    )
    load = Load(partial.tensor, tuple(Var(a.name) for a in axes))
    changed = replace(op, body=Reduce(op.body.op, load, (inner,)))
    return _with_dag(state, _insert(state.dag, partial, op.name, changed))


def _winograd(state: State, step: Winograd, _: Holes) -> State:
    new = rewrite(state.dag, step.stage, step.taps, step.tile)
    return replace(_with_dag(state, new.dag), derived=(*state.derived, *new.derived))


def _pack(state: State, step: Pack, _: Holes) -> State:
    stage = state[step.stage]
    if not any(p.name == step.tensor and p.constant for p in state.dag.placeholders):
        raise ScheduleError(f"{step.tensor} is not a constant and cannot be packed")
    return _with(state, replace(stage, packs=(*stage.packs, step.tensor)))


def _prefetch(state: State, step: Prefetch, holes: Holes) -> State:
    stage = state[step.stage]
    entry = (step.tensor, _size(step.distance, holes))
    return _with(state, replace(stage, prefetches=(*stage.prefetches, entry)))


_APPLY: dict[type[Step], Callable[[State, Any, Holes], State]] = {
    Split: _split,
    Reorder: _reorder,
    Parallel: _parallel,
    Annotate: _annotate,
    ComputeAt: _compute_at,
    ComputeInline: _compute_inline,
    CacheRead: _cache_read,
    CacheWrite: _cache_write,
    RFactor: _rfactor,
    Winograd: _winograd,
    Pack: _pack,
    Prefetch: _prefetch,
}


# --- text -------------------------------------------------------------------------------------


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
    lines.append(f"{'  ' * depth}{stage.name} = …{packed}")
