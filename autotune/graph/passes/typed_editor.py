"""① Graphs under construction: types are inferred, moves of constants are carried out."""

from __future__ import annotations

from autotune.graph.ir import Array, Editor, Node, Shape, TensorType
from autotune.graph.operators.moves import moved
from autotune.graph.operators.table import operator_of
from autotune.graph.rewriter import Rewriter


class TypedEditor(Editor):
    """The editor of passes: see `Rewriter`."""

    def infer(self, node: Node) -> TensorType | None:
        """The type of the first result, as the record of the operator tells it."""
        typing = operator_of(node.op).typing
        found = typing(Rewriter(node, self), lambda **_: []) if typing is not None else []
        return found[0] if found else None

    def fold(self, node: Node, shape: Shape | None) -> Array | None:
        """The result of a move of constants."""
        known = [self.constants[name] for name in node.inputs if name in self.constants]
        is_constant = known and len(known) == len(node.inputs)
        return moved(node, known, shape) if is_constant else None
