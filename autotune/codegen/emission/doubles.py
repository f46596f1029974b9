"""⑤ Elementary functions of float64: calls of the C library, lane by lane, below 1 ULP.

Models compute in double precision where accuracy matters more than time, and rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.codegen.emission.math import Math
from autotune.codegen.emission.text import FunctionBuilder, Value, constant

_LIBM = (
    *("exp", "log", "log1p", "erf", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
)
"""Functions that the C library has under their own names."""


def library_call(b: FunctionBuilder, name: str, *arguments: Value) -> Value:
    """A function of libm of float64 or of vectors of them."""
    kind = arguments[0].type
    if not kind.is_vector:
        return b.call(name, kind, arguments)
    found: Value = constant(kind, 0.0)
    for lane in range(kind.count):
        one = b.call(name, kind.scalar, [b.extract(a, lane) for a in arguments])
        found = b.insert(found, one, lane)
    return found


def _library(name: str) -> Callable[[Math, Value], Value]:
    return lambda m, x: library_call(m.b, name, x)


def _sigmoid(m: Math, x: Value) -> Value:
    """1 / (1 + e^-x)."""
    one = constant(x.type, 1.0)
    return m.b.fdiv(one, m.b.fadd(one, library_call(m.b, "exp", m.b.negate(x))))


def power(m: Math, x: Value, y: Value) -> Value:
    """x^y as the C library has it."""
    return library_call(m.b, "pow", x, y)


DOUBLES: Mapping[str, Callable[[Math, Value], Value]] = {
    **{name: _library(name) for name in _LIBM},
    "sigmoid": _sigmoid,
}
"""An emitter of every function that `math.EXACT` has not."""
