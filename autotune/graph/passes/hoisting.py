"""① Elementwise operators move in front of the Reshape or Transpose of their operand.

    MatMul → Reshape → Transpose → Mul(·, ½)       ->  MatMul → Mul(·, ½) → Reshape → Transpose
    MatMul → Reshape (1, m, n) → Add(·, residual)  ->  MatMul → Add(·, residual) → Reshape

    MatMul → Transpose → Cast(bfloat16)            ->  MatMul → Cast(bfloat16) → Transpose

There they fuse with the producer of the operand, or fold into its weights. Behind the layout of
memory only conversions to fewer bits move: fewer bytes are moved then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.dtypes import DTYPES
from autotune.graph.ir import Editor, Graph, Node, Shape
from autotune.graph.operators.table import operator_of


def hoist_elementwise(graph: Graph) -> Graph:
    """Move elementwise operators in front of the Reshape or Transpose of their operand.

    A Reshape costs nothing anywhere; a Transpose moves only with its single consumer.
    """
    return _hoisted(graph, lambda editor, node: operator_of(node.op).is_elementwise)


def hoist_narrowing(graph: Graph) -> Graph:
    """Move conversions to fewer bits in front of the Reshape or Transpose of their operand."""
    return _hoisted(graph, _narrows)


def _narrows(editor: Editor, node: Node) -> bool:
    if node.op != "Cast":
        return False
    source, result = (DTYPES[editor.types[n].dtype] for n in (node.inputs[0], node.output))
    return result.bits < source.bits


def _hoisted(graph: Graph, moves: Callable[[Editor, Node], bool]) -> Graph:
    hoister = _Hoister(graph, moves)
    for node in graph.nodes:
        hoister.visit(hoister.editor.updated(node))
    return hoister.editor.build()


class _Hoister:
    """`moves`: which elementwise operators move."""

    def __init__(self, graph: Graph, moves: Callable[[Editor, Node], bool]) -> None:
        self.editor = Editor(graph)
        self.moves = moves
        self.readers = {name: len(users) for name, users in graph.consumers().items()}
        self.kept = set(graph.outputs)
        self.movers: dict[str, Node] = {}
        """Outputs of Reshape and Transpose."""
        self.computed: set[str] = set()
        """Outputs of operators that an elementwise consumer can fuse with."""

    def visit(self, node: Node) -> None:
        """Emit `node`, before the Reshape or Transpose of an operand where that is possible."""
        mover = self._mover(node) if self.moves(self.editor, node) else None
        if mover is None:
            self._emit(node)
            return
        source = mover.inputs[0]
        shape, moved = self._shape(source), self._shape(mover.output)
        operands = tuple(
            source if name == mover.output else self._in_shape(name, shape, moved)
            for name in node.inputs
        )
        dtype = self.editor.types[node.output].dtype
        inner = self.editor.new(f"{node.output}.early", shape, dtype)
        self.visit(replace(node, inputs=operands, outputs=(inner,)))
        self._emit(replace(mover, inputs=(inner,), outputs=node.outputs))

    def _mover(self, node: Node) -> Node | None:
        """The Reshape or Transpose of an operand that can rearrange the result instead."""
        tensors = [n for n in node.inputs if n and not self._is_scalar(n)]
        shape = self._shape(node.output)
        if any(self._is_private(n) and n in self.computed for n in tensors):
            return None  # it already follows its producer
        for name in dict.fromkeys(tensors):
            mover = self.movers.get(name)
            if mover is None or self._shape(name) != shape or not self._follows_computation(mover):
                continue
            others = [n for n in tensors if n != name]
            if not others and (mover.op == "Reshape" or self._is_private(name)):
                return mover
            source = self._shape(mover.inputs[0])
            if mover.op == "Reshape" and all(self._fits(n, source, shape) for n in others):
                return mover
        return None

    def _follows_computation(self, mover: Node) -> bool:
        """Whether its source, through single-consumer movers, is the output of a computation."""
        source = mover.inputs[0]
        while self._is_private(source) and source in self.movers:
            source = self.movers[source].inputs[0]
        return self._is_private(source) and source in self.computed

    def _fits(self, name: str, source: Shape, shape: Shape) -> bool:
        """Whether an operand that broadcasts to `shape` also broadcasts to `source`."""
        if _without_leading_ones(source) == _without_leading_ones(shape):
            return True
        mover = self.movers.get(name)
        if mover is None or mover.op != "Reshape" or self._shape(name) != shape:
            return False
        return self._shape(mover.inputs[0]) == source

    def _in_shape(self, name: str, shape: Shape, moved: Shape) -> str:
        """An operand for a node whose shape changes from `moved` to `shape`."""
        own = self._shape(name) if name else ()
        if own != moved:
            if len(own) <= len(shape):
                return name
            shape = own[len(own) - len(shape) :]
        shape = () if self._is_scalar(name) else shape
        if name in self.editor.constants:
            return self.editor.constant(name, self.editor.constants[name].reshape(shape))
        view = self.editor.new(f"{name}.view", shape, self.editor.types[name].dtype)
        self.editor.emit(Node(view, "Reshape", (name,), (view,)))
        return view

    def _emit(self, node: Node) -> None:
        self.editor.emit(node)
        if node.op in ("Reshape", "Transpose"):
            self.movers[node.output] = node
        elif not operator_of(node.op).selects:
            self.computed.add(node.output)

    def _is_private(self, name: str) -> bool:
        return self.readers.get(name, 1) == 1 and name not in self.kept

    def _is_scalar(self, name: str) -> bool:
        return all(n == 1 for n in self._shape(name))

    def _shape(self, name: str) -> Shape:
        return self.editor.types[name].shape


def _without_leading_ones(shape: Shape) -> Shape:
    """A shape without leading ones."""
    return next((shape[n:] for n, extent in enumerate(shape) if extent != 1), ())
