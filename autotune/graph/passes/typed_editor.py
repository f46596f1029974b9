"""① Graphs under construction: types are inferred, moves of constants are carried out."""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, TensorType
from autotune.graph.operators.moves import moved
from autotune.graph.operators.table import operator_of
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Tensor, dtype_of, idx


class TypedEditor(Editor):
    """The editor of passes: see `Rewriter`."""

    def infer(self, node: Node) -> TensorType | None:
        """The type of the first result, as the record of the operator tells it."""
        operator = operator_of(node.op)
        found = operator.typing(Rewriter(node, self), lambda **_: []) if operator.typing else []
        if found or operator.formula is None:
            return found[0] if found else None
        kinds = [self.types[name] if name else None for name in node.inputs]
        elements = [None if k is None else Tensor("x", (1,), k.dtype)[idx(0)] for k in kinds]
        shape = np.broadcast_shapes(*(kind.shape for kind in kinds if kind is not None))
        return TensorType(shape, dtype_of(operator.formula(node.attrs, *elements)))

    def fold(self, node: Node, shape: Shape | None) -> Array | None:
        """The result of a move of constants."""
        known = [self.constants[name] for name in node.inputs if name in self.constants]
        is_constant = known and len(known) == len(node.inputs)
        return moved(node, known, shape) if is_constant else None
