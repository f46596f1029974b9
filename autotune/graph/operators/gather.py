"""① Gather and OneHot: operators whose operands hold indices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.graph.ir import Array, Node, Shape
from autotune.graph.limits import check_constant
from autotune.graph.operators.definition import (
    NO_TRAITS,
    POINT,
    Fusion,
    Operands,
    Operator,
    Scope,
    Trait,
    axes_of,
    inside,
    tensor,
    typed,
)
from autotune.graph.operators.movement import taken_from
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import INDEX, Expr, Tensor, cast, idx, select
from autotune.units import format_shape


def chosen(index: Expr, extent: int) -> Expr:
    """The position that an element of an ONNX index stands for: negative ones count from the end.

    An index outside of the dimension is clamped, so that no input makes a kernel read elsewhere.
    """
    at = cast(INDEX, index)
    at = select(at < 0, at + extent, at)
    return inside(at, extent)


def _gather(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = x[a…, index[i…], b…] with the index at dimension `axis`."""
    x, index = tensor(operands, 0), tensor(operands, 1)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(shape)
    last = axis + len(shape) - len(x.shape) + 1
    at = index[axes[axis:last] or (idx(0),)]
    element = x[(*axes[:axis], chosen(at, x.shape[axis]), *axes[last:])]
    return scope.compute("gather", axes or POINT, element)


def _gather_elements(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i…] but index[i…] at dimension `axis`."""
    x, index = tensor(operands, 0), tensor(operands, 1)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(shape)
    at = chosen(index[axes], x.shape[axis])
    return scope.compute("gather", axes, x[(*axes[:axis], at, *axes[axis + 1 :])])


def _gather_nd(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = x[a…, index[a…, i…, 0], index[a…, i…, 1], …, b…]; `batch_dims` are a…"""
    x, index = tensor(operands, 0), tensor(operands, 1)
    n_batch, n_rows = node.attrs.get("batch_dims", 0), len(index.shape) - 1
    axes = axes_of(shape)
    at = [
        chosen(index[(*axes[:n_rows], idx(k))], x.shape[n_batch + k])
        for k in range(index.shape[-1])
    ]
    element = x[(*axes[:n_batch], *at, *axes[n_rows:])]
    return scope.compute("gather", axes or POINT, element)


# --- rewrites ---------------------------------------------------------------------------------

_MOST_RUNS = 64
"""Most slices that a Gather of constant indices becomes."""


