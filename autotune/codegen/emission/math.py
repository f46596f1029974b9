"""⑤ Elementary functions as straight-line float code, scalar or vector alike.

LLVM's libm calls are neither vectorised nor inlined, so each function is a polynomial here. A
division of 16 floats occupies a port for 16 cycles: where the divisor is known to be a moderate
positive number, a reciprocal estimate and one Newton step take three operations.
AVX-512 multiplies by a power of two in one instruction instead of eight.
Errors are the largest seen against float64 over the stated range (checked by tests):

    exp      all         1 ULP     Cody-Waite reduction, degree 6 (Cephes expf)
    log      all         1 ULP     mantissa in [√½, √2), degree 9 (Cephes logf)
    tanh     all         2 ULP     polynomial below 0.625, else by exp (Cephes tanhf)
    sigmoid  x ≥ -87     2.5 ULP   by exp; 0 below
    erf      all         5 ULP     rational 13/8, clamped at ±4 (Eigen)
    log1p    all         1.5 ULP   the same, with 1 + x rounded once
    rsqrt    normal      1.5 ULP   division by the square root

"All" includes infinities, NaN, zeros, and denormal arguments and results as far as the processor
keeps them: kernels run with both counted as zero (docs/numbers.md), which changes no other result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from autotune.codegen.emission.text import (
    I8,
    I16,
    I32,
    Constant,
    FunctionBuilder,
    Type,
    Value,
    constant,
)

_Floats: TypeAlias = tuple[float, ...]
_Binary: TypeAlias = Callable[[Value, Value], Value]
_SMALLEST_NORMAL = 2.0**-126
_SQRT_HALF_BITS = 0x3F3504F3
_AS_SET = 4
"""The rounding mode of the processor."""
_SMALL = 87.0
"""e^±87 and its reciprocal are normal numbers."""
_TANH: _Floats = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1)
_TANH += (-3.33332819422e-1,)
_ERF_P: _Floats = (2.72614225801306e-10, -2.77068142495902e-08, 2.10102402082508e-06)
_ERF_P += (5.69250639462346e-05, 7.34990630326855e-04, 2.95459980854025e-03)
_ERF_P += (1.60960333262415e-02,)
_ERF_Q: _Floats = (1.45660718464996e-05, 2.13374055278905e-04, 1.68282697438203e-03)
_ERF_Q += (7.37332916720468e-03, 1.42647390514189e-02)
_EXP: _Floats = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2)
_EXP += (1.6666665459e-1, 5.0000001201e-1)
_LOG: _Floats = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1)
_LOG += (1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)


class Math:
    """Emits elementary functions into `builder`; operands are float or vectors of float."""

    ROUND = 1.5 * 2.0**23
    """Adding it leaves no bits for a fraction: the sum ends in the nearest integer."""

    def __init__(self, builder: FunctionBuilder) -> None:
        self.b = builder

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Call `llvm.<name>` overloaded on the type of the first argument."""
        kind = args[0].type
        return self.b.call(f"llvm.{name}.{kind.suffix}", kind, args)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a·b + c, rounded once where the CPU can."""
        return self.intrinsic(self.b.module.isa.multiply_add, a, b, c)

    def maximum(self, a: Value, b: Value) -> Value:
        """The larger operand, NaN when either is: one instruction where one operand is a number.

        `vmaxps` gives its second operand when either is NaN, so a constant goes in front. Of two
        values that may both be NaN it would lose the first: three instructions.
        """
        return self._extremum("maximum", self.larger, a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller operand, NaN when either is; see `maximum`."""
        return self._extremum("minimum", self.smaller, a, b)

    def _extremum(self, name: str, quick: _Binary, a: Value, b: Value) -> Value:
        for first, second in ((a, b), (b, a)):
            if isinstance(first, Constant) and not math.isnan(first.number):
                return quick(first, second)
        kind = a.type  # which of 0 and -0 is the larger one is left open, as in NumPy
        return self.b.call(f"llvm.{name}.{kind.suffix}", kind, (a, b), flags="nsz")

    def larger(self, a: Value, b: Value) -> Value:
        """One `vmaxps`: `b` when either is NaN."""
        return self.b.select(self.b.compare("fcmp ogt", a, b), a, b)

    def smaller(self, a: Value, b: Value) -> Value:
        """One `vminps`: `b` when either is NaN."""
        return self.b.select(self.b.compare("fcmp olt", a, b), a, b)

    def exp(self, x: Value) -> Value:
        """e^x, with the exact limits 0 and infinity."""
        c = partial(constant, x.type)
        x = self.smaller(c(89.0), self.larger(c(-104.0), x))
        y, n, shifted = self._exp_reduced(x)
        if self._has_estimates(x.type):
            return self._scale_by_instruction(y, n)
        return self._scale(y, self.b.sub(shifted, self._bits(x.type, self.ROUND)))

    def half_exp(self, x: Value) -> Value:
        """e^x / 2 for x ≥ 0, finite as long as that is in range."""
        y, n, _ = self._exp_reduced(self.smaller(constant(x.type, 90.0), x))
        n = self.b.fsub(n, constant(x.type, 1.0))
        if self._has_estimates(x.type):
            return self._scale_by_instruction(y, n)
        return self._scale(y, self.b.cast("fptosi", n, x.type.of(I32)))

    def _exp_small(self, x: Value, sign: float = 1.0) -> Value:
        """e^(sign·x) for |x| ≤ 87, where 2^n is added to the exponent."""
        y, n, shifted = self._exp_reduced(x, sign)
        if self._has_estimates(x.type):
            return self._scale_by_instruction(y, n)
        ints = shifted.type
        exponent = self.b.shl(shifted, constant(ints, 23))
        return self.b.bitcast(self.b.add(self.b.bitcast(y, ints), exponent), x.type)

    def _exp_reduced(self, x: Value, sign: float = 1.0) -> tuple[Value, Value, Value]:
        """(y, n, k): e^(sign·x) = y·2^n, y about 1, and k the bits of n + `ROUND`, ending in n.

        `sign`: 1 or -1, which costs no instruction.
        """
        c = partial(constant, x.type)
        shifted = self.fma(x, c(sign * 1.44269504088896341), c(self.ROUND))
        n = self.b.fsub(shifted, c(self.ROUND))
        r = self.fma(n, c(-sign * 0.693359375), x)
        r = self.fma(n, c(sign * 2.12194440e-4), r)
        z = self.b.fmul(r, r)
        p = self._pairs(tuple(v * sign**k for k, v in enumerate(_EXP, 1)), r, z)  # of sign·r
        linear = r if sign > 0 else self.b.negate(r)
        y = self.b.fadd(self.fma(p, z, linear), c(1.0))
        return y, n, self.b.bitcast(shifted, x.type.of(I32))

    def _reciprocal(self, x: Value) -> Value:
        """1 / x for x from 2^-126 to 2^126."""
        one = constant(x.type, 1.0)
        if x.type.count == 16 and self._has_estimates(x.type):
            reciprocal = self.b.module.isa.reciprocal
            y = self._estimate(reciprocal, x, constant(x.type, 0), _all_lanes(x.type))
            error = self.fma(self.b.negate(x), y, one)
            return self.fma(y, error, y)
        return self.b.fdiv(one, x)

    def log(self, x: Value) -> Value:
        """Natural logarithm; -inf of 0, NaN of negative numbers."""
        c, b = partial(constant, x.type), self.b
        small = b.compare("fcmp olt", x, c(_SMALLEST_NORMAL))
        y = self._log_normal(b.select(small, b.fmul(x, c(2.0**23)), x))
        y = b.select(small, b.fsub(y, c(23 * 0.6931471805599453)), y)
        y = b.select(b.compare("fcmp oeq", x, c(math.inf)), x, y)
        edge = b.select(b.compare("fcmp oeq", x, c(0.0)), c(-math.inf), c(math.nan))
        return b.select(b.compare("fcmp ogt", x, c(0.0)), y, edge)

    def log1p(self, x: Value) -> Value:
        """log(1 + x), as exact near 0 as elsewhere; -inf of -1, NaN below."""
        c, b = partial(constant, x.type), self.b
        mantissa, e, bits = self._halved(b.fadd(x, c(1.0)))
        ints = bits.type
        scale = b.sub(constant(ints, 127 << 23), b.shl(bits, constant(ints, 23)))
        scale = b.bitcast(scale, x.type)  # 2^-e, so that 1 + x is rounded only once
        f = self.fma(x, scale, b.negate(b.fsub(c(1.0), scale)))
        is_large = b.compare("fcmp ogt", x, c(2.0**24))
        y = self._log_of(b.select(is_large, b.fsub(mantissa, c(1.0)), f), e)
        y = b.select(b.compare("fcmp oeq", x, c(math.inf)), x, y)
        edge = b.select(b.compare("fcmp oeq", x, c(-1.0)), c(-math.inf), c(math.nan))
        y = b.select(b.compare("fcmp ogt", x, c(-1.0)), y, edge)
        return b.select(b.compare("fcmp oeq", x, c(0.0)), x, y)

    def split(self, x: Value) -> tuple[Value, Value]:
        """(m, e): x = m·2^e with m in [√½, √2), for x > 0 and finite, denormal too."""
        c, b = partial(constant, x.type), self.b
        small = b.compare("fcmp olt", x, c(_SMALLEST_NORMAL))
        mantissa, e, _ = self._halved(b.select(small, b.fmul(x, c(2.0**23)), x))
        return mantissa, b.fadd(e, b.select(small, c(-23.0), c(0.0)))

    def _halved(self, x: Value) -> tuple[Value, Value, Value]:
        """(m, e, bits): x = m·2^e for normal numbers, and e as an integer."""
        ints = x.type.of(I32)
        i = partial(constant, ints)
        shifted = self.b.sub(self.b.bitcast(x, ints), i(_SQRT_HALF_BITS))
        exponent = self.b.ashr(shifted, i(23))
        mantissa = self.b.add(self.b.and_(shifted, i(0x007FFFFF)), i(_SQRT_HALF_BITS))
        e = self.b.cast("sitofp", exponent, x.type)
        return self.b.bitcast(mantissa, x.type), e, exponent

    def _log_normal(self, x: Value) -> Value:
        mantissa, e, _ = self._halved(x)
        return self._log_of(self.b.fsub(mantissa, constant(x.type, 1.0)), e)

    def _log_of(self, f: Value, e: Value) -> Value:
        """log((1 + f)·2^e) for 1 + f in [√½, √2)."""
        c = partial(constant, f.type)
        z = self.b.fmul(f, f)
        y = self.b.fmul(self.b.fmul(self.horner(_LOG, f), f), z)
        y = self.fma(e, c(-2.12194440e-4), y)
        y = self.fma(z, c(-0.5), y)
        return self.fma(e, c(0.693359375), self.b.fadd(f, y))

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent: a polynomial near 0, else 1 - 2/(e^2|x| + 1)."""
        c, b = partial(constant, x.type), self.b
        size = self.intrinsic("fabs", x)
        z = b.fmul(x, x)
        near = self.fma(b.fmul(self.horner(_TANH, z), z), x, x)
        doubled = self.smaller(c(_SMALL), b.fadd(size, size))
        grown = b.fadd(self._exp_small(doubled), c(1.0))
        rest = self.fma(c(-2.0), self._reciprocal(grown), c(1.0))
        value = b.select(b.compare("fcmp olt", size, c(0.625)), near, rest)
        return self.intrinsic("copysign", value, x)

    def erf(self, x: Value) -> Value:
        """Error function."""
        x = self.smaller(constant(x.type, 4.0), self.larger(constant(x.type, -4.0), x))
        z = self.b.fmul(x, x)
        over = self._reciprocal(self.horner(_ERF_Q, z))
        return self.b.fmul(x, self.b.fmul(self.horner(_ERF_P, z), over))

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e^-x)."""
        c = partial(constant, x.type)
        inside = self.smaller(c(_SMALL), self.larger(c(-_SMALL), x))
        y = self._reciprocal(self.b.fadd(c(1.0), self._exp_small(inside, -1.0)))
        return self.b.select(self.b.compare("fcmp olt", x, c(-_SMALL)), c(0.0), y)

    def rsqrt(self, x: Value) -> Value:
        """1 / √x, both operations correctly rounded."""
        return self.b.fdiv(constant(x.type, 1.0), self.sqrt(x))

    def sqrt(self, x: Value) -> Value:
        """√x, correctly rounded."""
        return self.intrinsic("sqrt", x)

    def nearest(self, x: Value) -> Value:
        """The integer next to x, halves to even, for |x| < 2²²."""
        ints = x.type.of(I32)
        if self.b.module.isa.has_lrint:
            return self.b.call(f"llvm.lrint.{ints.suffix}.{x.type.suffix}", ints, (x,))
        shifted = self.b.bitcast(self.b.fadd(x, constant(x.type, self.ROUND)), ints)
        return self.b.sub(shifted, self._bits(x.type, self.ROUND))

    def _pairs(self, coefficients: _Floats, x: Value, square: Value) -> Value:
        """An even number of terms in pairs: half as long a chain as Horner's."""
        total = self.horner(coefficients[:2], x)
        for k in range(2, len(coefficients), 2):
            total = self.fma(total, square, self.horner(coefficients[k : k + 2], x))
        return total

    def horner(self, coefficients: _Floats, x: Value) -> Value:
        """A polynomial, the highest coefficient first."""
        total: Value = constant(x.type, coefficients[0])
        for value in coefficients[1:]:
            total = self.fma(total, x, constant(x.type, value))
        return total

    def _scale(self, y: Value, k: Value) -> Value:
        """y·2^k for integral k in [-150, 129], in two halves so that 2^128 does not overflow."""
        ints = k.type
        half = self.b.ashr(k, constant(ints, 1))
        for part in (half, self.b.sub(k, half)):
            bits = self.b.shl(self.b.add(part, constant(ints, 127)), constant(ints, 23))
            y = self.b.fmul(y, self.b.bitcast(bits, y.type))
        return y

    def _scale_by_instruction(self, y: Value, n: Value) -> Value:
        """y·2^n for integral floats n."""
        rounding = [constant(I32, _AS_SET)] if y.type.count == 16 else []
        unused, lanes = constant(y.type, 0), _all_lanes(y.type)
        return self._estimate(self.b.module.isa.scale, y, n, unused, lanes, *rounding)

    def _has_estimates(self, kind: Type) -> bool:
        """Whether the target can estimate 1/x and x·2^n in vectors of this many floats."""
        return kind.count in self.b.module.isa.estimate_lanes

    def _estimate(self, name: str, *args: Value) -> Value:
        """Call an intrinsic of the ISA record; its overloads are named by bits of the vector."""
        kind = args[0].type
        return self.b.call(f"{name}.{32 * kind.count}", kind, args)

    def _bits(self, kind: Type, value: float) -> Constant:
        """The bits of float `value`, as integers where `kind` has floats."""
        return constant(kind.of(I32), struct.unpack("<i", struct.pack("<f", value))[0])


def _all_lanes(kind: Type) -> Constant:
    """The mask that leaves no lane out."""
    return constant(I16 if kind.count == 16 else I8, -1)


EXACT = ("sqrt", "rsqrt", "abs", "neg", "floor", "ceil", "round")
"""Functions that have code for float64 too."""
CALLS: dict[str, Callable[[Math, Value], Value]] = {
    "exp": Math.exp,
    "log": Math.log,
    "log1p": Math.log1p,
    "tanh": Math.tanh,
    "erf": Math.erf,
    "sigmoid": Math.sigmoid,
    "rsqrt": Math.rsqrt,
    "sqrt": Math.sqrt,
    "abs": lambda m, x: m.intrinsic("fabs", x),
    "neg": lambda m, x: m.b.negate(x),
    "floor": lambda m, x: m.intrinsic("floor", x),
    "ceil": lambda m, x: m.intrinsic("ceil", x),
    "round": lambda m, x: m.intrinsic("roundeven", x),
}
