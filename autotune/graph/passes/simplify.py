"""① Simplification: remove nodes that compute nothing. Equal large constants are never merged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from autotune.graph.ir import Editor, Graph, Node, unsupported
from autotune.graph.operators.table import operator_of
from autotune.graph.refusals import attempt


def drop_empty_outputs(graph: Graph) -> Graph:
    """Drop outputs without elements: nothing computes them."""
    return replace(graph, outputs=tuple(n for n in graph.outputs if 0 not in graph.shape(n)))


def remove_identities(graph: Graph) -> Graph:
    """Identity, inference Dropout, Cast to the same type, Sum of one operand -> their input."""
    editor = Editor(graph)
    readers = graph.consumers()
    for original in graph.nodes:
        node = editor.updated(original)
        used = any(name in readers or name in graph.outputs for name in node.outputs[1:])
        attempt(editor, node, partial(_remove_identity, editor, node, used))
    return editor.build()


def _remove_identity(editor: Editor, node: Node, uses_more: bool) -> None:
    is_identity = operator_of(node.op).is_identity
    if is_identity is None or not is_identity(editor, node):
        editor.emit(node)
    elif uses_more:
        raise unsupported(node, editor.graph, "its second output is used")
    else:
        editor.alias(node.output, node.inputs[0])


def merge_reshapes(graph: Graph) -> Graph:
    """Reshape(Reshape(x)) -> Reshape(x); a Reshape to the same shape -> x."""
    editor = Editor(graph)
    sources: dict[str, str] = {}
    for original in graph.nodes:
        node = editor.updated(original)
        if node.op != "Reshape":
            editor.emit(node)
            continue
        source = sources.get(node.inputs[0], node.inputs[0])
        if editor.types[source].shape == editor.types[node.output].shape:
            editor.alias(node.output, source)
            continue
        sources[node.output] = source
        editor.emit(replace(node, inputs=(source,)))
    return editor.build()


def remove_dead(graph: Graph) -> Graph:
    """Drop nodes and constants on which no output depends."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if live & set(node.outputs):
            kept.append(node)
            live |= set(node.inputs)
    constants = {n: a for n, a in graph.constants.items() if n in live}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