def _to_slices(rw: Rewriter) -> None:
    """Gather of a few arithmetic runs of constants -> one Slice per run, Concat, Reshape."""
    shape, index = rw.kind(0).shape, rw.value(1)
    rank = len(shape)
    axis = rw.attr("axis", 0) % rank
    runs = [] if index is None else _runs((index.reshape(-1) % shape[axis]).tolist())
    if not 0 < len(runs) <= _MOST_RUNS:
        return
    parts = []
    for run in runs:
        starts, steps = (
            [n if a == axis else m for a in range(rank)] for n, m in ((run.start, 0), (run.step, 1))
        )
        taken = (*shape[:axis], len(run), *shape[axis + 1 :])
        parts.append(taken_from(rw, taken, starts, steps))
    rw.result("Reshape", rw("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0])


def _runs(values: list[int]) -> list[range]:
    """The values as arithmetic progressions, greedily from the first value on."""
    runs: list[range] = []
    while values:
        step = values[1] - values[0] if len(values) > 1 else 1
        n = 1
        while step and n < len(values) and values[n] == values[0] + n * step:
            n += 1
        runs.append(range(values[0], values[0] + n * (step or 1), step or 1))
        values = values[n:]
    return runs


def _one_hot(rw: Rewriter) -> None:
    """OneHot -> Where(index == 0, 1, 2, …; on, off); negative indices count from the end."""
    index, _, pair = rw.node.inputs
    n, values = rw.value(1), rw.value(2)
    if n is None:
        raise rw.refuse("its depth is computed at run time")
    shape, dtype = rw.type.shape, rw.kind(0).dtype
    axis = rw.attr("axis", -1) % len(shape)
    check_constant(rw.node, 8 * shape[axis])
    extent = np.array(n.reshape(-1)[0], dtype)
    at = rw("Reshape", index, shape=[1 if a == axis else d for a, d in enumerate(shape)])
    below = rw("Less", at, rw.array(np.zeros(1, dtype)))
    at = rw("Where", below, rw("Add", at, rw.array(extent.reshape(1))), at)
    places = np.arange(int(extent)).astype(dtype)
    places = places.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    hot = rw("Equal", at, rw.array(places))
    off, on = (
        rw.split(pair, (1, 1), 0) if values is None else (rw.array(v.reshape(1)) for v in values)
    )
    rw.result("Where", hot, on, off)


def _of_rows(rw: Rewriter) -> None:
    """GatherND(x, index[…, 1]) -> Gather(x, index[…])"""
    *places, n_told = rw.shape(1)
    if n_told == 1 and not rw.attr("batch_dims", 0):
        rw.result("Gather", rw.input(0), rw("Reshape", rw.input(1), shape=places), axis=0)


# --- checks -----------------------------------------------------------------------------------


def check_indices(rw: Rewriter, axis: int | None = None) -> str:
    """Constant indices lie inside of their table; others are clamped when the network runs."""
    index, shape = rw.value(1), rw.kind(0).shape
    places = rw.kind(1).shape
    if axis is None and not _are_beside(rw.node, shape, places):
        return f"indices of {format_shape(places)} beside {format_shape(shape)}"
    if index is None or not index.size:
        return ""
    if axis is None and rw.node.op.endswith("ND"):
        extents = np.array(extents_nd(rw.node, shape, index.shape))
    else:
        extents = np.array(shape[rw.attr("axis", 0) if axis is None else axis])
    outside = (index < -extents) | (index >= extents)
    return f"index {index[outside][0]} outside of {format_shape(shape)}" if outside.any() else ""


def _are_beside(node: Node, shape: Shape, index: Shape) -> bool:
    """Whether indices are no further than their table in the dimensions that they do not tell."""
    if node.op.endswith("Elements"):
        axis = node.attrs.get("axis", 0) % len(shape)
        pairs = zip(shape, index, strict=False)
        return all(d == axis or n >= extent for d, (n, extent) in enumerate(pairs))
    first: int = node.attrs.get("batch_dims", 0)
    return not node.op.endswith("ND") or shape[:first] == index[:first]


def extents_along(node: Node, shape: Shape, index: Shape) -> Shape:
    """The dimension that attribute `axis` names."""
    axis = node.attrs.get("axis", 0) % len(shape)
    return shape[axis : axis + 1]


def extents_nd(node: Node, shape: Shape, index: Shape) -> Shape:
    """The dimensions whose indices the last dimension of an index holds."""
    first: int = node.attrs.get("batch_dims", 0)
    return shape[first : first + index[-1]]


def _evaluate_elements(node: Node, given: list[Array]) -> list[Array]:
    """GatherElements; the reference implementation fails beyond 64 elements."""
    x, index = given
    axis = node.attrs.get("axis", 0) % x.ndim
    near = tuple(slice(None if d == axis else n) for d, n in enumerate(index.shape))
    taken: Array = np.take_along_axis(x[near], index, axis)
    return [taken]


def _gathering(traits: Trait = NO_TRAITS, **fields: Any) -> Operator:
    return Operator(
        fusion=Fusion.INJECTIVE,
        traits=traits | Trait.KEEPS_RANGE,
        typing=typed(check_indices),
        **fields,
    )


OPERATORS: Mapping[str, Operator] = {
    "Gather": _gathering(Trait.SELECTS, define=_gather, indexed=extents_along, resolve=_to_slices),
    "GatherElements": _gathering(
        define=_gather_elements, indexed=extents_along, evaluate=_evaluate_elements
    ),
    "GatherND": _gathering(define=_gather_nd, indexed=extents_nd, canonical=_of_rows),
    "OneHot": Operator(canonical=_one_hot, traits=Trait.AXIS_MAY_BE_RANK),
}
