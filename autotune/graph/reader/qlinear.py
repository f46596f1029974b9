"""① Quantised operators -> floats between DequantizeLinear and QuantizeLinear, integer products.

    com.microsoft.QLinearAdd(a, sa, za, b, sb, zb, s, z)
    ->  QuantizeLinear(DequantizeLinear(a, sa, za) + DequantizeLinear(b, sb, zb), s, z)

What they come to together (integer products, fused activations) is found by the passes, as for
models that spell them out.
"""

from __future__ import annotations

import math
from typing import Any

from autotune.graph.rewriter import Rewrite, Rewriter


def _dequantised(rw: Rewriter, first: int, **attrs: Any) -> str:
    """Inputs `first` (integers), `first + 1` (scale) and `first + 2` (zero point) as floats."""
    return rw("DequantizeLinear", *(rw.input(first + k) for k in range(3)), **attrs)


def _quantised(rw: Rewriter, x: str, scale: int) -> None:
    """`x` quantised by inputs `scale` and `scale + 1` as the result."""
    rw.result("QuantizeLinear", x, rw.input(scale), rw.input(scale + 1))


def integer_product(rw: Rewriter, operands: tuple[str, ...], scales: tuple[str, str]) -> str:
    """The product of two matrices of bytes (with two zero points) as floats of both scales."""
    total = rw.cast(rw("MatMulInteger", *operands), "float32")
    return rw("Mul", total, rw("Mul", *scales))


def _conv(rw: Rewriter) -> None:
    """x, sx, zx, w, sw, zw, sy, zy, bias in steps of sx·sw."""
    bias = ""
    if rw.input(8):
        bias = rw("DequantizeLinear", rw.input(8), rw("Mul", rw.input(1), rw.input(4)), axis=0)
    x, w = _dequantised(rw, 0), _dequantised(rw, 3, axis=0)
    _quantised(rw, rw("Conv", x, w, bias, **rw.node.attrs), 6)


def _matmul(rw: Rewriter) -> None:
    """a, sa, za, b, sb, zb, sy, zy."""
    _quantised(rw, rw("MatMul", _dequantised(rw, 0, axis=-2), _dequantised(rw, 3, axis=-1)), 6)


def _gemm(rw: Rewriter) -> None:
    """a, sa, za, b, sb, zb, c in steps of alpha·sa·sb, sy, zy; a float where sy is left out."""
    attrs = {"transA": rw.attr("transA", 0), "transB": rw.attr("transB", 0)}
    alpha = rw.attr("alpha", 1.0)
    addend = ""
    if rw.input(6):
        step = rw("Mul", rw.input(1), rw.input(4))
        if alpha != 1.0:
            step = rw("Mul", step, rw.scalar(alpha))
        addend = rw("DequantizeLinear", rw.input(6), step, axis=0)
    axis = 0 if attrs["transB"] else 1
    operands = (_dequantised(rw, 0), _dequantised(rw, 3, axis=axis), addend)
    if rw.input(7):
        _quantised(rw, rw("Gemm", *operands, alpha=alpha, **attrs), 7)
    else:
        rw.result("Gemm", *operands, alpha=alpha, **attrs)


def _binary(op: str) -> Rewrite:
    """a, sa, za, b, sb, zb, sy, zy."""
    return lambda rw: _quantised(rw, rw(op, _dequantised(rw, 0), _dequantised(rw, 3)), 6)


def _unary(op: str, *names: str) -> Rewrite:
    """x, sx, zx, sy, zy; attributes `names`."""

    def compose(rw: Rewriter) -> None:
        if rw.attr("channels_last", 0):
            raise rw.refuse("its data are channels last")
        attrs = {n: rw.node.attrs[n] for n in names if n in rw.node.attrs}
        _quantised(rw, rw(op, _dequantised(rw, 0), **attrs), 3)

    return compose


_SOFTMAX_OF_ONE_AXIS = 13
"""The opset from which on Softmax sums over one axis, and not over all from it on."""


def _softmax(rw: Rewriter) -> None:
    """x, sx, zx, sy, zy."""
    axis, rank = rw.attr("axis", -1), rw.rank(0)
    x = _dequantised(rw, 0)
    if rw.attr("opset", _SOFTMAX_OF_ONE_AXIS) >= _SOFTMAX_OF_ONE_AXIS or axis in (-1, rank - 1):
        _quantised(rw, rw("Softmax", x, axis=axis), 3)
        return
    rows = math.prod(rw.shape(0)[: axis % rank])
    flat = rw("Softmax", rw.reshaped(x, rows, -1), axis=-1)
    _quantised(rw, rw.reshaped(flat, *rw.shape(0)), 3)


def _mean(rw: Rewriter) -> None:
    """x, sx, zx, sy, zy."""
    axes = rw.attr("axes", ())
    over = rw.integers(*axes) if axes else ""
    _quantised(rw, rw("ReduceMean", _dequantised(rw, 0), over, keepdims=rw.attr("keepdims", 1)), 3)


_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _concat(rw: Rewriter) -> None:
    """sy, zy, then x, s, z of every part."""
    parts = [_dequantised(rw, n) for n in range(2, len(rw.node.inputs), 3)]
    joined = rw("Concat", *parts, axis=rw.attr("axis", 0))
    rw.result("QuantizeLinear", joined, rw.input(0), rw.input(1))


def _where(rw: Rewriter) -> None:
    """condition, x, sx, zx, y, sy, zy, s, z."""
    _quantised(rw, rw("Where", rw.input(0), _dequantised(rw, 1), _dequantised(rw, 4)), 7)


def _dynamic_matmul(rw: Rewriter) -> None:
    """a in float32, b, sb, zb, bias."""
    q, scale, zero = rw.several("DynamicQuantizeLinear", 3, rw.input(0))
    _float_product(rw, (q, rw.input(1), zero, rw.input(3)), (scale, rw.input(2)), rw.input(4))


def _integer_to_float(rw: Rewriter) -> None:
    """a, b, sa, sb, za, zb, bias."""
    operands = rw.input(0), rw.input(1), rw.input(4), rw.input(5)
    _float_product(rw, operands, (rw.input(2), rw.input(3)), rw.input(6))


def _float_product(
    rw: Rewriter, operands: tuple[str, ...], scales: tuple[str, str], bias: str
) -> None:
    product = integer_product(rw, operands, scales)
    if bias:
        rw.result("Add", product, bias)
    else:
        rw.result("Identity", product)


COMPOSITIONS: dict[str, Rewrite] = {
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    "com.microsoft.QGemm": _gemm,
    "com.microsoft.QLinearAdd": _binary("Add"),
    "com.microsoft.QLinearMul": _binary("Mul"),
    "com.microsoft.QLinearSigmoid": _unary("Sigmoid"),
    "com.microsoft.QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
    "com.microsoft.QLinearSoftmax": _softmax,
    "com.microsoft.QLinearReduceMean": _mean,
    "com.microsoft.QLinearAveragePool": _unary("AveragePool", *_POOLING),
    "com.microsoft.QLinearGlobalAveragePool": _unary("GlobalAveragePool"),
    "com.microsoft.QLinearConcat": _concat,
    "com.microsoft.QLinearWhere": _where,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_matmul,
    "com.microsoft.MatMulIntegerToFloat": _integer_to_float,
}
