"""① Algebraic simplification: rules for nodes that compute nothing."""

from __future__ import annotations

from dataclasses import replace

from autotune.graph.ir import Graph, unsupported
from autotune.graph.operators.table import operator_of, operators_with
from autotune.graph.rewriter import Rewriter, Rule


def drop_empty_outputs(graph: Graph) -> Graph:
    """Drop outputs without elements: nothing computes them."""
    return replace(graph, outputs=tuple(n for n in graph.outputs if 0 not in graph.shape(n)))


def _identity(rw: Rewriter) -> None:
    """Identity, inference Dropout, Cast to the same type, Sum of one operand -> their input."""
    is_identity = operator_of(rw.node.op).is_identity
    if is_identity is not None and is_identity(rw):
        require_one_result(rw)
        rw.alias(rw.input(0))


def require_one_result(rw: Rewriter) -> None:
    """Raises UnsupportedOperator where a result but the first is read."""
    if any(rw.editor.uses[name] for name in rw.node.outputs[1:]):
        raise unsupported(rw.node, rw.editor.graph, "its second output is used")


def _reshape(rw: Rewriter) -> None:
    """Reshape(Reshape(x)) -> Reshape(x); a Reshape to the same shape -> x."""
    before = rw.maker(rw.input(0), "Reshape")
    source = before.inputs[0] if before is not None else rw.input(0)
    if rw.types[source].shape == rw.type.shape:
        rw.alias(source)
    elif before is not None:
        rw.result("Reshape", source, **rw.node.attrs)


IDENTITY = Rule(
    "identity", _identity, operators_with(lambda operator: operator.is_identity is not None)
)
RESHAPE = Rule("reshape", _reshape, {"Reshape"})
