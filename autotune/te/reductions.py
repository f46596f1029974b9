"""② What a reduction begins with, and the operation that adds a term."""

from __future__ import annotations

import math

from autotune.dtypes import DTYPES
from autotune.te.expr import Const

_IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "bitor": 0.0}
REDUCE_BINARY = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
REDUCE_BINARY |= {"bitand": "bitand", "bitor": "bitor"}
BITWISE = frozenset(("bitand", "bitor"))
"""Reductions of integers alone, bit by bit."""


def identity(reduce_op: str, dtype: str = "float32") -> Const:
    """The neutral element of a reduction; for integers the bounds of `dtype` where it has any."""
    record = DTYPES[dtype]
    if reduce_op == "bitand":  # all bits
        return Const(record.literal(record.high if record.is_unsigned else -1), dtype)
    value = _IDENTITY[reduce_op]
    if record.is_float or math.isfinite(value):
        return Const(record.literal(value), dtype)
    return Const(record.literal(record.low if value < 0 else record.high), dtype)
