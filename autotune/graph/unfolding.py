"""① What shapes decide: the branch that an If takes, and the tensors that a sequence holds.

If(known) {then} {else}                       ->  the nodes of one branch
SequenceConstruct(a, b), ConcatFromSequence   ->  Concat(a, b)
SplitToSequence(x), SequenceAt(1)             ->  Split(x), its second output
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node, unsupported

Names = tuple[str, ...]

CONTROL = ("If", "Loop")
"""Operators with graphs inside that may be unfolded."""
_MOST_ITERATIONS = 1000


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
        """The nodes of the branch that is taken."""
        condition = self.constant(node, 0)
        if condition is None:
            return None
        taken = self._taken(node, "then_branch" if condition.item() else "else_branch", "")
        results = zip(taken.outputs, node.outputs, strict=True)
        return [*taken.nodes, *(_identity(node, a, b) for a, b in results)]

    def loop(self, node: Node) -> list[Node] | None:
        """One iteration, and the Loop that is left; in the end, its results.

        The latter carries two attributes of ours: the number of iterations so far, and for every
        result that collects rows their names.
        """
        limit, condition = (self._known_or(node, n, default) for n, default in enumerate((0, True)))
        n_done, n_carried = node.attrs.get("n_done", 0), len(node.inputs) - 2
        if limit is None or condition is None:
            return None
        carried = node.inputs[2:]
        rows: tuple[Names, ...] = node.attrs.get("rows", ((),) * (len(node.outputs) - n_carried))
        if not condition or (node.inputs[0] and n_done >= limit):
            pairs = zip(carried, node.outputs, strict=False)
            nodes = [_identity(node, a, b) for a, b in pairs if b]
            for names, result in zip(rows, node.outputs[n_carried:], strict=True):
                nodes += self._stacked(names, replace(node, outputs=(result,)), 0) if result else []
            return nodes
        if n_done == _MOST_ITERATIONS:
            reason = f"it takes more than {_MOST_ITERATIONS:,} iterations"
            raise unsupported(node, self.editor.graph, reason)
        body = self._taken(node, "body", str(n_done), carried)
        for name, number in zip(body.inputs, (np.array(n_done), np.array(True)), strict=False):
            self.editor.set_constant(name, number)
        again, results = body.outputs[0], body.outputs[1:]
        rows = tuple((*r, new) for r, new in zip(rows, results[n_carried:], strict=True))
        rest = (node.inputs[0], again, *results[:n_carried])
        attrs = {**node.attrs, "n_done": n_done + 1, "rows": rows}
        return [*body.nodes, replace(node, inputs=rest, attrs=attrs)]

    def _taken(self, node: Node, which: str, number: str, carried: Names = ()) -> Graph:
        """A body of `node` with names of its own, `carried` in the place of its last inputs."""
        body: Graph = node.attrs[which]
        inputs = body.inputs[len(body.inputs) - len(carried) :]
        names = dict(zip(inputs, carried, strict=True))
        body = _copy(body, names, f"[{next(filter(None, node.outputs))}{number}]")
        for name, value in body.constants.items():
            self.editor.set_constant(name, value)
        return body

    def _known_or(self, node: Node, n: int, default: object) -> object | None:
        """The value of an optional scalar input; None if it is not known."""
        if not node.inputs[n]:
            return default
        value = self.constant(node, n)
        return None if value is None else value.item()

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
        if node.attrs.get("new_axis", 0):
            return self._stacked(names, node, node.attrs["axis"])
        return [Node(node.name, "Concat", names, node.outputs, {"axis": node.attrs["axis"]})]

    def _stacked(self, names: Names, node: Node, axis: int) -> list[Node]:
        """Tensors side by side in a new dimension, as the result of `node`."""
        nodes, names = self._each("Unsqueeze", names, node, axis)
        return [*nodes, Node(node.name, "Concat", names, node.outputs, {"axis": axis})]

    def split(self, node: Node) -> list[Node] | None:
        """Parts of a tensor, by default of one row each; rows may lose that dimension."""
        kind, axis = self.editor.types.get(node.inputs[0]), node.attrs.get("axis", 0)
        sizes = self.constant(node, 1) if len(node.inputs) > 1 else np.array(1)
        if kind is None or -1 in kind.shape or sizes is None:
            return None
        lengths = self.editor.constant(f"{node.output}.lengths", _lengths(kind.shape[axis], sizes))
        n_parts = len(self.editor.constants[lengths])
        parts = tuple(f"{node.output}[{n}]" for n in range(n_parts))
        nodes = [Node(node.name, "Split", (node.inputs[0], lengths), parts, {"axis": axis})]
        if sizes.ndim == 0 and not node.attrs.get("keepdims", 1):  # as ONNX Runtime has it
            flat, parts = self._each("Squeeze", parts, node, axis)
            nodes += flat
        self.sequences[node.output] = parts
        return nodes

    def _each(self, op: str, names: Names, node: Node, axis: int) -> tuple[list[Node], Names]:
        """Squeeze or Unsqueeze of every tensor: the nodes, and the names of their results."""
        axes = self.editor.constant(f"{node.output}.axes", np.array([axis]))
        results = tuple(f"{node.output}[{op} {n}]" for n in range(len(names)))
        pairs = zip(names, results, strict=True)
        return [Node(node.name, op, (name, axes), (result,)) for name, result in pairs], results


def _copy(graph: Graph, names: Mapping[str, str], suffix: str) -> Graph:
    """A body with other names: those of `names`, and all else that it defines with a suffix."""
    own = {*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs if o)}
    renamed = {n: n + suffix for n in own} | dict(names)

    def new(old: Names) -> Names:
        return tuple(renamed.get(n, n) for n in old)

    def copied(value: object) -> object:
        return _copy(value, renamed, suffix) if isinstance(value, Graph) else value

    nodes = (
        Node(
            n.name, n.op, new(n.inputs), new(n.outputs), {k: copied(v) for k, v in n.attrs.items()}
        )
        for n in graph.nodes
    )
    return replace(
        graph,
        inputs=new(graph.inputs),
        outputs=new(graph.outputs),
        nodes=tuple(nodes),
        constants={renamed.get(n, n): a for n, a in graph.constants.items()},
    )


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
    "Loop": Unfolding.loop,
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


def is_unfolded(op: str) -> bool:
    """Whether an operator has results whose types are known only when it is unfolded."""
    return op in _HANDLERS and op != "Identity"
