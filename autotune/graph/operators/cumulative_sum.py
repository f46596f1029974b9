"""① CumSum and CumProd: scans, one element after the other, of one form for every length.

    y[…, i] = y[…, i - 1] + x[…, i]     exclusive: x[…, i - 1], reverse: from the end

The dimension comes last: parts along all others do not depend on one another.
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
from autotune.graph.operators.written_lengths import scan
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Const, Expr, Tensor, binary, compare, idx, maximum, select, sub


@dataclass(frozen=True, slots=True)
class Running:
    """A running operator: what joins two elements, and its neutral element."""

    join: str
    neutral: int


def _running(rw: Rewriter) -> None:
    """CumSum or CumProd along any dimension -> along the last."""
    axis, rank = rw.value(1), len(rw.kind(0).shape)
    if axis is None or (at := int(axis.reshape(-1)[0]) % rank) == rank - 1:
        return
    perm = (*(d for d in range(rank) if d != at), at)
    turned = rw("Transpose", rw.input(0), perm=perm)
    shape, attrs = rw.types[turned].shape, {k: rw.attr(k, 0) for k in ("exclusive", "reverse")}
    sums = rw(rw.node.op, turned, rw.array(np.array(rank - 1)), shape=shape, **attrs)
    rw.result("Transpose", sums, perm=tuple(int(d) for d in np.argsort(perm)))


def _accumulated(
    kind: Running, scope: Scope, node: Node, operands: Operands, shape: Shape
) -> Tensor:
    """y[…, i] = Σ or Π x[…, r] over r ≤ i, `exclusive`: r < i, `reverse`: r ≥ i."""
    x, is_reverse = tensor(operands, 0), bool(node.attrs.get("reverse", 0))
    *rows, i = axes_of(x.shape)
    neutral = Const(DTYPES[x.dtype].literal(kind.neutral), x.dtype)
    before, is_behind = maximum(sub(i.var, idx(1)), idx(0)), compare("lt", idx(0), i.var)

    def place(at: Expr) -> Expr:
        return sub(idx(x.shape[-1] - 1), at) if is_reverse else at

    def body(y: Tensor) -> Expr:
        own: Expr = x[(*rows, place(i.var))]
        if node.attrs.get("exclusive", 0):
            own = select(is_behind, x[(*rows, place(before))], neutral)
        return binary(kind.join, select(is_behind, y[(*rows, before)], neutral), own)

    running = scan(scope, "running", (*rows, i), x.dtype, body)
    if not is_reverse:
        return running
    return scope.compute("reversed", (*rows, i), running[(*rows, place(i.var))])


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
        canonical=_running,
        resolve=_resolve,
        typing=typed(_check_axis, fallback=like_first),
    )


OPERATORS: Mapping[str, Operator] = {
    "CumSum": _record(Running("add", 0)),
    "CumProd": _record(Running("mul", 1)),
}
