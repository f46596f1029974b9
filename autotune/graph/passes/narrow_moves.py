"""① What is moved and then rounded to a narrower type is rounded first.

    Cast(Reshape(Transpose(x)))  ->  Reshape(Transpose(Cast(x)))

So the product that makes `x` rounds it while it stores it, and fewer bytes are moved.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.dtypes import DTYPES
from autotune.graph.ir import Editor, Graph, Node

_MOVES = ("Reshape", "Transpose")


def narrow_before_moves(graph: Graph) -> Graph:
    """Cast to fewer bits of what is moved, which only it reads -> what is moved of the Cast."""
    editor, chains = Editor(graph), _chains(graph)
    first = {moves[0].output: (cast, moves) for cast, moves in chains}
    inside = {node.output for cast, moves in chains for node in (cast, *moves)}
    for original in graph.nodes:
        node = editor.updated(original)
        if node.output in first:
            _emit(editor, node.inputs[0], *first[node.output])
        elif node.output not in inside:
            editor.emit(node)
    return editor.build()


def _chains(graph: Graph) -> list[tuple[Node, list[Node]]]:
    """Each such Cast, and the nodes that move what it reads, in order."""
    makers = {o: n for n in graph.nodes for o in n.outputs}
    readers = graph.consumers()
    found = []
    for node in graph.nodes:
        if node.op != "Cast" or not _is_narrower(graph, node):
            continue
        moves: list[Node] = []
        name = node.inputs[0]
        while _is_private(graph, readers, name) and makers[name].op in _MOVES:
            moves.insert(0, makers[name])
            name = moves[0].inputs[0]
        if moves and name in makers and _is_private(graph, readers, name):
            found.append((node, moves))
    return found


def _is_narrower(graph: Graph, cast: Node) -> bool:
    source, result = (DTYPES[graph.types[n].dtype] for n in (cast.inputs[0], cast.output))
    return result.bits < source.bits


def _is_private(graph: Graph, readers: dict[str, list[Node]], name: str) -> bool:
    is_single = len(readers.get(name, ())) == 1
    return is_single and name not in graph.outputs and name not in {*graph.inputs, *graph.constants}


def _emit(editor: Editor, source: str, cast: Node, moves: list[Node]) -> None:
    dtype = editor.types[cast.output].dtype
    name = editor.new(f"{source}.narrow", editor.types[source].shape, dtype)
    editor.emit(replace(cast, inputs=(source,), outputs=(name,)))
    for node in moves[:-1]:
        moved = editor.new(f"{node.output}.narrow", editor.types[node.output].shape, dtype)
        editor.emit(replace(node, inputs=(name, *node.inputs[1:]), outputs=(moved,)))
        name = moved
    last = moves[-1]
    editor.emit(replace(last, inputs=(name, *last.inputs[1:]), outputs=cast.outputs))
