"""② Windows: reductions over a few neighbours, channel by channel (depthwise, pooling)."""

from __future__ import annotations

import math

from autotune.te.dag import Compute
from autotune.te.expr import Const, Load, Select, is_guard, variables
from autotune.te.numbers import elements

MAX_WINDOW = 25
"""A window up to this many points may be unrolled whole inside a register tile."""


def is_window(op: Compute) -> bool:
    """Whether `op` reduces over at most `MAX_WINDOW` points, each of its own last index."""
    return (
        bool(op.reduce_axes and op.axes) and moves_with_last(op) and window_size(op) <= MAX_WINDOW
    )


def moves_with_last(op: Compute) -> bool:
    """Whether every load advances with the innermost axis: nothing is shared by its points."""
    last = op.axes[-1].name
    return all(any(last in variables(i) for i in x.indices) for x in elements(op))


def reuses(op: Compute) -> bool:
    """Whether neighbours along the innermost axis read the same: a product, not a window."""
    if not op.axes or moves_with_last(op):
        return False
    wide = {a.name for a in op.axes if a.extent > 1}
    return any(wide - {v for i in x.indices for v in variables(i)} for x in elements(op))


def window_size(op: Compute) -> int:
    """Points that a reduction takes together."""
    return math.prod(a.extent for a in op.reduce_axes)


def only_pads(op: Compute) -> bool:
    """Whether each element of `op` is one that it reads, or a constant around them."""
    body = op.body
    if not isinstance(body, Select) or not is_guard(body):
        return False
    return isinstance(body.a, Load) and isinstance(body.b, Const)
