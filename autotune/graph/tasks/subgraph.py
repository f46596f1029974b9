"""① One group of nodes -> one ComputeDAG with its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from autotune.errors import UnsupportedOperator
from autotune.graph.ir import Array, Graph, Node, Shape, TensorType, frozen_attrs, unsupported
from autotune.graph.operators.definition import Operand, Scope, Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.passes.precision import narrowable
from autotune.graph.refusals import naming
from autotune.graph.tasks.partition import Group
from autotune.te.collapse import collapse
from autotune.te.dag import ComputeDAG
from autotune.te.expr import Const, Tensor
from autotune.te.order import follow_sources


@dataclass(frozen=True)
class Subgraph:
    """A task's DAG and the tensors and arrays of one call for its placeholders."""

    dag: ComputeDAG
    inputs: dict[str, str]
    constants: dict[str, Array]
    output: str
    label: str
    narrowable: tuple[str, ...] = ()
    """Names of its nodes that may read narrow operands."""

    def collapsed(self, dag: ComputeDAG) -> Subgraph:
        """The task of `dag`, which computes the same."""
        return self.of(follow_sources(collapse(dag)))

    def of(self, task: ComputeDAG) -> Subgraph:
        """The call of a task whose inputs have the names of these."""
        shapes = {p.name: p.tensor.shape for p in task.placeholders}
        constants = {n: a.reshape(shapes[n]) for n, a in self.constants.items() if n in shapes}
        inputs = {n: name for n, name in self.inputs.items() if n in shapes}
        return replace(self, dag=task, inputs=inputs, constants=constants)


Arrange: TypeAlias = Callable[[ComputeDAG, Mapping[str, str]], ComputeDAG]
"""A DAG, and the tensors of the graph that its inputs stand for -> the same computation with
dimensions in other orders."""


def undefined(graph: Graph, node: Node) -> UnsupportedOperator | None:
    """The error for a node whose operator or types have no definition; None if it has one."""
    operator = operator_of(node.op)
    if not operator.is_defined:
        return unsupported(node, graph)
    types = {graph.types[n].dtype for n in (*node.inputs, node.output) if n}
    dtype = min(types - operator.dtypes, default="")
    return unsupported(node, graph, f"type {dtype}") if dtype else None


def build_subgraph(
    graph: Graph,
    group: Group,
    arrange: Arrange = lambda dag, inputs: dag,
) -> Subgraph:
    """Define the operators of a group as one collapsed ComputeDAG; `arrange` comes before that."""
    return _Builder(graph, group).build(arrange)


def group_definition(graph: Graph, group: Group) -> Subgraph:
    """The operators of a group, before axes are merged."""
    return _Builder(graph, group).definition()


def definition_of(graph: Graph, node: Node) -> tuple[ComputeDAG, dict[str, str]]:
    """DAG of a single node as it is defined, and the tensors that its operands stand for."""
    builder = _Builder(graph, Group([node]))
    with naming(node):
        builder.define(node)
    result = builder.tensors[node.output]
    assert isinstance(result, Tensor)
    return builder.scope.dag(result), builder.inputs | builder.constant_names


def defined_type(graph: Graph, group: Group) -> TensorType:
    """The type of the output of a group, as the definitions of its operators have it.

    The shape is the declared one where they differ in dimensions of 1 alone.
    """
    builder = _Builder(graph, group)
    for node in group.nodes:
        builder.define(node)
    result = builder.tensors[group.output]
    shape = result.shape if isinstance(result, Tensor) else ()
    if builder.n_groups > 1:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    declared = graph.shape(group.output)
    is_same = [n for n in shape if n != 1] == [n for n in declared if n != 1]
    return TensorType(declared if is_same else shape, result.dtype)


