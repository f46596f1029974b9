"""① Several Transposes become one, also where a Reshape between them adds or drops dimensions of 1.

Transpose(Transpose(x))                   ->  Transpose(x)
Transpose(Reshape(Transpose(x), 12×64×8)) ->  Reshape(Transpose(x))      from 1×12×64×8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.graph.ir import Editor, Graph, Node, Shape, moves_nothing


def merge_transposes(graph: Graph) -> Graph:
    """Transpose(Transpose(x)) -> Transpose(x); one that moves only dimensions of 1 -> Reshape."""
    merger = _Merger(graph)
    for original in graph.nodes:
        node = merger.editor.updated(original)
        match node.op:
            case "Transpose":
                merger.transpose(node)
            case "Reshape":
                merger.reshape(node)
            case _:
                merger.editor.emit(node)
    return merger.editor.build()


class _Merger:
    def __init__(self, graph: Graph) -> None:
        self.editor = Editor(graph)
        self.made: dict[str, Node] = {}
        """Transposes by their outputs."""
        self.reshaped: dict[str, Node] = {}
        """The Transpose of which a tensor has other dimensions of 1."""

    def reshape(self, node: Node) -> None:
        """Remember whose elements these are, if dimensions of 1 alone are others."""
        source = node.inputs[0]
        before, after = self._shape(source), self._shape(node.output)
        inner = self.reshaped.get(source) or self.made.get(source)
        if inner is not None and _wide(before) == _wide(after):
            self.reshaped[node.output] = inner
        self.editor.emit(node)

    def transpose(self, node: Node) -> None:
        """Emit a Transpose of what the one before it reads."""
        source = node.inputs[0]
        rank = len(self._shape(source))
        perm = tuple(node.attrs.get("perm", reversed(range(rank))))
        if source in self.reshaped:
            self._through(node, perm, self.reshaped[source])
            return
        if source in self.made:
            inner = self.made[source]
            perm = tuple(inner.attrs["perm"][p] for p in perm)
            source = inner.inputs[0]
        self._emit(replace(node, inputs=(source,), attrs={"perm": perm}))

    def _through(self, node: Node, perm: Sequence[int], inner: Node) -> None:
        """One Transpose of what `inner` reads, dimensions of 1 in front, and the Reshape behind."""
        source = inner.inputs[0]
        shape, given = self._shape(source), self._shape(node.inputs[0])
        wide = iter(p for p in inner.attrs["perm"] if shape[p] != 1)
        places = {n: next(wide) for n, extent in enumerate(given) if extent != 1}
        order = [places[p] for p in perm if p in places]
        joined = (*(n for n, extent in enumerate(shape) if extent == 1), *order)
        dtype = self.editor.types[source].dtype
        out = self.editor.new(f"{node.output}.joined", (shape[p] for p in joined), dtype)
        self._emit(Node(out, "Transpose", (source,), (out,), {"perm": joined}))
        self.reshaped[node.output] = self.made[out]
        self.editor.emit(Node(node.name, "Reshape", (self.editor.resolve(out),), node.outputs))

    def _emit(self, node: Node) -> None:
        source, perm = node.inputs[0], node.attrs["perm"]
        self.made[node.output] = node
        if perm == tuple(range(len(perm))):
            self.editor.alias(node.output, source)
        elif moves_nothing(perm, self._shape(source)):
            self.editor.emit(Node(node.name, "Reshape", (source,), node.outputs))
        else:
            self.editor.emit(node)

    def _shape(self, name: str) -> Shape:
        return self.editor.types[name].shape


def _wide(shape: Iterable[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]
