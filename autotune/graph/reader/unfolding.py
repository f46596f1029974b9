"""① Unfolding of functions, control flow and sequences whose structure is known at import.

my.Function(x), Celu(x)                       ->  the nodes that define it
Softmax(x) of opset 11                        ->  nodes of opset 22 (see `upgrades`)
If(known) {then} {else}                       ->  the nodes of one branch
Loop(known) {body}, Scan(x) {body}            ->  the nodes of all iterations
SequenceConstruct(a, b), ConcatFromSequence   ->  Concat(a, b)
SplitToSequence(x), SequenceAt(1)             ->  Split(x), its second output
Optional(x), OptionalGetElement               ->  x
OptionalHasElement(x), OptionalHasElement()   ->  True, False
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np

from autotune.graph.ir import OPSET, Array, Editor, Graph, Node, unsupported
from autotune.graph.limits import MOST_ITERATIONS, Budget, refused
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.affine_grid import affine_grid
from autotune.graph.reader.compositions import composed
from autotune.graph.reader.functions import inlined, renamed, standard_body
from autotune.graph.reader.opsets import newer_attribute, schema_of, without_newer_attributes
from autotune.graph.reader.upgrades import upgraded

Names = tuple[str, ...]

_LONG_NAME = 40
"""Characters of a tensor's name beyond which a suffix cuts it."""

CONTROL = ("If", "Loop", "Scan")
"""Operators with graphs inside that may be unfolded."""


