"""① Whether a longer input computes the same: a proof on the graph, as `samples` is for batches.

    padding_of((graph at 11, graph at 13), "sequence", {"ids": 1, "mask": 1}, {"ids": 0, "mask": 1})

The places of an input at `dimension` are real up to its length, and padded behind it. The graph at
13 with 11 real places is compared with the graph at 11: at the real places, each element of each
tensor has to be the same expression of the same elements. What is reduced over all places must be
neutral at the padded ones, whatever the data: 0 in a sum, no more than another element in a
maximum. That follows from intervals of values (`te.value_ranges`), one for each combination of real
and padded places of a tensor. What holds for one pair of lengths is concluded for others.

A softmax without its padded keys needs a key that is not masked. It is taken to be at one place,
the *anchor*: the first or the last real one. There, masks are 1; or they are 1 at all real places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from autotune.errors import UsageError
from autotune.graph.ir import Graph, Node
from autotune.graph.operators.table import operator_of
from autotune.graph.padded_axes import (
    Anchor,
    Lengths,
    PaddedExtent,
    Refused,
    Regions,
    lengths_of_constant,
    places_of,
)
from autotune.graph.padded_elements import PaddedScope, lengths_of
from autotune.graph.partition import Group
from autotune.graph.row_facts import NONE, RowFacts
from autotune.graph.subgraph import definition_of, form_of
from autotune.te.dag import ComputeDAG
from autotune.te.value_ranges import Values, unknown

Axes: TypeAlias = dict[str, tuple[tuple[int, int], ...]]
"""The padded axes of each tensor, and the number of indices per place."""


def output_axes(
    graphs: tuple[Graph, Graph],
    dimension: str,
    inputs: Mapping[str, int],
    masks: frozenset[str],
    anchor: Anchor,
) -> Axes:
    """The axes of lengths of every output, if padding changes none of its real elements.

    `graphs`: the prepared model at a length and at a longer one; `inputs`: the axis that
    `dimension` is of each input that has it. Inputs are padded with 0; those of `masks` are 0 or 1,
    and 1 at the anchor. Raises UsageError, with the node, where padding can change a result.
    """
    name = next(iter(inputs))
    n, padded = (g.shape(name)[inputs[name]] for g in graphs)
    proof = _Proof(graphs, dimension, PaddedExtent(n, padded, anchor))
    for name, axis in inputs.items():
        proof.take_input(name, axis, name in masks)
    return proof.axes()


class _Proof:
    """Lengths of all tensors by their names in the shorter graph; the longer one runs beside it."""

    def __init__(self, graphs: tuple[Graph, Graph], dimension: str, pair: PaddedExtent) -> None:
        self.graphs, self.dimension, self.pair = graphs, dimension, pair
        self.known: dict[str, Lengths] = {}
        self.second = dict(zip(graphs[0].inputs, graphs[1].inputs, strict=True))
        self.facts: dict[str, RowFacts] = {}
        self.done: dict[object, tuple[str, tuple[str, ...]]] = {}
        for name in graphs[0].inputs:
            kind = graphs[0].types[name]
            self.known[name] = Lengths((math.prod(kind.shape),), {(): unknown(kind.dtype)})

    def take_input(self, name: str, axis: int, is_mask: bool) -> None:
        """Declare an input with padded places."""
        kind = self.graphs[0].types[name]
        layout = math.prod(kind.shape[:axis]), math.prod(kind.shape[axis + 1 :])
        real, anchor = unknown(kind.dtype), unknown(kind.dtype)
        if is_mask:
            real, anchor = Values(self.pair.anchor == "all", 1), Values(1, 1)
        values: dict[Regions, Values] = {
            ("anchor",): anchor,
            ("real",): real,
            ("padded",): Values(0, 0),
        }
        self.known[name] = Lengths(layout, values)

    def axes(self) -> Axes:
        first, second = self.graphs
        if [n.op for n in first.nodes] != [n.op for n in second.nodes]:
            raise self.refused("the model", "it has other operators for other lengths")
        for a, b in zip(first.nodes, second.nodes, strict=True):
            self._node(a, b)
        names = zip(first.outputs, second.outputs, strict=True)
        return {name: self._output(name, other) for name, other in names}

    def _output(self, name: str, other: str) -> tuple[tuple[int, int], ...]:
        found = self._lengths(name, other)
        shapes = self.graphs[0].shape(name), self.graphs[1].shape(other)
        places = places_of(found.layout, *shapes, self.pair) or (0,)
        axes = tuple((d, inner) for d, inner in enumerate(places) if inner is not None)
        if any(shapes[0][d : d + 1] != (self.pair.n * inner,) for d, inner in axes):
            raise self.refused(f"output '{name}'", "its real elements lie among padded ones")
        return axes

    def _node(self, a: Node, b: Node) -> None:
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if bool(x) != bool(y):
                raise self.refused(f"{a.op} '{a.name}'", "its operands differ")
            if x:
                self.known[x] = self._lengths(x, y)
                self.second[x] = y
        self.second[a.output] = b.output
        try:
            if a.op == "Reshape":
                self._reshaped(a, b)
                return
            if self._like_before(a, b):
                return
            dags = tuple(definition_of(g, n) for g, n in zip(self.graphs, (a, b), strict=True))
            self._defined(a, dags)
        except Refused as error:
            raise self.refused(f"{a.op} '{a.name}'", str(error)) from None

    def _like_before(self, a: Node, b: Node) -> bool:
        """Take the lengths of the result from an equal node with equal operands, if any."""
        (form_a, names), (form_b, _) = (
            form_of(g, Group([n])) for g, n in zip(self.graphs, (a, b), strict=True)
        )
        number = {name: str(k) for k, name in enumerate(names)}
        operands = []
        for name in names:
            found = self.known[name]
            facts = self.facts.get(name, NONE).renamed(number)
            operands.append((found.layout, tuple(found.values.items()), facts))
        key = form_a, form_b, tuple(operands)
        before = self.done.get(key)
        if before is None:
            self.done[key] = a.output, tuple(names)
            return False
        output, others = before
        if output not in self.known:
            return False
        self.known[a.output] = self.known[output]
        if output in self.facts:
            self.facts[a.output] = self.facts[output].renamed(dict(zip(others, names, strict=True)))
        return True

    def _reshaped(self, a: Node, b: Node) -> None:
        self.known[a.output] = found = self.known[a.inputs[0]]
        shapes = self.graphs[0].shape(a.output), self.graphs[1].shape(b.output)
        if places_of(found.layout, *shapes, self.pair) is None:
            raise Refused("it joins real and padded places in one dimension")

    def _defined(self, node: Node, dags: tuple[tuple[ComputeDAG, dict[str, str]], ...]) -> None:
        (dag_a, names_a), (dag_b, names_b) = dags
        if [op.name for op in dag_a.ops] != [op.name for op in dag_b.ops]:
            raise Refused("it is defined in another way for other lengths")
        if any(self.second[n] != names_b.get(own) for own, n in names_a.items()):
            raise Refused("its operands differ")
        has_indices = operator_of(node.op).indexed is not None
        keys = dict(names_a)
        results = dag_a.outputs[0]
        for own in (c.name for c in dag_a.computes):
            keys[own] = node.output if own == results else f"{node.output}:{own}"
        shapes = {
            x.name: (x.tensor.shape, y.tensor.shape)
            for x, y in zip(dag_a.ops, dag_b.ops, strict=True)
        }
        for a, b in zip(dag_a.computes, dag_b.computes, strict=True):
            scope = PaddedScope(self.pair, has_indices, self.known, self.facts, keys, shapes)
            self.known[keys[a.name]] = lengths_of(a, b, scope)
            one, other = (scope.rows.made_by(op, scope.anywhere) for op in (a, b))
            self.facts[keys[a.name]] = one if one == other else NONE

    def _lengths(self, a: str, b: str) -> Lengths:
        """Lengths of a tensor: a constant must begin with its value at the shorter length."""
        if a in self.known and self.second.get(a) == b:
            return self.known[a]
        first, second = (g.constants.get(n) for g, n in zip(self.graphs, (a, b), strict=True))
        if first is None or second is None:
            raise self.refused(f"constant '{a}'", "it is none for other lengths")
        found = lengths_of_constant(first, second, self.pair)
        if found is None:
            raise self.refused(f"constant '{a}'", f"its values depend on '{self.dimension}'")
        return found

    def refused(self, what: str, why: str) -> UsageError:
        """The error for a part of the model."""
        return UsageError(
            f"'{self.dimension}' cannot be padded: {what}: {why}", "compile every length"
        )
