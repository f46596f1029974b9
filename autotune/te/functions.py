"""② Functions of the expression language: reductions, choices, mathematics.

Named as NumPy's, so they are used with their module: `te.sum`, `te.max`, `te.exp`. Operands are
single elements or numbers, and the result is one element of the operands' dtype. Functions of one
value take floats; how exact they are is in docs/numbers.md. Another dtype, or two that differ,
raise DefinitionError.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.dtypes import limits_within
from autotune.te.expr import BOOL, select
from autotune.te.values import (
    Expression,
    Operand,
    ReduceAxis,
    aligned,
    arithmetic,
    as_expression,
    fail,
    function_of,
    joined,
    of_integers,
    reduction,
    require_dtype,
    value_of,
)


def sum(value: Operand, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expression:
    """Σ of `value` over the reduction axes; the whole value of a `compute`.

    In float32 for values in half precision, in int32 for integers of 8 or 16 bits: that is the
    dtype of the result. Factors are widened by `.astype` before they are multiplied, for products
    of integers wrap as well.
    """
    return reduction("sum", value, axis)


def prod(value: Operand, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expression:
    """The product of `value` over the reduction axes, in the dtype that `sum` has."""
    return reduction("prod", value, axis)


def max(value: Operand, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expression:
    """The largest `value` over the reduction axes; see `maximum` for that of two values."""
    return reduction("max", value, axis)


def min(value: Operand, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expression:
    """The smallest `value` over the reduction axes; see `minimum` for that of two values."""
    return reduction("min", value, axis)


def bit_and(value: Operand, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expression:
    """The bits that integers have set for all values of the reduction axes."""
    return reduction("bitand", value, axis)


def bit_or(value: Operand, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expression:
    """The bits that integers have set for some value of the reduction axes."""
    return reduction("bitor", value, axis)


def trailing_zeros(x: Operand) -> Expression:
    """Zeros below the lowest bit that is set of an integer; all of its bits where it is 0."""
    return function_of("trailing_zeros", x)


def maximum(a: Operand, b: Operand) -> Expression:
    """The larger of two values."""
    return arithmetic("max", a, b)


def minimum(a: Operand, b: Operand) -> Expression:
    """The smaller of two values."""
    return arithmetic("min", a, b)


def clip(x: Operand, low: Operand, high: Operand) -> Expression:
    """`x`, but not below `low` and not above `high`; NaN stays NaN."""
    return minimum(maximum(x, low), high)


def saturate(x: Operand, dtype: str) -> Expression:
    """`x` as a `dtype`, saturated: values outside of its range become its smallest or largest.

    Floats are rounded towards zero, so a quantised value is `te.saturate(te.round(x / s), "int8")`.
    """
    value = as_expression(x)
    if value.dtype == BOOL or require_dtype(dtype) == BOOL:
        fail("a condition does not saturate", "use .astype(dtype)")
    low, high = limits_within(dtype, value.dtype)
    return clip(value, low, high).astype(dtype)


def power(a: Operand, b: Operand) -> Expression:
    """a to the power of b."""
    return arithmetic("pow", a, b)


def quotient(a: Operand, b: Operand) -> Expression:
    """a / b of integers, rounded towards zero; 0 where b is 0."""
    return of_integers("quot", a, b)


def remainder(a: Operand, b: Operand) -> Expression:
    """a - b · quotient(a, b) of integers, with the sign of a; 0 where b is 0."""
    return of_integers("rem", a, b)


def integer_power(a: Operand, b: Operand) -> Expression:
    """a to the power of b, integers, modulo 2^bits; below b = 0 rounded towards zero."""
    return of_integers("ipow", a, b)


def byte_dot(a: Operand, b: Operand) -> Expression:
    """Σ of products of the bytes of integers, modulo 2^bits: those of a unsigned, of b signed.

    An int32 holds four bytes, the first one in its lowest bits.
    """
    return of_integers("bytedot", a, b)


def where(condition: Operand, a: Operand, b: Operand) -> Expression:
    """`a` where `condition` holds, else `b`.

    A condition on indices alone is a guard: what it does not choose is not read, so padding is
    `te.where(i > 0, x[i - 1], 0)`. Where data decide, both sides are read.
    """
    chosen = as_expression(condition)
    if chosen.dtype != BOOL:
        fail(f"the condition of te.where is a {chosen.dtype}", "compare: te.where(i < 8, a, b)")
    x, y = aligned(a, b)
    reads = joined(*chosen.reads, *x.reads, *y.reads)
    return Expression(select(value_of(chosen), value_of(x), value_of(y)), reads)


def exp(x: Operand) -> Expression:
    """e^x."""
    return function_of("exp", x)


def log(x: Operand) -> Expression:
    """Natural logarithm."""
    return function_of("log", x)


def sqrt(x: Operand) -> Expression:
    """Square root."""
    return function_of("sqrt", x)


def rsqrt(x: Operand) -> Expression:
    """1 / √x."""
    return function_of("rsqrt", x)


def tanh(x: Operand) -> Expression:
    """Hyperbolic tangent."""
    return function_of("tanh", x)


def erf(x: Operand) -> Expression:
    """Error function."""
    return function_of("erf", x)


def sigmoid(x: Operand) -> Expression:
    """1 / (1 + e^-x)."""
    return function_of("sigmoid", x)


def abs(x: Operand) -> Expression:
    """Absolute value."""
    return function_of("abs", x)


def floor(x: Operand) -> Expression:
    """The largest whole number that is not above x, as a float."""
    return function_of("floor", x)


def ceil(x: Operand) -> Expression:
    """The smallest whole number that is not below x, as a float."""
    return function_of("ceil", x)


def round(x: Operand) -> Expression:
    """The nearest whole number as a float; halves go to the even one."""
    return function_of("round", x)
