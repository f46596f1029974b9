"""② Intermediates that only move elements lie in the order of their operands.

    pad[h, w, c]  = x[c, h - 3, w - 3]           conv[…] += pad[2·h + kh, 2·w + kw, i] * …
 -> pad[c, h, w]  = x[c, h - 3, w - 3]           conv[…] += pad[i, 2·h + kh, 2·w + kw] * …

Then whole vectors are moved, and readers that broadcast one element to all lanes cost the same.
Readers with different elements in each lane would gather, so a tensor stays as it is when its
innermost dimension is read along an innermost axis.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder
from autotune.te.expr import Expr, Load, Tensor, map_expr, variables
from autotune.te.numbers import elements

Order = tuple[int, ...]
"""Old positions of dimensions, in their new order."""


def follow_sources(dag: ComputeDAG) -> ComputeDAG:
    """The same computation with the dimensions of such intermediates in another order."""
    return reordered(dag, {op.name: order for op in dag.computes if (order := _order(dag, op))})


def reordered(dag: ComputeDAG, orders: Mapping[str, Order]) -> ComputeDAG:
    """The same computation with dimension n of each tensor in `orders` where `order[n]` was."""
    tensors = {name: _permuted(dag[name].tensor, order) for name, order in orders.items()}

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.tensor.name not in orders:
            return None
        indices = tuple(map_expr(e.indices[n], one) for n in orders[e.tensor.name])
        return Load(tensors[e.tensor.name], indices)

    def moved(op: Op) -> Op:
        tensor = tensors.get(op.name, op.tensor)
        if isinstance(op, Placeholder):
            return Placeholder(tensor, op.constant)
        order = orders.get(op.name, tuple(range(len(op.axes))))
        return Compute(tensor, tuple(op.axes[n] for n in order), map_expr(op.body, one))

    return ComputeDAG(tuple(map(moved, dag.ops)), dag.outputs) if orders else dag


def _order(dag: ComputeDAG, op: Compute) -> Order | None:
    """The dimensions of `op` in the order of its source; None where it stays as it is."""
    if op.name in dag.outputs or op.reduce_axes or len(read := elements(op)) != 1:
        return None
    places = [_places(axis.name, read[0]) for axis in op.axes]
    if any(len(at) != 1 for at in places):
        return None
    order = tuple(sorted(range(len(op.axes)), key=lambda n: places[n][0]))
    if order[-1] == len(order) - 1 or len({at[0] for at in places}) != len(order):
        return None
    readers = dag.consumers(op.name)
    return None if any(_reads_along(r, op.name) for r in readers) else order


def _places(axis: str, load: Load) -> list[int]:
    return [n for n, index in enumerate(load.indices) if axis in variables(index)]


def _reads_along(reader: Compute, name: str) -> bool:
    """Whether the innermost axis of `reader` goes along the innermost dimension of `name`."""
    last = reader.axes[-1].name
    return any(last in variables(x.indices[-1]) for x in reader.reads if x.tensor.name == name)


def _permuted(tensor: Tensor, order: Order) -> Tensor:
    return Tensor(tensor.name, tuple(tensor.shape[n] for n in order), tensor.dtype)
