"""⑤ Instruction selection for the operations of te, by element type.

Both operands of an operation are scalars of one type or vectors of as many lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from autotune.codegen.emission import doubles
from autotune.codegen.emission.doubles import DOUBLES
from autotune.codegen.emission.half_precision import HalfPrecision
from autotune.codegen.emission.integers import INTEGERS
from autotune.codegen.emission.math import CALLS, EXACT, Math
from autotune.codegen.emission.powers import power
from autotune.codegen.emission.text import (
    F64,
    I1,
    I32,
    I64,
    SCALARS,
    Constant,
    FunctionBuilder,
    Type,
    Value,
    constant,
    n_bits,
)
from autotune.codegen.emission.trigonometry import TRIGONOMETRY
from autotune.dtypes import DTYPES
from autotune.errors import CodegenError
from autotune.te.intrinsics import INTRINSICS

TYPES: dict[str, Type] = {d.name: SCALARS[d.llvm] for d in DTYPES.values()}
"""LLVM types of elements in memory."""
VALUES: dict[str, Type] = {d.name: TYPES[d.compute] for d in DTYPES.values()} | {"bool": I1}
"""LLVM types of elements in registers: half precision as float32."""


class Arithmetic:
    """Emits operations into `builder`; element types are those of te."""

    def __init__(self, builder: FunctionBuilder) -> None:
        self.b = builder
        self.math = Math(builder)
        self.narrow = HalfPrecision(builder)

    def binary(self, op: str, dtype: str, a: Value, b: Value) -> Value:
        """`a op b`; integers divide towards minus infinity by positive numbers."""
        if a.type.is_float:
            return _FLOAT_OPS[op](self, a, b)
        if op in INTEGERS:
            return INTEGERS[op](self.b, a, b, DTYPES[dtype].is_unsigned)
        return (_UNSIGNED_OPS if DTYPES[dtype].is_unsigned else _INT_OPS)[op](self, a, b)

    def compare(self, op: str, dtype: str, a: Value, b: Value) -> Value:
        """A bool per lane; nothing but `ne` holds of NaN."""
        if a.type.is_float:
            return self.b.compare(f"fcmp {'u' if op == 'ne' else 'o'}{op}", a, b)
        sign = "" if op in ("eq", "ne") else "u" if DTYPES[dtype].is_unsigned else "s"
        return self.b.compare(f"icmp {sign}{op}", a, b)

    def call(self, fn: str, dtype: str, value: Value) -> Value:
        """A function of one argument. Raises CodegenError for types that it has no code for."""
        if fn == "not":
            return self.negation(value)
        record = INTRINSICS[fn]
        if record.takes == "bits":
            bits = self.b.bitcast(self.stored(dtype, value), value.type.of(TYPES[record.result]))
            return self.loaded(record.result, bits)
        if not value.type.is_float:
            return self._integer_call(fn, dtype, value)
        if value.type.scalar is F64 and fn not in EXACT:
            return DOUBLES[fn](self.math, value)
        return (CALLS.get(fn) or TRIGONOMETRY[fn])(self.math, value)

    def negation(self, condition: Value) -> Value:
        """The negated condition."""
        return self.b.binary("xor", condition, constant(condition.type, 1))

    def loaded(self, dtype: str, value: Value) -> Value:
        """An element as it is computed with, out of how it lies in memory."""
        kind = value.type.of(VALUES[dtype])
        if kind is value.type:
            return value
        if dtype == "bool":
            return self.b.cast("trunc", value, kind)
        return self.narrow.widened(value, kind)

    def stored(self, dtype: str, value: Value) -> Value:
        """The inverse of `loaded`; rounds to the nearest element, halves to even."""
        kind = value.type.of(TYPES[dtype])
        if kind is value.type:
            return value
        if dtype == "bool":
            return self.b.cast("zext", value, kind)
        return self.narrow.narrowed(value, kind)

    def cast(self, source: str, goal: str, value: Value) -> Value:
        """From one element type to another; integers that are too large wrap, as in NumPy."""
        if goal == "bool":
            return self._is_set(value)
        if DTYPES[goal].is_narrow:
            wide = value if value.type.is_float else self._converted(source, "float32", value)
            return self.loaded(goal, self.stored(goal, wide))
        return self._converted(source, goal, value)

    def _converted(self, source: str, goal: str, value: Value) -> Value:
        kind = value.type.of(VALUES[goal])
        if value.type is kind:
            return value
        unsigned = DTYPES[source].is_unsigned
        match value.type.is_float, kind.is_float:
            case True, True:
                return self.b.cast("fpext" if kind.scalar is F64 else "fptrunc", value, kind)
            case True, False:
                if goal == "uint64":
                    return self.b.cast("fptoui", value, kind)
                is_wide = n_bits(kind) + DTYPES[goal].is_unsigned > 32
                wide = value.type.of(I64 if is_wide else I32)
                return self._resize(self.b.cast("fptosi", value, wide), kind, unsigned)
            case False, True:
                if value.type.scalar is I1 and self.b.module.isa.vscale:
                    # LLVM 22 ends the process where a mask of SVE becomes narrower by `uitofp`
                    return self.b.select(value, constant(kind, 1.0), constant(kind, 0.0))
                return self.b.cast("uitofp" if unsigned else "sitofp", value, kind)
            case _:
                return self._resize(value, kind, unsigned)

    def _is_set(self, value: Value) -> Value:
        if value.type.scalar is I1:
            return value
        op = "fcmp une" if value.type.is_float else "icmp ne"
        return self.b.compare(op, value, constant(value.type, 0))

    def _resize(self, value: Value, kind: Type, unsigned: bool) -> Value:
        have, want = n_bits(value.type), n_bits(kind)
        if want <= have:
            return value if want == have else self.b.cast("trunc", value, kind)
        return self.b.cast("zext" if unsigned else "sext", value, kind)

    def _integer_call(self, fn: str, dtype: str, value: Value) -> Value:
        if fn == "trailing_zeros":
            suffix = value.type.suffix
            return self.b.call(f"llvm.cttz.{suffix}", value.type, [value, constant(I1, 0)])
        if fn not in ("abs", "neg"):
            raise CodegenError(f"{fn} has no code for integers")
        if fn == "abs" and DTYPES[dtype].is_unsigned:
            return value
        negated = self.b.sub(constant(value.type, 0), value)
        if fn == "neg":
            return negated
        negative = self.b.compare("icmp slt", value, constant(value.type, 0))
        return self.b.select(negative, negated, value)


_Op: TypeAlias = Callable[[Arithmetic, Value, Value], Value]


def _instruction(name: str) -> _Op:
    return lambda f, a, b: f.b.binary(name, a, b)


def _chosen(comparison: str) -> _Op:
    return lambda f, a, b: f.b.select(f.b.compare(comparison, a, b), a, b)


def _floor_div(f: Arithmetic, a: Value, b: Value) -> Value:
    divisor = _known_number(b)
    if divisor & (divisor - 1) == 0 and divisor > 0:
        return f.b.ashr(a, constant(b.type, divisor.bit_length() - 1))
    remainder = f.b.binary("srem", a, b)
    negative = f.b.cast("sext", f.b.compare("icmp slt", remainder, constant(b.type, 0)), b.type)
    return f.b.add(f.b.binary("sdiv", a, b), negative)


def _floor_mod(f: Arithmetic, a: Value, b: Value) -> Value:
    divisor = _known_number(b)
    if divisor & (divisor - 1) == 0 and divisor > 0:
        return f.b.and_(a, constant(b.type, divisor - 1))
    remainder = f.b.binary("srem", a, b)
    negative = f.b.compare("icmp slt", remainder, constant(b.type, 0))
    return f.b.select(negative, f.b.add(remainder, b), remainder)


def _known_number(x: Value) -> int:
    """The number in a constant, or in all lanes of one; 0 when `x` is not constant."""
    return int(x.number) if isinstance(x, Constant) else 0


_INT_OPS: dict[str, _Op] = {
    **{op: _instruction(op) for op in ("add", "sub", "mul", "and", "or")},
    "floordiv": _floor_div,
    "mod": _floor_mod,
    "min": _chosen("icmp slt"),
    "max": _chosen("icmp sgt"),
}
_FLOAT_OPS: dict[str, _Op] = {
    **{op: _instruction(f"f{op}") for op in ("add", "sub", "mul", "div")},
    "min": lambda f, a, b: f.math.minimum(a, b),
    "max": lambda f, a, b: f.math.maximum(a, b),
    "pow": lambda f, a, b: (doubles.power if a.type.scalar is F64 else power)(f.math, a, b),
    "fmod": _instruction("frem"),  # a call of the C library per lane, exact
}
_UNSIGNED_OPS: dict[str, _Op] = _INT_OPS | {
    "floordiv": _instruction("udiv"),
    "mod": _instruction("urem"),
    "min": _chosen("icmp ult"),
    "max": _chosen("icmp ugt"),
}
