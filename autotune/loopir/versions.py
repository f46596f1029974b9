"""④ Versions of the loops of a stage: of full tiles, of a remainder, of what a length leaves.

for t in 3: tile of 8                -- E = 20, tail="split"
->  for t in 3: if t < 2: tile of 8 else: tile of 4

for t in ⌈n/8⌉: tile of 8            -- the axis ends at n
->  for t in ⌈n/8⌉: if 6 < n - 8·t: tile of 8 else if 5 < n - 8·t: tile of 6 … else: tile of 1

A register tile is straight code, so how many rows it has is chosen before it begins. Where a length
leaves fewer rows than a tile has, the smallest version that has them all runs. Versions exist for
so many sizes that little is computed for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from autotune.errors import ScheduleError
from autotune.loopir.instance import Instance, Ranges, leaves, loop_var, unshifted
from autotune.loopir.nodes import Body, If
from autotune.schedule.state import SplitRelation
from autotune.te.arith import linear, simplify
from autotune.te.expr import Const, Expr, Var, both, compare, idx, sub, substitute, variables

Nest = Callable[[Instance, Ranges], Body]

_WASTE, _WASTE_OF_TWO = 1.15, 1.35
"""A version has at most so many times the rows of those that are left; where both sides of a tile
follow lengths, for each side."""


def versions(inst: Instance, depth: int, ranges: Ranges, nest: Nest, kind: str = "") -> Body | None:
    """`nest` for each version of a tile whose number is known before loop `depth`, and the choice.

    `kind`: of the loops that are split, if only some count. None where there is no such tile.
    """
    for rel in inst.versions_ready(depth, kind):
        left = _left_of(inst, rel, depth, ranges)
        if left is not None or inst.remainder(rel):
            _require_inside(inst, rel, depth)
            return _chosen(inst, rel, ranges, nest, left)
    return None


def _require_inside(inst: Instance, rel: SplitRelation, depth: int) -> None:
    stage = inst.stage
    outside = max(depth, stage.n_parallel)
    if any(stage.position(c) < outside for c in leaves(stage, rel.children[-1:])):
        raise ScheduleError(f"{stage.name}: the tile of {rel.parent} must be inside of its number")


@dataclass(frozen=True, slots=True)
class _Left:
    """What a length leaves of a tile: `elements`, of which each of its iterations has `step`."""

    elements: Expr
    step: int

    def more_than(self, n: int) -> Expr:
        """Whether more than `n` iterations have elements in front of the length."""
        return compare("lt", idx(n * self.step), self.elements)


def _chosen(
    inst: Instance, rel: SplitRelation, ranges: Ranges, nest: Nest, left: _Left | None
) -> Body:
    """The largest version first; behind the last full tile those of the remainder alone."""
    factor, rest = inst.factor(rel), inst.remainder(rel)
    extent = inst.sizes[rel.parent]
    tile = simplify(inst.tile_number(rel), ranges)
    n_full = extent // factor
    is_full = simplify(compare("lt", tile, idx(n_full)), ranges)
    inst = replace(inst, versioned=inst.versioned | {rel.parent})

    def version(size: int) -> Body:
        if size == factor:
            return nest(inst, _known(ranges, tile, (0, n_full - 1)))
        part = replace(inst, overrides=(*inst.overrides, (rel.children[-1], size)))
        last = (extent - size) // factor
        return nest(part, _known(ranges, tile, (n_full * (left is None), last)))

    if left is None:
        if isinstance(is_full, Const):
            return version(factor if is_full.value else rest)
        return (If(is_full, version(factor), version(rest)),)
    sizes = sorted({*_sizes(factor, _waste(inst)), *([rest] if rest else ())})
    body = version(sizes[0])
    for below, size in pairwise(sizes):
        cond = left.more_than(below)
        if rest and size > rest:
            cond = both(is_full, cond)
        body = (If(simplify(cond, ranges), version(size), body),)
    return body


def _left_of(inst: Instance, rel: SplitRelation, depth: int, ranges: Ranges) -> _Left | None:
    """What is left for an unrolled loop over an axis with a limit, once its tile begins."""
    stage = inst.stage
    axis = stage.axis_of(rel.parent)
    limit = stage.op.limits.get(axis)
    if limit is None or variables(limit) or not _is_tile(inst, rel, depth):
        return None
    var = f"{stage.name}.{rel.children[-1]}"
    value = unshifted(inst.axis_values()[axis], var)
    step = linear(value).coefficient(var)
    inside = {loop_var(stage, i) for i in stage.iters[depth:]}
    first = substitute(value, {name: idx(0) for name in variables(value) & inside})
    if step < 1:
        return None
    return _Left(simplify(sub(limit, first), ranges), step)


def _is_tile(inst: Instance, rel: SplitRelation, depth: int) -> bool:
    """Whether the innermost loop of a split, which is unrolled, is inside of rolled ones."""
    stage, n_outside = inst.stage, max(depth, inst.stage.n_parallel)
    tiles = {i.name for i in stage.iters[n_outside:] if i.annotation == "unroll"}
    number = leaves(stage, rel.children[:-1])
    is_rolled = not any(i.annotation for i in stage.iters if i.name in number)
    return is_rolled and rel.children[-1] in tiles and inst.sizes[rel.children[-1]] > 1


def _waste(inst: Instance) -> float:
    """By how much sizes of versions may differ: less where the other side has versions too."""
    sides = {
        inst.stage.axis_of(i.name) for i in inst.stage.iters if i.annotation == "unroll"
    } & inst.stage.op.limits.keys()
    return _WASTE if len(sides) < 2 else _WASTE_OF_TWO


def _sizes(factor: int, waste: float) -> Iterator[int]:
    """Sizes of versions of a tile, largest first."""
    size = factor
    while size:
        yield size
        size = min(size - 1, -int(-size // waste) - 1)


def _known(ranges: Ranges, e: Expr, limits: tuple[int, int]) -> Ranges:
    """`ranges`, and if `e` is a variable, its `limits`."""
    return ranges | {e.name: limits} if isinstance(e, Var) else ranges
