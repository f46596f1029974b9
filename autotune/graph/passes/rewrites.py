"""① Every node by the rewrite that the record of its operator names."""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from autotune.graph.ir import Editor, Graph, Node, unsupported
from autotune.graph.operators.table import operator_of
from autotune.graph.refusals import attempt


def canonical_operators(graph: Graph, kept: Set[str] = frozenset()) -> Graph:
    """Reduce the variants of operators to one each, in ONNX's order of dimensions.

    For instance Flatten, Squeeze -> Reshape · Gemm -> MatMul, Mul, Add · BatchNormalization -> Mul,
    Add · ConvTranspose -> Conv, Interleave · LSTM -> its steps. See `Operator.canonical`. Operators
    in `kept` stay as they are.
    """
    editor = Editor(graph)
    for original in graph.nodes:
        node = editor.updated(original)
        canonical = None if node.op in kept else operator_of(node.op).canonical
        rewrite = canonical or Editor.emit
        attempt(editor, node, partial(rewrite, editor, node))
    return editor.build()


def resolve_operands(graph: Graph) -> Graph:
    """Operands that are no data become attributes; what remains among the inputs is data.

    After this pass Pad has `amounts` and `fill`, Slice has `starts` and `steps` for every
    dimension, Split is slices, reductions have `axes`, and AveragePool has a second input: one over
    the number of elements that count. Runs on the stored layout. See `Operator.resolve`.
    """
    editor, readers = Editor(graph), graph.consumers()
    for original in graph.nodes:
        node = editor.updated(original)
        used = any(name in readers or name in graph.outputs for name in node.outputs[1:])
        attempt(editor, node, partial(_resolve, editor, node, used))
    return editor.build()


def _resolve(editor: Editor, node: Node, uses_more: bool) -> None:
    if node.op != "Split" and uses_more:
        raise unsupported(node, editor.graph, "its second output is used")
    rewrite = operator_of(node.op).resolve or Editor.emit
    rewrite(editor, node)
