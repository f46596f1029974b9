"""① Simplification: remove what does nothing, put scales into weights.

Each pass is a function `Graph -> Graph`; `simplify` runs the tuple `PASSES` in order. Equal large
constants are never merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from autotune.graph.ir import Editor, Graph, Node, unsupported
from autotune.graph.passes.canonical import canonical_operators
from autotune.graph.passes.fold_scales import fold_affine
from autotune.graph.passes.hoisting import hoist_elementwise
from autotune.graph.passes.normalisations import group_normalisations
from autotune.graph.passes.parallel_convolutions import merge_branches
from autotune.graph.refusals import attempt


def simplify(graph: Graph) -> Graph:
    """Run all passes."""
    for run in PASSES:
        graph = run(graph)
    return graph


def remove_identities(graph: Graph) -> Graph:
    """Identity, inference Dropout, Cast to the same type, Sum of one -> their input."""
    editor = Editor(graph)
    readers = graph.consumers()
    for original in graph.nodes:
        node = editor.updated(original)
        used = any(name in readers or name in graph.outputs for name in node.outputs[1:])
        attempt(editor, node, partial(_remove_identity, editor, node, used))
    return editor.build()


def _remove_identity(editor: Editor, node: Node, uses_more: bool) -> None:
    if not _is_identity(node, editor):
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


def fold_linear(graph: Graph) -> Graph:
    """Scales, shifts and parallel branches into the weights of convolutions, as far as it goes."""
    while True:
        n_nodes = len(graph.nodes)
        graph = merge_branches(fold_affine(graph))
        if len(graph.nodes) == n_nodes:
            return graph


PASSES: tuple[Callable[[Graph], Graph], ...] = (
    remove_dead,
    remove_identities,
    canonical_operators,
    merge_reshapes,
    group_normalisations,
    hoist_elementwise,
    merge_reshapes,
    remove_dead,
    fold_linear,
    remove_dead,
)


def _is_identity(node: Node, editor: Editor) -> bool:
    match node.op:
        case "Identity":
            return True
        case "Dropout":
            flag = node.inputs[2] if len(node.inputs) > 2 else ""
            return not flag or (flag in editor.constants and not editor.constants[flag].any())
        case "Cast" | "CastLike":
            return editor.types[node.inputs[0]].dtype == editor.types[node.output].dtype
        case "Sum" | "Max" | "Min" | "Mean" | "Concat":
            return len(node.inputs) == 1
        case _:
            return False
