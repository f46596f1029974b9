"""② Ragged reductions: axes whose length is read from a tensor, as the rows of a sparse matrix are.

See `lengths` for an example.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, Reduce, loads, variables
from autotune.te.lengths import mean_extent, n_elements


def ragged_axes(op: Compute) -> tuple[Axis, ...]:
    """The reduction axes of `op` that have a limit."""
    return tuple(a for a in op.reduce_axes if a.limit is not None)


def rows_of(op: Compute) -> frozenset[str]:
    """The spatial axes of `op` by which lengths of ragged axes differ."""
    found = (variables(a.limit) for a in op.reduce_axes if a.limit is not None)
    return frozenset[str]().union(*found)


def pointers(dag: ComputeDAG) -> dict[str, int]:
    """The tensors of the begins and ends of rows, and the number of elements of all rows."""
    found: dict[str, int] = {}
    for op in dag.computes:
        for axis in ragged_axes(op):
            total = n_elements(op.body.body, axis) if isinstance(op.body, Reduce) else None
            for x in loads(axis.limit) if axis.limit is not None else ():
                found[x.tensor.name] = axis.extent if total is None else total
    return found


@lru_cache(maxsize=256)
def on_average(dag: ComputeDAG) -> ComputeDAG:
    """`dag` with rows of average length: as much work, and no length that data decide."""
    if not any(ragged_axes(op) for op in dag.computes):
        return dag
    ops = (_regular(op) if isinstance(op, Compute) else op for op in dag.ops)
    return ComputeDAG(tuple(ops), dag.outputs)


def _regular(op: Compute) -> Compute:
    if not isinstance(op.body, Reduce) or not ragged_axes(op):
        return op
    reduction = op.body
    axes = tuple(Axis(a.name, mean_extent(reduction, op.axes, a)) for a in reduction.axes)
    return replace(op, body=Reduce(reduction.op, reduction.body, axes))
