"""⑤ float16 and bfloat16 between memory and registers: widened when loaded, rounded when stored.

    bfloat16  the upper half of a float32: widened by a shift; narrowed by `vcvtneps2bf16`, or by
              rounding its bits as integers where the CPU has no such instruction (LLVM would call
              a function for each lane)
    float16   `vcvtph2ps` and `vcvtps2ph`, which are LLVM's `fpext` and `fptrunc`; on their bits
              where a CPU has no such instruction, where LLVM would call the compiler's library

Rounded to the nearest, halves to even; NaN stays NaN. `vcvtneps2bf16` takes denormal numbers for
zero, as kernels do anyway.
"""

from __future__ import annotations

from functools import partial

from autotune.codegen.emission.text import (
    BF16,
    F16,
    F32,
    F64,
    I16,
    I32,
    FunctionBuilder,
    Type,
    Value,
    constant,
)

_HALF_OF_LAST, _QUIET = 0x7FFF, 0x400000
_BIAS, _STEP = 112 << 23, 1 << 23
"""Difference of the exponents of float32 and float16 for one number, and of one exponent."""


class HalfPrecision:
    """Emits conversions into `builder`, of scalars or vectors."""

    def __init__(self, builder: FunctionBuilder) -> None:
        self.b = builder
        self._narrow: dict[Value, Value] = {}
        """Of what was widened: a value that is rounded to be stored is not rounded again."""

    def widened(self, value: Value, kind: Type) -> Value:
        """`value`, an i16 or half as it lies in memory, as the float32 `kind`."""
        wide = self._widened(value, kind)
        self._narrow[wide] = value
        return wide

    def _widened(self, value: Value, kind: Type) -> Value:
        if value.type.scalar is F16:
            if self.b.module.isa.converts_float16:
                return self.b.cast("fpext", value, kind)
            return self._widened_bits(value, kind)
        ints = kind.of(I32)
        upper = self.b.shl(self.b.cast("zext", value, ints), constant(ints, 16))
        return self.b.bitcast(upper, kind)

    def narrowed(self, value: Value, kind: Type) -> Value:
        """A float32 or float64 as it lies in memory: `kind` is i16 (bfloat16) or half."""
        known = self._narrow.get(value)
        if known is not None and known.type is kind:
            return known
        if value.type.scalar is F64:
            value = self._odd(value)
        if kind.scalar is F16:
            if self.b.module.isa.converts_float16:
                return self.b.cast("fptrunc", value, kind)
            return self._narrowed_bits(value, kind)
        if self.b.module.isa.narrows_to_bfloat16:
            return self.b.bitcast(self.b.cast("fptrunc", value, kind.of(BF16)), kind)
        return self._rounded(value, kind)

    def _rounded(self, value: Value, kind: Type) -> Value:
        b, ints = self.b, value.type.of(I32)
        c = partial(constant, ints)
        bits = b.bitcast(value, ints)
        last = b.and_(b.binary("lshr", bits, c(16)), c(1))
        up = b.add(b.add(bits, last), c(_HALF_OF_LAST))
        quiet = b.binary("or", bits, c(_QUIET))
        chosen = b.select(b.compare("fcmp uno", value, value), quiet, up)
        return b.cast("trunc", b.binary("lshr", chosen, c(16)), kind.of(I16))

    def _widened_bits(self, value: Value, kind: Type) -> Value:
        """A float16 as float32: its exponent moved; a denormal number is a difference of two."""
        b, ints = self.b, kind.of(I32)
        c = partial(constant, ints)
        bits = b.cast("zext", b.bitcast(value, value.type.of(I16)), ints)
        size = b.shl(b.and_(bits, c(0x7FFF)), c(13))
        exponent, moved = b.and_(size, c(31 << 23)), b.add(size, c(_BIAS))
        least = b.bitcast(c(_BIAS + _STEP), kind)
        small = b.fsub(b.bitcast(b.add(moved, c(_STEP)), kind), least)
        near = b.select(b.compare("icmp eq", exponent, c(0)), b.bitcast(small, ints), moved)
        is_special = b.compare("icmp eq", exponent, c(31 << 23))
        found = b.select(is_special, b.add(moved, c(_BIAS)), near)
        sign = b.shl(b.and_(bits, c(0x8000)), c(16))
        return b.bitcast(b.binary("or", found, sign), kind)

    def _narrowed_bits(self, value: Value, kind: Type) -> Value:
        """A float32 as float16: its bits rounded; those of a denormal number by adding 1/2."""
        b, ints = self.b, value.type.of(I32)
        c = partial(constant, ints)
        bits = b.bitcast(value, ints)
        size = b.and_(bits, c(0x7FFFFFFF))
        last = b.and_(b.binary("lshr", size, c(13)), c(1))
        normal = b.binary("lshr", b.add(b.add(size, last), c(0xFFF - _BIAS)), c(13))
        half = constant(value.type, 0.5)
        rounded = b.bitcast(b.fadd(b.bitcast(size, value.type), half), ints)
        small = b.sub(rounded, b.bitcast(half, ints))
        near = b.select(b.compare("icmp ult", size, c(_BIAS + _STEP)), small, normal)
        nan = b.binary("or", b.and_(b.binary("lshr", size, c(13)), c(0x3FF)), c(0x7E00))
        special = b.select(b.compare("icmp ugt", size, c(255 << 23)), nan, c(0x7C00))
        is_special = b.compare("icmp uge", size, c(0x477FF000))  # 65520 is rounded to infinity
        sign = b.and_(b.binary("lshr", bits, c(16)), c(0x8000))
        found = b.binary("or", b.select(is_special, special, near), sign)
        return b.bitcast(b.cast("trunc", found, kind.of(I16)), kind)

    def _odd(self, value: Value) -> Value:
        """float64 to the float32 next to it towards zero, its last bit set unless it is exact.

        So rounding once more equals rounding at once (Boldo, Melquiond, 2008).
        """
        b, floats = self.b, value.type.of(F32)
        ints = floats.of(I32)
        near = b.cast("fptrunc", value, floats)
        back, bits = b.cast("fpext", near, value.type), b.bitcast(near, ints)
        sizes = [b.call(f"llvm.fabs.{value.type.suffix}", value.type, [x]) for x in (back, value)]
        is_above = b.compare("fcmp ogt", *sizes)
        cut = b.select(is_above, b.binary("sub", bits, constant(ints, 1)), bits)
        is_inexact = b.compare("fcmp one", back, value)
        odd = b.select(is_inexact, b.binary("or", cut, constant(ints, 1)), cut)
        return b.bitcast(odd, floats)
