"""① ScatterND and ScatterElements: a copy of a tensor with updates at places that an index holds.

    ScatterND(x, index, u)          y[p…, r…] = x[p…, r…] ⊕ Σ_k [index[k] is p…] u[k, r…]
    ScatterElements(x, index, u)    y[i…] = x[i…] ⊕ Σ_k [index[…, k, …] is i_axis] u[…, k, …]

⊕ and Σ are the attribute `reduction`: a sum, product, minimum or maximum. Without one the last of
several updates of an element is kept, which is the largest k. Negative indices count from the end;
one outside of the dimension is clamped. At constant places it is a Gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import prod

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Node, Shape
from autotune.graph.operators.definition import Operands, Operator, Scope, axes_of, tensor, typed
from autotune.graph.operators.gather import check_indices, chosen, extents_along, extents_nd
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    binary,
    both,
    cast,
    compare,
    idx,
    maximum,
    select,
)
from autotune.te.reductions import REDUCE_BINARY, identity

_REDUCTIONS = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}
_PLACE = "int32"
"""The number of an update; there are fewer than 2³¹ elements."""

ALWAYS: Expr = Const(True, "bool")
_Read = Callable[[Expr], Expr]
"""The number of an update -> its term of an element, or whether it is one of that element."""


def _scatter_rows(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """ScatterND of index (k, places) and updates (k, …): every update is a slice of the result."""
    x, index, updates = (tensor(operands, n) for n in range(3))
    axes = axes_of(shape)
    outer, rest = axes[: index.shape[1]], axes[index.shape[1] :]

    def hits(k: Expr) -> Expr:
        at = (chosen(index[k, idx(n)], a.extent) for n, a in enumerate(outer))
        return reduce(both, (compare("eq", p, a.var) for p, a in zip(at, outer, strict=True)))

    def update(k: Expr) -> Expr:
        return updates[(k, *rest)]

    return _scattered(scope, node, x, Axis("k", index.shape[0]), hits, update, outer)


def _scatter_along(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """ScatterElements: every update is an element, placed along one dimension.

    The index repeats along dimensions in which it is 1 and the updates are longer.
    """
    x, index, updates = (tensor(operands, n) for n in range(3))
    axis, axes = node.attrs.get("axis", 0) % len(shape), axes_of(shape)

    def at(k: Expr) -> tuple[Axis | Expr, ...]:
        return (*axes[:axis], k, *axes[axis + 1 :])

    def hits(k: Expr) -> Expr:
        place = (idx(0) if n == 1 else i for n, i in zip(index.shape, at(k), strict=True))
        return compare("eq", chosen(index[tuple(place)], shape[axis]), axes[axis].var)

    sides = (
        a < n
        for d, (a, n) in enumerate(zip(axes, updates.shape, strict=True))
        if d != axis and n < a.extent
    )
    inside = reduce(both, sides, ALWAYS)
    k = Axis("k", updates.shape[axis])
    return _scattered(scope, node, x, k, hits, lambda k: updates[at(k)], axes, inside)


def _scattered(
    scope: Scope,
    node: Node,
    x: Tensor,
    k: Axis,
    hits: _Read,
    update: _Read,
    placed: tuple[Axis, ...],
    inside: Expr = ALWAYS,
) -> Tensor:
    """x with update k where it `hits`; `placed`: the axes that this depends on.

    `inside`: whether there are updates of an element at all, by its index alone.
    """
    axes, dtype = axes_of(x.shape), x.dtype
    kind = node.attrs.get("reduction", "none")
    if kind == "none":
        none = identity("max", _PLACE)
        number = select(hits(k.var), cast(_PLACE, k.var), none)
        last = Reduce("max", select(inside, number, none), (k,))
        which = scope.compute("which", placed, last)[placed]
        kept = update(cast("int64", maximum(which, Const(0, _PLACE))))
        taken = select(which >= Const(0, _PLACE), kept, x[axes])
        return scope.compute("scatter", axes, select(inside, taken, x[axes]))
    op, wide = _REDUCTIONS[kind], DTYPES[dtype].compute
    if dtype == "bool":  # or, and
        op, wide = {"sum": "max", "prod": "min"}.get(op, op), "uint8"
    neutral = identity(op, wide)
    term = select(inside, select(hits(k.var), cast(wide, update(k.var)), neutral), neutral)
    total = scope.compute("updates", axes, Reduce(op, term, (k,)))
    result = binary(REDUCE_BINARY[op], cast(wide, x[axes]), total[axes])
    return scope.compute("scatter", axes, cast(dtype, result))


# --- rewrites ---------------------------------------------------------------------------------


def _resolve(rw: Rewriter) -> None:
    """Updates of ScatterND are numbered along one dimension; see `_at_constants` for constants."""
    x, index, updates = rw.node.inputs
    kind = rw.attr("reduction", "none")
    shape, places, given = (rw.kind(n).shape for n in range(3))
    if kind not in ("none", *_REDUCTIONS):
        raise rw.refuse(f"reduction '{kind}'")
    if not prod(places) or not prod(shape):
        if prod(given):
            raise rw.refuse("its index is empty")
        rw.alias(x)
    elif kind == "none" and index in rw.constants:
        _at_constants(rw, rw.constants[index])
    elif rw.node.op == "ScatterElements":
        rw.again(x, _unexpanded(rw, index), updates)
    elif len(places) != 2:
        n_updates = prod(places[:-1])
        rows = rw("Reshape", index, shape=(n_updates, places[-1]))
        listed = rw("Reshape", updates, shape=(n_updates, *shape[places[-1] :]))
        rw.again(x, rows, listed)


def _unexpanded(rw: Rewriter, index: str) -> str:
    """Operand of an Expand of the same rank: a scatter of elements that is one of rows."""
    made = rw.maker(index, "Expand")
    if made is None or len(rw.types[made.inputs[0]].shape) != len(rw.types[index].shape):
        return index
    return made.inputs[0]


def _at_constants(rw: Rewriter, index: Array) -> None:
    """Scattering at constant indices -> Where(hit, Gather(updates, rows), x)."""
    x, updates, shape = rw.input(0), rw.input(2), rw.kind(0).shape
    at = _targets(rw.node, index)
    outer, rest = shape[: at.shape[1]], shape[at.shape[1] :]
    which = np.full(outer, -1)
    which[tuple((at % outer).T)] = np.arange(len(at))
    hit = rw.array((which >= 0).reshape(*outer, *(1 for _ in rest)))
    listed = rw("Reshape", updates, shape=(len(at), *rest))
    rows = rw.array(np.maximum(which, 0))
    rw.result("Where", hit, rw("Gather", listed, rows, shape=shape, axis=0), x)


def _targets(node: Node, index: Array) -> Array:
    """The target of every update, one row each: an index of the leading dimensions."""
    if node.op == "ScatterND":
        return index.reshape(-1, index.shape[-1])
    at = np.indices(index.shape)
    at[node.attrs.get("axis", 0)] = index
    return at.reshape(index.ndim, -1).T


def _check_rows(rw: Rewriter) -> str:
    """Updates of ScatterND have the shape that data and index tell, and indices are inside."""
    shape, index, updates = (rw.types[n].shape for n in rw.node.inputs)
    if index[-1] > len(shape):
        return f"{index[-1]} indices for {len(shape)} dimensions"
    wanted = (*index[:-1], *shape[index[-1] :])
    return check_indices(rw) if updates == wanted else _unlike(updates, wanted)


def _check_elements(rw: Rewriter) -> str:
    """Updates of ScatterElements have the shape of the index, which fits into the data."""
    shape, index, updates = (rw.types[n].shape for n in rw.node.inputs)
    axis = rw.attr("axis", 0) % len(shape)
    if updates != index or len(index) != len(shape):
        return _unlike(updates, index)
    if any(n > extent for d, (n, extent) in enumerate(zip(index, shape, strict=True)) if d != axis):
        return f"an index of {index} for data of {shape}"
    return check_indices(rw)


def _unlike(updates: Shape, wanted: Shape) -> str:
    return f"updates of {updates} instead of {wanted}"


OPERATORS: Mapping[str, Operator] = {
    "ScatterND": Operator(
        define=_scatter_rows,
        roles=("x", "index", "updates"),
        indexed=extents_nd,
        resolve=_resolve,
        typing=typed(_check_rows),
    ),
    "ScatterElements": Operator(
        define=_scatter_along,
        roles=("x", "index", "updates"),
        indexed=extents_along,
        resolve=_resolve,
        typing=typed(_check_elements),
    ),
}
