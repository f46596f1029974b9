"""① CumSum and CumProd, and long dimensions cut into blocks.

    CumSum(x)  ->  CumSum within blocks + CumSum of the sums of preceding blocks, recursively

n elements take about n log n operations instead of n². `top_k` uses blocks as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import (
    Operands,
    Operator,
    Scope,
    axes_of,
    like_first,
    tensor,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Axis, Const, Reduce, Tensor, compare, select

_SHORT = 64
"""Most elements that are added term by term."""
_BLOCK = 16
"""Elements of a block: a vector."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running operator `op`: its reduction, its neutral element, the operators that reduce a
    block and that join two parts."""

    op: str
    reduction: str
    neutral: int
    whole: str
    joined: str


SUM = Running("CumSum", "sum", 0, "ReduceSum", "Add")


def reshaped(rw: Rewriter, x: str, axis: int, *extents: int, n_axes: int = 1) -> str:
    """x with `n_axes` dimensions from `axis` on replaced by `extents`."""
    shape = rw.types[x].shape
    return rw("Reshape", x, shape=(*shape[:axis], *extents, *shape[axis + n_axes :]))


def in_blocks(rw: Rewriter, x: str, axis: int, size: int, fill: float) -> str:
    """x (…, n, …) as (…, ⌈n / size⌉, size, …), padded with `fill` at the end."""
    kind = rw.types[x]
    n = kind.shape[axis]
    if n % size:
        more = np.full((*kind.shape[:axis], -n % size, *kind.shape[axis + 1 :]), fill, kind.dtype)
        x = rw("Concat", x, rw.array(more), axis=axis)
    return reshaped(rw, x, axis, -(-n // size), size)


def _running(kind: Running, rw: Rewriter) -> None:
    """CumSum or CumProd of a long dimension -> of blocks; see the module."""
    axis, shape = rw.value(1), rw.kind(0).shape
    at = int(axis.reshape(-1)[0]) % len(shape) if axis is not None else 0
    if axis is not None and shape[at] > _SHORT:
        rw.returns(_of_blocks(kind, rw, rw.input(0), at, rw.attr("exclusive", 0)))


def _of_blocks(kind: Running, rw: Rewriter, x: str, axis: int, exclusive: int) -> str:
    shape, attrs = rw.types[x].shape, {"exclusive": exclusive, "reverse": rw.attr("reverse", 0)}
    if shape[axis] <= _SHORT:
        return rw(kind.op, x, rw.array(np.array(axis)), shape=shape, **attrs)
    blocks = in_blocks(rw, x, axis, _BLOCK, kind.neutral)
    cut = rw.types[blocks].shape
    own = rw(kind.op, blocks, rw.array(np.array(axis + 1)), shape=cut, **attrs)
    total = rw(kind.whole, blocks, axes=(axis + 1,), keepdims=0)
    before = _of_blocks(kind, rw, total, axis, exclusive=1)
    joined = rw(kind.joined, own, reshaped(rw, before, axis, cut[axis], 1))
    whole = reshaped(rw, joined, axis, cut[axis] * _BLOCK, n_axes=2)
    return rw.slice(whole, (axis,), (0,), (shape[axis],))


def _accumulated(
    kind: Running, scope: Scope, node: Node, operands: Operands, shape: Shape
) -> Tensor:
    """y[…, i, …] = Σ or Π x[…, r, …] over r ≤ i, `exclusive`: r < i, `reverse`: r ≥ i."""
    x, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of(x.shape)
    r = Axis(f"r{axes[axis].name}", x.shape[axis])
    op = "g" if node.attrs.get("reverse", 0) else "l"
    counts = compare(f"{op}{'t' if node.attrs.get('exclusive', 0) else 'e'}", r.var, axes[axis].var)
    element = select(
        counts,
        x[(*axes[:axis], r, *axes[axis + 1 :])],
        Const(DTYPES[x.dtype].literal(kind.neutral), x.dtype),
    )
    return scope.compute("running", axes, Reduce(kind.reduction, element, (r,)))


def _resolve(rw: Rewriter) -> None:
    """The axis becomes an attribute."""
    axis = rw.value(1)
    if axis is None:
        raise rw.refuse("its axis is computed at run time")
    at = int(axis.reshape(-1)[0]) % len(rw.type.shape)
    rw.again(rw.input(0), axis=at)


def _check_axis(rw: Rewriter) -> str:
    axis, rank = rw.value(1), len(rw.kind(0).shape)
    at = None if axis is None or axis.size != 1 else int(axis.reshape(-1)[0])
    return f"axis {at} of {rank} dimensions" if at is not None and not -rank <= at < rank else ""


def _record(kind: Running) -> Operator:
    return Operator(
        define=partial(_accumulated, kind),
        canonical=partial(_running, kind),
        resolve=_resolve,
        typing=typed(_check_axis, fallback=like_first),
    )


OPERATORS: Mapping[str, Operator] = {
    "CumSum": _record(SUM),
    "CumProd": _record(Running("CumProd", "prod", 1, "ReduceProd", "Mul")),
}
