"""② Functions of one argument, as records. A new one is an entry here and an emitter in `codegen`.

    Call("tanh", (x,))           oracle np.tanh · 34 instructions · 2 ULP · all x
    Call("bits_as_int32", (x,))  the same bits, of a float32, say, as an int32

Emitters are `CALLS` in `math.py` and `TRIGONOMETRY` in `trigonometry.py` of `codegen/emission`; a
test holds costs and errors against the emitted code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import DTYPES, DType

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A function of one argument.

    `oracle`: its values by NumPy. `takes`: floats, integers, numbers of any type,
    conditions, or elements of any type as they lie in memory. `result`: its dtype where it is not
    that of the argument.
    `cost`: vector instructions that it compiles to, an addition being one, on average over
    instruction sets. `error_ulp`: largest error in units in the last place of a float32. `low`,
    `high`: where it is defined. `numpy`: name of its function in NumPy, in printed Python;
    `python`: its definition there where NumPy has none, of an integer and its bits. Both are empty
    for what Python has itself.
    """

    name: str
    oracle: Callable[[Array], Array]
    takes: Literal["floats", "integers", "numbers", "conditions", "bits"] = "floats"
    cost: int = 1
    error_ulp: float = 0.5
    low: float = -math.inf
    high: float = math.inf
    numpy: str = ""
    python: str = ""
    result: str = ""

    @property
    def needs_positive(self) -> bool:
        """Whether it is undefined for some values around zero, or beyond a bound."""
        return self.low >= 0 or self.high < math.inf


def _of_numpy(name: str, numpy: str = "", **fields: Any) -> Intrinsic:
    numpy = numpy or name
    return Intrinsic(name, getattr(np, numpy), numpy=numpy, **fields)


def _of_bits(dtype: DType) -> Intrinsic:
    """The bits of an element of any type of as many as an element of `dtype`."""
    return Intrinsic(
        f"bits_as_{dtype.name}",
        lambda x: x.view(dtype.numpy),
        takes="bits",
        cost=0,
        result=dtype.name,
    )


def _trailing_zeros(x: Array) -> Array:
    lowest = x & -x  # the lowest bit that is set, alone
    bits = x.dtype.type(8 * x.dtype.itemsize)
    exponent = np.frexp(np.abs(lowest.astype(np.float64)))[1] - 1
    return np.asarray(np.where(x == 0, bits, exponent).astype(x.dtype))


def _erf(x: Array) -> Array:
    return cast("Array", np.vectorize(math.erf, otypes=[np.float64])(x))


_RSQRT = "def rsqrt(x):\n    return 1 / sqrt(x)\n"
_SIGMOID = "def sigmoid(x):\n    return 1 / (1 + exp(-x))\n"
_TRAILING_ZEROS = """\
def trailing_zeros(x, bits):
    return bits if x == 0 else (int(x) & -int(x)).bit_length() - 1
"""

BITS_AS = """\
def bits_as(x, source, goal):
    from numpy import array
    return array(x, source).view(goal)[()]
"""
"""Bitcast of an element to another type, in printed Python."""

INTRINSICS: Mapping[str, Intrinsic] = {
    f.name: f
    for f in (
        Intrinsic("abs", np.abs, "numbers"),
        Intrinsic("neg", np.negative, "numbers"),
        Intrinsic("not", np.logical_not, "conditions", result="bool"),
        Intrinsic("trailing_zeros", _trailing_zeros, "integers", cost=4, python=_TRAILING_ZEROS),
        _of_numpy("floor"),
        _of_numpy("ceil"),
        _of_numpy("round", "rint"),
        _of_numpy("sqrt", low=0.0),
        Intrinsic("rsqrt", lambda x: 1.0 / np.sqrt(x), error_ulp=1.5, low=0.0, python=_RSQRT),
        Intrinsic("erf", _erf, cost=24, error_ulp=5.0, python="from math import erf\n"),
        Intrinsic(
            "sigmoid",
            lambda x: 1.0 / (1.0 + np.exp(-x)),
            cost=27,
            error_ulp=2.5,
            python=_SIGMOID,
        ),
        _of_numpy("exp", cost=21, error_ulp=1.0),
        _of_numpy("log", cost=29, error_ulp=1.0, low=0.0),
        _of_numpy("log1p", cost=36, error_ulp=1.5, low=-1.0),
        _of_numpy("sin", cost=20, error_ulp=2.5),
        _of_numpy("cos", cost=22, error_ulp=2.5),
        _of_numpy("tan", cost=35, error_ulp=3.5),
        _of_numpy("asin", "arcsin", cost=58, error_ulp=3.5, low=-1.0, high=1.0),
        _of_numpy("acos", "arccos", cost=56, error_ulp=3.5, low=-1.0, high=1.0),
        _of_numpy("atan", "arctan", cost=37, error_ulp=3.5),
        _of_numpy("sinh", cost=40, error_ulp=2.5),
        _of_numpy("cosh", cost=30, error_ulp=2.5),
        _of_numpy("tanh", cost=34, error_ulp=2.0),
        _of_numpy("asinh", "arcsinh", cost=62, error_ulp=3.5),
        _of_numpy("acosh", "arccosh", cost=54, error_ulp=3.5, low=1.0),
        _of_numpy("atanh", "arctanh", cost=49, error_ulp=3.5, low=-1.0, high=1.0),
        *(_of_bits(d) for d in DTYPES.values() if not d.is_narrow and d.kind != "bool"),
    )
}
"""All functions of one argument that a program can call, by name."""


_MAX_QUARTERS = 32


def quarters_of(y: float) -> int | None:
    """4·|y| where a power of y takes a few products and square roots, else None."""
    quarters = abs(4 * y)
    return int(quarters) if quarters <= _MAX_QUARTERS and quarters == int(quarters) else None
