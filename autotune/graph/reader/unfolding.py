"""① Inlining of functions, loop unrolling and branch elimination at import, and sequences.

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
from functools import partial
from itertools import islice

import numpy as np

from autotune.graph.ir import OPSET, Array, Editor, Graph, Node, unsupported
from autotune.graph.limits import MOST_ITERATIONS, ImportBudget, refused
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.compositions import compose, composition_of
from autotune.graph.reader.functions import inlined, renamed, standard_body
from autotune.graph.reader.opsets import newer_attribute, schema_of, without_newer_attributes
from autotune.graph.reader.upgrades import upgraded
from autotune.graph.rewriter import Rewrite, Rewriter

Names = tuple[str, ...]

_LONG_NAME = 40
"""Characters of a tensor's name beyond which a suffix cuts it."""

CONTROL = ("If", "Loop", "Scan")
"""Operators with graphs inside that may be unfolded."""


class Unfolding:
    """Unfolds nodes in order, and keeps the sequences and the empty optionals of the graph."""

    def __init__(self, editor: Editor, budget: ImportBudget) -> None:
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
        composition = composition_of(node)
        nodes = None if composition is None else self.composed(node, composition)
        if nodes is not None:
            return nodes
        is_foreign = schema_of(node.op, OPSET) is None and operator_of(node.op).is_native
        if node.opset != OPSET and is_foreign:
            return [replace(node, opset=OPSET)]
        if node.opset != OPSET:
            return self._in_opset(node)
        handler = _HANDLERS.get(node.op)
        return None if handler is None else self.rewritten(node, partial(handler, self))

    def composed(self, node: Node, composition: Rewrite) -> list[Node] | None:
        """The nodes that a node is short for; None if it stays. Their constants are counted."""
        n_known = len(self.editor.constants)
        nodes = self.rewritten(node, partial(compose, composition))
        n_made = len(self.editor.constants) - n_known
        for value in islice(reversed(self.editor.constants.values()), n_made):
            self.budget.take_constants(node, [(value.shape, str(value.dtype))], [])
        return nodes

    def rewritten(self, node: Node, rule: Rewrite) -> list[Node] | None:
        """The nodes that a rule emits, none where it tells the results; None if it stays."""
        rw = Rewriter(node, self.editor)
        rule(rw)
        results = [name for name in node.outputs if name]
        is_told = bool(results) and all(map(self._is_made, results))
        return self._counted(node, rw.nodes) if rw.nodes or is_told else None

    def _is_made(self, name: str) -> bool:
        """Whether a result is known without a node."""
        return name in self.sequences or name in self._empty or name in self.editor.constants

    def _counted(self, node: Node, nodes: list[Node]) -> list[Node]:
        self.budget.take_nodes(node, len(nodes))
        return nodes

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

    # --- one method per operator ---

    def branch(self, rw: Rewriter) -> None:
        """The nodes of the branch that is taken."""
        condition = rw.value(0)
        if condition is not None:
            taken = self._taken(rw, "then_branch" if condition.item() else "else_branch", "")
            _copied(rw, taken.outputs)

    def loop(self, rw: Rewriter) -> None:
        """One iteration and the remaining Loop; in the end, its results.

        The remaining Loop has two internal attributes: `n_done`, the number of iterations so far,
        and `rows`, the names of the rows that each scan output has collected.
        """
        limit, condition = (self._known_or(rw.input(n), d) for n, d in enumerate((0, True)))
        if limit is None or condition is None:
            return
        carried = rw.node.inputs[2:]
        n_done, n_carried = rw.attr("n_done", 0), len(carried)
        rows: tuple[Names, ...] = rw.attr("rows", ((),) * (len(rw.node.outputs) - n_carried))
        if not condition or (rw.input(0) and n_done >= limit):
            _copied(rw, carried)
            for n, names in enumerate(rows, n_carried):
                self._stack(rw, n, names, 0)
            return
        self._check_iterations(rw.node, n_done + 1)
        body = self._taken(rw, "body", str(n_done), carried)
        for name, number in zip(body.inputs, (np.array(n_done), np.array(True)), strict=False):
            self.editor.set_constant(name, number)
        again, results = body.outputs[0], body.outputs[1:]
        rows = tuple((*r, new) for r, new in zip(rows, results[n_carried:], strict=True))
        rw.again(rw.input(0), again, *results[:n_carried], n_done=n_done + 1, rows=rows)

    def _taken(self, rw: Rewriter, which: str, number: str, carried: Names = ()) -> Graph:
        """Emit the nodes of a body with unique names, and `carried` for its last inputs."""
        body: Graph = rw.node.attrs[which]
        inputs = body.inputs[len(body.inputs) - len(carried) :]
        names = dict(zip(inputs, carried, strict=True))
        body = renamed(body, names, self._suffix(rw.node, number))
        for name, value in body.constants.items():
            self.editor.set_constant(name, value)
        rw.nodes += body.nodes
        return body

    def _known_or(self, name: str, default: object) -> object | None:
        """The value of an optional scalar input; None if it is not known."""
        if not name:
            return default
        value = self.editor.constants.get(name)
        return None if value is None else value.item()

    def scan(self, rw: Rewriter) -> None:
        """The body once per row of the scanned inputs, and the Concat of its rows."""
        node = rw.node
        n_scanned = node.attrs["num_scan_inputs"]
        n_carried = len(node.inputs) - n_scanned
        scanned, carried = node.inputs[n_carried:], node.inputs[:n_carried]
        axes, turned = _directions(rw, "scan_input", n_scanned)
        kinds = [self.editor.types.get(name) for name in scanned]
        extents = {k.shape[a] if k else -1 for k, a in zip(kinds, axes, strict=True)}
        if -1 in extents or len(extents) != 1:
            return
        n_steps = extents.pop()
        self._check_iterations(node, n_steps)
        n_rows = len(node.outputs) - n_carried
        rows: list[Names] = [()] * n_rows
        for step in range(n_steps):
            parts = [
                rw("Gather", name, rw.array(np.array(n_steps - 1 - step if t else step)), axis=a)
                for name, a, t in zip(scanned, axes, turned, strict=True)
            ]
            body = self._taken(rw, "body", str(step), (*carried, *parts))
            carried = body.outputs[:n_carried]
            rows = [(*r, new) for r, new in zip(rows, body.outputs[n_carried:], strict=True)]
        _copied(rw, carried)
        axes, turned = _directions(rw, "scan_output", n_rows)
        for k, names in enumerate(rows):
            self._stack(rw, n_carried + k, names[::-1] if turned[k] else names, axes[k])

    def _check_iterations(self, node: Node, n_done: int) -> None:
        if n_done > MOST_ITERATIONS:
            reason = f"it takes more than {MOST_ITERATIONS:,} iterations"
            raise refused(node, reason, "MOST_ITERATIONS")

    def construct(self, rw: Rewriter) -> None:
        """A sequence of all inputs, or of none."""
        self.sequences[rw.node.output] = rw.node.inputs

    def identity(self, rw: Rewriter) -> None:
        """The same sequence under another name."""
        names = self.sequences.get(rw.input(0))
        if names is not None:
            self.sequences[rw.node.output] = names

    def optional(self, rw: Rewriter) -> None:
        """Optional -> its element under another name; without an input it is empty."""
        held = rw.input(0)
        if held in self._empty:
            self._empty |= set(rw.node.outputs)
        elif held in self.sequences:
            self.identity(rw)
        elif held in self.editor.types:
            rw.result("Identity", held)

    def has_element(self, rw: Rewriter) -> None:
        """Whether an optional holds something; without an input it does not."""
        asked = rw.input(0)
        is_empty = asked in self._empty
        if is_empty or asked in self.sequences or asked in self.editor.types:
            self.editor.set_constant(rw.node.output, np.array(not is_empty))

    def insert(self, rw: Rewriter) -> None:
        """A sequence with one more tensor, at the end or in front of a position."""
        names, at = self.sequences.get(rw.input(0)), rw.value(2)
        if names is not None and (at is not None or len(rw.node.inputs) <= 2):
            n = len(names) if at is None else int(at)
            self.sequences[rw.node.output] = (*names[:n], rw.input(1), *names[n:])

    def erase(self, rw: Rewriter) -> None:
        """A sequence without its last tensor, or the one at a position."""
        names, at = self.sequences.get(rw.input(0)), rw.value(1)
        if names and (at is not None or len(rw.node.inputs) <= 1):
            n = (-1 if at is None else int(at)) % len(names)
            self.sequences[rw.node.output] = names[:n] + names[n + 1 :]

    def at(self, rw: Rewriter) -> None:
        """One tensor of a sequence."""
        names, at = self.sequences.get(rw.input(0)), rw.value(1)
        if names and at is not None:
            rw.result("Identity", names[int(at) % len(names)])

    def length(self, rw: Rewriter) -> None:
        """SequenceLength -> a constant."""
        names = self.sequences.get(rw.input(0))
        if names is not None:
            self.editor.set_constant(rw.node.output, np.array(len(names)))

    def concat(self, rw: Rewriter) -> None:
        """All tensors of a sequence, concatenated or stacked along a new dimension."""
        names = self.sequences.get(rw.input(0))
        if names and rw.attr("new_axis", 0):
            self._stack(rw, 0, names, rw.node.attrs["axis"])
        elif names:
            rw.result("Concat", *names, axis=rw.node.attrs["axis"])

    def _stack(self, rw: Rewriter, n: int, names: Names, axis: int) -> None:
        """Tensors stacked along a new dimension, as result `n`, where anything reads it."""
        if rw.wants(n) and not names:
            raise rw.refuse("it collects no rows")
        if rw.wants(n):
            rows = _each(rw, "Unsqueeze", names, axis)
            rw.nodes.append(
                Node(rw.node.name, "Concat", rows, (rw.node.outputs[n],), {"axis": axis})
            )

    def split(self, rw: Rewriter) -> None:
        """Parts of a tensor, by default of one row each; rows may lose that dimension."""
        kind, axis = self.editor.types.get(rw.input(0)), rw.attr("axis", 0)
        sizes = rw.value(1) if len(rw.node.inputs) > 1 else np.array(1)
        if kind is None or -1 in kind.shape or sizes is None:
            return
        if sizes.ndim == 0:
            self.budget.take_nodes(rw.node, -(-kind.shape[axis] // max(1, int(sizes))))
        lengths = _lengths(kind.shape[axis], sizes)
        parts = rw.several("Split", len(lengths), rw.input(0), rw.array(lengths), axis=axis)
        if sizes.ndim == 0 and not rw.attr("keepdims", 1):  # as ONNX Runtime has it
            parts = _each(rw, "Squeeze", parts, axis)
        self.sequences[rw.node.output] = parts


def _directions(rw: Rewriter, which: str, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes and directions of scan inputs or outputs."""
    axes, turned = (rw.attr(f"{which}_{a}", (0,) * n) for a in ("axes", "directions"))
    return axes, turned


def _copied(rw: Rewriter, names: Names) -> None:
    """The first results of the node are these tensors."""
    for n, name in enumerate(names):
        rw.bind(n, name)


def _each(rw: Rewriter, op: str, names: Names, axis: int) -> Names:
    """Squeeze or Unsqueeze of every tensor."""
    axes = rw.integers(axis)
    return tuple(rw(op, name, axes) for name in names)


def _lengths(extent: int, sizes: Array) -> Array:
    """The lengths of all parts; a scalar is the length of all but the last."""
    if sizes.ndim == 0:
        bounds = np.append(np.arange(0, extent, int(sizes)), extent)
        sizes = np.diff(bounds)
    return sizes.astype(np.int64)


_HANDLERS: dict[str, Callable[[Unfolding, Rewriter], None]] = {
    "If": Unfolding.branch,
    "Loop": Unfolding.loop,
    "Scan": Unfolding.scan,
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
