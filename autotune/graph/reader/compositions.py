"""① Decompositions of operators: of ONNX Runtime's own domain, and of the standard.

    com.microsoft.SkipLayerNormalization(x, skip, scale, shift)
    ->  LayerNormalization(x + skip, scale, shift)

Each is written in operators of opset 22; what they come to together (integer products, fused
activations) is found by the passes, as for models that spell them out.
Meanings: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.errors import UnsupportedOperator
from autotune.graph.ir import OPSET, Node
from autotune.graph.reader import attention, experts, linear_attention, qlinear, standard_forms
from autotune.graph.reader.opsets import schema_of
from autotune.graph.rewriter import Rewrite, Rewriter


def composition_of(node: Node) -> Rewrite | None:
    """Decomposition of `node`; None where it has none.

    In a model of an opset without it, LayerNormalization is that of com.microsoft: the optimiser of
    ONNX Runtime writes it into models of all opsets.
    """
    own = COMPOSITIONS.get(f"com.microsoft.{node.op}")
    if own is not None and schema_of(node.op, node.opset) is None:
        return own
    is_early = node.op in standard_forms.COMPOSITIONS and is_old(node)
    return None if is_early else COMPOSITIONS.get(node.op)


def is_old(node: Node) -> bool:
    """Whether a node is converted to opset 22 before it is a composition."""
    return node.opset < OPSET and schema_of(node.op, OPSET) is not None


def compose(composition: Rewrite, rw: Rewriter) -> None:
    """Emit the nodes of a composition, named as parts of the node.

    Its refusals do not depend on the opset, which the error leaves out.
    """
    node = rw.node
    try:
        composition(rw)
    except UnsupportedOperator as error:
        text = f"operator '{node.op}' (node '{node.name}') is not supported: {error.reason}"
        raise UnsupportedOperator(text, error.hint, error.reason) from None
    rw.nodes = [
        replace(made, name=f"{node.name}/{made.op}") if made.name == node.name else made
        for made in rw.nodes
    ]


# --- activations and normalisations -------------------------------------------------------------


def _bias_gelu(rw: Rewriter) -> None:
    """Gelu(a + b)."""
    rw.result("Gelu", rw("Add", rw.input(0), rw.input(1)))


def _fast_gelu(rw: Rewriter) -> None:
    """Gelu by tanh of x + bias."""
    x = rw("Add", rw.input(0), rw.input(1)) if rw.input(1) else rw.input(0)
    rw.result("Gelu", x, approximate="tanh")


def _quick_gelu(rw: Rewriter) -> None:
    """x · sigmoid(alpha · x)."""
    scaled = rw("Mul", rw.input(0), rw.scalar(rw.attr("alpha", 1.702)))
    rw.result("Mul", rw.input(0), rw("Sigmoid", scaled))


def _layer_norm(rw: Rewriter) -> None:
    """x, scale, shift; the further results are the mean and 1 / the deviation."""
    rw.results("LayerNormalization", *rw.node.inputs, **rw.node.attrs)


def _rms_norm(rw: Rewriter) -> None:
    """x, scale: x / sqrt(mean(x²) + epsilon) · scale; the second result is 1 / that root."""
    attention.without_results(rw, 2)
    _divided_by_rms(rw, rw.input(0), rw.input(1), 1, rw.attr("axis", -1))


def _divided_by_rms(rw: Rewriter, x: str, scale: str, n: int, axis: int = -1) -> None:
    """`n`: the result that 1 / the root is."""
    axes = rw.integers(*range(axis, 0)) if axis < 0 else rw.integers(*range(axis, rw.rank(0)))
    mean = rw("ReduceMean", rw("Mul", x, x), axes, keepdims=1)
    root = rw("Sqrt", rw("Add", mean, rw.scalar(rw.attr("epsilon", 1e-5))))
    if rw.wants(n):
        rw.bind(n, rw("Reciprocal", root))
    rw.result("Mul", rw("Div", x, root), scale)


def _skip_layer_norm(rw: Rewriter) -> None:
    """x, skip, scale, shift, bias -> y, mean, 1 / deviation, and the sum before normalisation."""
    total = _with_skip(rw, 4)
    epsilon = rw.attr("epsilon", 1e-12)
    rw.results("LayerNormalization", total, rw.input(2), rw.input(3), n=3, axis=-1, epsilon=epsilon)


def _skip_rms_norm(rw: Rewriter) -> None:
    """x, skip, scale, bias -> y, (the mean,) 1 / root, and the sum before normalisation."""
    attention.without_results(rw, 1)
    _divided_by_rms(rw, _with_skip(rw, 3), rw.input(2), 2)


def _with_skip(rw: Rewriter, bias: int) -> str:
    total = rw("Add", rw.input(0), rw.input(1))
    if rw.input(bias):
        total = rw("Add", total, rw.input(bias))
    rw.bind(3, total)
    return total


def _embedding(rw: Rewriter) -> None:
    """ids, segments, words, positions, segments' rows, scale, shift, mask, places of ids.

    The second result is how many ones the mask has of each row: 0 where there is none.
    """
    words = rw("Gather", rw.input(2), rw.input(0))
    length = rw.kind(0).shape[-1] if rw.rank(0) else 0
    places = rw.input(8) or rw.integers(*range(length))
    total = rw("Add", words, rw("Gather", rw.input(3), places))
    if rw.input(1):
        total = rw("Add", total, rw("Gather", rw.input(4), rw.input(1)))
    if rw.wants(1):
        rw.bind(1, _ones_of_rows(rw) if rw.input(7) else _zeros_of_rows(rw))
    rw.bind(2, total)
    epsilon = rw.attr("epsilon", 1e-12)
    rw.result("LayerNormalization", total, rw.input(5), rw.input(6), axis=-1, epsilon=epsilon)


def _ones_of_rows(rw: Rewriter) -> str:
    ones = rw.cast(rw("Equal", rw.cast(rw.input(7), "int32"), rw.scalar(1, "int32")), "int32")
    return rw("ReduceSum", ones, rw.integers(1), keepdims=0)


def _zeros_of_rows(rw: Rewriter) -> str:
    return rw.array(np.zeros(rw.shape(0)[:1], np.int32))


# --- fused products -----------------------------------------------------------------------------


def _fused_matmul(rw: Rewriter) -> None:
    """alpha · a · b, each transposed or not."""
    if rw.attr("transBatchA", 0) or rw.attr("transBatchB", 0):
        raise rw.refuse("it transposes batches")
    operands = [
        rw("Transpose", rw.input(n), perm=_swapped(rw.rank(n)))
        if rw.attr(f, 0) and rw.rank(n) > 1
        else rw.input(n)
        for n, f in enumerate(("transA", "transB"))
    ]
    alpha = rw.attr("alpha", 1.0)
    if alpha == 1.0:
        rw.result("MatMul", *operands)
    else:
        rw.result("Mul", rw("MatMul", *operands), rw.scalar(alpha))


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _fused_conv(rw: Rewriter) -> None:
    """x, weights, bias, residual that is added before the activation."""
    attrs = {k: v for k, v in rw.node.attrs.items() if not k.startswith("activation")}
    y = rw("Conv", rw.input(0), rw.input(1), rw.input(2), **attrs)
    _activated(
        rw, rw("Add", y, rw.input(3)) if rw.input(3) else y, rw.attr("activation_params", ())
    )


def _fused_gemm(rw: Rewriter) -> None:
    """a, b, rw."""
    attrs = {k: v for k, v in rw.node.attrs.items() if not k.startswith("activation")}
    names = _PARAMETERS.get(rw.attr("activation", ""), ())
    values = [rw.attr(f"activation_{name}", None) for name in names]
    given = [v for v in values if v is not None]
    _activated(rw, rw("Gemm", *rw.node.inputs, **attrs), given)


_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}
"""The activations of fused products, each with its parameters, all of which are given."""


def _activated(rw: Rewriter, x: str, values: Sequence[float]) -> None:
    """Attribute `activation` of `x`, with the values of its parameters."""
    op = rw.attr("activation", "")
    if op and op not in _PARAMETERS:
        raise rw.refuse(f"activation {op}")
    names = _PARAMETERS.get(op, ())
    if len(values) != len(names):
        raise rw.refuse(f"activation {op} has {len(values)} parameters, not {len(names)}")
    if op == "Clip":
        rw.result("Clip", x, *(rw.scalar(v) for v in values))
    else:
        rw.result(op or "Identity", x, **dict(zip(names, values, strict=True)))


COMPOSITIONS: dict[str, Rewrite] = {
    "com.microsoft.QuantizeLinear": lambda rw: rw.result(
        "QuantizeLinear", *rw.node.inputs, **rw.node.attrs
    ),
    "com.microsoft.DequantizeLinear": lambda rw: rw.result(
        "DequantizeLinear", *rw.node.inputs, **rw.node.attrs
    ),
    "com.microsoft.Gelu": lambda rw: rw.result("Gelu", rw.input(0)),
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
    **qlinear.COMPOSITIONS,
    **attention.COMPOSITIONS,
    **experts.COMPOSITIONS,
    **linear_attention.COMPOSITIONS,
    **standard_forms.COMPOSITIONS,
}
