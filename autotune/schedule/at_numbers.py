"""③ A state of loops for given numbers of a call: how many tiles run, and how whole the last is.

An axis that ends at a number runs over ⌈n / tile⌉ register tiles, of which the last has about as
many rows as are left, in whole vectors. Loops around these tiles are as short as in a schedule of
the static definition at that number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.schedule.region import Extent, larger, plain, smaller
from autotune.schedule.required import required_extents
from autotune.schedule.state import Iterator, SplitRelation, Stage, State
from autotune.te.at_numbers import Numbers, at
from autotune.te.dag import Compute, ComputeDAG


def at_numbers(state: State, numbers: Numbers) -> State:
    """`state`, made at the most, for these numbers; of loops that are not fused."""
    dag = at(state.dag, numbers)
    found = State(dag, _with_ops(state.stages, dag), state.derived, state.transformed, state.parts)
    for name, stage in reversed(state.stages.items()):  # consumers before what they read
        stages = found.stages | {name: _resized(found, stage)}
        found = State(dag, stages, state.derived, state.transformed, state.parts)
    return found


def _with_ops(stages: Mapping[str, Stage], dag: ComputeDAG) -> dict[str, Stage]:
    ops = {op.name: op for op in dag.computes}
    return {name: replace(stage, op=ops[name]) for name, stage in stages.items()}


def _resized(state: State, stage: Stage) -> Stage:
    """`stage` with the extents that it has for the axes of its operation in `state`."""
    op = state[stage.name].op
    sizes = _sizes(state, stage, op)
    extents = dict(zip((a.name for a in stage.axes), sizes, strict=True))
    splits: list[SplitRelation] = []
    for relation in stage.splits:
        left, factors = extents[relation.parent], list(relation.factors)
        for k in reversed(range(len(factors))):
            factors[k] = plain(smaller(factors[k], left))
            left = plain(-(-left // factors[k]))
        extents |= zip(relation.children, (left, *factors), strict=True)
        splits.append(replace(relation, factors=tuple(factors)))
    iters = (Iterator(i.name, extents[i.name], i.kind, i.annotation) for i in stage.iters)
    return replace(stage, op=op, iters=tuple(iters), axis_extents=sizes, splits=tuple(splits))


def _sizes(state: State, stage: Stage, op: Compute) -> tuple[Extent, ...]:
    """Extents of the axes: of a root stage whole vectors, of another what its host needs."""
    if stage.attach is not None:
        host = state[stage.attach.target]
        needed = required_extents(state, stage.name, host, host.position(stage.attach.iter))
        sizes = [smaller(now, most) for now, most in zip(needed, stage.axis_extents, strict=True)]
        return tuple(map(plain, sizes))
    axes = (*op.axes, *op.reduce_axes)
    pairs = zip(axes, stage.axes, stage.axis_extents, strict=True)
    return tuple(
        most if now.extent == old.extent else _whole_vectors(stage, old.name, now.extent, most)
        for now, old, most in pairs
    )


def _whole_vectors(stage: Stage, axis: str, extent: int, most: Extent) -> Extent:
    lanes: Extent = 1
    for it in stage.iters:
        if it.annotation not in ("", "unroll") and stage.axis_of(it.name) == axis:
            lanes = plain(lanes * it.extent)
    return plain(smaller(larger(-(-extent // lanes) * lanes, 1), most))
