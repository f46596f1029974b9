"""① Elementwise operators: one element of the result from one element of each operand.

`ELEMENTWISE[op](attrs, *elements)`; an absent optional operand is None. What NaN, infinities and
zeros of either sign give is in docs/numbers.md. Formulas: ONNX operator reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from autotune.graph.operators.scope import literal
from autotune.te.expr import (
    BOOL,
    FLOAT_DTYPES,
    Const,
    Expr,
    add,
    binary,
    call,
    cast,
    compare,
    div,
    dtype_of,
    f32,
    maximum,
    minimum,
    mod,
    mul,
    select,
    sub,
)

Attrs: TypeAlias = Mapping[str, Any]

ZERO, ONE = f32(0.0), f32(1.0)
FALSE = Const(False, BOOL)


def _clip(attrs: Attrs, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    floor = x if low is None else maximum(low, x)
    return floor if high is None else minimum(high, floor)


def _linear_clip(alpha: float, beta: float, x: Expr) -> Expr:
    line = add(mul(x, literal(alpha)), literal(beta))
    return minimum(ONE, maximum(ZERO, line))


def _elu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.0))
    return select(compare("lt", x, ZERO), mul(alpha, sub(call("exp", x), ONE)), x)


def _celu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.0))
    below = mul(alpha, sub(call("exp", div(x, alpha)), ONE))
    return add(maximum(ZERO, x), minimum(ZERO, below))


def _selu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.67326319217681884765625))
    gamma = literal(attrs.get("gamma", 1.05070102214813232421875))
    below = mul(alpha, sub(call("exp", x), ONE))
    return mul(gamma, select(compare("gt", x, ZERO), x, below))


def _leaky(attrs: Attrs, x: Expr) -> Expr:
    return select(compare("lt", x, ZERO), mul(x, literal(attrs.get("alpha", 0.01))), x)


def _prelu(attrs: Attrs, x: Expr, slope: Expr) -> Expr:
    return select(compare("lt", x, ZERO), mul(x, slope), x)


def _softplus(attrs: Attrs, x: Expr) -> Expr:
    """log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-|x|)."""
    return add(maximum(ZERO, x), call("log1p", call("exp", call("neg", call("abs", x)))))


def _gelu(attrs: Attrs, x: Expr) -> Expr:
    half = mul(literal(0.5), x)
    if attrs.get("approximate", "none") == "tanh":
        cube = mul(x, mul(x, x))
        inner = mul(literal(math.sqrt(2 / math.pi)), add(x, mul(literal(0.044715), cube)))
        return mul(half, add(ONE, call("tanh", inner)))
    return mul(half, add(ONE, call("erf", mul(x, literal(1 / math.sqrt(2))))))


def _unary(fn: str) -> Callable[..., Expr]:
    return lambda attrs, x: call(fn, x)


def _binary(op: str) -> Callable[..., Expr]:
    return lambda attrs, a, b: binary(op, a, b)


def _comparison(op: str) -> Callable[..., Expr]:
    return lambda attrs, a, b: compare(op, a, b)


def _is_infinite(attrs: Attrs, x: Expr) -> Expr:
    above = compare("eq", x, f32(math.inf)) if attrs.get("detect_positive", 1) else FALSE
    below = compare("eq", x, f32(-math.inf)) if attrs.get("detect_negative", 1) else FALSE
    return binary("or", above, below)


def _remainder(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    """Of whole numbers with the sign of b, which is not 0; of floats with the sign of a."""
    if dtype_of(a) not in FLOAT_DTYPES:
        is_turned = compare("lt", b, Const(0, dtype_of(b)))
        rest = mod(select(is_turned, call("neg", a), a), call("abs", b))
        return select(is_turned, call("neg", rest), rest)
    return binary("fmod", a, b)


_TRIGONOMETRY = (
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
)

ELEMENTWISE: dict[str, Callable[..., Expr]] = {
    **{op: _binary(op.lower()) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")},
    **{
        op: _unary(op.lower())
        for op in ("Exp", "Log", "Sqrt", "Tanh", "Erf", "Sigmoid", "Abs", "Neg", "Floor", "Ceil")
    },
    "Round": _unary("round"),
    **{op: _unary(op.lower()) for op in _TRIGONOMETRY},
    "Relu": lambda attrs, x: maximum(ZERO, x),
    "Clip": _clip,
    "Reciprocal": lambda attrs, x: div(ONE, x),
    "LeakyRelu": _leaky,
    "PRelu": _prelu,
    "ThresholdedRelu": lambda attrs, x: select(
        compare("gt", x, literal(attrs.get("alpha", 1.0))), x, ZERO
    ),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Softplus": _softplus,
    "Softsign": lambda attrs, x: div(x, add(ONE, call("abs", x))),
    "HardSigmoid": lambda attrs, x: _linear_clip(
        attrs.get("alpha", 0.2), attrs.get("beta", 0.5), x
    ),
    "HardSwish": lambda attrs, x: mul(x, _linear_clip(1 / 6, 0.5, x)),
    "Gelu": _gelu,
    "Mish": lambda attrs, x: mul(x, call("tanh", _softplus(attrs, x))),
    "Sign": lambda attrs, x: select(  # zeros and NaN are their own
        compare("gt", x, ZERO), ONE, select(compare("lt", x, ZERO), f32(-1.0), x)
    ),
    "Identity": lambda attrs, x: x,
    "Cast": lambda attrs, x: cast(attrs["to"], x),
    "Where": lambda attrs, cond, a, b: select(cond, a, b),
    "Equal": _comparison("eq"),
    "Less": _comparison("lt"),
    "LessOrEqual": _comparison("le"),
    "Greater": _comparison("gt"),
    "GreaterOrEqual": _comparison("ge"),
    "Mod": _remainder,
    "IsNaN": lambda attrs, x: compare("ne", x, x),
    "IsInf": _is_infinite,
    "And": _binary("and"),
    "Or": _binary("or"),
    "Xor": _comparison("ne"),
    "Not": _unary("not"),
}
