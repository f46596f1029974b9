"""① Rules that the records of operators have: the canonical form, and operands that are no data."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import cast

from autotune.graph.ir import Editor, Node
from autotune.graph.operators.table import OPERATORS, operator_of
from autotune.graph.passes.simplify import require_one_result
from autotune.graph.rewriter import Rewrite, Rewriter, Rule


class _Nodes(Editor):
    """Collects the nodes that a rewrite emits."""

    def __init__(self, rw: Rewriter) -> None:
        self.graph, self.nodes, self.rw = rw.editor.graph, rw.nodes, rw
        self.types, self.constants = rw.types, rw.constants
        self.resolve = rw.editor.resolve  # type: ignore[method-assign]
        self.updated = rw.editor.updated  # type: ignore[method-assign]
        self.unused = rw.editor.unused  # type: ignore[method-assign]

    def emit(self, node: Node) -> None:
        if node != self.rw.node:
            self.nodes.append(node)

    def alias(self, name: str, target: str) -> None:
        if name == self.rw.node.output:
            self.rw.alias(target)
        else:
            self.rw.editor.alias(name, target)


def _run(rewrite: Rewrite | Callable[[Editor, Node], None], rw: Rewriter) -> None:
    """Run a rewrite of either form."""
    if len(signature(rewrite).parameters) == 1:
        cast("Rewrite", rewrite)(rw)
    else:
        cast("Callable[[Editor, Node], None]", rewrite)(_Nodes(rw), rw.node)


def _canonical(rw: Rewriter) -> None:
    """Reduce the variants of operators to one each, in ONNX's order of dimensions.

    For instance Flatten, Squeeze -> Reshape · Gemm -> MatMul, Mul, Add · BatchNormalization -> Mul,
    Add · ConvTranspose -> Conv, Interleave · LSTM -> its steps. See `Operator.canonical`.
    """
    rewrite = operator_of(rw.node.op).canonical
    if rewrite is not None:
        _run(rewrite, rw)


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
        _run(rewrite, rw)


CANONICAL = Rule("canonical", _canonical, OPERATORS, converts=True)
UNCUT = Rule("canonical", _canonical, OPERATORS.keys() - {"CumSum", "CumProd"}, converts=True)
"""The same where no long dimension is cut into blocks."""
RESOLVE = Rule("resolve", _resolve, converts=True)
