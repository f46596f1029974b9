"""⑥ K-interleaving: partial sums of a channel side by side, where channels leave lanes idle.

24 channels are one and a half vectors of 16: a quarter of all multiply-adds would compute nothing.
With the even and the odd terms of the sum apart they are 48 sums in three vectors, to be added up
in pairs at the end. One vector of channels needs a load for every multiply-add; two need fewer.
"""

from __future__ import annotations

from autotune.schedule.steps import ComputeInline, Interleave
from autotune.search.partial import Partial
from autotune.search.space import Tag
from autotune.target import Target
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Reduce, variables
from autotune.te.windows import moves_with_last

_FACTORS = (1, 2, 4, 8)
_MAX_VECTORS = 8
"""With more vectors of channels than this less than one in nine lanes is idle."""
_ALONE = 0.85
"""Value of a single vector per load, over that of several."""
_GAIN = 1.05
"""Least gain that is worth measuring."""
_NEAR = 0.85
"""A smaller factor that is nearly as good as the best is worth measuring too: its tiles are less
wide."""


def interleaving(dag: ComputeDAG, anchor: Compute, target: Target) -> tuple[int, ...]:
    """Numbers of partial sums of a channel that use the lanes of vectors well; none where no number
    does better than 1.

    The constants that `anchor` multiplies with are packed in that order, all else must be the same
    for all channels.
    """
    channel, last = anchor.axes[-1], anchor.reduce_axes[-1]
    shared = any(a.extent > 1 for a in anchor.axes[:-1]) and not moves_with_last(anchor)
    is_sum = isinstance(anchor.body, Reduce) and anchor.body.op == "sum"
    few = channel.extent <= _MAX_VECTORS * target.lanes
    if not (shared and is_sum and few and _by_constants(dag, anchor)):
        return ()
    used = {
        n: _lanes_used(n * channel.extent, target.lanes) for n in _FACTORS if last.extent % n == 0
    }
    best = max(used, key=used.__getitem__)
    least = max(_GAIN * used[1], _NEAR * used[best])
    return tuple(n for n in used if n <= best and used[n] > least)


def _lanes_used(n: int, lanes: int) -> float:
    vectors = -(-n // lanes)
    return n / (vectors * lanes) * (_ALONE if vectors == 1 else 1.0)


def _by_constants(dag: ComputeDAG, anchor: Compute) -> bool:
    """Whether only constants differ from channel to channel."""
    channel = anchor.axes[-1].name
    tensors = (
        x.tensor.name for x in anchor.reads if any(channel in variables(i) for i in x.indices)
    )
    return all(map(dag.is_constant, tensors))


def interleave_tags(factor: int) -> tuple[Tag, ...]:
    """The tag of a structure with `factor` partial results of a channel side by side."""
    tags = {2: Tag.INTERLEAVED2, 4: Tag.INTERLEAVED4, 8: Tag.INTERLEAVED8}
    return (tags[factor],) if factor > 1 else ()


def in_parts(p: Partial, anchor: Compute, factor: int) -> tuple[Partial, Compute, Compute]:
    """The sum of `factor` partial results of each channel, and these, side by side."""
    name = f"{anchor.name}.parts"
    out = p.add(Interleave(anchor.name, factor, name))
    return out, out.state[anchor.name].op, out.state[name].op


def interleaved(
    p: Partial, op: Compute, anchor: Compute, factor: int
) -> tuple[Partial, Compute, Compute]:
    """Consumer `op`, which adds up the `factor` partial sums of `anchor`."""
    if factor == 1:
        return p, op, anchor
    out, total, parts = in_parts(p, anchor, factor)
    out = out.add(ComputeInline(total.name))
    return out, out.state[op.name].op, parts
