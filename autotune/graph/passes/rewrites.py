"""① Canonicalization by the rules in the records of operators, and operands that are no data."""

from __future__ import annotations

from autotune.graph.operators.table import operator_of, operators_with
from autotune.graph.passes.simplify import require_one_result
from autotune.graph.rewriter import Rewriter, Rule


def _canonical(rw: Rewriter) -> None:
    """Reduce the variants of operators to one each, in ONNX's order of dimensions.

    For instance Flatten, Squeeze -> Reshape · Gemm -> MatMul, Mul, Add · BatchNormalization -> Mul,
    Add · ConvTranspose -> Conv, Interleave · LSTM -> its steps. See `Operator.canonical`.
    """
    rewrite = operator_of(rw.node.op).canonical
    if rewrite is not None:
        rewrite(rw)


def _resolve(rw: Rewriter) -> None:
    """Operands that are no data become attributes; what remains among the inputs is data.

    Pad has `amounts` and `fill` then, Slice has `starts` and `steps` for every dimension, Split is
    slices, reductions have `axes`, and AveragePool has a second input: one over the number of
    elements that count. On the stored layout. See `Operator.resolve`.
    """
    if rw.node.op != "Split":
        require_one_result(rw)
    rewrite = operator_of(rw.node.op).resolve
    if rewrite is not None:
        rewrite(rw)


_HAVE_FORM = operators_with(lambda operator: operator.canonical)

CANONICAL = Rule("canonical", _canonical, _HAVE_FORM, converts=True)
RESOLVE = Rule("resolve", _resolve, converts=True)
