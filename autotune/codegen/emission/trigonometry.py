"""⑤ Trigonometric and hyperbolic functions and their inverses, as straight-line float code.

Sine, cosine and tangent subtract a multiple of π (of π/2) in four parts, which is exact to a unit
for |x| ≤ 32,768. Where a lane is beyond, its value is that of the C library, in a function of its
own: a compare and a branch are all that usual arguments pay. Errors are in units in the last place
(checked by tests):

    sin, cos             all      2.5
    tan                  all      3.5
    asin, acos, atan     all      3.5
    sinh, cosh           all      2.5
    asinh, acosh, atanh  all      3.5
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from autotune.codegen.emission.math import Math
from autotune.codegen.emission.text import I1, I32, Type, Value, constant

_Floats: TypeAlias = tuple[float, ...]
_LARGE = 32768.0
_PI: _Floats = (3.140625, 0.0009675025939941406, 1.5099578831723193e-07, 1.0780605906948477e-14)
"""π in parts: products of the first two with whole numbers up to 10,430 are exact. All are
positive, so that 0 of them subtracted from -0 leaves -0."""
_SIN_HALF: _Floats = (-2.4071230342315175e-08, 2.7536077595868846e-06, -1.9841080938931555e-04)
_SIN_HALF += (0.00833333283662796, -0.1666666716337204)
"""(sin(r)/r - 1)/r² in powers of r², the highest first; off by 3e-11 for |r| ≤ π/2."""
_SIN: _Floats = (-1.958297798410058e-04, 0.008332725614309311, -0.166666641831398)
"""The same for |r| ≤ π/4; off by 2e-8."""
_COS: _Floats = (2.454299828968942e-05, -0.0013888280373066664, 0.0416666641831398)
"""(cos(r) - 1 + r²/2)/r⁴ for |r| ≤ π/4; off by 2e-9."""
_SINH: _Floats = (2.806300699376152e-06, 1.9838099251501262e-04, 0.008333339355885983)
_SINH += (0.1666666716337204,)
"""(sinh(x)/x - 1)/x² for |x| ≤ 1; off by 2e-10."""
_ATAN: _Floats = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""(atan(x)/x - 1)/x² for |x| ≤ tan(π/8) (Cephes atanf)."""
_DOUBLED = 2.0**20
"""Beyond it √(x² + 1) is x."""


def sine(m: Math, x: Value) -> Value:
    """sin(x) = (-1)^k · sin(r) with x = kπ + r."""
    c, b = partial(constant, x.type), m.b
    shifted = m.fma(x, c(1 / math.pi), c(m.ROUND))
    r = _reduced(m, x, b.fsub(shifted, c(m.ROUND)), 1.0)
    return _beyond(m, "sin", x, _turned(m, _sine_of(m, r, _SIN_HALF), shifted))


def cosine(m: Math, x: Value) -> Value:
    """cos(x) = (-1)^k · sin(r) with x + π/2 = kπ + r."""
    c, b = partial(constant, x.type), m.b
    shifted = b.fadd(m.fma(x, c(1 / math.pi), c(0.5)), c(m.ROUND))
    halves = b.fsub(b.fsub(shifted, c(m.ROUND)), c(0.5))
    r = _reduced(m, x, halves, 1.0)
    return _beyond(m, "cos", x, _turned(m, _sine_of(m, r, _SIN_HALF), shifted))


def tangent(m: Math, x: Value) -> Value:
    """tan(x) = tan(r), or -1/tan(r) where k is odd, with x = kπ/2 + r."""
    c, b = partial(constant, x.type), m.b
    shifted = m.fma(x, c(2 / math.pi), c(m.ROUND))
    r = _reduced(m, x, b.fsub(shifted, c(m.ROUND)), 0.5)
    z = b.fmul(r, r)
    sin = m.intrinsic("copysign", m.fma(b.fmul(r, z), m.horner(_SIN, z), r), r)
    cos = m.fma(b.fmul(z, z), m.horner(_COS, z), m.fma(z, c(-0.5), c(1.0)))
    bits = b.bitcast(shifted, x.type.of(I32))
    odd = b.compare("icmp ne", b.and_(bits, constant(bits.type, 1)), constant(bits.type, 0))
    above = b.select(odd, b.negate(cos), sin)
    return _beyond(m, "tan", x, b.fdiv(above, b.select(odd, sin, cos)))


