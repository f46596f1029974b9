"""① One language to rewrite graphs: rules, each of which replaces a node by others.

    def inverse(rw: Rewriter) -> None:
        '''Sub(x, c) -> Add(x, -c)      where c is constant'''
        c = rw.value(1)
        if c is not None:
            rw.result("Add", rw.input(0), rw.array(-c))

    graph = rewrite(graph, Rule("inverse", inverse, {"Sub"}))

A rule is asked at one node. It applies where it makes a result of that node: by an operator
(`result`), as another tensor (`alias`, `returns`) or as a constant (`fold`); where it returns
without that, the node stays. Moves of constants are carried out at once. The driver
(`passes.driver`) visits emitted nodes as it visits all others, so rules compose, eliminates dead
code at once, and repeats to a fixpoint. Which rules may meet in a pass, and why they end:
docs/architecture-graph.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from autotune.dtypes import DTYPES
from autotune.errors import UnsupportedOperator
from autotune.graph.ir import Array, Editor, Node, Shape, TensorType, unsupported


class Rewriter:
    """One node, facts of its operands, and the nodes that are to replace it.

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

    def rank(self, n: int) -> int:
        """Dimensions of input `n`; it is refused where they are not known."""
        if self.input(n) not in self.types:
            raise self.refuse("the shape of an operand is not known")
        return len(self.kind(n).shape)

    def shape(self, n: int) -> Shape:
        """Extents of input `n`; it is refused where one is not known."""
        if not self.rank(n) or min(self.kind(n).shape) >= 0:
            return self.kind(n).shape
        raise self.refuse("the shape of an operand is not known")

    def refuse(self, reason: str) -> UnsupportedOperator:
        """The error for a form of the operator that cannot be compiled."""
        return unsupported(self.node, self.editor.graph, reason)

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

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a tensor, as they are when the sweep over the graph begins."""
        return self.editor.readers.get(name, [])

    # --- replacements ---

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
        shape = None if shape is None else tuple(shape)
        node = self._append(op, inputs, names, attrs)
        value = self.editor.fold(node, shape)
        if value is not None:
            self.nodes.pop()
            return (self.array(np.ascontiguousarray(value)),)
        if shape is not None:
            kind: TensorType | None = TensorType(shape, dtype or self.types[inputs[0]].dtype)
        else:
            kind = self.editor.infer(node)
        if kind is not None:
            self.types |= dict.fromkeys(names, replace(kind, dtype=dtype or kind.dtype))
        return names

    def split(self, x: str, sizes: Sequence[int], axis: int) -> tuple[str, ...]:
        """Parts of a tensor along a dimension."""
        lengths = self.array(np.array(sizes, np.int64))
        kind = self.types[x]
        parts = self.several("Split", len(sizes), x, lengths, shape=(), axis=axis)
        for part, size in zip(parts, sizes, strict=True):
            shape = (*kind.shape[:axis], size, *kind.shape[axis + 1 :])
            self.types[part] = replace(kind, shape=shape)
        return parts

    def slice(
        self, x: str, axes: Iterable[int], starts: Iterable[int], ends: Iterable[int], step: int = 1
    ) -> str:
        """Elements `starts` to `ends` of a tensor along some dimensions."""
        bounds = [np.array([*values], np.int64) for values in (starts, ends, axes)]
        steps = [np.full(len(bounds[0]), step)] if step != 1 else []
        return self("Slice", x, *map(self.array, (*bounds, *steps)))

    def result(self, op: str, *inputs: str, **attrs: Any) -> None:
        """Emit the operator whose result is the first one of the node."""
        self._append(op, inputs, (self.node.output,), attrs)

    def like(self, node: Node, *inputs: str, op: str = "", **attrs: Any) -> None:
        """Emit another node with these operands, under its own name, for the first result."""
        made = (self.node.output,)
        attrs = {**node.attrs, **attrs}
        self.nodes.append(replace(node, op=op or node.op, inputs=inputs, outputs=made, attrs=attrs))

    def results(self, op: str, *inputs: str, n: int | None = None, **attrs: Any) -> None:
        """Emit the operator whose results are those of the node, or the first `n` of them."""
        self._append(op, inputs, self.node.outputs[:n], attrs)

    def again(self, *inputs: str, **attrs: Any) -> None:
        """Emit the node itself with other operands, where any are given, and more attributes."""
        given, merged = _stripped(inputs) or self.node.inputs, {**self.node.attrs, **attrs}
        self.nodes.append(replace(self.node, inputs=given, attrs=merged))

    def bind(self, n: int, name: str) -> None:
        """Let result `n` of the node, where anything reads it, be a copy of a tensor."""
        if self.wants(n):
            self._append("Identity", (name,), (self.node.outputs[n],), {})

    def alias(self, name: str) -> None:
        """Let readers of the node read tensor `name`; an output of the graph is a copy of it."""
        if self.node.output not in self.editor.graph.outputs:
            self.target = name
        elif (self.node.op, self.node.inputs) != ("Identity", (name,)):
            self.result("Identity", name)

    def returns(self, *names: str) -> None:
        """Let the results of the node, as far as it has them, be these tensors."""
        made = {name for node in self.nodes for name in node.outputs}
        pairs = [(name, out) for name, out in zip(names, self.node.outputs, strict=False) if out]
        renamed = {name: out for name, out in reversed(pairs) if name in made}
        self.nodes = [with_names(node, renamed) for node in self.nodes]
        for name, out in pairs:
            if renamed.get(name) != out:
                source = renamed.get(name, name)
                if out == self.node.output:
                    self.alias(source)
                else:
                    self._append("Identity", (source,), (out,), {})

    @property
    def is_replaced(self) -> bool:
        """Whether a result of the node is made."""
        results = set(filter(None, self.node.outputs))
        return bool(self.target) or any(results & set(n.outputs) for n in self.nodes)

    def fold(self, value: Array) -> None:
        """Make the first result a constant."""
        self.alias(self.array(value))

    def array(self, value: Array) -> str:
        """A constant."""
        return self.editor.constant(f"{self.node.output}[{len(self.nodes)}]", np.asarray(value))

    def integers(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.array(np.array(values, np.int64))

    def scalar(self, value: float, dtype: str = "float32") -> str:
        """A constant without dimensions."""
        return self.array(np.array(value, dtype))

    def cast(self, x: str, dtype: str) -> str:
        """A tensor as elements of another type."""
        return self("Cast", x, to=DTYPES[dtype].onnx)

    def reshaped(self, x: str, *shape: int) -> str:
        """A tensor in another shape, which is an operand as ONNX has it."""
        return self("Reshape", x, self.integers(*shape))

    def shared(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The result of an equal node that is there already; else emit the operator."""
        for node in self.editor.makers.values():
            if (node.op, node.inputs, node.attrs) == (op, inputs, attrs):
                return node.output
        return self(op, *inputs, **attrs)

    def derived(self, name: str, of: Callable[[Array], Array | None]) -> str:
        """A constant that is computed of another one, once for all callers; "" where it is none."""
        value, key = self.constants.get(name), (name, of)
        if value is None:
            return ""
        if key not in self.editor.derived:
            found = of(value)
            self.editor.derived[key] = "" if found is None else self.array(found)
        return self.editor.derived[key]

    def _append(
        self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attrs: dict[str, Any]
    ) -> Node:
        self.nodes.append(Node(self.node.name, op, _stripped(inputs), outputs, attrs))
        return self.nodes[-1]


def _stripped(inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Operands without absent ones at the end."""
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return inputs


def with_names(node: Node, names: Mapping[str, str]) -> Node:
    """A node that reads and makes tensors by other names."""
    if names.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(n, n) for n in own) for own in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


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
    """The rewrites of a graph in their order, and the limit of their number (None: all)."""

    most: int | None = None
    done: list[str] = field(default_factory=list)

    def admits(self, rule: Rule, node: Node) -> bool:
        """Add one more rewrite, unless it is one too many."""
        if self.most is not None and len(self.done) >= self.most:
            return False
        self.done.append(f"{rule.name}: {node.op} (node '{node.name}')")
        return True
