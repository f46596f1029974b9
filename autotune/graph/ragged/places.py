"""① Which dimensions of a tensor are the batch and the sequence, and what keeps tokens apart.

    hidden  (batch, sequence, 768)     tokens, 768 numbers each
    rows    (batch·sequence, 768)      the same
    table   (1, sequence, 768)         the same for every row
    scores  (batch, 12, sequence, sequence)   not of tokens: a row is mixed with itself

Extents of three imports tell the dimensions; definitions tell whether a node mixes tokens
(`samples.keeps_apart`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import AutotuneError
from autotune.graph.ir import Graph, Node, Shape, TensorType
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import view_of
from autotune.graph.samples import keeps_apart
from autotune.graph.tasks.subgraph import definition_of
from autotune.te.expr import Expr, Load, Reduce

BATCH, SEQUENCE = 7, 29
"""The size at which a model is looked at."""
OTHERS = ((5, SEQUENCE), (BATCH, 23))
"""Two more sizes, which tell what follows the batch and what the sequence."""


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """The dimensions of the batch and of the sequence; the same one where tokens are joined.

    `batch` is None in a tensor that is the same for every row.
    """

    batch: int | None
    sequence: int

    def steps(self, shape: Shape) -> tuple[int, int]:
        """Elements between two rows, and between two tokens of one."""
        assert self.batch is not None
        token = math.prod(shape[self.sequence + 1 :])
        is_joined = self.batch == self.sequence
        return SEQUENCE * token if is_joined else math.prod(shape[self.batch + 1 :]), token


class Tokens:
    """The tensors of a model at three sizes, by what their dimensions are."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.graph = graphs[0]
        self.shapes = {
            name: [g.types[name].shape for g in graphs]
            for name in self.graph.types
            if all(name in g.types for g in graphs)
        }

    def is_open(self, name: str) -> bool:
        """Whether a shape follows the batch or the sequence, as far as it is known."""
        shapes = self.shapes.get(name)
        return shapes is None or len(set(shapes)) > 1

    def of(self, name: str) -> TokenPlaces | None:
        """The places of a tensor that has a sequence once, and at most one batch."""
        shapes = self.shapes.get(name)
        if shapes is None or len({len(s) for s in shapes}) > 1:
            return None
        kinds = list(zip(*shapes, strict=True))
        open_dims = {d: k for d, k in enumerate(kinds) if len(set(k)) > 1}
        (b, s), (c, _), (_, t) = (BATCH, SEQUENCE), *OTHERS
        joined = [d for d, k in open_dims.items() if k == (b * s, c * s, b * t)]
        rows = [d for d, k in open_dims.items() if k == (b, c, b)]
        places = [d for d, k in open_dims.items() if k == (s, s, t)]
        if len(joined) == 1 == len(open_dims):
            return TokenPlaces(joined[0], joined[0])
        if len(places) != 1 or len(rows) > 1 or len(open_dims) != len(rows) + 1:
            return None
        return TokenPlaces(rows[0] if rows else None, places[0])

    def keeps_apart(self, node: Node) -> bool:
        """Whether each token of a result is computed of that token of the operands alone."""
        out = self.of(node.output)
        if out is None or out.batch is None or len(node.outputs) > 1:
            return False
        operands = {}
        for name in filter(None, node.inputs):
            if not self.is_open(name):
                continue
            known = self._beside(name, node.output, out)
            if known is None:
                return False
            operands[name] = known
        if not operands:
            return False
        shape = self.graph.shape(node.output)
        if view_of(node) is ViewKind.WHOLE:
            source = operands.get(node.inputs[0])
            same = source and source.steps(self.graph.shape(node.inputs[0])) == out.steps(shape)
            return bool(same)
        if any((p.batch == p.sequence) != (out.batch == out.sequence) for p in operands.values()):
            return False
        graph = self._widened(operands)
        rows = {name: p.batch for name, p in operands.items() if p.batch is not None}
        tokens = {name: p.sequence for name, p in operands.items()}
        is_apart = keeps_apart(graph, node, tokens, out.sequence)
        return is_apart and keeps_apart(graph, node, rows, out.batch)

    def _beside(self, name: str, result: str, out: TokenPlaces) -> TokenPlaces | None:
        """TokenPlaces of an operand; of one without a batch those that it has for every row."""
        known = self.of(name)
        if known is None or known.batch is not None:
            return known
        shape, whole = self.graph.shape(name), self.graph.shape(result)
        is_wide = len(shape) == len(whole) and out.batch != out.sequence
        if not is_wide or known.sequence != out.sequence or shape[out.batch or 0] != 1:
            return None
        return replace(known, batch=out.batch)

    def _widened(self, operands: Mapping[str, TokenPlaces]) -> Graph:
        """The graph with operands that are the same for every row as if they were not."""
        types = dict(self.graph.types)
        for name, places in operands.items():
            if places.batch is not None and places.batch != places.sequence:
                shape = list(types[name].shape)
                shape[places.batch] = BATCH
                types[name] = TensorType(tuple(shape), types[name].dtype)
        return replace(self.graph, types=types)

    # --- kinds of nodes ---

    def n_numbers(self, name: str) -> int:
        """Elements of a token."""
        return math.prod(self.graph.shape(name)) // (BATCH * SEQUENCE)

    def moves(self, node: Node) -> bool:
        """Whether a node brings elements of an operand into another order, and nothing else."""
        if view_of(node) is ViewKind.WHOLE:
            return True
        n = math.prod(self.graph.shape(node.output))
        sizes = [math.prod(self.graph.shape(x)) for x in node.inputs if x and self.is_open(x)]
        return n in sizes and _all_are(self._bodies(node), Load)

    def gathers_or_sums(self, node: Node) -> bool:
        """Whether a node does more than to compute elements one by one of elements."""
        bodies = self._bodies(node)
        return _all_are(bodies, Load) or any(isinstance(body, Reduce) for body in bodies or ())

    def _bodies(self, node: Node) -> list[Expr] | None:
        """What the computations of a node are; None of one without a definition."""
        try:
            dag, _ = definition_of(self.graph, node)
        except AutotuneError:
            return None
        return [op.body for op in dag.computes]


def _all_are(bodies: Sequence[Expr] | None, kind: type) -> bool:
    return bodies is not None and all(isinstance(body, kind) for body in bodies)