class Unfolding:
    """Unfolds nodes in order, and keeps the sequences and the empty optionals of the graph."""

    def __init__(self, editor: Editor, budget: Budget) -> None:
        self.editor, self.budget = editor, budget
        self.sequences: dict[str, Names] = {}
        self._empty: set[str] = {""}
        self._n_suffixes = 0

    def __call__(self, node: Node) -> list[Node] | None:
        """The nodes that replace `node`; None for an ordinary operator, or if operands are unknown.

        Raises UnsupportedOperator where opset 22 has no equivalent.
        """
        function = self.editor.graph.functions.get(node.op)
        if function is not None:
            return self._counted(node, inlined(node, function, self._suffix(node)))
        n_constants = len(self.editor.constants)
        nodes = composed(node, self.editor)
        self._count_constants(node, len(self.editor.constants) - n_constants)
        if nodes is not None:
            return self._counted(node, nodes)
        is_foreign = schema_of(node.op, OPSET) is None and operator_of(node.op).is_native
        if node.opset != OPSET and is_foreign:
            return [replace(node, opset=OPSET)]
        if node.opset != OPSET:
            return self._in_opset(node)
        handler = _HANDLERS.get(node.op)
        nodes = handler(self, node) if handler else None
        return None if nodes is None else self._counted(node, nodes)

    def _counted(self, node: Node, nodes: list[Node]) -> list[Node]:
        self.budget.take_nodes(node, len(nodes))
        return nodes

    def _count_constants(self, node: Node, n: int) -> None:
        """Count the bytes of the newest `n` constants."""
        for made in islice(reversed(self.editor.constants.values()), n):
            self.budget.take_constants(node, [(made.shape, str(made.dtype))], [])

    def _suffix(self, node: Node, number: str = "") -> str:
        """The suffix of the names of tensors that replace `node`.

        Every level of nesting adds one; long names are cut, for they would double with each level.
        """
        made = next(filter(None, node.outputs), node.name)
        if len(made) <= _LONG_NAME:
            return f"[{made}{number}]"
        self._n_suffixes += 1
        return f"[{made[:_LONG_NAME]}~{self._n_suffixes}]"

    def _in_opset(self, node: Node) -> list[Node]:
        """The nodes of opset 22 that replace `node`."""
        if schema_of(node.op, node.opset) is None:
            raise unsupported(node, self.editor.graph)
        if node.opset < OPSET:
            return upgraded(self.editor, node)
        if schema_of(node.op, OPSET) is not None:
            attribute = newer_attribute(node)
            if attribute:
                raise unsupported(node, self.editor.graph, f"attribute '{attribute}'")
            return [without_newer_attributes(node)]
        nodes = self.expanded(node)
        if nodes is None:
            raise unsupported(node, self.editor.graph)
        return nodes

    def expanded(self, node: Node) -> list[Node] | None:
        """The nodes that define a compound operator of the standard; None if it is not one."""
        body = standard_body(node, self.editor.types)
        if body is None:
            return None
        return self._counted(node, inlined(node, body, self._suffix(node)))

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
        """One iteration and the remaining Loop; in the end, its results.

        The remaining Loop has two internal attributes: `n_done`, the number of iterations so far,
        and `rows`, the names of the rows that each scan output has collected.
        """
        names = (*node.inputs, "", "")
        limit, condition = (self._known_or(names[n], d) for n, d in enumerate((0, True)))
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
        self._check_iterations(node, n_done + 1)
        body = self._taken(node, "body", str(n_done), carried)
        for name, number in zip(body.inputs, (np.array(n_done), np.array(True)), strict=False):
            self.editor.set_constant(name, number)
        again, results = body.outputs[0], body.outputs[1:]
        rows = tuple((*r, new) for r, new in zip(rows, results[n_carried:], strict=True))
        rest = (node.inputs[0], again, *results[:n_carried])
        attrs = {**node.attrs, "n_done": n_done + 1, "rows": rows}
        return [*body.nodes, replace(node, inputs=rest, attrs=attrs)]

    def _taken(self, node: Node, which: str, number: str, carried: Names = ()) -> Graph:
        """A body of `node` with unique names, and `carried` for its last inputs."""
        body: Graph = node.attrs[which]
        inputs = body.inputs[len(body.inputs) - len(carried) :]
        names = dict(zip(inputs, carried, strict=True))
        body = renamed(body, names, self._suffix(node, number))
        for name, value in body.constants.items():
            self.editor.set_constant(name, value)
        return body

    def _known_or(self, name: str, default: object) -> object | None:
        """The value of an optional scalar input; None if it is not known."""
        if not name:
            return default
        value = self.editor.constants.get(name)
        return None if value is None else value.item()

    def scan(self, node: Node) -> list[Node] | None:
        """The body once per row of the scanned inputs, and the Concat of its rows."""
        n_scanned = node.attrs["num_scan_inputs"]
        n_carried = len(node.inputs) - n_scanned
        scanned, carried = node.inputs[n_carried:], node.inputs[:n_carried]
        axes, turned = self._directions(node, "scan_input", n_scanned)
        kinds = [self.editor.types.get(name) for name in scanned]
        extents = {k.shape[a] if k else -1 for k, a in zip(kinds, axes, strict=True)}
        if -1 in extents or len(extents) != 1:
            return None
        n_steps = extents.pop()
        self._check_iterations(node, n_steps)
        nodes: list[Node] = []
        n_rows = len(node.outputs) - n_carried
        rows: list[Names] = [()] * n_rows
        for step in range(n_steps):
            parts = []
            for k, (name, axis) in enumerate(zip(scanned, axes, strict=True)):
                at = n_steps - 1 - step if turned[k] else step
                row = f"{name}[{node.output}{k}.{step}]"
                where = self.editor.constant(f"{row}.at", np.array(at))
                nodes.append(Node(node.name, "Gather", (name, where), (row,), {"axis": axis}))
                parts.append(row)
            body = self._taken(node, "body", str(step), (*carried, *parts))
            nodes += body.nodes
            carried = body.outputs[:n_carried]
            rows = [(*r, new) for r, new in zip(rows, body.outputs[n_carried:], strict=True)]
        nodes += [_identity(node, a, b) for a, b in zip(carried, node.outputs, strict=False) if b]
        axes, turned = self._directions(node, "scan_output", n_rows)
        for k, result in enumerate(node.outputs[n_carried:]):
            if result:
                names = rows[k][::-1] if turned[k] else rows[k]
                nodes += self._stacked(names, replace(node, outputs=(result,)), axes[k])
        return nodes

    def _directions(
        self, node: Node, which: str, n: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Axes and directions of scan inputs or outputs."""
        axes, turned = (node.attrs.get(f"{which}_{a}", (0,) * n) for a in ("axes", "directions"))
        return axes, turned

    def _check_iterations(self, node: Node, n_done: int) -> None:
        if n_done > MOST_ITERATIONS:
            reason = f"it takes more than {MOST_ITERATIONS:,} iterations"
            raise refused(node, reason, "MOST_ITERATIONS")

    def grid(self, node: Node) -> list[Node]:
        """A matrix product; see `affine_grid`."""
        return affine_grid(self.editor, node)

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

    def optional(self, node: Node) -> list[Node] | None:
        """What an optional holds, under another name; without an input it is an empty one."""
        held = next(iter(node.inputs), "")
        if held in self._empty:
            self._empty |= set(node.outputs)
            return []
        if held in self.sequences:
            return self.identity(node)
        return [_identity(node, held, node.output)] if held in self.editor.types else None

    def has_element(self, node: Node) -> list[Node] | None:
        """Whether an optional holds something; without an input it does not."""
        asked = next(iter(node.inputs), "")
        is_empty = asked in self._empty
        if not is_empty and asked not in self.sequences and asked not in self.editor.types:
            return None
        self.editor.set_constant(node.output, np.array(not is_empty))
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
        """All tensors of a sequence, concatenated or stacked along a new dimension."""
        names = self.sequences.get(node.inputs[0])
        if not names:
            return None
        if node.attrs.get("new_axis", 0):
            return self._stacked(names, node, node.attrs["axis"])
        return [Node(node.name, "Concat", names, node.outputs, {"axis": node.attrs["axis"]})]

    def _stacked(self, names: Names, node: Node, axis: int) -> list[Node]:
        """Tensors stacked along a new dimension, as the result of `node`."""
        if not names:
            raise unsupported(node, self.editor.graph, "it collects no rows")
        nodes, names = self._each("Unsqueeze", names, node, axis)
        return [*nodes, Node(node.name, "Concat", names, node.outputs, {"axis": axis})]

    def split(self, node: Node) -> list[Node] | None:
        """Parts of a tensor, by default of one row each; rows may lose that dimension."""
        kind, axis = self.editor.types.get(node.inputs[0]), node.attrs.get("axis", 0)
        sizes = self.constant(node, 1) if len(node.inputs) > 1 else np.array(1)
        if kind is None or -1 in kind.shape or sizes is None:
            return None
        if sizes.ndim == 0:
            n_parts = -(-kind.shape[axis] // max(1, int(sizes)))
            self.budget.take_nodes(node, n_parts)
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


def _lengths(extent: int, sizes: Array) -> Array:
    """The lengths of all parts; a scalar is the length of all but the last."""
    if sizes.ndim == 0:
        bounds = np.append(np.arange(0, extent, int(sizes)), extent)
        sizes = np.diff(bounds)
    return sizes.astype(np.int64)


def _identity(node: Node, source: str, result: str) -> Node:
    return Node(node.name, "Identity", (source,), (result,))


_HANDLERS: dict[str, Callable[[Unfolding, Node], list[Node] | None]] = {
    "If": Unfolding.branch,
    "Loop": Unfolding.loop,
    "Scan": Unfolding.scan,
    "AffineGrid": Unfolding.grid,
    "Optional": Unfolding.optional,
    "OptionalGetElement": Unfolding.optional,
    "OptionalHasElement": Unfolding.has_element,
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
    """Whether an operator exists only until it is unfolded."""
    return op in _HANDLERS and op != "Identity"
