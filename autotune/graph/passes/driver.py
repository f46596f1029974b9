"""① The driver of rules: visits the nodes of a graph in order, and their replacements.

It includes dead code elimination and common subexpression elimination.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import replace
from math import prod

from autotune.errors import UnsupportedOperator
from autotune.graph.ir import Editor, Graph, Node, frozen, frozen_attrs, reading, same
from autotune.graph.operators.definition import Folding, Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.passes.typed_editor import TypedEditor
from autotune.graph.refusals import naming, refused
from autotune.graph.rewriter import RewriteLog, Rewriter, Rule

_MOST_AT_ONE_NODE = 100_000
"""Rewrites of one node and of its replacements; more are a fault of the rules."""
_MOST_BYTES = 4096
"""Constants up to this size have a key; larger ones are compared where all keys are equal."""


def rewrite(
    graph: Graph, *rules: Rule, log: RewriteLog | None = None, merges_all: bool = False
) -> Graph:
    """Apply rules, the first that fits at every node, until none does.

    Dead code is eliminated: nodes and constants that no output depends on. Common subexpressions
    are: nodes of equal operator, attributes and operands become the first of them, unless they are
    cheap to compute again (they fuse with each reader) or move data, which `merges_all` merges as
    well, draw random numbers, or make an output. A node that a rule refuses becomes a `Refused`
    node, see `refusals`.
    """
    log = log or RewriteLog()
    while True:
        sweep = _Sweep(graph, rules, log, merges_all)
        graph = sweep.run()
        if not sweep.n_rewrites:
            return graph


class _Sweep:
    """Visits every node once, and its replacements in its place."""

    def __init__(
        self, graph: Graph, rules: tuple[Rule, ...], log: RewriteLog, merges_all: bool
    ) -> None:
        self.graph, self.rules, self.log = graph, rules, log
        self.work = _Workspace(graph, merges_all)
        self.n_rewrites = 0

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._visit(node)
        return self.work.build()

    def _visit(self, original: Node) -> None:
        waiting = deque([original])
        for _ in range(_MOST_AT_ONE_NODE):
            if not waiting:
                return
            node = self.work.updated(waiting.popleft())
            waiting.extendleft(reversed(self._replaced(node)))
        raise RuntimeError(f"rewrites of {original.op} (node '{original.name}') do not end")

    def _replaced(self, node: Node) -> list[Node]:
        """The nodes that replace a node; none where it stays and is emitted."""
        try:
            with naming(node):
                found = self._rewritten(node)
        except UnsupportedOperator as error:
            return self._emitted(node, refused(node, error))
        if found is None:
            self.work.emit(node)
            return []
        rule, rw = found
        if rule.converts:
            return self._emitted(node, rw.nodes, rw.target)
        self.n_rewrites += 1
        self.work.replace(node, rw.nodes, rw.target)
        return rw.nodes

    def _rewritten(self, node: Node) -> tuple[Rule, Rewriter] | None:
        """The first rule that applies at a node, and the nodes that it has emitted."""
        for rule in self.rules:
            if rule.operators is None or node.op in rule.operators:
                rw = Rewriter(node, self.work)
                rule.apply(rw)
                if rw.is_replaced and self.log.admits(rule, node):
                    return rule, rw
        return None

    def _emitted(self, node: Node, others: list[Node], target: str = "") -> list[Node]:
        """Replace a node by others that are not visited."""
        self.work.replace(node, others, target)
        for other in others:
            self.work.emit(self.work.updated(other))
        return []


class _Workspace(TypedEditor):
    """A graph under construction, without dead nodes and without duplicates."""

    def __init__(self, graph: Graph, merges_all: bool = False) -> None:
        super().__init__(graph)
        self._merges_all = merges_all
        self._dead: set[int] = set()
        self._outputs = frozenset(graph.outputs)
        self._alias: dict[str, str] = {}
        """The tensor that replaces another one."""
        self._alike: dict[Hashable, list[Node]] = {}
        """Emitted nodes by operator and the operands that are no constants."""

    def replace(self, node: Node, others: Iterable[Node], target: str = "") -> None:
        """Count the operands of the nodes that replace one, and those of that one no more."""
        for other in others:
            self.uses.update(other.inputs)
        if target:
            self.alias(node.output, target)
        self._release(node)

    def updated(self, node: Node) -> Node:
        """`node` as it reads the tensors that replace others."""
        return reading(node, {n: self._present(n) for n in node.inputs if n in self._alias})

    def alias(self, name: str, target: str) -> None:
        """Let every later reader of `name` read `target`."""
        self._alias[name] = self._present(target)
        self.uses[self._alias[name]] += self.uses.pop(name, 0)

    def _present(self, name: str) -> str:
        """The tensor that replaces `name`."""
        while name in self._alias:
            name = self._alias[name]
        return name

    def emit(self, node: Node) -> None:
        if not any(self.uses[name] for name in node.outputs if name):
            self._release(node)
            return
        first = None if self._outputs & set(node.outputs) else self._equal(node)
        if first is None:
            super().emit(node)
            return
        for name, other in zip(node.outputs, first.outputs, strict=True):
            if name:
                self.alias(name, other)
        self._release(node)

    def _equal(self, node: Node) -> Node | None:
        """A node that computes the same; where there is none, `node` is one for later nodes."""
        operator = operator_of(node.op)
        if operator.folding in (Folding.NEVER, Folding.DRAWN):
            return None
        if not self._merges_all and self._is_free(node):
            return None
        tensors = tuple(name for name in node.inputs if name not in self.constants)
        alike = self._alike.setdefault((node.op, tensors), [])
        others = [other for other in alike if id(other) not in self._dead]
        key = _key(self, node) if others else None
        able = (other for other in others if _key(self, other) == key)
        first = next((other for other in able if self._reads_same(other, node)), None)
        if first is None:
            alike.append(node)
        return first

    def _reads_same(self, one: Node, other: Node) -> bool:
        """Whether the constants of two nodes of equal keys are equal."""
        pairs = ((a, b) for a, b in zip(one.inputs, other.inputs, strict=True) if a != b)
        return all(same(self.constants[a], self.constants[b]) for a, b in pairs)

    def _is_free(self, node: Node) -> bool:
        """Whether a node costs each of its readers about as much as reading its result."""
        traits = operator_of(node.op).traits
        sizes = (prod(self.types[o].shape) for o in node.outputs if o)
        return Trait.MOVES in traits or (Trait.CHEAP in traits and any(n != 1 for n in sizes))

    def _release(self, node: Node) -> None:
        """Forget that a node reads its operands; producers without other uses are dead."""
        for name in node.inputs:
            self.uses[name] -= 1
            maker = self.makers.get(name)
            if maker is not None and not any(self.uses[o] for o in maker.outputs if o):
                for made in filter(None, maker.outputs):
                    del self.makers[made]
                self._dead.add(id(maker))
                self._release(maker)

    def build(self) -> Graph:
        self.nodes = [node for node in self.nodes if id(node) not in self._dead]
        graph = super().build()
        read = {name for node in graph.nodes for name in node.inputs}
        constants = {n: a for n, a in graph.constants.items() if n in read}
        return replace(graph, constants=constants)


def _key(editor: Editor, node: Node) -> Hashable:
    """Key of common subexpression elimination."""
    inputs = tuple(_operand(editor, name) for name in node.inputs)
    types = tuple(editor.types[o] if o else None for o in node.outputs)
    return node.opset, inputs, frozen_attrs(node), types


def _operand(editor: Editor, name: str) -> Hashable:
    value = editor.constants.get(name) if name else None
    if value is None:
        return name
    return frozen(value) if value.nbytes <= _MOST_BYTES else editor.types[name]
