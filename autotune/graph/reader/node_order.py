"""① Nodes of an ONNX file, and their topological order, which some exporters do not keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from onnx import FunctionProto, GraphProto, NodeProto

from autotune.graph.reader.random_weights import replace_all


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs of a node: branches, or the body of a loop."""
    return (a.g for a in node.attribute if a.HasField("g"))


def all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of a graph or function, and of its subgraphs."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def names_read(graph: GraphProto) -> Iterator[str]:
    """The names that the nodes of a graph and of its subgraphs read."""
    for node in graph.node:
        yield from names_read_by(node)


def names_read_by(node: NodeProto) -> Iterator[str]:
    """The names that a node and its subgraphs read."""
    yield from node.input
    for attribute in node.attribute:
        yield from names_read(attribute.g)


def put_in_order(graph: GraphProto) -> None:
    """Move the nodes of a graph and of its subgraphs behind those whose results they read.

    Other nodes keep their order, and all do where there is a cycle: the checker names it.
    """
    for body in (b for n in graph.node for b in bodies(n)):
        put_in_order(body)
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needed = [{makers[n] for n in names_read_by(node) if n in makers} for node in graph.node]
    if any(max(before, default=-1) >= i for i, before in enumerate(needed)):
        order = _topological(needed)
        if len(order) == len(needed):
            replace_all(graph.node, [graph.node[i] for i in order])


def _topological(needed: Sequence[set[int]]) -> list[int]:
    """Indices behind those that they need, each as early as it can be; without those in cycles."""
    users: list[list[int]] = [[] for _ in needed]
    for i, before in enumerate(needed):
        for j in before:
            users[j].append(i)
    missing = [len(before) for before in needed]
    ready = [i for i, n in enumerate(missing) if n == 0]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for user in users[order[-1]]:
            missing[user] -= 1
            if missing[user] == 0:
                heappush(ready, user)
    return order
