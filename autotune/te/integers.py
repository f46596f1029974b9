"""② Operations on integers that indices have none of, as records. They never trap.

    Binary("quot", a, b)   a / b towards zero; 0 where b is 0, a wraps for the smallest a and -1
    Binary("rem", a, b)    a - b·quot(a, b), with the sign of a; 0 where b is 0
    Binary("ipow", a, b)   a^b modulo 2^bits; for b < 0 towards zero, 0 where a is 0
    Binary("shl", a, b)    a·2^b modulo 2^bits; 0 where b is negative or not below the bits of a
    Binary("shr", a, b)    a / 2^b towards minus infinity; the sign alone where b is no such number
    Binary("bitand" | "bitor" | "bitxor", a, b)
    Binary("bytedot", a, b)   Σ of products of their bytes, modulo 2^bits: those of a are unsigned,
                              those of b signed; an int32 holds four, the first one lowest

Emitters are `INTEGERS` in `codegen/emission/integers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class IntegerOp:
    """An operation on two integers of one type.

    `oracle`: its values by NumPy. `cost`: vector instructions that it compiles to. `infix`: its
    sign in text, where it has one. `python`: its definition in printed Python, where Python has
    none: of two numbers and the bits of their type, not yet wrapped.
    """

    name: str
    oracle: Callable[[Array, Array], Array]
    cost: int = 1
    infix: str = ""
    python: str = ""


def _np_quot(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
        found: Array = np.where(b == 0, a * 0, (a - rest) // np.where(b == 0, b + 1, b))
    return found


def _np_rem(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        found: Array = np.fmod(a, b)
    return found


def _np_ipow(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        if b.dtype.kind == "u":
            return np.asarray(np.power(a, b))
        units = np.where(np.abs(a) == 1, np.power(a, b & 1), a * 0)
        found: Array = np.where(b < 0, units, np.power(a, np.maximum(b, 0)))
    return found


def _np_shl(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    fits = (b >= 0) & (b < bits)
    found: Array = np.where(fits, np.left_shift(a, np.where(fits, b, b * 0)), a * 0)
    return found


def _np_shr(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    fits = (b >= 0) & (b < bits)
    half = np.right_shift(a, np.where(fits, b, b * 0 + np.asarray(bits - 1, b.dtype)))
    found: Array = half if a.dtype.kind == "i" else np.where(fits, half, a * 0)
    return found


def _np_bytedot(a: Array, b: Array) -> Array:
    total = np.zeros((), np.int64)
    for at in range(0, 8 * a.dtype.itemsize, 8):
        x, y = ((n >> n.dtype.type(at)).astype(np.int64) & 255 for n in (a, b))
        total = total + x * (y - 256 * (y > 127))
    found: Array = np.asarray(total.astype(a.dtype))
    return found


_QUOT = """\
def quot(a, b, bits):
    size = 0 if b == 0 else abs(int(a)) // abs(int(b))
    return -size if (a < 0) != (b < 0) else size
"""
_REM = """\
def rem(a, b, bits):
    size = 0 if b == 0 else abs(int(a)) % abs(int(b))
    return -size if a < 0 else size
"""
_IPOW = """\
def ipow(a, b, bits):
    if b < 0:
        return int(a) ** (int(b) % 2) if a in (1, -1) else 0
    return pow(int(a), int(b), 1 << bits)
"""
_SHL = """\
def shl(a, b, bits):
    return int(a) << int(b) if 0 <= b < bits else 0
"""
_SHR = """\
def shr(a, b, bits):
    return int(a) >> int(b if 0 <= b < bits else bits)
"""
_BYTEDOT = """\
def bytedot(a, b, bits):
    places = range(0, bits, 8)
    return sum((int(a) >> p) % 256 * (((int(b) >> p) + 128) % 256 - 128) for p in places)
"""

WITHIN = """\
def within(x, low, bits):
    return (x - low) % (1 << bits) + low
"""
"""Wrap-around to a type of `bits` whose smallest number is `low`, in printed Python."""

INTEGER_OPS: Mapping[str, IntegerOp] = {
    op.name: op
    for op in (
        IntegerOp("quot", _np_quot, cost=30, python=_QUOT),
        IntegerOp("rem", _np_rem, cost=30, python=_REM),
        IntegerOp("ipow", _np_ipow, cost=120, python=_IPOW),
        IntegerOp("shl", _np_shl, cost=3, python=_SHL),
        IntegerOp("shr", _np_shr, cost=3, python=_SHR),
        IntegerOp("bitand", np.bitwise_and, infix="&"),
        IntegerOp("bitor", np.bitwise_or, infix="|"),
        IntegerOp("bitxor", np.bitwise_xor, infix="^"),
        IntegerOp("bytedot", _np_bytedot, python=_BYTEDOT),
    )
}
"""All operations on integers that only data have, by name."""
