"""① What shapes decide: the branch that an If takes, and the tensors that a sequence holds.

If(known) {then} {else}                       ->  the nodes of one branch
SequenceConstruct(a, b), ConcatFromSequence   ->  Concat(a, b)
SplitToSequence(x), SequenceAt(1)             ->  Split(x), its second output
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node

Names = tuple[str, ...]


class Unfolding:
    """Keeps the sequences of one graph while its nodes are visited in order."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.sequences: dict[str, Names] = {}

    def __call__(self, node: Node) -> list[Node] | None:
        """The nodes that stand for `node`; None if it is an ordinary one, or not known enough."""
        handler = _HANDLERS.get(node.op)
        return handler(self, node) if handler else None

    def constant(self, node: Node, n: int) -> Array | None:
        """The value of input `n`, if it is known."""
        return self.editor.constants.get(node.inputs[n]) if n < len(node.inputs) else None

    # --- one method per operator ---

    def branch(self, node: Node) -> list[Node] | None:
        """The nodes of the branch that is taken; names in branches are unique in a model."""
        condition = self.constant(node, 0)
        if condition is None:
            return None
        taken: Graph = node.attrs["then_branch" if condition.item() else "else_branch"]
        for name, value in taken.constants.items():
            self.editor.set_constant(name, value)
        results = zip(taken.outputs, node.outputs, strict=True)
        return [*taken.nodes, *(_identity(node, a, b) for a, b in results)]

    def construct(self, node: Node) -> list[Node]:
        """A sequence of all inputs, or of none."""
        self.sequences[node.output] = node.inputs
        return []

    def identity(self, node: Node) -> list[Node] | None:
        """The same sequence under another name."""
        names = self.sequences.get(node.inputs[0])
        if names is None:
            return None
        self.sequences[node.output] = names
        return []

    def insert(self, node: Node) -> list[Node] | None:
        """A sequence with one more tensor, at the end or in front of a position."""
        names, at = self.sequences.get(node.inputs[0]), self.constant(node, 2)
        if names is None or (at is None and len(node.inputs) > 2):
            return None
        n = len(names) if at is None else int(at)
        self.sequences[node.output] = (*names[:n], node.inputs[1], *names[n:])
        return []

    def erase(self, node: Node) -> list[Node] | None:
        """A sequence without its last tensor, or the one at a position."""
        names, at = self.sequences.get(node.inputs[0]), self.constant(node, 1)
        if not names or (at is None and len(node.inputs) > 1):
            return None
        n = (-1 if at is None else int(at)) % len(names)
        self.sequences[node.output] = names[:n] + names[n + 1 :]
        return []

    def at(self, node: Node) -> list[Node] | None:
        """One tensor of a sequence."""
        names, at = self.sequences.get(node.inputs[0]), self.constant(node, 1)
        if not names or at is None:
            return None
        return [_identity(node, names[int(at) % len(names)], node.output)]

    def length(self, node: Node) -> list[Node] | None:
        """How many tensors a sequence has."""
        names = self.sequences.get(node.inputs[0])
        if names is None:
            return None
        self.editor.set_constant(node.output, np.array(len(names)))
        return []

    def concat(self, node: Node) -> list[Node] | None:
        """All tensors of a sequence, one behind the other or, in a new dimension, side by side."""
        names = self.sequences.get(node.inputs[0])
        if not names:
            return None
        axis, nodes = node.attrs["axis"], list[Node]()
        if node.attrs.get("new_axis", 0):
            nodes, names = self._each("Unsqueeze", names, node, axis)
        return [*nodes, Node(node.name, "Concat", names, (node.output,), {"axis": axis})]

    def split(self, node: Node) -> list[Node] | None:
        """Parts of a tensor; of one row each, and without that dimension, by default."""
        kind, axis = self.editor.types.get(node.inputs[0]), node.attrs.get("axis", 0)
        is_given = len(node.inputs) > 1
        sizes = self.constant(node, 1) if is_given else np.array(1)
        if kind is None or -1 in kind.shape or sizes is None:
            return None
        lengths = self.editor.constant(f"{node.output}.lengths", _lengths(kind.shape[axis], sizes))
        n_parts = len(self.editor.constants[lengths])
        parts = tuple(f"{node.output}.{n}" for n in range(n_parts))
        nodes = [Node(node.name, "Split", (node.inputs[0], lengths), parts, {"axis": axis})]
        if not is_given and not node.attrs.get("keepdims", 1):
            flat, parts = self._each("Squeeze", parts, node, axis)
            nodes += flat
        self.sequences[node.output] = parts
        return nodes

    def _each(self, op: str, names: Names, node: Node, axis: int) -> tuple[list[Node], Names]:
        """Squeeze or Unsqueeze of every tensor: the nodes, and the names of their results."""
        axes = self.editor.constant(f"{node.output}.axes", np.array([axis]))
        results = tuple(f"{name}.{op.lower()}" for name in names)
        pairs = zip(names, results, strict=True)
        return [Node(node.name, op, (name, axes), (result,)) for name, result in pairs], results


def _lengths(extent: int, sizes: Array) -> Array:
    """The lengths of all parts; one number is that of all but the last."""
    if sizes.ndim == 0:
        bounds = np.append(np.arange(0, extent, int(sizes)), extent)
        sizes = np.diff(bounds)
    return sizes.astype(np.int64)


def _identity(node: Node, source: str, result: str) -> Node:
    return Node(node.name, "Identity", (source,), (result,))


_HANDLERS: dict[str, Callable[[Unfolding, Node], list[Node] | None]] = {
    "If": Unfolding.branch,
    "SequenceConstruct": Unfolding.construct,
    "SequenceEmpty": Unfolding.construct,
    "Identity": Unfolding.identity,
    "SequenceInsert": Unfolding.insert,
    "SequenceErase": Unfolding.erase,
    "SequenceAt": Unfolding.at,
    "SequenceLength": Unfolding.length,
    "ConcatFromSequence": Unfolding.concat,
    "SplitToSequence": Unfolding.split,
}
