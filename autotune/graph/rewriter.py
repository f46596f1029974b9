"""① One language to rewrite graphs: rules, each of which replaces a node by others.

    def inverse(rw: Rewriter) -> None:
        '''Sub(x, c) -> Add(x, -c)      where c is constant'''
        c = rw.value(1)
        if c is not None:
            rw.result("Add", rw.input(0), rw.array(-c))

    graph = rewrite(graph, Rule("inverse", inverse, {"Sub"}))

A rule is asked at one node. It applies where it makes the first result of that node: by an operator
(`result`), as another tensor (`alias`) or as a constant (`fold`); where it returns without that,
the node stays. The driver (`passes.driver`) visits emitted nodes as it visits all others, so rules
compose, drops at once what nobody reads any more, and repeats until no rule applies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from autotune.graph.ir import Array, Editor, Node, TensorType


class Rewriter:
    """One node, what is known of its operands, and the nodes that are to replace it.

    `rw("Mul", x, y)` emits an operator and names its result. Its type is inferred from the
    operands; `shape` and `dtype` state it where operands do not tell.
    """

    def __init__(self, node: Node, editor: Editor) -> None:
        self.node, self.editor = node, editor
        self.types, self.constants = editor.types, editor.constants
        self.nodes: list[Node] = []
        self.target = ""

    # --- the node and its operands ---

    def input(self, n: int) -> str:
        """Name of an input; "" where it is left out."""
        return self.node.inputs[n] if n < len(self.node.inputs) else ""

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return self.node.attrs.get(name, default)

    def value(self, n: int) -> Array | None:
        """Input `n` where it is a constant."""
        return self.constants.get(self.input(n))

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        return self.types[self.node.output]

    def kind(self, n: int) -> TensorType:
        """The type of input `n`."""
        return self.types[self.input(n)]

    def wants(self, n: int) -> bool:
        """Whether the node has result `n`."""
        return n < len(self.node.outputs) and bool(self.node.outputs[n])

    def maker(self, name: str, *ops: str) -> Node | None:
        """The node that makes a tensor, where it is one of these operators (of any, if none)."""
        maker = self.editor.makers.get(name)
        return maker if maker is not None and (not ops or maker.op in ops) else None

    def private(self, name: str, *ops: str) -> Node | None:
        """The same where nothing but this node reads the tensor, once."""
        return self.maker(name, *ops) if self.editor.uses[name] == 1 else None

    # --- what replaces it ---

    def __call__(
        self,
        op: str,
        *inputs: str,
        shape: Iterable[int] | None = None,
        dtype: str = "",
        **attrs: Any,
    ) -> str:
        """Emit an operator; the name of its result."""
        return self.several(op, 1, *inputs, shape=shape, dtype=dtype, **attrs)[0]

    def several(
        self,
        op: str,
        n: int,
        *inputs: str,
        shape: Iterable[int] | None = None,
        dtype: str = "",
        **attrs: Any,
    ) -> tuple[str, ...]:
        """The same for an operator of `n` results (of one type, where it is stated)."""
        names = tuple(self.editor.unused(f"{self.node.output}[{op}]") for _ in range(n))
        node = self._append(op, inputs, names, attrs)
        if shape is not None:
            kind: TensorType | None = TensorType(tuple(shape), dtype or self.types[inputs[0]].dtype)
        else:
            kind = self.editor.infer(node)
        if kind is not None:
            self.types |= dict.fromkeys(names, replace(kind, dtype=dtype or kind.dtype))
        return names

    def result(self, op: str, *inputs: str, **attrs: Any) -> None:
        """Emit the operator whose result is the first one of the node."""
        self._append(op, inputs, (self.node.output,), attrs)

    def results(self, op: str, *inputs: str, **attrs: Any) -> None:
        """Emit the operator whose results are those of the node."""
        self._append(op, inputs, self.node.outputs, attrs)

    def alias(self, name: str) -> None:
        """Let readers of the node read tensor `name`; an output of the graph is a copy of it."""
        if self.node.output not in self.editor.graph.outputs:
            self.target = name
        elif (self.node.op, self.node.inputs) != ("Identity", (name,)):
            self.result("Identity", name)

    @property
    def is_replaced(self) -> bool:
        """Whether the first result of the node is made."""
        return bool(self.target) or any(self.node.output in n.outputs for n in self.nodes)

    def fold(self, value: Array) -> None:
        """Make the first result a constant."""
        self.alias(self.array(value))

    def array(self, value: Array) -> str:
        """A constant."""
        return self.editor.constant(f"{self.node.output}[{len(self.nodes)}]", np.asarray(value))

    def _append(
        self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attrs: dict[str, Any]
    ) -> Node:
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        self.nodes.append(Node(self.node.name, op, inputs, outputs, attrs))
        return self.nodes[-1]


Rewrite: TypeAlias = Callable[[Rewriter], None]
"""Replaces the node of a rewriter, or leaves it. Raises UnsupportedOperator."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of nodes of some operators (None: of any).

    `converts`: what it emits is in another form than what it takes, and is not visited.
    """

    name: str
    apply: Rewrite
    operators: Container[str] | None = None
    converts: bool = False


@dataclass(slots=True)
class RewriteLog:
    """Counts rewrites by rule and operator, and lets only the first `most` happen."""

    most: int | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def admits(self, rule: Rule, node: Node) -> bool:
        """Count one more rewrite, unless it is one too many."""
        if self.most is not None and self.counts.total() >= self.most:
            return False
        self.counts[f"{rule.name} {node.op}"] += 1
        return True
