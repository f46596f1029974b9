"""① Elementwise operators: each element of the result depends on one element of each operand.

To add one, write its formula and enter it in `OPERATORS`. What NaN, infinities and zeros of either
sign give is in docs/numbers.md. Formulas: ONNX operator reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np

from autotune.dtypes import DTYPES, is_float
from autotune.graph.ir import Array, Node, Shape, TensorType, float_array, is_denormal
from autotune.graph.operators.definition import (
    FLOATS,
    NO_TRAITS,
    Attrs,
    Check,
    Formula,
    Fusion,
    Layout,
    Operands,
    Operator,
    Scope,
    Trait,
    Types,
    axes_of,
    broadcast_shape,
    dtype_named,
    literal,
    read,
    repeating,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    BOOL,
    Const,
    Expr,
    Tensor,
    binary,
    call,
    cast,
    compare,
    dtype_of,
    f32,
    idx,
    maximum,
    minimum,
    select,
)

ZERO, ONE = f32(0.0), f32(1.0)
FALSE = Const(False, BOOL)


def _clip(attrs: Attrs, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    floor = x if low is None else maximum(low, x)
    return floor if high is None else minimum(high, floor)


def _linear_clip(alpha: float, beta: float, x: Expr) -> Expr:
    line = x * literal(alpha) + literal(beta)
    return minimum(ONE, maximum(ZERO, line))


def _elu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.0))
    return select(x < 0, alpha * (call("exp", x) - 1), x)


def _celu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.0))
    below = alpha * (call("exp", x / alpha) - 1)
    return maximum(ZERO, x) + minimum(ZERO, below)


def _selu(attrs: Attrs, x: Expr) -> Expr:
    alpha = literal(attrs.get("alpha", 1.67326319217681884765625))
    gamma = literal(attrs.get("gamma", 1.05070102214813232421875))
    below = alpha * (call("exp", x) - 1)
    return gamma * select(x > 0, x, below)


def _leaky(attrs: Attrs, x: Expr) -> Expr:
    return select(x < 0, x * literal(attrs.get("alpha", 0.01)), x)


def _prelu(attrs: Attrs, x: Expr, slope: Expr) -> Expr:
    return select(x < 0, x * slope, x)


def _softplus(attrs: Attrs, x: Expr) -> Expr:
    """log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-|x|)."""
    return maximum(ZERO, x) + call("log1p", call("exp", call("neg", call("abs", x))))


def _gelu(attrs: Attrs, x: Expr) -> Expr:
    number = partial(literal, dtype=dtype_of(x))
    half = number(0.5) * x
    if attrs.get("approximate", "none") == "tanh":
        cube = x * (x * x)
        inner = number(math.sqrt(2 / math.pi)) * (x + number(0.044715) * cube)
        return half * (1 + call("tanh", inner))
    return half * (1 + call("erf", x * number(1 / math.sqrt(2))))


def _unary(fn: str) -> Formula:
    return lambda attrs, x: call(fn, x)


def _binary(op: str) -> Formula:
    return lambda attrs, a, b: binary(op, a, b)


def _comparison(op: str) -> Formula:
    return lambda attrs, a, b: compare(op, a, b)


def _sign(attrs: Attrs, x: Expr) -> Expr:
    """-1, 1, or x itself where it is a zero or NaN."""
    zero, one = (number_like(x, n) for n in (0, 1))
    below = x
    if not DTYPES[dtype_of(x)].is_unsigned:
        below = select(x < zero, number_like(x, -1), x)
    return select(x > zero, one, below)


def number_like(x: Expr, value: int) -> Const:
    """A small whole number in the type of `x`."""
    dtype = dtype_of(x)
    return Const(DTYPES[dtype].literal(value), dtype)


def _relu(attrs: Attrs, x: Expr) -> Expr:
    return maximum(number_like(x, 0), x)


def _quotient(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    """Integers: rounded towards zero, 0 where b is 0."""
    return a / b if is_float(dtype_of(a)) else binary("quot", a, b)


def _power(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    """In the type of a; of floats if either is one, in float64 if both together need it."""
    base, exponent = DTYPES[dtype_of(a)], DTYPES[dtype_of(b)]
    if base == exponent:
        return binary("pow" if base.is_float else "ipow", a, b)
    if not base.is_float and not exponent.is_float:
        wide = max(base, exponent, key=lambda d: (d.bits, not d.is_unsigned)).name
        return cast(base.name, binary("ipow", cast(wide, a), cast(wide, b)))
    return cast(base.name, binary("pow", cast("float64", a), cast("float64", b)))


def _thresholded(attrs: Attrs, x: Expr) -> Expr:
    return select(x > literal(attrs.get("alpha", 1.0)), x, ZERO)


def _hard_sigmoid(attrs: Attrs, x: Expr) -> Expr:
    return _linear_clip(attrs.get("alpha", 0.2), attrs.get("beta", 0.5), x)


def _is_infinite(attrs: Attrs, x: Expr) -> Expr:
    above = compare("eq", x, f32(math.inf)) if attrs.get("detect_positive", 1) else FALSE
    below = compare("eq", x, f32(-math.inf)) if attrs.get("detect_negative", 1) else FALSE
    return binary("or", above, below)


def _remainder(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    """The result has the sign of b, with `fmod` that of a. Integers: 0 where b is 0."""
    of_floats = is_float(dtype_of(a))
    if not of_floats and isinstance(b, Const) and b.value and not attrs.get("fmod", 0):
        is_turned = b < Const(0, dtype_of(b))
        rest = select(is_turned, call("neg", a), a) % call("abs", b)
        return select(is_turned, call("neg", rest), rest)
    rest = binary("fmod" if of_floats else "rem", a, b)
    if attrs.get("fmod", 0) or DTYPES[dtype_of(a)].is_unsigned:
        return rest
    zero = number_like(a, 0)
    is_below = b < zero
    is_turned = compare("ne", rest < zero, is_below)
    moved = select(is_turned, rest + b, rest)
    none = select(is_below, f32(-0.0), zero) if of_floats else rest
    return select(compare("eq", rest, zero), none, moved)


# --- rewrites ---------------------------------------------------------------------------------


def _is_single(rw: Rewriter) -> bool:
    """A sum, maximum, … of one operand."""
    return len(rw.node.inputs) == 1


def _is_same_type(rw: Rewriter) -> bool:
    return rw.kind(0).dtype == rw.type.dtype


def _is_inference(rw: Rewriter) -> bool:
    """Dropout whose training flag is absent or constant false."""
    flag = rw.node.inputs[2] if len(rw.node.inputs) > 2 else ""
    return not flag or (flag in rw.constants and not rw.constants[flag].any())


def _known(rw: Rewriter) -> list[Array] | None:
    value = rw.value(0)
    return None if value is None else [value]


def _folded_left(op: str, rw: Rewriter, is_mean: bool = False) -> None:
    """Sum, Max, Min and Mean of n operands -> n - 1 binary operators; a mean is scaled."""
    total = reduce(partial(rw, op), rw.node.inputs)
    if is_mean:
        total = rw("Mul", total, rw.array(np.full(1, 1 / len(rw.node.inputs), rw.type.dtype)))
    rw.returns(total)


def _float_power(rw: Rewriter) -> None:
    """Pow with a constant integer exponent -> with a float one."""
    value = rw.value(1)
    if value is not None and rw.kind(0).dtype == "float32" != value.dtype:
        rw.again(rw.input(0), rw.array(float_array(value)))


def _cast(rw: Rewriter) -> None:
    """Attribute `to` as the name of a type instead of its ONNX number."""
    rw.result("Cast", rw.input(0), to=rw.type.dtype)


def _commute(rw: Rewriter) -> None:
    """Constants become the second operand of Add and Mul."""
    a, b = rw.node.inputs
    if a in rw.constants and b not in rw.constants:
        rw.again(b, a)


def _negated(rw: Rewriter) -> None:
    """x - c -> x + (-c)"""
    value = rw.value(1)
    if value is not None and value.dtype == "float32":
        rw.result("Add", rw.input(0), rw.array(-value))


def _inverse(rw: Rewriter) -> None:
    """x / c -> x · (1/c), unless 1/c is a denormal number.

    One number is divided: it costs nothing, and what a scale of many is rounded to matters.
    """
    value = rw.value(1)
    if value is None or value.dtype != "float32" or prod(rw.type.shape) == 1:
        return
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / value
    if not is_denormal(inverse).any():
        rw.result("Mul", rw.input(0), rw.array(inverse))


# --- the table --------------------------------------------------------------------------------


def _define(formula: Formula, scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = f(a[i…], b[i…], …) with broadcasting."""
    axes = axes_of(broadcast_shape([o for o in operands if o is not None]) or (1,))
    elements = [None if o is None else read(o, axes) for o in operands]
    return scope.compute(node.op.lower(), axes, formula(node.attrs, *elements))


