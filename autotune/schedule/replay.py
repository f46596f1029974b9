"""③ The effect of every step on a `State`: `replay(dag, steps)`.

With arrays for the holes of a sketch, the extents of the state are arrays: one candidate each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ScheduleError
from autotune.schedule import narrow_products, winograd
from autotune.schedule.region import Extent, larger, plain, smaller
from autotune.schedule.required import required_extents
from autotune.schedule.rewriting import (
    cache_read,
    cache_terms,
    cache_write,
    compute_inline,
    flat_taps,
    interleave,
    parts,
    rfactor,
    whole_terms,
)
from autotune.schedule.state import (
    Attach,
    FuseRelation,
    Iterator,
    Rewritten,
    SplitRelation,
    Stage,
    State,
    fresh,
    initial,
)
from autotune.schedule.steps import (
    BLOCK_INDICES,
    LAUNCH_INDICES,
    THREAD_INDICES,
    Annotate,
    Bind,
    CacheRead,
    CacheTerms,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FlatTaps,
    Fuse,
    Hole,
    Interleave,
    NarrowProducts,
    Pack,
    Parallel,
    Parts,
    Prefetch,
    Reorder,
    RFactor,
    Size,
    Split,
    Step,
    Steps,
    WholeTerms,
    Winograd,
)
from autotune.te.dag import ComputeDAG
from autotune.te.products import Factors, forms_of, products_of

Holes: TypeAlias = Mapping[str, int | NDArray[np.int64]]


def replay(dag: ComputeDAG, steps: Steps, holes: Holes | None = None) -> State:
    """Apply `steps` in order. Raises ScheduleError for a step that cannot be applied."""
    state = initial(dag)
    for step in steps:
        state = apply(state, step, holes)
    return state


def apply(state: State, step: Step, holes: Holes | None = None) -> State:
    """The state after one more step. Raises ScheduleError for a step that cannot be applied."""
    return _APPLY[type(step)](state, step, holes or {})


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


def _with_dag(state: State, dag: ComputeDAG) -> State:
    """Stages for a rewritten DAG: known ones keep their loops, new ones start fresh."""
    stages = {}
    for op in dag.computes:
        old = state.stages.get(op.name)
        same = old is not None and old.op.axes == op.axes and old.op.reduce_axes == op.reduce_axes
        stages[op.name] = replace(old, op=op) if old is not None and same else fresh(op)
    return replace(state, dag=dag, stages=stages)


def _with(state: State, stage: Stage) -> State:
    stages = state.stages | {stage.name: stage}
    return State(state.dag, stages, state.derived, state.transformed, state.parts)


# --- loop steps -------------------------------------------------------------------------------


def _split(state: State, step: Split, holes: Holes) -> State:
    stage = state[step.stage]
    at = stage.position(step.iter)
    if step.tail not in ("shift", "split"):
        raise ScheduleError(f"unknown tail '{step.tail}', expected 'shift' or 'split'")
    if stage.fuses and step.tail == "split":
        raise ScheduleError(f"{stage.name}: with fused loops, remainders shift (tail='shift')")
    if state.attached_at(stage.name, step.iter):
        raise ScheduleError(f"split loop {step.iter} of {stage.name} before placing stages in it")
    _refuse_ragged(stage, step.iter, "split")
    old = stage.iters[at]
    if old.annotation in LAUNCH_INDICES:
        raise ScheduleError(f"split loop {step.iter} of {stage.name} before binding it")
    factors: list[Extent] = []
    extent: Extent = old.extent
    for size in reversed(step.factors):
        factors.insert(0, plain(smaller(larger(_size(size, holes), 1), extent)))
        extent = plain(-(-extent // factors[0]))
    sizes = [extent, *factors]
    children = tuple(f"{old.name}.{n}" for n in range(len(sizes)))
    pairs = zip(children, sizes, strict=True)
    new = tuple(Iterator(child, e, old.kind, old.annotation) for child, e in pairs)
    relation = SplitRelation(old.name, children, tuple(factors), step.tail)
    iters = stage.iters[:at] + new + stage.iters[at + 1 :]
    return _with(state, stage.looped(iters, (*stage.splits, relation)))


def _fuse(state: State, step: Fuse, _: Holes) -> State:
    stage = state[step.stage]
    at = stage.position(step.outer)
    if at + 1 == len(stage.iters) or stage.iters[at + 1].name != step.inner:
        raise ScheduleError(f"loop {step.inner} of {stage.name} is not directly in {step.outer}")
    outer, inner = stage.iters[at : at + 2]
    _refuse_ragged(stage, step.outer, "fused")
    _refuse_ragged(stage, step.inner, "fused")
    if outer.kind != inner.kind:
        raise ScheduleError(f"{step.outer} and {step.inner}: one is reduced, the other is not")
    if outer.annotation or inner.annotation or at < stage.n_parallel:
        raise ScheduleError(f"fuse {step.outer} and {step.inner} before they are annotated")
    if state.attached_at(stage.name, outer.name) or state.attached_at(stage.name, inner.name):
        raise ScheduleError(f"fuse loops of {stage.name} before placing stages in them")
    if stage.has_versions:
        raise ScheduleError(f"{stage.name}: with fused loops, remainders shift (tail='shift')")
    new = replace(outer, name=step.loop, extent=plain(outer.extent * inner.extent))
    relation = FuseRelation(step.loop, outer.name, inner.name, (outer.extent, inner.extent))
    iters = (*stage.iters[:at], new, *stage.iters[at + 2 :])
    return _with(state, replace(stage, iters=iters, fuses=(*stage.fuses, relation)))


def _refuse_ragged(stage: Stage, name: str, what: str) -> None:
    if stage.ragged(name):
        raise ScheduleError(f"loop {name} of {stage.name} is ragged and cannot be {what}")


def _reorder(state: State, step: Reorder, _: Holes) -> State:
    stage = state[step.stage]
    if sorted(step.iters) != sorted(i.name for i in stage.iters):
        raise ScheduleError(f"reorder of {stage.name} must name all of its loops once")
    return _with(state, stage.looped(tuple(stage.iter(n) for n in step.iters)))


def _parallel(state: State, step: Parallel, _: Holes) -> State:
    stage = state[step.stage]
    outer = stage.iters[: step.n]
    if stage.attach or len(outer) < step.n or any(i.kind == "reduce" for i in outer):
        raise ScheduleError(f"only outer spatial loops of a root stage run in parallel: {step}")
    return _with(state, replace(stage, n_parallel=step.n))


def _annotate(state: State, step: Annotate, _: Holes) -> State:
    stage = state[step.stage]
    at = stage.position(step.iter)
    if step.kind not in ("unroll", "vectorize", "dot", "tile"):
        raise ScheduleError(f"unknown annotation '{step.kind}'")
    if stage.iters[at].annotation in LAUNCH_INDICES:
        raise ScheduleError(f"loop {step.iter} of {stage.name} is bound")
    if step.kind == "dot":
        _check_dot(stage, at)
    if step.kind == "tile":
        _check_tile(stage, at)
    _refuse_ragged(stage, step.iter, "annotated")
    if step.kind == "vectorize" and any(f.loop == step.iter for f in stage.fuses):
        raise ScheduleError(f"{step.iter} is fused: neighbours in it are none in memory")
    if step.kind == "vectorize" and stage.iters[at].kind == "reduce":
        raise ScheduleError("a reduction loop is vectorised by rfactor, not by annotation")
    it = stage.iters[at]
    marked = Iterator(it.name, it.extent, it.kind, step.kind)
    return _with(state, stage.looped((*stage.iters[:at], marked, *stage.iters[at + 1 :])))


def _bind_loop(state: State, step: Bind, _: Holes) -> State:
    stage = state[step.stage]
    at = stage.position(step.iter)
    _check_bind(stage, stage.iters[at], step.index)
    marked = replace(stage.iters[at], annotation=step.index)
    return _with(state, stage.looped((*stage.iters[:at], marked, *stage.iters[at + 1 :])))


def _check_bind(stage: Stage, it: Iterator, index: str) -> None:
    if index not in LAUNCH_INDICES:
        raise ScheduleError(
            f"there is no index '{index}' of a launch", f"choose of {', '.join(LAUNCH_INDICES)}"
        )
    if it.kind == "reduce":
        raise ScheduleError(
            f"loop {it.name} of {stage.name} is one of its reduction",
            "bind loops over its results; each thread adds up its own",
        )
    if index in stage.bound:
        raise ScheduleError(f"{index} is bound to loop {stage.bound[index].name} already")
    if it.annotation:
        raise ScheduleError(f"loop {it.name} of {stage.name} is {it.annotation} already")
    if stage.attach and not stage.scope:
        raise ScheduleError(
            f"{stage.name} is computed by each thread for itself",
            'one whole block computes what cache_read(…, scope="shared") made',
        )
    if stage.scope and index in BLOCK_INDICES:
        raise ScheduleError(f"{stage.name} is shared by one block", "bind its loops to threadIdx")


def _check_dot(stage: Stage, at: int) -> None:
    it, pairs = stage.iters[at], _products(stage)
    if it.kind != "reduce" or at + 1 != len(stage.iters):
        raise ScheduleError(f"{it.name} is not the innermost loop, or not one of the reduction")
    if not stage.axis_of(it.name) == stage.op.reduce_axes[-1].name:
        raise ScheduleError(f"{it.name} is no part of the last axis of the reduction")
    known = {f.terms: f.name for f in forms_of(pairs, stage.op.tensor.dtype)}
    if any(n not in known for n in np.unique(it.extent)):
        found = ", ".join(f"{terms} ({name})" for terms, name in known.items())
        raise ScheduleError(
            f"no instruction adds up the {it.extent} terms of {it.name} of {stage.name} at once",
            f"of such factors there are instructions for {found or 'no number of'} terms",
        )


def _check_tile(stage: Stage, at: int) -> None:
    """Require rows, groups, columns, terms innermost, and the loop to be one of the first two."""
    it = stage.iters[at]
    _products(stage)
    kinds = [i.kind for i in stage.iters[-4:]]
    if kinds != ["spatial", "reduce", "spatial", "reduce"] or len(stage.iters) - at not in (3, 4):
        raise ScheduleError(
            f"{it.name} is no loop over rows, or over groups of terms, of a tile of {stage.name}",
            "the innermost loops must be rows, groups, columns, terms",
        )


def _products(stage: Stage) -> tuple[Factors, ...]:
    pairs = products_of(stage.op)
    if not pairs:
        raise ScheduleError(f"{stage.name} is no sum of products of narrower factors")
    return pairs


# --- location ---------------------------------------------------------------------------------


def _compute_at(state: State, step: ComputeAt, _: Holes) -> State:
    stage, target = state[step.stage], state[step.target]
    around = state, target, target.position(step.iter)
    if stage.scope:
        around = _of_block(*around)
    if stage.splits or stage.fuses:
        raise ScheduleError(f"place {stage.name} before splitting and fusing its loops")
    if stage.name in state.dag.outputs:
        raise ScheduleError(f"{stage.name} is an output and stays at the root")
    needed = required_extents(around[0], stage.name, *around[1:])
    placed = replace(
        fresh(stage.op, needed),
        attach=Attach(step.target, step.iter),
        packs=stage.packs,
        blocks=stage.blocks,
        scope=stage.scope,
    )
    return _with(state, placed)


def _of_block(state: State, target: Stage, depth: int) -> tuple[State, Stage, int]:
    """What a loop needs in shared memory, it needs for all threads of the block: `target` with the
    loops over threads inside of the loop at `depth`, in its state, and its new depth.

    Of a stage that each thread computes for itself, these are all loops over its results.
    """
    together = {it.name for it in target.iters if it.annotation in THREAD_INDICES}
    if target.attach:
        host = state[target.attach.target]
        around = _of_block(state, host, host.position(target.attach.iter))
        sizes = required_extents(around[0], target.name, *around[1:])
        extents = dict(zip((a.name for a in target.axes), sizes, strict=True))
        iters = (replace(it, extent=extents.get(it.name, it.extent)) for it in target.iters)
        target = replace(target, iters=tuple(iters), axis_extents=sizes)
        together = {it.name for it in target.iters if it.kind == "spatial"}
    outer, inner = target.iters[: depth + 1], target.iters[depth + 1 :]
    others = tuple(it for it in outer if it.name not in together)
    threads = tuple(it for it in outer if it.name in together)
    target = replace(target, iters=(*others, *threads, *inner))
    return _with(state, target), target, len(others) - 1


# --- steps that rewrite the DAG ---------------------------------------------------------------


def _compute_inline(state: State, step: ComputeInline, _: Holes) -> State:
    return _with_dag(state, compute_inline(state.dag, step))


def _cache_read(state: State, step: CacheRead, _: Holes) -> State:
    if step.scope not in ("", "shared"):
        raise ScheduleError(f"there is no scope '{step.scope}'", 'choose of "", "shared"')
    made = _with_dag(state, cache_read(state.dag, step))
    return _with(made, replace(made[step.name], scope=step.scope)) if step.scope else made


def _cache_terms(state: State, step: CacheTerms, _: Holes) -> State:
    return _with_dag(state, cache_terms(state.dag, step))


def _whole_terms(state: State, step: WholeTerms, _: Holes) -> State:
    return _with_dag(state, whole_terms(state.dag, step))


def _flat_taps(state: State, step: FlatTaps, _: Holes) -> State:
    return _with_dag(state, flat_taps(state.dag, step))


def _cache_write(state: State, step: CacheWrite, _: Holes) -> State:
    return _with_dag(state, cache_write(state.dag, step))


def _rfactor(state: State, step: RFactor, holes: Holes) -> State:
    return _with_dag(state, rfactor(state.dag, step, _size(step.factor, holes)))


def _parts(state: State, step: Parts, _: Holes) -> State:
    return _with_dag(state, parts(state.dag, step))


def _interleave(state: State, step: Interleave, _: Holes) -> State:
    return _with_dag(state, interleave(state.dag, step))


def _winograd(state: State, step: Winograd, _: Holes) -> State:
    return _rewritten(state, winograd.rewrite(state.dag, step.stage, step.taps, step.tile))


def _narrow_products(state: State, step: NarrowProducts, _: Holes) -> State:
    return _rewritten(state, narrow_products.rewrite(state.dag, step.stage, step.n_products))


def _rewritten(state: State, new: Rewritten) -> State:
    return replace(
        _with_dag(state, new.dag),
        derived=(*state.derived, *new.derived),
        transformed=(*state.transformed, *new.transformed),
        parts=(*state.parts, *new.parts),
    )


# --- weights ----------------------------------------------------------------------------------


def _pack(state: State, step: Pack, _: Holes) -> State:
    stage = state[step.stage]
    if not any(p.name == step.tensor and p.constant for p in state.dag.placeholders):
        raise ScheduleError(f"{step.tensor} is not a constant and cannot be packed")
    blocks = ((step.tensor, step.block),) if step.block else ()
    packs = (*stage.packs, step.tensor)
    return _with(state, replace(stage, packs=packs, blocks=(*stage.blocks, *blocks)))


def _prefetch(state: State, step: Prefetch, holes: Holes) -> State:
    stage = state[step.stage]
    entry = (step.tensor, _size(step.distance, holes))
    return _with(state, replace(stage, prefetches=(*stage.prefetches, entry)))


_APPLY: dict[type[Step], Callable[[State, Any, Holes], State]] = {
    Split: _split,
    Fuse: _fuse,
    Reorder: _reorder,
    Parallel: _parallel,
    Annotate: _annotate,
    Bind: _bind_loop,
    ComputeAt: _compute_at,
    ComputeInline: _compute_inline,
    CacheRead: _cache_read,
    CacheTerms: _cache_terms,
    WholeTerms: _whole_terms,
    FlatTaps: _flat_taps,
    CacheWrite: _cache_write,
    RFactor: _rfactor,
    Parts: _parts,
    Interleave: _interleave,
    Winograd: _winograd,
    NarrowProducts: _narrow_products,
    Pack: _pack,
    Prefetch: _prefetch,
}
