"""⑤ Powers: exponents that take a few products, and all others by way of float64.

    x^y = ±2^(y·log2 |x|)

The logarithm is good to 2^-45 and its product with y has 53 bits, so that only the last rounding
shows: 0.6 units in the last place. What is special follows IEEE 754, as in C and NumPy: x^0 and 1^y
are 1, of NaN too; a negative number has powers of whole exponents alone.
"""

from __future__ import annotations

import math
from functools import partial, reduce

from autotune.codegen.emission.math import Math
from autotune.codegen.emission.text import F32, F64, I32, I64, Value, constant
from autotune.te.intrinsics import quarters_of

_LOG2: tuple[float, ...] = tuple(2 / math.log(2) / (2 * k + 1) for k in range(8, -1, -1))
"""log2((1 + s) / (1 - s)) / s in powers of s²; the next term is below 1e-16 for mantissas."""
_EXP2: tuple[float, ...] = tuple(math.log(2) ** k / math.factorial(k) for k in range(10, -1, -1))
"""2^r in powers of r; the next term is below 3e-13 for |r| ≤ ½."""
_ROUND = 1.5 * 2.0**52
_MOST = 300.0
"""2^±300 is beyond float32."""


def fixed_power(m: Math, x: Value, y: float) -> Value | None:
    """x^y by products and square roots; None where 4y is no small whole number."""
    quarters = quarters_of(y)
    if quarters is None:
        return None
    b = m.b
    one: Value = constant(x.type, 1.0)
    roots: list[Value] = []
    if quarters % 4:
        root = _root(m, x)
        roots = {1: [m.sqrt(root)], 2: [root], 3: [root, m.sqrt(root)]}[quarters % 4]
        x = m.intrinsic("fabs", x)  # -0 and -∞ have powers as if they were positive
    whole = [x] * (quarters // 4)
    if y >= -1:
        total = reduce(b.fmul, [*whole, *roots], one)
        return b.fdiv(one, total) if y < 0 else total
    # products of the inverse: those of x may be denormal where the inverse of them is a number
    inverse = b.fdiv(one, x)
    return reduce(b.fmul, [inverse for _ in whole] + [b.fdiv(one, r) for r in roots])


def _root(m: Math, x: Value) -> Value:
    """x^½: 0 of -0 and infinity of minus infinity, unlike √x."""
    root = m.sqrt(m.b.fadd(x, constant(x.type, 0.0)))
    minus_infinity = m.b.compare("fcmp oeq", x, constant(x.type, -math.inf))
    return m.b.select(minus_infinity, constant(x.type, math.inf), root)


def power(m: Math, x: Value, y: Value) -> Value:
    """x^y of any float32."""
    c, b = partial(constant, x.type), m.b
    size = m.intrinsic("fabs", x)
    wide = x.type.of(F64)
    exponent = b.fmul(b.cast("fpext", y, wide), _log2(m, size))
    value = _exp2(m, exponent)
    # 0·∞ is no NaN here: 1 to any number, infinite ones too
    is_one = b.and_(b.compare("fcmp oeq", size, c(1.0)), b.compare("fcmp ord", y, y))
    value = _signed(m, x, y, b.select(is_one, c(1.0), value))
    is_fixed = b.binary("or", b.compare("fcmp oeq", x, c(1.0)), b.compare("fcmp oeq", y, c(0.0)))
    return b.select(is_fixed, c(1.0), value)


def _signed(m: Math, x: Value, y: Value, value: Value) -> Value:
    """-value for odd powers of negative numbers, -0 and -∞ too; NaN where y is not whole."""
    c, b = partial(constant, x.type), m.b
    half = b.fmul(y, c(0.5))
    is_broken = b.compare("fcmp une", m.intrinsic("floor", y), y)
    is_even = b.compare("fcmp oeq", m.intrinsic("floor", half), half)
    is_odd = b.binary("or", is_broken, is_even)
    is_odd = b.binary("xor", is_odd, constant(is_odd.type, 1))
    ints = x.type.of(I32)
    is_minus = b.compare("icmp slt", b.bitcast(x, ints), constant(ints, 0))
    value = b.select(b.and_(is_minus, is_odd), b.negate(value), value)
    below = b.compare("fcmp olt", x, c(0.0))
    finite = b.compare("fcmp ogt", x, c(-math.inf))
    return b.select(b.and_(b.and_(below, finite), is_broken), c(math.nan), value)


def _log2(m: Math, size: Value) -> Value:
    """log2 of a float32 that is not negative, as float64."""
    b, wide = m.b, size.type.of(F64)
    c = partial(constant, wide)
    mantissa, e = m.split(size)
    f = b.cast("fpext", b.fsub(mantissa, constant(size.type, 1.0)), wide)
    s = b.fdiv(f, b.fadd(f, c(2.0)))
    series = b.fmul(s, m.horner(_LOG2, b.fmul(s, s)))
    value = b.fadd(b.cast("fpext", e, wide), series)
    is_number = b.compare("fcmp olt", size, constant(size.type, math.inf))
    value = b.select(is_number, value, b.cast("fpext", size, wide))
    is_zero = b.compare("fcmp oeq", size, constant(size.type, 0.0))
    return b.select(is_zero, c(-math.inf), value)


def _exp2(m: Math, x: Value) -> Value:
    """2^x of a float64, rounded to float32 once."""
    b, ints = m.b, x.type.of(I64)
    c = partial(constant, x.type)
    x = m.smaller(c(_MOST), m.larger(c(-_MOST), x))
    shifted = b.fadd(x, c(_ROUND))
    r = b.fsub(x, b.fsub(shifted, c(_ROUND)))
    y = b.bitcast(m.horner(_EXP2, r), ints)
    exponent = b.shl(b.bitcast(shifted, ints), constant(ints, 52))
    return b.cast("fptrunc", b.bitcast(b.add(y, exponent), x.type), x.type.of(F32))
