"""① Reductions along axes: sums, means, norms, extrema and where they are, global pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from autotune.dtypes import is_float
from autotune.graph.ir import Array, Node, Shape
from autotune.graph.operators.definition import (
    FLOATS,
    POINT,
    Factors,
    Layout,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    literal,
    read,
    tensor,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Call,
    Const,
    Expr,
    Reduce,
    Tensor,
    binary,
    call,
    compare,
    f32,
    idx,
    select,
)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction `op` of `before(x)`; `after` is "mean" or a function of the result.

    `of_one`: the operator that is left where no axis is reduced.
    """

    op: str
    before: Callable[[Expr], Expr] = lambda e: e
    after: str = ""
    of_one: str = "Identity"


def square(e: Expr) -> Expr:
    """e²."""
    return e * e


MEAN, MAXIMUM = Reduction("sum", after="mean"), Reduction("max")


def _reduction(
    kind: Reduction, scope: Scope, node: Node, operands: Operands, shape: Shape
) -> Tensor:
    """A reduction over `node.attrs["axes"]`."""
    x = tensor(operands, 0)
    keep = bool(node.attrs.get("keepdims", 1))
    return reduced(scope, kind, x, tuple(node.attrs["axes"]), keep)


def _log_sum_exp(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """log Σ exp(x - max) + max over `node.attrs["axes"]`.

    An infinite maximum is replaced by 0: x - max would be NaN.
    """
    x, over = tensor(operands, 0), tuple(node.attrs["axes"])
    axes, keep = axes_of(x.shape), bool(node.attrs.get("keepdims", 1))
    top = fold(scope, "max", x, over, lambda e: e)
    largest = read(top, axes_of(top.shape))
    is_infinite = compare("eq", call("abs", largest), literal(math.inf))
    top = scope.compute("shift", axes_of(top.shape), select(is_infinite, f32(0.0), largest))
    below = scope.compute("sub", axes, read(x, axes) - read(top, axes))
    total = fold(scope, "sum", below, over, lambda e: call("exp", e), keep)
    outer = axes_of(total.shape)
    kept = iter(a for n, a in enumerate(outer) if not keep or n not in over)
    at = [idx(0) if n in over else next(kept).var for n in range(len(axes))]
    logarithm = call("log", total[tuple(a.var for a in outer)])
    return scope.compute("logsumexp", outer, logarithm + top[tuple(at)])


def reduced(scope: Scope, kind: Reduction, x: Tensor, over: tuple[int, ...], keep: bool) -> Tensor:
    """Reduce dimensions `over` of x; they become 1 or disappear."""
    after = kind.after
    total = fold(scope, kind.op, x, over, kind.before, keep)
    if not after:
        return total
    axes = axes_of(total.shape)
    element = read(total, axes) if total.shape else total[()]
    if after == "mean" and not is_float(x.dtype):
        count = Const(math.prod(x.shape[a] for a in over), x.dtype)
        return scope.compute("quot", axes, binary("quot", element, count))
    if after == "mean":
        scale = literal(1 / math.prod(x.shape[a] for a in over), x.dtype)
        return scope.compute("mul", axes, element * scale)
    return scope.compute(after, axes, Call(after, (element,)))


def fold(
    scope: Scope,
    op: str,
    x: Tensor,
    over: tuple[int, ...],
    before: Callable[[Expr], Expr],
    keep: bool = True,
) -> Tensor:
    """`op` of `before(x)` over dimensions `over` of x; they become 1 or disappear."""
    axes = axes_of(x.shape)
    reduced = tuple(Axis(f"r{axes[n].name}", axes[n].extent) for n in over)
    inner = dict(zip(over, reduced, strict=True))
    element = before(x[tuple(inner.get(n, a) for n, a in enumerate(axes))])
    if keep:
        outer = [Axis(a.name, 1) if n in inner else a for n, a in enumerate(axes)]
    else:
        outer = [a for n, a in enumerate(axes) if n not in inner]
    return scope.compute(op, outer or POINT, Reduce(op, element, reduced))


def _global_pool(
    kind: Reduction, scope: Scope, node: Node, operands: Operands, shape: Shape
) -> Tensor:
    """Mean or maximum over all spatial dimensions."""
    x = tensor(operands, 0)
    spatial = tuple(range(1, len(x.shape) - 1))
    return reduced(scope, kind, x, spatial, keep=True)


def _arg_extremum(kind: str, scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Position of the first (or last) largest or smallest element of dimension `axis`.

    NaN counts as the extremum, as in NumPy.
    """
    x = tensor(operands, 0)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(x.shape)
    r = Axis(f"r{axes[axis].name}", x.shape[axis])
    element = x[(*axes[:axis], r, *axes[axis + 1 :])]
    kept = (Axis(axes[axis].name, 1),) if len(shape) == len(axes) else ()
    outer = (*axes[:axis], *kept, *axes[axis + 1 :]) or POINT
    best = Reduce(kind, element, (r,))
    extremum = scope.compute(best.op, outer, best)
    is_last = node.attrs.get("select_last_index", 0)
    is_best = compare("eq", element, extremum[outer])
    if is_float(x.dtype):
        is_best = is_best | compare("ne", element, element)
    at = select(is_best, r.var, idx(-1 if is_last else r.extent))
    found = Reduce("max" if is_last else "min", at, (r,))
    return scope.compute("position", outer, found)


# --- rewrites ---------------------------------------------------------------------------------


def reduce_axes(node: Node, constants: dict[str, Array], rank: int) -> tuple[int, ...] | None:
    """Axes of a reduction: attribute or constant operand; None if computed at run time.

    An axis that is named twice, as 1 and -2 of three, is reduced once.
    """
    if "axes" in node.attrs:
        return tuple(dict.fromkeys(int(a) % rank for a in node.attrs["axes"]))
    name = node.inputs[1] if len(node.inputs) > 1 else ""
    if not name:
        return () if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    if name not in constants:
        return None
    axes = tuple(dict.fromkeys(int(a) % rank for a in constants[name].reshape(-1)))
    return axes or (() if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank)))


def _resolve(kind: Reduction, rw: Rewriter) -> None:
    """The axes become an attribute; a reduction over no axes becomes an elementwise operator."""
    axes = reduce_axes(rw.node, rw.constants, len(rw.kind(0).shape))
    if axes is None:
        raise rw.refuse("its axes are computed at run time")
    if axes:
        rw.again(rw.input(0), axes=axes)
    else:
        rw.result(kind.of_one, *[rw.input(0)] * (2 if kind.of_one == "Mul" else 1))


def _global_lp_pool(rw: Rewriter) -> None:
    """GlobalLpPool -> ReduceL1 or ReduceL2 over the spatial dimensions, or one LpPool window."""
    p, size = rw.attr("p", 2), rw.kind(0).shape[2:]
    if p < 1 or (p > 2 and not size):
        raise rw.refuse(f"p = {p}")
    if p > 2:
        rw.result("LpPool", rw.input(0), p=p, kernel_shape=size)
    else:
        axes = tuple(range(2, len(rw.type.shape)))
        rw.result(f"ReduceL{p}", rw.input(0), axes=axes, keepdims=1)


def _reduced(rw: Rewriter) -> Types:
    if "axes" not in rw.node.attrs:
        return []
    kind = rw.kind(0)
    over = {axis % len(kind.shape) for axis in rw.node.attrs["axes"]}
    if rw.attr("keepdims", 1):
        shape = tuple(1 if n in over else extent for n, extent in enumerate(kind.shape))
    else:
        shape = tuple(extent for n, extent in enumerate(kind.shape) if n not in over)
    return [replace(kind, shape=shape)]


def _record(kind: Reduction, **fields: Any) -> Operator:
    return Operator(
        define=partial(_reduction, kind),
        layout=Layout.REDUCTION,
        resolve=partial(_resolve, kind),
        typing=typed(fallback=_reduced),
        **fields,
    )


OPERATORS: Mapping[str, Operator] = {
    "ReduceSum": _record(Reduction("sum")),
    "ReduceMax": _record(MAXIMUM),
    "ReduceMin": _record(Reduction("min")),
    "ReduceProd": _record(Reduction("prod")),
    "ReduceMean": _record(MEAN),
    "ReduceL1": _record(Reduction("sum", lambda e: call("abs", e), of_one="Abs")),
    "ReduceL2": _record(Reduction("sum", square, "sqrt", of_one="Abs"), dtypes=FLOATS),
    "ReduceSumSquare": _record(Reduction("sum", square, of_one="Mul")),
    "ReduceLogSum": _record(Reduction("sum", after="log", of_one="Log"), dtypes=FLOATS),
    "ReduceLogSumExp": Operator(
        define=_log_sum_exp,
        dtypes=FLOATS,
        layout=Layout.REDUCTION,
        resolve=partial(_resolve, Reduction("sum")),
        typing=typed(fallback=_reduced),
    ),
    **{
        name: Operator(
            factors=Factors(n_narrow=1, takes_prologue=True),
            define=partial(_global_pool, kind),
            dtypes=FLOATS,
            layout=Layout.SPATIAL,
        )
        for name, kind in (("GlobalAveragePool", MEAN), ("GlobalMaxPool", MAXIMUM))
    },
    "GlobalLpPool": Operator(canonical=_global_lp_pool),
    "ArgMax": Operator(define=partial(_arg_extremum, "max")),
    "ArgMin": Operator(define=partial(_arg_extremum, "min")),
}
