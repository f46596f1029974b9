"""① ToSmallType(x): the nearest value that a small type has, in the type that holds it.

    half precision:     x -> float32(float16(x))
    float8 and float4:  x -> round(x / step) · step      step: the distance of values around x
    int4, int2, …:      x -> the lowest bits of x

Source: https://onnx.ai/onnx/technical/float8.html; integers beyond the range wrap, as `ml_dtypes`
has them. Bytes are moved and dequantised in their storage type (`passes.small_types`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.dtypes import DTYPES, SMALL_TYPES, SmallType
from autotune.graph.operators.definition import Attrs, Operator
from autotune.graph.operators.elementwise import of_formula
from autotune.te.expr import (
    Const,
    Expr,
    binary,
    call,
    cast,
    compare,
    f32,
    maximum,
    select,
)

_EXPONENT = Const(0x7F800000, "int32")


def _to_small_type(attrs: Attrs, x: Expr) -> Expr:
    if attrs["to"] in DTYPES:
        return cast("float32", cast(attrs["to"], x))
    kind = SMALL_TYPES[attrs["to"]]
    if kind.is_float:
        return _nearest(kind, bool(attrs.get("saturate", 1)), x)
    low, bits = Const(int(kind.low), "int32"), Const(int(kind.high - kind.low), "int32")
    above = binary("bitand", cast("int32", x) - low, bits)
    return cast(kind.stored, above + low)


def _nearest(kind: SmallType, is_limited: bool, x: Expr) -> Expr:
    """The value of `kind` nearest to x, halves to even."""
    bits = binary("bitand", call("bits_as_int32", x), _EXPONENT)
    power = maximum(call("bits_as_float32", bits), f32(kind.smallest))
    step = power * f32(2.0**-kind.digits)
    rounded = call("round", x / step) * step
    is_negative = x < 0
    limit = kind.high if is_limited else kind.beyond
    beyond = select(is_negative, f32(-limit), f32(limit))
    size = call("abs", rounded)
    fitting = select(size > f32(kind.high), beyond, rounded)
    nearest = select(call("abs", x) > f32(2 * kind.high), beyond, fitting)
    has_nan = math.isnan(kind.of_nan)
    return nearest if has_nan else select(compare("ne", x, x), f32(kind.of_nan), nearest)


OPERATORS: Mapping[str, Operator] = {
    "ToSmallType": of_formula(_to_small_type),
}
