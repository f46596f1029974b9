"""⑤ Elementary functions as straight-line float code, scalar or vector alike.

LLVM's libm calls are neither vectorised nor inlined, so each function is a polynomial here. Errors
are the largest seen against float64 over the stated range (checked by tests):

    exp    [-87, 88]   1 ULP     Cody-Waite reduction, degree 6 (Cephes expf)
    log    (0, inf)    2 ULP     mantissa in [√½, √2), degree 8 (Cephes logf)
    tanh   all         4 ULP     rational 13/6, clamped at ±7.9 (Eigen)
    erf    all         4e-7 abs  rational 13/8, clamped at ±4 (Eigen)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import llvmlite.ir as ir

_Floats: TypeAlias = tuple[float, ...]
_I32 = ir.IntType(32)
_TANH_P: _Floats = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11)
_TANH_P += (5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)
_TANH_Q: _Floats = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03)
_TANH_Q += (4.89352518554385e-03,)
_ERF_P: _Floats = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06)
_ERF_P += (-5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03)
_ERF_P += (-1.60960333262415e-02,)
_ERF_Q: _Floats = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03)
_ERF_Q += (-7.37332916720468e-03, -1.42647390514189e-02)
_EXP: _Floats = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2)
_EXP += (1.6666665459e-1, 5.0000001201e-1)
_LOG: _Floats = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1)
_LOG += (1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)


def declare(module: ir.Module, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """The external function `name`, declared once per module."""
    known = module.globals.get(name)
    if known is not None:
        return known
    return ir.Function(module, ir.FunctionType(result, arguments), name)


def vector_suffix(kind: ir.Type) -> str:
    """How LLVM names an overload: `f32`, `v16f32`, `i64`…"""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{vector_suffix(kind.element)}"
    return {"float": "f32", "double": "f64"}.get(str(kind), str(kind))


class Math:
    """Emits elementary functions into `builder`; operands are float or vectors of float."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    def const(self, like: ir.Type, value: float) -> ir.Constant:
        """`value` as a constant of type `like`, splat over a vector."""
        if isinstance(like, ir.VectorType):
            return ir.Constant(like, [value] * like.count)
        return ir.Constant(like, value)

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """Call `llvm.<name>` overloaded on the type of the first argument."""
        kind = args[0].type
        fn = declare(
            self.b.module, f"llvm.{name}.{vector_suffix(kind)}", kind, [a.type for a in args]
        )
        return self.b.call(fn, args)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a·b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """One `vmaxps`: `b` when either is NaN (llvm.maxnum costs three instructions)."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """One `vminps`: `b` when either is NaN."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def exp(self, x: ir.Value) -> ir.Value:
        """e^x; 0 below -88, 2^128·… saturates at the largest finite result above 88.7."""
        c = partial(self.const, x.type)
        x = self.minimum(c(88.72283), self.maximum(c(-87.33654), x))
        n = self.intrinsic("roundeven", self.b.fmul(x, c(1.44269504088896341)))
        r = self.fma(n, c(-0.693359375), x)
        r = self.fma(n, c(2.12194440e-4), r)
        p = self._horner(_EXP, r)
        y = self.b.fadd(self.fma(p, self.b.fmul(r, r), r), c(1.0))
        return self._scale(y, n)

    def log(self, x: ir.Value) -> ir.Value:
        """Natural logarithm of a positive normal number."""
        c = partial(self.const, x.type)
        ints = self._int_type(x.type)
        i = partial(self.const, ints)
        bits = self.b.bitcast(x, ints)
        shifted = self.b.sub(bits, i(0x3F3504F3))
        exponent = self.b.ashr(shifted, i(23))
        mantissa = self.b.add(self.b.and_(shifted, i(0x007FFFFF)), i(0x3F3504F3))
        f = self.b.fsub(self.b.bitcast(mantissa, x.type), c(1.0))
        e = self.b.sitofp(exponent, x.type)
        z = self.b.fmul(f, f)
        y = self.b.fmul(self.b.fmul(self._horner(_LOG, f), f), z)
        y = self.fma(e, c(-2.12194440e-4), y)
        y = self.fma(z, c(-0.5), y)
        return self.fma(e, c(0.693359375), self.b.fadd(f, y))

    def tanh(self, x: ir.Value) -> ir.Value:
        """Hyperbolic tangent."""
        return self._rational(x, 7.90531110763549805, _TANH_P, _TANH_Q)

    def erf(self, x: ir.Value) -> ir.Value:
        """Error function."""
        return self._rational(x, 4.0, _ERF_P, _ERF_Q)

    def sigmoid(self, x: ir.Value) -> ir.Value:
        """1 / (1 + e^-x)."""
        one = self.const(x.type, 1.0)
        return self.b.fdiv(one, self.b.fadd(one, self.exp(self.b.fneg(x))))

    def rsqrt(self, x: ir.Value) -> ir.Value:
        """1 / √x, both operations correctly rounded."""
        return self.b.fdiv(self.const(x.type, 1.0), self.intrinsic("sqrt", x))

    def pow(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """x^y for positive x, as e^(y·log x)."""
        return self.exp(self.b.fmul(y, self.log(x)))

    def _rational(
        self, x: ir.Value, limit: float, p: tuple[float, ...], q: tuple[float, ...]
    ) -> ir.Value:
        x = self.minimum(self.const(x.type, limit), self.maximum(self.const(x.type, -limit), x))
        z = self.b.fmul(x, x)
        return self.b.fdiv(self.b.fmul(x, self._horner(p, z)), self._horner(q, z))

    def _horner(self, coefficients: tuple[float, ...], x: ir.Value) -> ir.Value:
        total: ir.Value = self.const(x.type, coefficients[0])
        for value in coefficients[1:]:
            total = self.fma(total, x, self.const(x.type, value))
        return total

    def _scale(self, y: ir.Value, n: ir.Value) -> ir.Value:
        """y·2^n for integral n in [-126, 128], in two halves so that 2^128 does not overflow."""
        ints = self._int_type(y.type)
        k = self.b.fptosi(n, ints)
        half = self.b.ashr(k, self.const(ints, 1))
        for part in (half, self.b.sub(k, half)):
            bits = self.b.shl(self.b.add(part, self.const(ints, 127)), self.const(ints, 23))
            y = self.b.fmul(y, self.b.bitcast(bits, y.type))
        return y

    def _int_type(self, like: ir.Type) -> ir.Type:
        return ir.VectorType(_I32, like.count) if isinstance(like, ir.VectorType) else _I32


EXACT = ("sqrt", "rsqrt", "abs", "neg", "floor", "ceil", "round")
"""Functions that have code for float64 too."""
CALLS: dict[str, Callable[[Math, ir.Value], ir.Value]] = {
    "exp": Math.exp,
    "log": Math.log,
    "tanh": Math.tanh,
    "erf": Math.erf,
    "sigmoid": Math.sigmoid,
    "rsqrt": Math.rsqrt,
    "sqrt": lambda m, x: m.intrinsic("sqrt", x),
    "abs": lambda m, x: m.intrinsic("fabs", x),
    "neg": lambda m, x: m.b.fneg(x),
    "floor": lambda m, x: m.intrinsic("floor", x),
    "ceil": lambda m, x: m.intrinsic("ceil", x),
    "round": lambda m, x: m.intrinsic("roundeven", x),
}
