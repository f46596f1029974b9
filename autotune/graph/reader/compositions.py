"""① Operators that are short for others: of ONNX Runtime's own domain, and quantised ones.

    com.microsoft.QLinearAdd(a, sa, za, b, sb, zb, s, z)
    ->  QuantizeLinear(DequantizeLinear(a, sa, za) + DequantizeLinear(b, sb, zb), s, z)

Each is written in operators of opset 22; what they come to together (integer products, fused
activations) is found by the passes, as for models that spell them out.
Meanings: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.graph.ir import OPSET, Editor, Node
from autotune.graph.reader import (
    attention,
    deformed,
    flex_attention,
    further_forms,
    ml_forms,
    signal_forms,
    standard_forms,
    term_counts,
)
from autotune.graph.reader.composer import Composer, Composition
from autotune.graph.reader.opsets import schema_of


def composed(node: Node, editor: Editor) -> list[Node] | None:
    """The nodes that stand for `node`; None where it is not short for others.

    `editor` has the types and values of tensors, as far as they are known.
    """
    composition = _composition(node)
    if composition is None:
        return None
    composer = Composer(node, editor)
    composition(composer)
    return composer.nodes or None


def _composition(node: Node) -> Composition | None:
    """What `node` is short for. In a model of an opset without it, LayerNormalization is that of
    com.microsoft: the optimiser of ONNX Runtime writes it into models of all opsets."""
    own = COMPOSITIONS.get(f"com.microsoft.{node.op}")
    if own is not None and schema_of(node.op, node.opset) is None:
        return own
    is_old = node.opset < OPSET and schema_of(node.op, OPSET) is not None
    return None if is_old and node.op in _STANDARD else COMPOSITIONS.get(node.op)


# --- quantised ----------------------------------------------------------------------------------


def _conv(c: Composer) -> None:
    """x, sx, zx, w, sw, zw, sy, zy, bias in steps of sx·sw."""
    bias = ""
    if c.input(8):
        bias = c("DequantizeLinear", c.input(8), c("Mul", c.input(1), c.input(4)), axis=0)
    x, w = c.dequantised(0), c.dequantised(3, axis=0)
    c.quantised(c("Conv", x, w, bias, **c.node.attrs), 6)


def _matmul(c: Composer) -> None:
    """a, sa, za, b, sb, zb, sy, zy."""
    c.quantised(c("MatMul", c.dequantised(0, axis=-2), c.dequantised(3, axis=-1)), 6)


def _gemm(c: Composer) -> None:
    """a, sa, za, b, sb, zb, c in steps of alpha·sa·sb, sy, zy; a float where sy is left out."""
    attrs = {"transA": c.attr("transA", 0), "transB": c.attr("transB", 0)}
    alpha = c.attr("alpha", 1.0)
    addend = ""
    if c.input(6):
        step = c("Mul", c.input(1), c.input(4))
        if alpha != 1.0:
            step = c("Mul", step, c("Constant", value_float=alpha))
        addend = c("DequantizeLinear", c.input(6), step, axis=0)
    axis = 0 if attrs["transB"] else 1
    operands = (c.dequantised(0), c.dequantised(3, axis=axis), addend)
    if c.input(7):
        c.quantised(c("Gemm", *operands, alpha=alpha, **attrs), 7)
    else:
        c.result("Gemm", *operands, alpha=alpha, **attrs)


def _binary(op: str) -> Composition:
    """a, sa, za, b, sb, zb, sy, zy."""
    return lambda c: c.quantised(c(op, c.dequantised(0), c.dequantised(3)), 6)


def _unary(op: str, *names: str) -> Composition:
    """x, sx, zx, sy, zy; attributes `names`."""

    def compose(c: Composer) -> None:
        if c.attr("channels_last", 0):
            raise c.refuse("its data are channels last")
        attrs = {n: c.node.attrs[n] for n in names if n in c.node.attrs}
        c.quantised(c(op, c.dequantised(0), **attrs), 3)

    return compose


_SOFTMAX_OF_ONE_AXIS = 13
"""The opset from which on Softmax sums over one axis, and not over all from it on."""


def _softmax(c: Composer) -> None:
    """x, sx, zx, sy, zy."""
    axis, rank = c.attr("axis", -1), c.rank(0)
    x = c.dequantised(0)
    if c.attr("opset", _SOFTMAX_OF_ONE_AXIS) >= _SOFTMAX_OF_ONE_AXIS or axis in (-1, rank - 1):
        c.quantised(c("Softmax", x, axis=axis), 3)
        return
    rows = math.prod(c.shape(0)[: axis % rank])
    flat = c("Softmax", c.reshaped(x, rows, -1), axis=-1)
    c.quantised(c.reshaped(flat, *c.shape(0)), 3)


def _mean(c: Composer) -> None:
    """x, sx, zx, sy, zy."""
    axes = c.attr("axes", ())
    over = c.integers(*axes) if axes else ""
    c.quantised(c("ReduceMean", c.dequantised(0), over, keepdims=c.attr("keepdims", 1)), 3)


_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _concat(c: Composer) -> None:
    """sy, zy, then x, s, z of every part."""
    parts = [c.dequantised(n) for n in range(2, len(c.node.inputs), 3)]
    joined = c("Concat", *parts, axis=c.attr("axis", 0))
    c.result("QuantizeLinear", joined, c.input(0), c.input(1))


def _where(c: Composer) -> None:
    """condition, x, sx, zx, y, sy, zy, s, z."""
    c.quantised(c("Where", c.input(0), c.dequantised(1), c.dequantised(4)), 7)


def _dynamic_matmul(c: Composer) -> None:
    """a in float32, b, sb, zb, bias."""
    q, scale, zero = c.several("DynamicQuantizeLinear", 3, c.input(0))
    _float_product(c, (q, c.input(1), zero, c.input(3)), (scale, c.input(2)), c.input(4))


def _integer_to_float(c: Composer) -> None:
    """a, b, sa, sb, za, zb, bias."""
    operands = c.input(0), c.input(1), c.input(4), c.input(5)
    _float_product(c, operands, (c.input(2), c.input(3)), c.input(6))


def _float_product(
    c: Composer, operands: tuple[str, ...], scales: tuple[str, str], bias: str
) -> None:
    product = c.integer_product(operands, scales)
    if bias:
        c.result("Add", product, bias)
    else:
        c.result("Identity", product)


# --- activations and normalisations -------------------------------------------------------------


def _bias_gelu(c: Composer) -> None:
    """Gelu(a + b)."""
    c.result("Gelu", c("Add", c.input(0), c.input(1)))


def _fast_gelu(c: Composer) -> None:
    """Gelu by tanh of x + bias."""
    x = c("Add", c.input(0), c.input(1)) if c.input(1) else c.input(0)
    c.result("Gelu", x, approximate="tanh")


def _quick_gelu(c: Composer) -> None:
    """x · sigmoid(alpha · x)."""
    scaled = c("Mul", c.input(0), c.float(c.attr("alpha", 1.702)))
    c.result("Mul", c.input(0), c("Sigmoid", scaled))


def _layer_norm(c: Composer) -> None:
    """x, scale, shift; the further results are the mean and 1 / the deviation."""
    c.results("LayerNormalization", *c.node.inputs, **c.node.attrs)


def _rms_norm(c: Composer) -> None:
    """x, scale: x / sqrt(mean(x²) + epsilon) · scale; the second result is 1 / that root."""
    c.refuse_results(2)
    _divided_by_rms(c, c.input(0), c.input(1), 1, c.attr("axis", -1))


def _divided_by_rms(c: Composer, x: str, scale: str, n: int, axis: int = -1) -> None:
    """`n`: the result that 1 / the root is."""
    axes = c.integers(*range(axis, 0)) if axis < 0 else c.integers(*range(axis, c.rank(0)))
    mean = c("ReduceMean", c("Mul", x, x), axes, keepdims=1)
    root = c("Sqrt", c("Add", mean, c.float(c.attr("epsilon", 1e-5))))
    if c.wants(n):
        c.bind(n, c("Reciprocal", root))
    c.result("Mul", c("Div", x, root), scale)


def _skip_layer_norm(c: Composer) -> None:
    """x, skip, scale, shift, bias -> y, mean, 1 / deviation, and what is normalised."""
    total = _with_skip(c, 4)
    epsilon = c.attr("epsilon", 1e-12)
    c.results("LayerNormalization", total, c.input(2), c.input(3), axis=-1, epsilon=epsilon)


def _skip_rms_norm(c: Composer) -> None:
    """x, skip, scale, bias -> y, (the mean,) 1 / root, and what is normalised."""
    c.refuse_results(1)
    _divided_by_rms(c, _with_skip(c, 3), c.input(2), 2)


def _with_skip(c: Composer, bias: int) -> str:
    total = c("Add", c.input(0), c.input(1))
    if c.input(bias):
        total = c("Add", total, c.input(bias))
    c.bind(3, total)
    return total


def _embedding(c: Composer) -> None:
    """ids, segments, words, positions, segments' rows, scale, shift, mask, places of ids.

    The second result, which counts the mask, has no composition; hardly anything reads it.
    """
    words = c("Gather", c.input(2), c.input(0))
    kind = c.types.get(c.input(0))
    if kind is None:
        raise c.refuse("the shape of an operand is not known")
    places = c.input(8) or c.integers(*range(kind.shape[-1]))
    total = c("Add", words, c("Gather", c.input(3), places))
    if c.input(1):
        total = c("Add", total, c("Gather", c.input(4), c.input(1)))
    c.bind(2, total)
    epsilon = c.attr("epsilon", 1e-12)
    c.result("LayerNormalization", total, c.input(5), c.input(6), axis=-1, epsilon=epsilon)


# --- fused products -----------------------------------------------------------------------------


def _fused_matmul(c: Composer) -> None:
    """alpha · a · b, each transposed or not."""
    if c.attr("transBatchA", 0) or c.attr("transBatchB", 0):
        raise c.refuse("it transposes batches")
    operands = [
        c("Transpose", c.input(n), perm=_swapped(c.rank(n)))
        if c.attr(f, 0) and c.rank(n) > 1
        else c.input(n)
        for n, f in enumerate(("transA", "transB"))
    ]
    alpha = c.attr("alpha", 1.0)
    if alpha == 1.0:
        c.result("MatMul", *operands)
    else:
        c.result("Mul", c("MatMul", *operands), c.float(alpha))


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _fused_conv(c: Composer) -> None:
    """x, weights, bias, what is added before the activation."""
    attrs = {k: v for k, v in c.node.attrs.items() if not k.startswith("activation")}
    y = c("Conv", c.input(0), c.input(1), c.input(2), **attrs)
    _activated(c, c("Add", y, c.input(3)) if c.input(3) else y, c.attr("activation_params", ()))


def _fused_gemm(c: Composer) -> None:
    """a, b, c."""
    attrs = {k: v for k, v in c.node.attrs.items() if not k.startswith("activation")}
    names = _PARAMETERS.get(c.attr("activation", ""), ())
    values = [c.attr(f"activation_{name}", None) for name in names]
    given = [v for v in values if v is not None]
    _activated(c, c("Gemm", *c.node.inputs, **attrs), given)


_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}
"""The activations of fused products, each with its parameters, all of which are given."""


def _activated(c: Composer, x: str, values: Sequence[float]) -> None:
    """Attribute `activation` of `x`, with the values of its parameters."""
    op = c.attr("activation", "")
    if op and op not in _PARAMETERS:
        raise c.refuse(f"activation {op}")
    names = _PARAMETERS.get(op, ())
    if len(values) != len(names):
        raise c.refuse(f"activation {op} has {len(values)} parameters, not {len(names)}")
    if op == "Clip":
        c.result("Clip", x, *(c.float(v) for v in values))
    else:
        c.result(op or "Identity", x, **dict(zip(names, values, strict=True)))


_STANDARD: dict[str, Composition] = {
    **standard_forms.COMPOSITIONS,
    **signal_forms.COMPOSITIONS,
    **further_forms.COMPOSITIONS,
    **deformed.COMPOSITIONS,
    **flex_attention.COMPOSITIONS,
    **term_counts.COMPOSITIONS,
}
"""Of opset 22, or newer than it: older ones are converted first."""

COMPOSITIONS: dict[str, Composition] = {
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
    "com.microsoft.QuantizeLinear": lambda c: c.result(
        "QuantizeLinear", *c.node.inputs, **c.node.attrs
    ),
    "com.microsoft.DequantizeLinear": lambda c: c.result(
        "DequantizeLinear", *c.node.inputs, **c.node.attrs
    ),
    "com.microsoft.Gelu": lambda c: c.result("Gelu", c.input(0)),
    "com.microsoft.BiasGelu": _bias_gelu,
    "com.microsoft.FastGelu": _fast_gelu,
    "com.microsoft.QuickGelu": _quick_gelu,
    "com.microsoft.LayerNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "com.microsoft.SimplifiedLayerNormalization": _rms_norm,
    "com.microsoft.SkipLayerNormalization": _skip_layer_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "com.microsoft.EmbedLayerNormalization": _embedding,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "com.microsoft.FusedConv": _fused_conv,
    "com.microsoft.FusedGemm": _fused_gemm,
    **attention.COMPOSITIONS,
    **ml_forms.COMPOSITIONS,
    **_STANDARD,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_matmul,
    "com.microsoft.MatMulIntegerToFloat": _integer_to_float,
}
