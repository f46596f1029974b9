"""⑩ Outputs that depend on random numbers: no two inferences agree in them, so none is checked."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, NodeProto

from autotune.graph.operators.folded import RANDOM

_DRAWS = (*RANDOM, "Multinomial")


def random_outputs(graph: GraphProto) -> dict[str, str]:
    """Outputs of a graph that are computed from random numbers, each with a node that draws them.

    The node by its name, or as in `RandomNormal 'y'` by what it makes where it has none.
    """
    found: dict[str, str] = {}
    for node in graph.node:
        source = _drawn_in(node) or next((found[n] for n in _read(node) if n in found), "")
        if source:
            found |= {name: source for name in node.output if name}
    return {o.name: found[o.name] for o in graph.output if o.name in found}


def _drawn_in(node: NodeProto) -> str:
    """The node that draws random numbers, this one or one in a branch or loop of it."""
    if node.op_type in _DRAWS:
        return node.name or f"{node.op_type} '{node.output[0]}'"
    inner = (_drawn_in(n) for graph in _bodies(node) for n in graph.node)
    return next(filter(None, inner), "")


def _read(node: NodeProto) -> Iterator[str]:
    """All that a node reads, in branches and loops too."""
    yield from node.input
    for graph in _bodies(node):
        for inner in graph.node:
            yield from _read(inner)
        yield from (o.name for o in graph.output)


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
