"""⑤ Σ of products of the bytes of integers (`bytedot` of `te.integers`), added to an accumulator.

    acc[v] + bytedot(w[v], x)  ->  vpdpbusd(acc, w, splat(x))

Without that instruction products of bytes are summed in pairs of 16 bits, where w has no byte above
127, so that none saturates; else bytes are widened to 16 bits first. Where there are no vectors, it
is one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.codegen.emission.multiply_add import multiply_add
from autotune.codegen.emission.text import (
    I8,
    I16,
    I32,
    FunctionBuilder,
    Type,
    Value,
    constant,
    n_bits,
    vector,
)
from autotune.target.isa import MultiplyAdd
from autotune.te.expr import Binary, Const, Expr

_BYTES, _SIGNED, _WORDS = ("uint8", "int8"), ("int8", "int8"), ("int16", "int16")
_SIGNS = 0x80808080


def has_small_bytes(e: Expr) -> bool:
    """Whether no byte of an integer is above 127: a mask sees to it."""
    match e:
        case Binary(op="bitand", b=Const(value=mask)):
            return not int(mask) & _SIGNS
    return False


def add_byte_dot(b: FunctionBuilder, parts: Sequence[Value], is_small: bool = False) -> Value:
    """A total, and the sum of products of the bytes of x, unsigned, and of y, signed: `parts`.

    `is_small`: no byte of x is above 127.
    """
    total, x, y = parts
    bits = _bits(total.type)
    exact = _form(b, total.type, _BYTES) or (_form(b, total.type, _SIGNED) if is_small else None)
    if exact:
        return multiply_add(b, exact, bits, total, _bytes(b, x, y))
    if form := _form(b, total.type, _WORDS):
        if is_small and bits in b.module.isa.byte_pairs:
            ones = constant(vector(I16, 2 * total.type.count), 1)
            name = form.intrinsics[bits]
            return b.add(total, b.call(name, total.type, [_pairs(b, x, y), ones]))
        for left, right in zip(_halves(b, x, "lshr"), _halves(b, y, "ashr"), strict=True):
            total = multiply_add(b, form, bits, total, [left, right])
        return total
    return _one_by_one(b, total, x, y)


def byte_dot(b: FunctionBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    """The sum of products alone."""
    return add_byte_dot(b, (constant(x.type, 0), x, y))


def _form(b: FunctionBuilder, kind: Type, operands: tuple[str, str]) -> MultiplyAdd | None:
    """The instruction that sums products of `operands` in vectors of type `kind`."""
    isa = b.module.isa
    if kind.scalar is not I32 or _bits(kind) > isa.vector_bits:
        return None
    fits = (f for f in isa.forms if f.operands == operands and _bits(kind) in f.intrinsics)
    return next(fits, None)


def _bits(kind: Type) -> int:
    return n_bits(kind) * kind.count


def _pairs(b: FunctionBuilder, x: Value, y: Value) -> Value:
    """Sums of two neighbouring products of bytes, of 16 bits."""
    name = b.module.isa.byte_pairs[_bits(x.type)]
    return b.call(name, vector(I16, 2 * x.type.count), _bytes(b, x, y))


def _bytes(b: FunctionBuilder, x: Value, y: Value) -> list[Value]:
    return [b.bitcast(v, vector(I8, 4 * v.type.count)) for v in (x, y)]


def _halves(b: FunctionBuilder, v: Value, shift: str) -> tuple[Value, Value]:
    """Even and odd bytes, widened to 16 bits."""
    wide = b.bitcast(v, vector(I16, 2 * v.type.count))
    by = constant(wide.type, 8)
    return b.binary(shift, b.shl(wide, by), by), b.binary(shift, wide, by)


def _one_by_one(b: FunctionBuilder, total: Value, x: Value, y: Value) -> Value:
    kind = x.type
    last = constant(kind, n_bits(kind) - 8)
    for at in range(0, n_bits(kind), 8):
        top = constant(kind, n_bits(kind) - 8 - at)
        left, right = (b.shl(v, top) for v in (x, y))
        product = b.binary("mul", b.binary("lshr", left, last), b.ashr(right, last))
        total = b.add(total, product)
    return total