class Definitions:
    """Subgraphs of groups of one graph; those that differ only in names share a definition."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[object, tuple[_Builder, Subgraph, list[str]]] = {}

    def of(self, group: Group) -> Subgraph:
        """The subgraph of a group."""
        form, names = form_of(self._graph, group)
        if form in self._known:
            return _like(self._graph, group, *self._known[form], names)
        builder = _Builder(self._graph, group)
        found = builder.build()
        self._known[form] = builder, found, names
        return found


def form_of(graph: Graph, group: Group) -> tuple[object, list[str]]:
    """Canonical form of a group: equal for equal definitions; and the tensors that it reads."""
    numbers: dict[str, int] = {"": -1}
    names: list[str] = []
    parts: list[object] = []
    for node in group.nodes:
        for name in node.inputs:
            if name not in numbers:
                numbers[name] = len(numbers)
                names.append(name)
                value = graph.constants.get(name)
                number = value.tobytes() if value is not None and value.size == 1 else b""
                parts.append((graph.types[name], value is not None, number))
        numbered = tuple(numbers[name] for name in node.inputs)
        parts.append((node.op, frozen_attrs(node), numbered))
        numbers[node.output] = len(numbers)
        parts.append(graph.types[node.output])
    return tuple(parts), names


def _like(
    graph: Graph,
    group: Group,
    builder: _Builder,
    first: Subgraph,
    before: list[str],
    names: list[str],
) -> Subgraph:
    """The subgraph of a group that differs only in names from the group of `builder`."""
    now = dict(zip(before, names, strict=True))
    constants = {
        n: np.ascontiguousarray(graph.constants[now[name]]).reshape(first.constants[n].shape)
        for n, name in builder.constant_names.items()
    }
    inputs = {n: now[name] for n, name in first.inputs.items()}
    return replace(
        first,
        inputs=inputs,
        constants=constants,
        output=group.output,
        narrowable=_narrowable(group),
    )


def _narrowable(group: Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n.name for n in group.nodes if narrowable(n)))


class _Builder:
    def __init__(self, graph: Graph, group: Group) -> None:
        self.graph, self.group = graph, group
        self.scope = Scope()
        self.tensors: dict[str, Operand] = {}
        self.inputs: dict[str, str] = {}
        self.constants: dict[str, Array] = {}
        self.constant_names: dict[str, str] = {}
        self.n_groups = _n_channel_groups(graph, group)

    def build(self, arrange: Arrange = lambda dag, inputs: dag) -> Subgraph:
        found = self.definition()
        return found.collapsed(arrange(found.dag, found.inputs))

    def definition(self) -> Subgraph:
        """The group as its operators are defined."""
        for node in self.group.nodes:
            with naming(node):
                error = undefined(self.graph, node)
                if error is not None:
                    raise error
                self.define(self._chain_first(node))
        result = self.tensors[self.group.output]
        assert isinstance(result, Tensor)
        stated = self.graph.types[self.group.output].dtype
        if result.dtype != stated:  # its memory would be of another size
            raise unsupported(
                self.group.nodes[-1], self.graph, f"it computes {result.dtype} instead of {stated}"
            )
        return Subgraph(
            self.scope.dag(result),
            self.inputs,
            self.constants,
            self.group.output,
            self.group.label,
            _narrowable(self.group),
        )

    def define(self, node: Node) -> None:
        operands = [self.operand(node, slot, name) for slot, name in enumerate(node.inputs)]
        shape = self.graph.shape(node.output)
        definition = operator_of(node.op).define
        assert definition is not None, node.op
        self.tensors[node.output] = definition(self.scope, node, operands, shape)

    def operand(self, node: Node, slot: int, name: str) -> Operand | None:
        """The tensor or literal for an input of a node."""
        if not name:
            return None
        if name not in self.tensors:
            value = self.graph.constants.get(name)
            self.tensors[name] = self._external(node, slot, name, value)
        return self.tensors[name]

    def _external(self, node: Node, slot: int, name: str, value: Array | None) -> Operand:
        kind = self.graph.types[name]
        operator = operator_of(node.op)
        roles, is_weight = operator.roles, slot == operator.factors.weight_input
        shape = (kind.shape if is_weight else self._spread(kind.shape)) or (1,)
        if value is None:
            role = roles[slot] if slot < len(roles) else "y"
            role = "x" if not self.inputs else "y" if role == "x" else role
            tensor = self.scope.placeholder(role, shape, dtype=kind.dtype)
            self.inputs[tensor.name] = name
            return tensor
        if value.size == 1 and Trait.LITERALS in operator.traits:
            return Const(value.reshape(-1)[0].item(), kind.dtype)
        role = roles[slot] if slot < len(roles) else operator.constant_role
        tensor = self.scope.placeholder(role, shape, constant=True, dtype=kind.dtype)
        self.constants[tensor.name] = np.ascontiguousarray(value)
        self.constant_names[tensor.name] = name
        return tensor

    def _spread(self, shape: Shape) -> Shape:
        """(…, c) as (…, group, c/group) around a grouped convolution."""
        if self.n_groups == 1 or not shape:
            return shape
        if shape[-1] == 1:
            return (*shape, 1)
        return (*shape[:-1], self.n_groups, shape[-1] // self.n_groups)

    def _chain_first(self, node: Node) -> Node:
        """Commutative operators with the operand that this group computes first."""
        if Trait.COMMUTATIVE not in operator_of(node.op).traits or len(node.inputs) != 2:
            return node
        a, b = node.inputs
        return replace(node, inputs=(b, a)) if b in self.tensors and a not in self.tensors else node


def _n_channel_groups(graph: Graph, group: Group) -> int:
    """Groups in which a subgraph views its channels; 1 unless it has a grouped convolution."""
    for node in group.nodes:
        if node.op == "Conv" and node.attrs["kind"] == "grouped":
            return graph.shape(node.inputs[1])[-3]
    return 1
