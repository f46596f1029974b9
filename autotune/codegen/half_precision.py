"""⑤ float16 and bfloat16 between memory and registers: widened when loaded, rounded when stored.

    bfloat16  the upper half of a float32: widened by a shift; narrowed by `vcvtneps2bf16`, or by
              rounding its bits as integers where the CPU has no such instruction (LLVM would call
              a function for each lane)
    float16   `vcvtph2ps` and `vcvtps2ph`, which are LLVM's `fpext` and `fptrunc`

Rounded to the nearest, halves to even; NaN stays NaN. `vcvtneps2bf16` takes denormal numbers for
zero, as kernels do anyway.
"""

from __future__ import annotations

from functools import partial

from autotune.codegen.text import (
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


class HalfPrecision:
    """Emits conversions into `builder`, of scalars or vectors."""

    def __init__(self, builder: FunctionBuilder) -> None:
        self.b = builder

    def widened(self, value: Value, kind: Type) -> Value:
        """`value`, an i16 or half as it lies in memory, as the float32 `kind`."""
        if value.type.scalar is F16:
            return self.b.cast("fpext", value, kind)
        ints = kind.of(I32)
        upper = self.b.shl(self.b.cast("zext", value, ints), constant(ints, 16))
        return self.b.bitcast(upper, kind)

    def narrowed(self, value: Value, kind: Type) -> Value:
        """A float32 or float64 as it lies in memory: `kind` is i16 (bfloat16) or half."""
        if value.type.scalar is F64:
            value = self._odd(value)
        if kind.scalar is F16:
            return self.b.cast("fptrunc", value, kind)
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
