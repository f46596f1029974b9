"""② Value range of an expression: an interval, and whether NaN is possible.

    values_of(mul(x, f32(0.0)), read)    Values(0, 0) where `read` says that x is finite

Bounds are rounded as the operation itself is, which is monotone, so that 1 - 0 is exactly 1. Floats
of which nothing is known are taken to be within ±`LARGEST`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autotune.dtypes import DTYPES
from autotune.te.expr import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Select,
    children,
    dtype_of,
)

LARGEST = 2.0**40
"""Floats that a model is given are at most so large."""

_INF = math.inf
_ULPS = 16
"""Error of a function in units in the last place, at most, in any implementation."""


@dataclass(frozen=True, slots=True)
class Values:
    """Numbers from `low` to `high`, which may be infinite; `has_nan`: or NaN. Booleans: 0, 1."""

    low: float
    high: float
    has_nan: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether neither NaN nor an infinity is among them."""
        return not self.has_nan and self.low > -_INF and self.high < _INF

    def is_only(self, value: float) -> bool:
        """Whether `value` is the only one."""
        return not self.has_nan and self.low == value == self.high

    @property
    def is_whole(self) -> bool:
        """Whether the bounds are integers that float32 adds and multiplies without rounding."""
        return all(abs(x) < 1 << 24 and x == int(x) for x in (self.low, self.high))

    def holds_zero(self) -> bool:
        """Whether 0 is among them."""
        return self.low <= 0 <= self.high


ANYTHING = Values(-_INF, _INF, True)


def unknown(dtype: str) -> Values:
    """Values of data of a type."""
    record = DTYPES[dtype]
    if record.is_float:
        most = min(LARGEST, record.high)
        return Values(-most, most)
    return Values(0, 1) if record.kind == "bool" else Values(record.low, record.high)


def join(parts: Iterable[Values]) -> Values:
    """The values of any of some."""
    every = list(parts)
    return Values(
        min(v.low for v in every), max(v.high for v in every), any(v.has_nan for v in every)
    )


def values_of(e: Expr, read: Callable[[Expr], Values | None]) -> Values:
    """The values of `e`; `read` gives those of variables, loads and others that it knows better."""
    done: dict[int, Values] = {}

    def one(x: Expr) -> Values:
        found = done.get(id(x))
        if found is None:
            known = read(x)
            found = _computed(x, one) if known is None else known
            done[id(x)] = found
        return found

    return one(e)


def total(parts: Iterable[tuple[int, Values]], dtype: str) -> Values:
    """Values of a sum of `n` elements of each part."""
    every = [(n, v) for n, v in parts if n]
    low = sum(n * v.low for n, v in every)
    high = sum(n * v.high for n, v in every)
    meets = any(v.low == -_INF for _, v in every) and any(v.high == _INF for _, v in every)
    has_nan = meets or any(v.has_nan for _, v in every)
    if not all(v.is_whole for _, v in every) and DTYPES[dtype].is_float:
        size = sum(n * max(abs(v.low), abs(v.high)) for n, v in every)
        slack = size * sum(n for n, _ in every) * DTYPES["float32"].eps
        if math.isfinite(slack):  # of rounding, which keeps signs
            low = low - slack if low < 0 else max(low - slack, 0.0)
            high = high + slack if high > 0 else min(high + slack, 0.0)
    return _settled(low, high, has_nan, dtype)


def product(parts: Iterable[tuple[int, Values]], dtype: str) -> Values:
    """Values of a product of `n` elements of each part."""
    every = [v for n, v in parts if n]
    if all(v.is_only(1) for v in every):
        return Values(1, 1)
    if all(not v.has_nan and v.low >= 0 and v.high <= 1 for v in every):
        return Values(0, 1)
    has_nan = any(not v.is_finite for v in every)
    return _settled(-_INF, _INF, has_nan, dtype)


def _settled(low: float, high: float, has_nan: bool, dtype: str) -> Values:
    """The result of arithmetic: rounded, or wrapped."""
    record = DTYPES[dtype]
    low = -_INF if math.isnan(low) else low
    high = _INF if math.isnan(high) else high
    if not record.is_float:
        if record.kind != "bool" and not (record.low <= low and high <= record.high):
            return unknown(dtype)
        return Values(low, high)
    return Values(_rounded(low, dtype), _rounded(high, dtype), has_nan)


