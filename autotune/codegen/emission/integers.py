"""⑤ Operations on integers that only data have (`te.integers`): defined for all operands.

The processor traps where it divides by zero, and the smallest number by -1; shifts by more than the
type has bits are undefined in LLVM. So operands are made harmless first, unless they are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from autotune.codegen.emission.byte_dots import byte_dot
from autotune.codegen.emission.text import Constant, FunctionBuilder, Value, constant, n_bits


def _quotient(b: FunctionBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    c = partial(constant, x.type)
    op = "udiv" if unsigned else "sdiv"
    if _is_harmless(y, unsigned):
        return b.binary(op, x, y)
    is_zero = b.compare("icmp eq", y, c(0))
    if unsigned:
        return b.select(is_zero, c(0), b.binary(op, x, b.select(is_zero, c(1), y)))
    is_minus = b.compare("icmp eq", y, c(-1))
    found = b.binary(op, x, _divisor(b, y, unsigned))
    found = b.select(is_minus, b.sub(c(0), x), found)
    return b.select(is_zero, c(0), found)


def _remainder(b: FunctionBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    safe = y if _is_harmless(y, unsigned) else _divisor(b, y, unsigned)
    return b.binary("urem" if unsigned else "srem", x, safe)


def _divisor(b: FunctionBuilder, y: Value, unsigned: bool) -> Value:
    """`y`, or 1 where dividing by it traps: then the rest of 1, none, is that of `y`."""
    c = partial(constant, y.type)
    traps = b.compare("icmp eq", y, c(0))
    if not unsigned:
        traps = b.binary("or", traps, b.compare("icmp eq", y, c(-1)))
    return b.select(traps, c(1), y)


def _is_harmless(y: Value, unsigned: bool) -> bool:
    return isinstance(y, Constant) and y.number not in ((0,) if unsigned else (0, -1))


def _shifted_left(b: FunctionBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    fits, safe = _amount(b, y)
    return b.select(fits, b.shl(x, safe), constant(x.type, 0))


def _shifted_right(b: FunctionBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    fits, safe = _amount(b, y)
    if unsigned:
        return b.select(fits, b.binary("lshr", x, safe), constant(x.type, 0))
    return b.ashr(x, b.select(fits, safe, constant(x.type, n_bits(x.type) - 1)))


def _amount(b: FunctionBuilder, y: Value) -> tuple[Value, Value]:
    """Whether `y` is a number of bits of its type, and that number."""
    bits = n_bits(y.type)
    fits = b.compare("icmp ult", y, constant(y.type, bits))
    return fits, b.and_(y, constant(y.type, bits - 1))


def _power(b: FunctionBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    """Squares of x, multiplied where y has the bit.

    Two bits fewer than y has suffice: x^(2^(n-2)) is 1 modulo 2^n for odd x, and for even ones 0,
    as any power from n on.
    """
    c = partial(constant, x.type)
    bits = n_bits(x.type)
    total: Value = c(1)
    square = x
    for n in range(max(bits - 2, 1)):
        is_set = b.compare("icmp ne", b.and_(y, c(1 << n)), c(0))
        total = b.select(is_set, b.binary("mul", total, square), total)
        square = b.binary("mul", square, square)
    is_large = b.compare("icmp uge", y, c(bits))
    is_even = b.compare("icmp eq", b.and_(x, c(1)), c(0))
    total = b.select(b.and_(is_large, is_even), c(0), total)
    if unsigned:
        return total
    is_unit = b.binary("or", b.compare("icmp eq", x, c(1)), b.compare("icmp eq", x, c(-1)))
    odd = b.compare("icmp ne", b.and_(y, c(1)), c(0))
    inverse = b.select(is_unit, b.select(odd, x, c(1)), c(0))
    return b.select(b.compare("icmp slt", y, c(0)), inverse, total)


def _bits(op: str) -> Callable[[FunctionBuilder, Value, Value, bool], Value]:
    return lambda b, x, y, unsigned: b.binary(op, x, y)


INTEGERS: Mapping[str, Callable[[FunctionBuilder, Value, Value, bool], Value]] = {
    "quot": _quotient,
    "rem": _remainder,
    "ipow": _power,
    "shl": _shifted_left,
    "shr": _shifted_right,
    "bitand": _bits("and"),
    "bitor": _bits("or"),
    "bitxor": _bits("xor"),
    "bytedot": byte_dot,
}
"""An emitter of every operation, given whether its operands are unsigned."""
