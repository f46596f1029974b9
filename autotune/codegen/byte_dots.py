"""⑤ Σ of products of the bytes of integers (`bytedot` of `te.integers`), added to an accumulator.

    acc[v] + bytedot(w[v], x)  ->  vpdpbusd(acc, w, splat(x))

Without that instruction bytes are widened to 16 bits, whose products are summed in pairs; else one
by one.
"""

from __future__ import annotations

from autotune.codegen.text import I8, I16, I32, Builder, Type, Value, constant, n_bits, vector
from autotune.target.isa import MultiplyAdd

_BYTES, _WORDS = ("uint8", "int8"), ("int16", "int16")


def add_byte_dot(b: Builder, total: Value, x: Value, y: Value) -> Value:
    """`total` and the sum of products of the bytes of `x`, unsigned, and of `y`, signed."""
    if form := _form(b, total.type, _BYTES):
        few = [b.bitcast(v, vector(I8, 4 * total.type.count)) for v in (x, y)]
        return b.call(form.intrinsics[_bits(total.type)], total.type, [total, *few])
    if form := _form(b, total.type, _WORDS):
        for left, right in zip(_halves(b, x, "lshr"), _halves(b, y, "ashr"), strict=True):
            pairs = b.call(form.intrinsics[_bits(total.type)], total.type, [left, right])
            total = b.add(total, pairs)
        return total
    return _one_by_one(b, total, x, y)


def byte_dot(b: Builder, x: Value, y: Value, unsigned: bool) -> Value:
    """The sum of products alone."""
    return add_byte_dot(b, constant(x.type, 0), x, y)


def _form(b: Builder, kind: Type, operands: tuple[str, str]) -> MultiplyAdd | None:
    """The instruction that sums products of `operands` in vectors of type `kind`."""
    isa = b.module.isa
    if kind.scalar is not I32 or _bits(kind) > isa.vector_bits:
        return None
    fits = (f for f in isa.forms if f.operands == operands and _bits(kind) in f.intrinsics)
    return next(fits, None)


def _bits(kind: Type) -> int:
    return n_bits(kind) * kind.count


def _halves(b: Builder, v: Value, shift: str) -> tuple[Value, Value]:
    """Even and odd bytes, widened to 16 bits."""
    wide = b.bitcast(v, vector(I16, 2 * v.type.count))
    by = constant(wide.type, 8)
    return b.binary(shift, b.shl(wide, by), by), b.binary(shift, wide, by)


def _one_by_one(b: Builder, total: Value, x: Value, y: Value) -> Value:
    kind = x.type
    last = constant(kind, n_bits(kind) - 8)
    for at in range(0, n_bits(kind), 8):
        top = constant(kind, n_bits(kind) - 8 - at)
        left, right = (b.shl(v, top) for v in (x, y))
        product = b.binary("mul", b.binary("lshr", left, last), b.ashr(right, last))
        total = b.add(total, product)
    return total