def _reduced(m: Math, x: Value, k: Value, unit: float) -> Value:
    """x - k·unit·π."""
    for part in _PI:
        x = m.fma(k, constant(x.type, -unit * part), x)
    return x


def _sine_of(m: Math, r: Value, series: _Floats) -> Value:
    """sin(r) as r·(1 + …), so that the sign of a zero stays."""
    z = m.b.fmul(r, r)
    return m.b.fmul(r, m.fma(z, m.horner(series, z), constant(r.type, 1.0)))


def _turned(m: Math, value: Value, shifted: Value) -> Value:
    """-value where the whole number in the last bits of `shifted` is odd."""
    ints = value.type.of(I32)
    sign = m.b.shl(m.b.bitcast(shifted, ints), constant(ints, 31))
    return m.b.bitcast(m.b.binary("xor", m.b.bitcast(value, ints), sign), value.type)


def _beyond(m: Math, fn: str, x: Value, value: Value) -> Value:
    """`value`, or that of the C library where |x| is large; of infinity it is NaN."""
    b = m.b
    is_large = b.compare("fcmp ogt", m.intrinsic("fabs", x), constant(x.type, _LARGE))
    some = is_large
    if x.type.is_vector:
        some = b.call(f"llvm.vector.reduce.or.{is_large.type.suffix}", I1, [is_large])
    return b.unlikely(some, value, _library_function(m, fn, x.type), (x, value))


def _library_function(m: Math, fn: str, kind: Type) -> str:
    """The name of a function (x, value) of this module; one call of the C library per lane."""
    name, intrinsic = f"large.{fn}.{kind.suffix}", f"llvm.{fn}.{kind.suffix}"
    size = f"llvm.fabs.{kind.suffix}"
    for used in (size, intrinsic):
        m.b.module.declare(used, kind, (kind,))
    limit, bools = constant(kind, _LARGE).name, kind.of(I1)
    attributes = m.b.module.attributes
    m.b.module.define(
        name,
        f"""define internal {kind} @{name}({kind} %x, {kind} %value) noinline cold {attributes} {{
  %size = call {kind} @{size}({kind} %x)
  %large = fcmp ogt {kind} %size, {limit}
  %exact = call {kind} @{intrinsic}({kind} %x)
  %chosen = select {bools} %large, {kind} %exact, {kind} %value
  ret {kind} %chosen
}}""",
    )
    return name


def arc_tangent(m: Math, x: Value) -> Value:
    """atan(x): π/2 - atan(1/x) beyond 1, π/4 + atan((x - 1)/(x + 1)) beyond tan(π/8)."""
    c, b = partial(constant, x.type), m.b
    size = m.intrinsic("fabs", x)
    small = b.fdiv(m.minimum(c(1.0), size), m.maximum(c(1.0), size))
    is_steep = b.compare("fcmp ogt", small, c(math.tan(math.pi / 8)))
    turned = b.fdiv(b.fsub(small, c(1.0)), b.fadd(small, c(1.0)))
    r = b.select(is_steep, turned, small)
    near = _odd_series(m, r, _ATAN)
    near = b.select(is_steep, b.fadd(near, c(math.pi / 4)), near)
    value = b.select(b.compare("fcmp ogt", size, c(1.0)), b.fsub(c(math.pi / 2), near), near)
    return m.intrinsic("copysign", value, x)


def arc_sine(m: Math, x: Value) -> Value:
    """asin(x) = 2·atan(x / (1 + √(1 - x²)))."""
    c, b = partial(constant, x.type), m.b
    root = m.sqrt(b.fmul(b.fsub(c(1.0), x), b.fadd(c(1.0), x)))
    return b.fmul(c(2.0), arc_tangent(m, b.fdiv(x, b.fadd(c(1.0), root))))


