"""① Mixed precision: networks of one model with some narrow products and others in float32.

    mixture = Mixture(bound, shapes)
    mixture.network("bf16")                     all products in bfloat16
    mixture.network("bf16", kept={"fc", …})     those of these nodes in float32
    mixture.network("f32", floats={"fc", …})    products of integers of these in float32

A tensor between two tasks is stored narrow where a narrow product reads it. So the precision of a
neighbour is part of a task, and the cost of the rounding in between is part of its latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from autotune.config import PRECISIONS
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.imports import OpenModel
from autotune.graph.lengths.lift import lifted
from autotune.graph.network import Network, as_stated, named, stored_network
from autotune.graph.passes.float_integers import has_exact_floats
from autotune.graph.passes.pipeline import prepare_first, prepare_rest
from autotune.graph.passes.precision import narrowable
from autotune.graph.ragged.model import RaggedModel, lifted_rows
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.importer import import_graph


class Mixture:
    """A model that was read, for networks of any precision; `lengths`: one that has some."""

    def __init__(
        self,
        bound: BoundModel,
        shapes: Shapes | None = None,
        lengths: OpenModel | None = None,
    ) -> None:
        self._open = lengths
        if lengths is not None:
            graph = lengths.with_open_steps(lengths.read_at(lengths.mosts)[1])
            self._first = named(partial(prepare_first, graph))
            return
        self._model = named(lambda: bound.load(shapes))
        self._graph = named(lambda: import_graph(self._model, bound.operators))
        self._first = named(lambda: prepare_first(self._graph))
        self._name, self._digest = bound.path.stem, bound.digest
        self._more: Mapping[str, Any] = {
            "random_weights": bound.random_weights,
            "constant_inputs": dict(bound.constants),
        }

    @cached_property
    def narrowable(self) -> frozenset[str]:
        """Names of nodes that read float32 operands and may read narrow ones."""
        first = self._first
        read = ((n.name, first.types[n.inputs[0]].dtype) for n in first.nodes if narrowable(n))
        return frozenset(name for name, dtype in read if dtype == "float32")

    @cached_property
    def integers(self) -> frozenset[str]:
        """Names of nodes whose products of integers floats compute exactly."""
        nodes = self._first.nodes
        return frozenset(node.name for node in nodes if has_exact_floats(self._first, node))

    def network(
        self, precision: str, kept: Set[str] = frozenset(), floats: Set[str] = frozenset()
    ) -> Network:
        """The network with products in `precision`, but for those of `kept` nodes.

        `floats`: those of `integers` that are computed in `precision` too, or in float32 if kept.
        Errors: see `build_network`.
        """
        found = self.narrowable | floats
        if found <= kept:
            precision = "f32"
        is_mixed = precision != "f32" and not found.isdisjoint(kept)
        if self._open is not None:
            mixed = replace(self._open, precision=precision, kept=frozenset(kept))
            mixed = replace(mixed, floats=frozenset(floats))
            of_mixed = lifted_rows(mixed) if isinstance(mixed, RaggedModel) else lifted(mixed)
            return replace(of_mixed, is_mixed=is_mixed)
        dtype = PRECISIONS[precision]
        stored = named(lambda: prepare_rest(self._first, dtype, kept, floats))
        network = named(lambda: stored_network(self._graph, stored, self._name, self._digest))
        network = replace(network, precision=precision, is_mixed=is_mixed, **self._more)
        return as_stated(network, self._model.halves, self._model.texts)


def merged_weights(network: Network, others: Iterable[Network]) -> Mapping[str, int]:
    """Calls of each task in alternatives of one network: the most of any of them."""
    found = dict(network.weights)
    for other in others:
        for key, n in other.weights.items():
            found[key] = max(found.get(key, 0), n)
    return found


def replaced(network: Network, other: Network) -> dict[str, tuple[str, ...]]:
    """Tasks of `other` that stand for one of `network` each: calls of the same narrowable nodes.

    Not those of chains, which are alternatives already.
    """
    taken = {key for n in (network, other) for k, parts in n.parts.items() for key in (k, *parts)}
    tasks = {call.narrowable: call.task for call in network.calls if call.narrowable}
    pairs = ((call.task, tasks.get(call.narrowable)) for call in other.calls if call.narrowable)
    return {
        mine: (theirs,)
        for mine, theirs in pairs
        if theirs is not None and mine not in network.tasks and not {mine, theirs} & taken
    }
