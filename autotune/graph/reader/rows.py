"""① Whether nodes compute each row by itself: a proof on a part of a model at two numbers of rows.

    computes_rows(at 11, at 13, "places", evaluate)      the dimension of rows of each tensor

Rows are the one dimension by which a tensor differs at both. Operators that move elements are run
on numbers of rows; what else there may be are elementwise operators, products of rows with
matrices, and look-ups by numbers of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from autotune.graph.ir import Array, Editor, Node
from autotune.graph.operators.definition import Fusion, Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.experts import N_BITS

Evaluate = Callable[[Node, dict[str, Array]], list[Array] | None]
"""The results of a node for such operands."""
Rows = dict[str, int]
_MOVES = Trait.MOVES | Trait.SELECTS


def computes_rows(
    first: Editor, other: Editor, given: Mapping[str, int], evaluate: Evaluate
) -> Rows:
    """The dimension of rows of each tensor that depends on `given` ones; empty where a node mixes
    rows."""
    rows, names = dict(given), {n: n for n in given}
    if [n.op for n in first.nodes] != [n.op for n in other.nodes]:
        return {}
    for one, two in zip(first.nodes, other.nodes, strict=True):
        names |= dict(zip(one.outputs, two.outputs, strict=True))
        if rows.keys().isdisjoint(one.inputs):
            continue
        axes = [_differing(first, other, n, names[n]) for n in one.outputs if n]
        if not axes or not all(a == axes[0] and a >= 0 for a in axes):
            return {}
        if not _is_by_row(_Step(first, one, rows, axes[0], evaluate)):
            return {}
        if not _MOVES & operator_of(one.op).traits and not _has_same_constants(
            first, other, one, two
        ):
            return {}
        rows |= {n: axes[0] for n in one.outputs if n}
    return rows


def _differing(first: Editor, other: Editor, one: str, two: str) -> int:
    """The only dimension by which a tensor differs; -1 for none, or more."""
    if one not in first.types or two not in other.types:
        return -1
    a, b = first.types[one].shape, other.types[two].shape
    dims = [d for d, (m, n) in enumerate(zip(a, b, strict=False)) if m != n]
    return dims[0] if len(a) == len(b) and len(dims) == 1 else -1


def _has_same_constants(first: Editor, other: Editor, one: Node, two: Node) -> bool:
    pairs = [
        (first.constants.get(a), other.constants.get(b))
        for a, b in zip(one.inputs, two.inputs, strict=True)
    ]
    return all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs
    )


class _Step:
    """A node, and the dimension of rows of its operands and of its result."""

    def __init__(
        self, editor: Editor, node: Node, rows: Rows, axis: int, evaluate: Evaluate
    ) -> None:
        self.editor, self.node, self.rows, self.axis = editor, node, rows, axis
        self.evaluate = evaluate
        self.rank = len(editor.types[node.output].shape)

    def rank_of(self, n: int) -> int:
        """The rank of an operand."""
        return len(self.editor.types[self.node.inputs[n]].shape)

    def has_rows(self, n: int) -> bool:
        """Whether an operand has rows."""
        return n < len(self.node.inputs) and self.node.inputs[n] in self.rows


def _is_by_row(step: _Step) -> bool:
    operator = operator_of(step.node.op)
    if operator.fusion is Fusion.ELEMENTWISE:
        return Trait.PLACED not in operator.traits and _is_aligned(step)
    if operator.indexed is not None and step.has_rows(1):
        return _is_looked_up(step)
    if operator.traits & _MOVES:
        return _keeps_numbers(step)
    return _is_product(step)


def _is_aligned(step: _Step) -> bool:
    """Whether operands have rows where the result has them, or are the same for all."""
    for n, name in enumerate(step.node.inputs):
        if not name:
            continue
        axis = step.axis - step.rank + step.rank_of(n)
        shape = step.editor.types[name].shape
        if step.has_rows(n):
            if step.rows[name] != axis:
                return False
        elif axis >= 0 and shape[axis] != 1:
            return False
    return True


def _is_looked_up(step: _Step) -> bool:
    """Whether rows of the result are those of the indices."""
    node, own = step.node, step.rows[step.node.inputs[1]]
    if step.has_rows(0) or node.attrs.get("batch_dims", 0):
        return False
    if node.op == "Gather":
        return step.axis == int(node.attrs.get("axis", 0)) % step.rank_of(0) + own
    return node.op == "GatherND" and step.axis == own < step.rank_of(1) - 1


def _keeps_numbers(step: _Step) -> bool:
    """Whether elements that are moved stay in their row: it is run on the numbers of rows."""
    given = {}
    for name in filter(None, step.node.inputs):
        if name in step.rows:
            given[name] = _numbers(step.editor.types[name].shape, step.rows[name])
        elif name in step.editor.constants:
            given[name] = step.editor.constants[name]
        else:
            return False
    results = step.evaluate(step.node, given) or []
    return bool(results) and all(np.array_equal(r, _numbers(r.shape, step.axis)) for r in results)


def _numbers(shape: tuple[int, ...], axis: int) -> Array:
    """The number of the row at each element."""
    line = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.ascontiguousarray(np.broadcast_to(line, shape))


_PRODUCTS = ("MatMul", "Gemm")


def _is_product(step: _Step) -> bool:
    """Whether rows are multiplied by a matrix that is the same for all."""
    node = step.node
    is_known = node.op in _PRODUCTS or node.op == N_BITS
    if not is_known or node.attrs.get("transA", 0) or not step.has_rows(0):
        return False
    own = step.rows[node.inputs[0]]
    has_others = any(step.has_rows(n) for n in range(1, len(node.inputs)))
    return not has_others and own == step.rank_of(0) - 2 and step.axis == step.rank - 2