def arc_cosine(m: Math, x: Value) -> Value:
    """acos(x) = 2·atan(√((1 - x) / (1 + x))), exact where it is near zero too."""
    c, b = partial(constant, x.type), m.b
    tan = m.sqrt(b.fdiv(b.fsub(c(1.0), x), b.fadd(c(1.0), x)))
    return b.fmul(c(2.0), arc_tangent(m, tan))


def hyperbolic_sine(m: Math, x: Value) -> Value:
    """sinh(x): a series near 0, else e^|x|/2 - e^-|x|/2 with the sign of x."""
    c, b = partial(constant, x.type), m.b
    size = m.intrinsic("fabs", x)
    half = m.half_exp(size)
    far = b.fsub(half, b.fdiv(c(0.25), half))
    near = _odd_series(m, size, _SINH)
    value = b.select(b.compare("fcmp olt", size, c(1.0)), near, far)
    return m.intrinsic("copysign", value, x)


def hyperbolic_cosine(m: Math, x: Value) -> Value:
    """cosh(x) = e^|x|/2 + e^-|x|/2."""
    half = m.half_exp(m.intrinsic("fabs", x))
    return m.b.fadd(half, m.b.fdiv(constant(x.type, 0.25), half))


def area_sine(m: Math, x: Value) -> Value:
    """asinh(x) = ±log(1 + |x| + x²/(1 + √(x² + 1)))."""
    c, b = partial(constant, x.type), m.b
    size = m.intrinsic("fabs", x)
    square = b.fmul(size, size)
    root = m.sqrt(b.fadd(square, c(1.0)))
    inside = b.fadd(size, b.fdiv(square, b.fadd(root, c(1.0))))
    return m.intrinsic("copysign", _log_of_double(m, size, size, inside), x)


def area_cosine(m: Math, x: Value) -> Value:
    """acosh(x) = log(1 + t + √(t·(t + 2))) with t = x - 1; NaN below 1."""
    c, b = partial(constant, x.type), m.b
    t = b.fsub(x, c(1.0))
    inside = b.fadd(t, m.sqrt(b.fmul(t, b.fadd(t, c(2.0)))))
    value = _log_of_double(m, x, t, inside)
    return b.select(b.compare("fcmp olt", x, c(1.0)), c(math.nan), value)


def area_tangent(m: Math, x: Value) -> Value:
    """atanh(x) = ±log(1 + 2|x|/(1 - |x|))/2."""
    c, b = partial(constant, x.type), m.b
    size = m.intrinsic("fabs", x)
    inside = b.fdiv(b.fadd(size, size), b.fsub(c(1.0), size))
    return m.intrinsic("copysign", b.fmul(c(0.5), m.log1p(inside)), x)


def _log_of_double(m: Math, x: Value, small: Value, inside: Value) -> Value:
    """log(1 + inside), or log(2·(1 + small)) where x is so large that `inside` may overflow."""
    c, b = partial(constant, x.type), m.b
    is_large = b.compare("fcmp ogt", x, c(_DOUBLED))
    value = m.log1p(b.select(is_large, small, inside))
    return b.fadd(value, b.select(is_large, c(math.log(2)), c(0.0)))


def _odd_series(m: Math, x: Value, coefficients: _Floats) -> Value:
    """x + x·(a·x² + b·x⁴ + …), the highest coefficient first."""
    z = m.b.fmul(x, x)
    return m.fma(m.b.fmul(x, z), m.horner(coefficients, z), x)


TRIGONOMETRY: dict[str, Callable[[Math, Value], Value]] = {
    "sin": sine,
    "cos": cosine,
    "tan": tangent,
    "asin": arc_sine,
    "acos": arc_cosine,
    "atan": arc_tangent,
    "sinh": hyperbolic_sine,
    "cosh": hyperbolic_cosine,
    "asinh": area_sine,
    "acosh": area_cosine,
    "atanh": area_tangent,
}
