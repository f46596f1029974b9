"""② Lengths of the rows of a ragged reduction: bounds that hold for any data.

    y[m, i, n] = Σ_b<most and p[i + 1] - p[i], k<4   x[m, at[p[i] + b] + k] · v[p[i] + b, k, n]

All rows together are as long as the dimension that `p[i] + b` runs over, so the average is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.te.expr import Axis, Expr, Load, Reduce, Var, children, loads, variables


def n_elements(body: Expr, axis: Axis) -> int | None:
    """Steps of all rows of a ragged axis together; None where `body` reads nothing along it."""
    sizes = [
        size
        for x in loads(body)
        for index, size in zip(x.indices, x.tensor.shape, strict=True)
        if _moves(index, axis.name)
    ]
    return min(sizes, default=None)


def _moves(index: Expr, name: str) -> bool:
    """Whether `name` is a part of an index itself, not of the source of one."""
    match index:
        case Var():
            return index.name == name
        case Load():
            return False
        case _:
            return any(_moves(c, name) for c in children(index))


def mean_extent(reduction: Reduce, axes: Sequence[Axis], axis: Axis) -> int:
    """Steps of an axis of `reduction` on average over its rows, rounded up; at least 1.

    `axes`: the spatial ones, by which rows differ. Of an axis that is not ragged, its extent.
    """
    total = None if axis.limit is None else n_elements(reduction.body, axis)
    if axis.limit is None or total is None:
        return axis.extent
    rows = math.prod(a.extent for a in axes if a.name in variables(axis.limit))
    return max(1, min(axis.extent, -(-total // rows)))
