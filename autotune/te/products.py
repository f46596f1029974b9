"""② Sums of products whose factors are narrower than the sum: what a dot instruction computes.

s = sum(cast(int32, x[m, k]) * cast(int32, w[k, n]), k)      uint8 · int8 -> int32
s = sum(cast(float32, x[m, k]) * cast(float32, w[k, n]), k)  bfloat16 · bfloat16 -> float32

A term may be several such products, which then go to one accumulator one after the other.
"""

from __future__ import annotations

from typing import TypeAlias

from autotune.dtypes import DTYPES
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import Compute
from autotune.te.expr import Binary, Cast, Expr, Reduce, dtype_of, variables

Factors: TypeAlias = tuple[Expr, Expr]
"""The two factors of a product, as they are before they are widened."""


def products(term: Expr) -> tuple[Factors, ...]:
    """The products of narrow factors that `term` adds up, in order; none where it is no such sum.

    All are of one pair of types, so that one form of multiply-add takes them all.
    """
    found = _products(term)
    types = {tuple(dtype_of(e) for e in pair) for pair in found}
    return found if len(types) == 1 else ()


def _products(term: Expr) -> tuple[Factors, ...]:
    match term:
        case Binary(op="mul", a=Cast(a=a), b=Cast(a=b)):
            return ((a, b),)
        case Binary(op="add", a=a, b=b):
            left, right = _products(a), _products(b)
            return (*left, *right) if left and right else ()
    return ()


def in_order(form: MultiplyAdd, a: Expr, b: Expr) -> Factors | None:
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
    if not isinstance(op.body, Reduce) or op.body.op != "sum":
        return ()
    pairs, last = products(op.body.body), op.reduce_axes[-1]
    if not pairs or last.limit is not None or last.name not in variables(op.body.body):
        return ()
    return tuple(
        f
        for f in forms
        if f.terms > 1
        and f.unit is None
        and last.extent % f.terms == 0
        and dtype_of(op.body) == f.accumulator
        and in_order(f, *pairs[0])
    )
