"""⑥ Ragged reductions, as with sparse weights: all accumulators in registers over a whole row.

    parallel  blocks of every spatial axis
      tiles within the block
        the ragged loop, as long as the row is: blocks of weights that are there
          terms within a block
            register tile: unrolled axes that share the row × vectors of the innermost axis
        consumer on the register tile

A register tile is one wide along the axes by which rows differ, so one length holds for all of it.
What is read there lies in the order of reading: nothing is packed. Where rows differ along the
innermost axis, there are no vectors.
"""

from __future__ import annotations

from autotune.schedule.steps import Annotate, ComputeAt, Hole, Parallel, Reorder, Split
from autotune.search.partial import Partial, unroll_last
from autotune.search.rules.tiling import Loops, root_and_anchor, tile_consumer
from autotune.search.rules.variants import TilingVariant
from autotune.search.space import Tag
from autotune.target import Target
from autotune.te.dag import Compute
from autotune.te.ragged import ragged_axes, rows_of


def tile_ragged_reduction(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Multi-level tiling of a pointwise stage around a ragged reduction that feeds it."""
    found = root_and_anchor(p.state, name)
    if found is None or not ragged_axes(found[1]):
        return None
    op, anchor = found
    rename = dict(zip((a.name for a in anchor.axes), op.axes, strict=True))
    rows = {rename[n].name for n in rows_of(anchor)}
    if op.axes[-1].name in rows:
        return [_scalar(p, op, anchor)]
    orders = (True, False) if op.axes[-1].extent > target.lanes else (False,)
    variants = [TilingVariant(panels_outside=o, channels_outside=c) for o in orders for c in orders]
    return [_tiled(p, op, anchor, v, rows, target) for v in variants]


def _scalar(p: Partial, op: Compute, anchor: Compute) -> Partial:
    """One result after the other."""
    last = op.axes[-1].name
    out = p.add(Parallel(op.name, len(op.axes)), ComputeAt(anchor.name, op.name, last))
    return out.add(done=(op.name, anchor.name), tags=(Tag.RAGGED,))


def _tiled(
    p: Partial, op: Compute, anchor: Compute, v: TilingVariant, rows: set[str], target: Target
) -> Partial:
    out, loops = tile_consumer(p, op, target, v, rows)
    out = _place(out, op, anchor, loops)
    return out.add(done=(op.name, anchor.name), tags=(Tag.RAGGED, *v.tags))


def _place(p: Partial, op: Compute, anchor: Compute, loops: Loops) -> Partial:
    """The reduction on the register tile: its terms, then the tile."""
    a, last = anchor.name, anchor.reduce_axes[-1]
    channel = anchor.axes[-1].name
    pixels = [x.name for x in anchor.axes[:-1]]
    reduction, unrolled = [x.name for x in anchor.reduce_axes], list[str]()
    out = p.add(ComputeAt(a, op.name, loops.tiles[-1]))
    out = out.add(Split(a, channel, (Hole(f"{loops.prefix}lanes"),)))
    if last.limit is None:
        out, reduction, unrolled = unroll_last(out, anchor, last, reduction, loops.prefix)
    order = (*(n for n in reduction if n not in unrolled), *unrolled, *pixels)
    out = out.add(Reorder(a, (*order, f"{channel}.0", f"{channel}.1")))
    marks = [Annotate(a, n, "unroll") for n in (*unrolled, *pixels, f"{channel}.0")]
    return out.add(*marks, Annotate(a, f"{channel}.1", "vectorize"))
