"""⑤ Quantising in few instructions: bounds before rounding, rounding and conversion as one.

    uint8(min(high, max(low, round(x) + float(z))))  ->  uint8(n + z)
    float(int32(the same) - int32(z))                ->  float(n)
    n = nearest(min(high - z, max(low - z, x)))          one instruction, halves to even

These are the numbers of the definition, for bounds and zero points are whole numbers that float32
holds, and so are their differences. What is dequantised at once is never made a small integer. NaN,
for which the definition has no number, is the lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.codegen.emission.arithmetic import Arithmetic
from autotune.codegen.emission.frame import Emitter, Guard
from autotune.codegen.emission.text import F32, Value, constant
from autotune.dtypes import DTYPES
from autotune.te.expr import Binary, Call, Cast, Const, Expr, dtype_of

_MOST_BITS = 16
"""Of integers whose sums and differences float32 holds."""


@dataclass(frozen=True, slots=True)
class _Saturated:
    """min(high, max(low, round(x) + float(zero))), within the range of an integer type."""

    x: Expr
    low: float
    high: float
    zero: Expr | None


def quantised(emitter: Emitter, do: Arithmetic, e: Cast, guard: Guard | None) -> Value | None:
    """The value of a cast that quantises, or of one that makes a number of what another one just
    quantised; None for any other cast."""
    is_number = e.dtype in ("int32", "float32")
    found = _saturated(e) or (_saturated(e.a) if is_number else None)
    if found is not None:
        return do.cast("int32", e.dtype, _stepped(emitter, do, found, guard))
    found = _less_zero(e.a) if is_number else None
    return None if found is None else do.cast("int32", e.dtype, _whole(emitter, do, found, guard))


def _saturated(e: Expr) -> _Saturated | None:
    """Operands of a saturating quantisation, if `e` is one."""
    if not isinstance(e, Cast) or not _is_short(e.dtype) or dtype_of(e.a) != "float32":
        return None
    high, rest = _bound("min", e.a)
    low, steps = _bound("max", rest)
    if not _holds(e.dtype, low, high):
        return None
    match steps:
        case Call(fn="round", args=(x,)):
            return _Saturated(x, low, high, None)
        case Binary(op="add", a=Call(fn="round", args=(x,)), b=Cast(a=zero)):
            return _Saturated(x, low, high, zero) if _is_short(dtype_of(zero)) else None
    return None


def _bound(op: str, e: Expr) -> tuple[float, Expr]:
    """The constant bound of a minimum or maximum and its operand; NaN and `e` of others."""
    match e:
        case Binary(op=found, a=Const(value=bound), b=x) if found == op:
            return float(bound), x
        case Binary(op=found, a=x, b=Const(value=bound)) if found == op:
            return float(bound), x
    return math.nan, e


def _is_short(dtype: str) -> bool:
    return DTYPES[dtype].is_integer and DTYPES[dtype].bits <= _MOST_BITS


def _holds(dtype: str, low: float, high: float) -> bool:
    kind = DTYPES[dtype]
    is_whole = low.is_integer() and high.is_integer()
    return is_whole and kind.low <= low <= high <= kind.high


def _less_zero(e: Expr) -> _Saturated | None:
    """Quantisation whose zero point `e` subtracts."""
    match e:
        case Binary(op="sub", a=Cast(dtype="int32", a=q), b=Cast(dtype="int32", a=zero)):
            found = _saturated(q)
            return found if found is not None and found.zero == zero else None
    return None


def _stepped(emitter: Emitter, do: Arithmetic, found: _Saturated, guard: Guard | None) -> Value:
    """Quantised value as an int32, zero point included."""
    whole = _whole(emitter, do, found, guard)
    if found.zero is None:
        return whole
    zero = do.cast(dtype_of(found.zero), "int32", emitter.value(found.zero, guard))
    return do.b.add(whole, emitter.broadcast(zero, whole.type.count))


def _whole(emitter: Emitter, do: Arithmetic, found: _Saturated, guard: Guard | None) -> Value:
    """`x` between the bounds less the zero point, rounded: an int32."""
    x = emitter.value(found.x, guard)
    low: Value = constant(F32, found.low)
    high: Value = constant(F32, found.high)
    if found.zero is not None:
        zero = do.cast(dtype_of(found.zero), "float32", emitter.value(found.zero, guard))
        low, high = (do.b.fsub(emitter.broadcast(b, zero.type.count), zero) for b in (low, high))
    count = max(x.type.count, low.type.count)
    x, low, high = (emitter.broadcast(v, count) for v in (x, low, high))
    return do.math.nearest(do.math.smaller(do.math.larger(x, low), high))
