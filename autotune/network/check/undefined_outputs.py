"""⑩ Outputs in which no two inferences or implementations agree, so that none is checked.

They are computed from random numbers, or are caches of a window, whose places behind the filled
ones are whatever was there (`sliding_window_cache` of GroupQueryAttention).
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from autotune.graph.operators.folded import RANDOM
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact, leaves


def undefined_outputs(graph: GraphProto, is_drawn: bool = True) -> dict[str, str]:
    """Such outputs of a graph, and why: their dependence, with a node that it comes from.

    `is_drawn`: whether random numbers are drawn, which is so as long as an output depends on them.
    The node by its name, or as in `RandomNormal 'y'` by what it makes where it has none.
    """
    found: dict[str, str] = {}
    for node in graph.node:
        source = _drawn_in(node) if is_drawn else ""
        reason = f"depends on random numbers (node {source})" if source else ""
        reason = reason or next((found[n] for n in _read(node) if n in found), "")
        names = list(node.output)
        if not reason and _has_window(node):
            names, reason = names[1:], f"has places that nothing fills (node {_named(node)})"
        if reason:
            found |= {name: reason for name in names if name}
    return {o.name: found[o.name] for o in graph.output if o.name in found}


def draws(artifact: Artifact) -> bool:
    """Whether random numbers are drawn in an inference: compiled code draws none."""
    segments = artifact.segments if isinstance(artifact, HybridArtifact) else ()
    models = (ModelProto.FromString(s.onnx) for s in leaves(segments) if s.network is None)
    return any(_drawn_in(node) for model in models for node in _nodes_of(model))


def _nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        yield from nodes


def _has_window(node: NodeProto) -> bool:
    return any(a.name == "sliding_window_cache" and a.i for a in node.attribute)


def _named(node: NodeProto) -> str:
    return node.name or f"{node.op_type} '{node.output[0]}'"


def _drawn_in(node: NodeProto) -> str:
    """The node that draws random numbers, this one or one in a branch or loop of it."""
    if node.op_type in RANDOM:
        return _named(node)
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