def _type(formula: Formula, rw: Rewriter) -> Types:
    """Operands broadcast, elements of the type that the formula gives."""
    kinds = [rw.types[name] if name else None for name in rw.node.inputs]
    elements = [None if k is None else Tensor("x", (1,), k.dtype)[idx(0)] for k in kinds]
    shape = np.broadcast_shapes(*(kind.shape for kind in kinds if kind is not None))
    return [TensorType(shape, dtype_of(formula(rw.node.attrs, *elements)))]


def of_formula(
    formula: Formula,
    traits: Trait = NO_TRAITS,
    literals: bool = True,
    after: Check | None = None,
    before: Check | None = None,
    **fields: Any,
) -> Operator:
    """The record of an elementwise operator; `after`, `before`: see `typed`."""
    return Operator(
        define=partial(_define, formula),
        formula=formula,
        fusion=Fusion.ELEMENTWISE,
        traits=traits | Trait.LITERALS if literals else traits,
        layout=Layout.ELEMENTWISE,
        typing=typed(after, before=before, fallback=partial(_type, formula)),
        **fields,
    )


_FLOAT_FUNCTIONS = (
    *("Exp", "Log", "Sqrt", "Tanh", "Erf", "Sigmoid", "Floor", "Ceil", "Round"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
)
_FLOAT_FORMULAS: Mapping[str, Formula] = {
    **{op: _unary(op.lower()) for op in _FLOAT_FUNCTIONS},
    "Reciprocal": lambda attrs, x: 1 / x,
    "ThresholdedRelu": _thresholded,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Softplus": _softplus,
    "Softsign": lambda attrs, x: x / (1 + call("abs", x)),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda attrs, x: x * _linear_clip(1 / 6, 0.5, x),
    "Gelu": _gelu,
    "Mish": lambda attrs, x: x * call("tanh", _softplus(attrs, x)),
}
_COMPARISONS = {
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Xor": "ne",
}

OPERATORS: Mapping[str, Operator] = {
    **{op: of_formula(formula, dtypes=FLOATS) for op, formula in _FLOAT_FORMULAS.items()},
    **{op: of_formula(_unary(op.lower())) for op in ("Abs", "Neg", "Not")},
    **{op: of_formula(_comparison(test)) for op, test in _COMPARISONS.items()},
    **{op: of_formula(_binary(op.lower())) for op in ("And", "Or")},
    "Add": of_formula(
        _binary("add"),
        traits=Trait.CHEAP | Trait.COMMUTATIVE | Trait.KEEPS_RANGE,
        constant_role="shift",
        canonical=_commute,
    ),
    "Mul": of_formula(
        _binary("mul"),
        traits=Trait.CHEAP | Trait.COMMUTATIVE,
        constant_role="scale",
        canonical=_commute,
    ),
    "Sub": of_formula(_binary("sub"), traits=Trait.CHEAP | Trait.KEEPS_RANGE, canonical=_negated),
    "Div": of_formula(_quotient, canonical=_inverse),
    "Pow": of_formula(_power, canonical=_float_power),
    **{
        op: of_formula(
            _binary(op.lower()),
            traits=Trait.COMMUTATIVE | Trait.KEEPS_RANGE,
            canonical=partial(_folded_left, op),
            is_identity=_is_single,
        )
        for op in ("Max", "Min")
    },
    "Sum": Operator(canonical=partial(_folded_left, "Add"), is_identity=_is_single),
    "Mean": Operator(canonical=partial(_folded_left, "Add", is_mean=True), is_identity=_is_single),
    "Mod": of_formula(_remainder),
    "Relu": of_formula(_relu, traits=Trait.CHEAP),
    "Clip": of_formula(_clip, traits=Trait.CHEAP | Trait.KEEPS_RANGE),
    "LeakyRelu": of_formula(_leaky, dtypes=FLOATS, traits=Trait.CHEAP),
    "PRelu": of_formula(_prelu, dtypes=FLOATS, after=repeating(1)),
    "Sign": of_formula(_sign),
    "Identity": of_formula(
        lambda attrs, x: x, traits=Trait.KEEPS_RANGE, is_identity=lambda rw: True, fold=_known
    ),
    "Dropout": Operator(is_identity=_is_inference),
    "Cast": of_formula(
        lambda attrs, x: cast(dtype_named(attrs["to"]), x),
        traits=Trait.KEEPS_RANGE | Trait.WIDENS,
        canonical=_cast,
        is_identity=_is_same_type,
    ),
    "Where": of_formula(lambda attrs, cond, a, b: select(cond, a, b), traits=Trait.KEEPS_RANGE),
    "IsNaN": of_formula(lambda attrs, x: compare("ne", x, x)),
    "IsInf": of_formula(_is_infinite),
}
