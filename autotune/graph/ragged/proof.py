"""① What a mask leaves out of a row, behind it or before it, changes nothing in it.

Nodes that mix rows are evaluated by their definitions, in float64, on rows of several lengths, with
anything at the places beside them: whatever is read by tokens, or is a result, has to be the same
in every bit with other numbers there. The mask alone says where rows are; a term that it leaves
out is then 0, or below what a maximum sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from autotune.dtypes import numpy_dtype
from autotune.errors import AutotuneError
from autotune.graph.ir import Array, Graph, Node
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import view_of
from autotune.graph.passes.pipeline import prepare
from autotune.graph.ragged.places import BATCH, SEQUENCE, TokenPlaces, Tokens
from autotune.graph.tasks.subgraph import definition_of
from autotune.te.evaluate import evaluate

Rows: TypeAlias = Sequence[tuple[int, int]]
"""First places and lengths of rows."""
BEHIND: Rows = ((0, SEQUENCE), (0, 1), (0, 2), (0, SEQUENCE - 1), (0, 13), (0, 20), (0, 7))
ANYWHERE: Rows = (*BEHIND[:4], (9, 20), (SEQUENCE - 2, 2), (SEQUENCE - 1, 1))
"""Those that are looked at: with padding behind them, and before some as well."""
_LARGE = 30.0
"""Numbers behind a row, in standard deviations of those in front."""


def is_padding(tokens: Tokens, packed: Set[str], mask: str, rows: Rows) -> bool:
    """Whether places where `mask` is 0, those beside such `rows`, can be left out."""
    try:
        return _Mixing(tokens, packed, mask, rows).is_the_same()
    except AutotuneError:
        return False


class _Mixing:
    """The nodes that are not `packed`, whose results are inputs with any numbers."""

    def __init__(self, tokens: Tokens, packed: Set[str], mask: str, rows: Rows) -> None:
        self.tokens, self.packed, self.mask = tokens, packed, mask
        graph = tokens.graph
        nodes = [n for n in graph.nodes if n.output not in packed]
        reads = {x for n in nodes for x in n.inputs}
        known = packed | graph.constants.keys() | {""}
        asked = (x for n in graph.nodes if n.output in packed for x in n.inputs)
        self.ends = [x for x in dict.fromkeys((*asked, *graph.outputs)) if x not in known]
        self.graph = replace(
            graph,
            inputs=(*graph.inputs, *sorted(packed & reads)),
            outputs=tuple(self.ends),
            nodes=tuple(nodes),
            output_names={},
        )
        self.prepared = prepare(self.graph, "float32")
        first, counts = np.array(rows).T[:, :, None]
        place = np.arange(SEQUENCE) - first
        self.behind: Array = (place < 0) | (place >= counts)

    def is_the_same(self) -> bool:
        """Whether what tokens read is the same in every bit with other numbers behind rows."""
        one, other = (self._evaluated(seed) for seed in (1, 2))
        pairs = zip(self.ends, one, other, strict=True)
        return all(self._is_same(*pair) for pair in pairs)

    def _evaluated(self, seed: int) -> list[Array]:
        rng, junk = np.random.default_rng(0), np.random.default_rng(seed)
        values = {name: self._drawn(name, rng, junk) for name in self.graph.inputs}
        graph = self.prepared
        values = dict(zip(graph.inputs, values.values(), strict=True)) | graph.constants
        for node in graph.nodes:
            values[node.output] = _result(graph, node, values)
        return [values[name].reshape(graph.shape(name)) for name in graph.outputs]

    def _drawn(self, name: str, rng: np.random.Generator, junk: np.random.Generator) -> Array:
        """Any numbers, of results for tokens others for each seed behind the ends of rows."""
        kind = self.graph.types[name]
        if name == self.mask:
            return (~self.behind).astype(numpy_dtype(kind.dtype))
        if name not in self.packed:
            return rng.integers(0, 2, kind.shape).astype(numpy_dtype(kind.dtype))
        places = self.tokens.of(name)
        assert places is not None
        value, other = rng.standard_normal(kind.shape), junk.standard_normal(kind.shape) * _LARGE
        return np.where(_spread(self.behind, places, len(kind.shape)), other, value)

    def _is_same(self, name: str, a: Array, b: Array) -> bool:
        places = self.tokens.of(name)
        if places is None or places.batch is None:
            return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        behind = np.broadcast_to(_spread(self.behind, places, a.ndim), a.shape)
        return np.array_equal(a[~behind], b[~behind], equal_nan=a.dtype.kind == "f")


def _result(graph: Graph, node: Node, values: Mapping[str, Array]) -> Array:
    """The result of a node by its definition."""
    shape = graph.shape(node.output)
    if view_of(node) is ViewKind.WHOLE:
        return values[node.inputs[0]].reshape(shape)
    dag, names = definition_of(graph, node)
    known = {own: values[name] for own, name in names.items()}
    return evaluate(dag, known)[dag.outputs[0]].reshape(shape)


def _spread(behind: Array, places: TokenPlaces, rank: int) -> Array:
    """A flag for each place, in the dimensions of a tensor."""
    shape = [1] * rank
    if places.batch == places.sequence:
        shape[places.sequence] = BATCH * SEQUENCE
        return behind.reshape(shape)
    assert places.batch is not None
    shape[places.batch], shape[places.sequence] = BATCH, SEQUENCE
    turned = behind if places.batch < places.sequence else behind.T
    return turned.reshape(shape)
