"""① Trigonometric and hyperbolic functions and their inverses, in terms of what has code.

Errors are a few units in the last place of the result, or of 1 where that is larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.graph.scope import literal
from autotune.te.expr import Expr, add, call, compare, div, maximum, minimum, mul, select, sub

_ONE = literal(1.0)
_PI = (3.140625, 0.0009670257568359375, 6.2771141529083251953e-07, 1.2154201e-10)
"""π in parts whose products with small whole numbers are exact."""
_SINE = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800)
"""sin(r)/r in powers of r²; the next term is below 6e-8 for |r| ≤ π/2."""
_SINH = (1 / 6, 1 / 120, 1 / 5040)
"""sinh(x)/x in powers of x²; the next term is below 2e-8 for |x| ≤ ½."""
_ATAN = (-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2)
"""atan(x)/x in powers of x², for |x| ≤ tan(π/8) (Cephes atanf)."""


def sine(x: Expr, turn: float = 0.0) -> Expr:
    """sin(x + turn·π) = (-1)^k · sin(r) with x + turn·π = kπ + r; as exact as x/π has digits."""
    k = call("round", add(mul(x, literal(1 / math.pi)), literal(turn)))
    r = x
    for part in _PI:
        r = sub(r, mul(sub(k, literal(turn)), literal(part)))
    half = mul(k, literal(0.5))
    is_odd = compare("ne", half, call("floor", half))
    value = _odd_series(r, _SINE)
    return select(is_odd, call("neg", value), value)


def cosine(x: Expr) -> Expr:
    """cos(x)."""
    return sine(x, 0.5)


def tangent(x: Expr) -> Expr:
    """sin(x) / cos(x)."""
    return div(sine(x), cosine(x))


def arc_tangent(x: Expr) -> Expr:
    """atan(x): π/2 - atan(1/x) beyond 1, π/4 + atan((x - 1)/(x + 1)) beyond tan(π/8)."""
    size = call("abs", x)
    small = div(minimum(_ONE, size), maximum(_ONE, size))
    is_steep = compare("gt", small, literal(math.tan(math.pi / 8)))
    r = select(is_steep, div(sub(small, _ONE), add(small, _ONE)), small)
    near = _odd_series(r, _ATAN)
    near = select(is_steep, add(literal(math.pi / 4), near), near)
    value = select(compare("gt", size, _ONE), sub(literal(math.pi / 2), near), near)
    return select(compare("lt", x, literal(0.0)), call("neg", value), value)


def arc_sine(x: Expr) -> Expr:
    """asin(x) = 2·atan(x / (1 + √(1 - x²)))."""
    root = call("sqrt", mul(sub(_ONE, x), add(_ONE, x)))
    return mul(literal(2.0), arc_tangent(div(x, add(_ONE, root))))


def arc_cosine(x: Expr) -> Expr:
    """acos(x) = π/2 - asin(x)."""
    return sub(literal(math.pi / 2), arc_sine(x))


def hyperbolic_sine(x: Expr) -> Expr:
    """sinh(x): a series near 0, else (e^x - e^-x) / 2."""
    far = mul(literal(0.5), sub(call("exp", x), call("exp", call("neg", x))))
    return select(compare("lt", call("abs", x), literal(0.5)), _odd_series(x, _SINH), far)


def hyperbolic_cosine(x: Expr) -> Expr:
    """cosh(x) = (e^x + e^-x) / 2."""
    return mul(literal(0.5), add(call("exp", x), call("exp", call("neg", x))))


def area_sine(x: Expr) -> Expr:
    """asinh(x) = ±log(|x| + √(x² + 1))."""
    size = call("abs", x)
    value = call("log", add(size, call("sqrt", add(mul(x, x), _ONE))))
    return select(compare("lt", x, literal(0.0)), call("neg", value), value)


def area_cosine(x: Expr) -> Expr:
    """acosh(x) = log(x + √(x - 1)·√(x + 1))."""
    root = mul(call("sqrt", sub(x, _ONE)), call("sqrt", add(x, _ONE)))
    return call("log", add(x, root))


def area_tangent(x: Expr) -> Expr:
    """atanh(x) = log((1 + x) / (1 - x)) / 2."""
    return mul(literal(0.5), call("log", div(add(_ONE, x), sub(_ONE, x))))


def _odd_series(x: Expr, coefficients: Sequence[float]) -> Expr:
    """x + x·(a·x² + b·x⁴ + …)."""
    square = mul(x, x)
    series: Expr = literal(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        series = add(mul(series, square), literal(coefficient))
    return add(x, mul(mul(x, square), series))