def _rounded(x: float, dtype: str) -> float:
    """`x` as a number of the type that the arithmetic of `dtype` is done in."""
    return x if math.isinf(x) else DTYPES[DTYPES[dtype].compute].rounded(x)


def _computed(e: Expr, of: Callable[[Expr], Values]) -> Values:
    match e:
        case Const(value=value):
            number = float(value)
            return ANYTHING if math.isnan(number) else Values(number, number)
        case Binary(op=op, a=a, b=b):
            return _binary(op, a, b, of)
        case Compare(op=op, a=a, b=b):
            return _compared(op, of(a), of(b), a == b)
        case Call(fn=fn, args=(a,)):
            return _called(fn, of(a), dtype_of(a))
        case Select(cond=cond, a=a, b=b):
            holds = of(cond)
            if holds.is_only(1):
                return of(a)
            return of(b) if holds.is_only(0) else join((of(a), of(b)))
        case Cast(dtype=dtype, a=a):
            return _cast(of(a), dtype_of(a), dtype)
        case _:
            for part in children(e):
                of(part)
            return ANYTHING


def _binary(op: str, a: Expr, b: Expr, of: Callable[[Expr], Values]) -> Values:
    x, y, dtype = of(a), of(b), dtype_of(a)
    has_nan = x.has_nan or y.has_nan
    match op:
        case "add":
            has_nan = has_nan or _cancel(x, y)
            return _settled(x.low + y.low, x.high + y.high, has_nan, dtype)
        case "sub":
            y = Values(-y.high, -y.low)
            has_nan = has_nan or _cancel(x, y)
            return _settled(x.low + y.low, x.high + y.high, has_nan, dtype)
        case "mul":
            return _product(x, y, has_nan, a == b, dtype)
        case "div":
            return _quotient(x, y, has_nan, dtype)
        case "min":
            return Values(min(x.low, y.low), min(x.high, y.high), has_nan)
        case "max":
            return Values(max(x.low, y.low), max(x.high, y.high), has_nan)
        case "and":
            return Values(min(x.low, y.low), min(x.high, y.high))
        case "or":
            return Values(max(x.low, y.low), max(x.high, y.high))
        case "pow":
            return _power(x, y, has_nan, dtype)
        case "floordiv" if y.low == y.high > 0 and x.is_finite:
            return Values(x.low // y.low, x.high // y.low)
        case "mod" if y.low == y.high > 0 and x.is_finite:
            same = x.low // y.low == x.high // y.low
            return Values(x.low % y.low, x.high % y.low) if same else Values(0, y.low - 1)
        case _:
            return ANYTHING if DTYPES[dtype].is_float else unknown(dtype)


def _cancel(x: Values, y: Values) -> bool:
    """Whether infinities of both signs may be added."""
    return (x.high == _INF and y.low == -_INF) or (x.low == -_INF and y.high == _INF)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _product(x: Values, y: Values, has_nan: bool, is_square: bool, dtype: str) -> Values:
    ends = [_times(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    for one, other in ((x, y), (y, x)):
        if one.holds_zero() and not (other.low > -_INF and other.high < _INF):
            has_nan = True
    low, high = min(ends), max(ends)
    if is_square:
        low = max(low, 0.0)
    return _settled(low, high, has_nan, dtype)


def _quotient(x: Values, y: Values, has_nan: bool, dtype: str) -> Values:
    if y.holds_zero() or not (y.low > -_INF and y.high < _INF):
        return ANYTHING
    ends = [a / b for a in (x.low, x.high) for b in (y.low, y.high)]
    return _settled(min(ends), max(ends), has_nan, dtype)


def _power(x: Values, y: Values, has_nan: bool, dtype: str) -> Values:
    if not x.is_finite or y.low != y.high or has_nan:
        return ANYTHING
    n = y.low
    if n == int(n) and n >= 0:
        ends = [_to_the(x.low, n), _to_the(x.high, n)]
        low = 0.0 if n % 2 == 0 and x.holds_zero() else min(ends)
        return _settled(low, max(ends), False, dtype)
    if x.low > 0 or (x.low >= 0 and n > 0):
        return _settled(0.0, _INF, False, dtype)
    return ANYTHING


def _to_the(x: float, n: float) -> float:
    try:
        return float(x**n)
    except OverflowError:
        return _INF if x > 0 or n % 2 == 0 else -_INF


def _compared(op: str, x: Values, y: Values, is_same: bool) -> Values:
    if x.has_nan or y.has_nan:
        return Values(0, 1)
    if is_same:
        return Values(1, 1) if op in ("le", "ge", "eq") else Values(0, 0)
    yes, no = {
        "lt": (x.high < y.low, x.low >= y.high),
        "le": (x.high <= y.low, x.low > y.high),
        "gt": (x.low > y.high, x.high <= y.low),
        "ge": (x.low >= y.high, x.high < y.low),
        "eq": (x.low == x.high == y.low == y.high, x.high < y.low or y.high < x.low),
        "ne": (x.high < y.low or y.high < x.low, x.low == x.high == y.low == y.high),
    }[op]
    return Values(1, 1) if yes else Values(0, 0) if no else Values(0, 1)


def _cast(x: Values, source: str, goal: str) -> Values:
    record = DTYPES[goal]
    if record.kind == "bool":
        if x.is_only(0):
            return Values(0, 0)
        return Values(0, 1) if x.holds_zero() else Values(1, 1)
    if record.is_float:
        return Values(_stored(x.low, goal), _stored(x.high, goal), x.has_nan)
    if not x.is_finite or not (record.low <= x.low and x.high <= record.high):
        return unknown(goal)
    return Values(math.trunc(x.low), math.trunc(x.high))


def _stored(x: float, dtype: str) -> float:
    return x if math.isinf(x) else DTYPES[dtype].rounded(x)


# --- functions ---------------------------------------------------------------------------------


def _called(fn: str, x: Values, dtype: str) -> Values:
    if fn in _EXACT:
        low, high = sorted((_EXACT[fn](x.low), _EXACT[fn](x.high)))
        if fn == "abs" and x.holds_zero():
            low = 0.0
        return Values(low, high, x.has_nan)
    if fn in _RISING and DTYPES[dtype].is_float:
        return _rising(fn, x, dtype)
    if fn == "rsqrt":
        root = _rising("sqrt", x, dtype)
        return _quotient(Values(1, 1), root, root.has_nan, dtype) if root.low > 0 else ANYTHING
    if fn in ("sin", "cos"):
        return Values(-1, 1, not x.is_finite)
    return ANYTHING


def _rising(fn: str, x: Values, dtype: str) -> Values:
    """Values of a function that grows: those at the bounds, and the error of an implementation."""
    function, least, most, start = _RISING[fn]
    eps = DTYPES[DTYPES[dtype].compute].eps
    has_nan = x.has_nan or x.low < start
    low, high = function(max(x.low, start)), function(max(x.high, start))
    if not math.isinf(low):
        low = max(least, low - abs(low) * _ULPS * eps)
    if not math.isinf(high):
        high = min(most, high + abs(high) * _ULPS * eps)
    if DTYPES[dtype].compute == "float32" and high < _VANISHED and least == 0:
        high = 0.0
    if high > DTYPES[DTYPES[dtype].compute].high:
        high = _INF
    return Values(low, high, has_nan)


_VANISHED = 1e-50
"""Far below half of the least denormal float32: what is not negative is 0."""


def _exp(x: float) -> float:
    return _INF if x > 709 else math.exp(x)


def _log(x: float) -> float:
    return -_INF if x <= 0 else math.log(x)


def _log1p(x: float) -> float:
    return -_INF if x <= -1 else math.log1p(x)


def _sqrt(x: float) -> float:
    return math.sqrt(x)


def _sigmoid(x: float) -> float:
    return 1 / (1 + _exp(-x))


def _atan(x: float) -> float:
    return math.atan(x)


_EXACT: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "neg": lambda x: -x,
    "not": lambda x: 1 - x,
    "floor": lambda x: x if math.isinf(x) else float(math.floor(x)),
    "ceil": lambda x: x if math.isinf(x) else float(math.ceil(x)),
    "round": lambda x: x if math.isinf(x) else float(round(x)),
}
_RISING: dict[str, tuple[Callable[[float], float], float, float, float]] = {
    "exp": (_exp, 0, _INF, -_INF),
    "log": (_log, -_INF, _INF, 0),
    "log1p": (_log1p, -_INF, _INF, -1),
    "sqrt": (_sqrt, 0, _INF, 0),
    "erf": (math.erf, -1, 1, -_INF),
    "tanh": (math.tanh, -1, 1, -_INF),
    "sigmoid": (_sigmoid, 0, 1, -_INF),
    "atan": (_atan, -2, 2, -_INF),
}
"""A function, its least and its largest value, and where it begins."""
