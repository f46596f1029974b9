"""② Sums of products whose factors are narrower than the sum: what a dot instruction computes.

s = sum(cast(int32, x[m, k]) * cast(int32, w[k, n]), k)      uint8 · int8 -> int32
s = sum(cast(float32, x[m, k]) * cast(float32, w[k, n]), k)  bfloat16 · bfloat16 -> float32
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.dtypes import DTYPES
from autotune.target.isa import MultiplyAdd
from autotune.te.arith import linear
from autotune.te.dag import Compute
from autotune.te.expr import Axis, Binary, Cast, Expr, Load, Reduce, dtype_of, loads, variables

_LEAST_GROUPS = 4
"""Groups of terms in a matrix; with fewer its registers are all but empty."""


def factors(term: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a product as they are before they are widened; None where it is none."""
    match term:
        case Binary(op="mul", a=Cast(a=a), b=Cast(a=b)):
            return a, b
    return None


def in_order(form: MultiplyAdd, a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """The factors in the order in which `form` takes them; None where it takes no such types.

    What is narrower than an operand of the form is widened in registers.
    """
    for pair in ((a, b), (b, a)):
        if all(_holds(o, dtype_of(e)) for o, e in zip(form.operands, pair, strict=True)):
            return pair
    return None


def _holds(operand: str, dtype: str) -> bool:
    """Whether every value of `dtype` is one of `operand`: the same type, or narrower integers."""
    wide, narrow = DTYPES[operand], DTYPES[dtype]
    if not (wide.is_integer and narrow.is_integer):
        return operand == dtype
    return wide.low <= narrow.low and narrow.high <= wide.high


def dot_forms(op: Compute, forms: tuple[MultiplyAdd, ...]) -> tuple[MultiplyAdd, ...]:
    """The forms on vectors that add up several terms of the last reduction axis of `op` at once.

    The terms are of one length, and they move a factor or the other.
    """
    pair = _factors_of(op)
    if pair is None:
        return ()
    last = op.reduce_axes[-1]
    return tuple(
        f
        for f in forms
        if f.terms > 1
        and f.unit is None
        and last.extent % f.terms == 0
        and dtype_of(op.body) == f.accumulator
        and in_order(f, *pair)
    )


def _factors_of(op: Compute) -> tuple[Expr, Expr] | None:
    """The factors of a sum along whose last axis terms can be added up at once."""
    if not isinstance(op.body, Reduce) or op.body.op != "sum":
        return None
    pair, last = factors(op.body.body), op.reduce_axes[-1]
    moves = last.limit is None and last.name in variables(op.body.body)
    return pair if moves else None


@dataclass(frozen=True, slots=True)
class Matrices:
    """A sum as products of matrices by `form`: c[rows, columns] += a[rows, k] · b[k, columns].

    `rows`: the position of the axis that moves `a` alone; columns are the last axis, k the last one
    of the reduction, of which an instruction takes `groups` groups of the terms of `form`.
    """

    form: MultiplyAdd
    a: Load
    b: Load
    rows: int
    groups: int


def as_matrices(op: Compute, forms: tuple[MultiplyAdd, ...]) -> Matrices | None:
    """`op` by one of `forms` that multiply matrices; None where it is no such product.

    A row of `a` is contiguous along k; all rows of it are equally far apart. Factors are not
    widened in between: they are of the very types of the form.
    """
    pair = _factors_of(op)
    if pair is None or len(op.axes) < 2:
        return None
    columns, last = op.axes[-1], op.reduce_axes[-1]
    for a, b in (pair, pair[::-1]):
        if not isinstance(a, Load) or not isinstance(b, Load):
            return None
        rows = _rows(op, a, b)
        if rows is None or columns.name in _moving(a) or columns.name not in _moving(b):
            continue
        types = (a.tensor.dtype, b.tensor.dtype)
        for form in forms:
            fits = form.unit and form.operands == types and form.accumulator == op.tensor.dtype
            groups = _groups(last.extent, form) if fits and _is_contiguous(a, last) else 0
            if groups >= _LEAST_GROUPS:
                return Matrices(form, a, b, op.axes.index(rows), groups)
    return None


def _moving(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*map(variables, load.indices))


def _rows(op: Compute, a: Load, b: Load) -> Axis | None:
    """The axis of most rows, up to those of a register, that moves `a` evenly and not `b`."""
    found = [
        x
        for x in op.axes[:-1]
        if x.extent > 1
        and x.name in _moving(a) - _moving(b)
        and not any(linear(i).is_opaque_in(x.name) for i in a.indices)
    ]
    return max(reversed(found), key=lambda x: min(x.extent, 16), default=None)


def _is_contiguous(a: Load, last: Axis) -> bool:
    """Whether neighbours along `last` are neighbours in memory."""
    *others, index = map(linear, a.indices)
    if any(map(loads, a.indices)) or index.is_opaque_in(last.name):
        return False
    apart = any(i.is_opaque_in(last.name) or i.coefficient(last.name) for i in others)
    return index.coefficient(last.name) == 1 and not apart


def _groups(extent: int, form: MultiplyAdd) -> int:
    """Most groups of terms, up to the rows of a register, that divide the reduction; 0: none."""
    most = form.unit.rows if form.unit else 0
    n, rest = divmod(extent, form.terms)
    return 0 if rest else max((g for g in range(1, most + 1) if n % g == 0), default=0)
