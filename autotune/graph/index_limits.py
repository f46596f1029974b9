"""① Integers of a model that are indices, with the extent of the dimension that they index.

Random inputs have to be valid indices.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.graph.ir import Graph, Node
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import operator_of


def index_limits(graph: Graph) -> dict[str, int]:
    """For every tensor of indices the smallest dimension that its values choose from.

    Integers that are sums of indices, or pass through data movement, count as indices.
    """
    limits: dict[str, int] = {}
    for node in reversed(graph.nodes):
        for name, limit in _limited(node, graph, limits.get(node.output)):
            limits[name] = min(limit, limits.get(name, limit))
    return limits


def _limited(node: Node, graph: Graph, limit: int | None) -> Iterator[tuple[str, int]]:
    """The inputs of a node that are indices if its output is one below `limit`."""
    operator = operator_of(node.op)
    indexed = operator.indexed
    if limit is not None and Trait.KEEPS_RANGE in operator.traits:
        known = [graph.constants[name] for name in node.inputs if name in graph.constants]
        if node.op == "Add":  # the sum must stay below the limit too
            limit = max(1, limit - sum(int(a.max()) for a in known if a.size))
        yield from ((name, limit) for name in (node.inputs[:1] if indexed else node.inputs))
    if indexed:
        table, index = node.inputs[:2]
        yield index, min(indexed(node, graph.shape(table), graph.shape(index)))
