"""① Caches of a fixed shape, in which a step writes rows at the positions of its new places.

    present = Transpose(ScatterND(Transpose(past), position, new))      axis 2 of (1, 4, 270, 8)
    present = TensorScatter(past, new, first position)                  its axis

The extent of that dimension is the capacity: such a cache is a state as one that grows is.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto

SCATTERS = ("ScatterND", "ScatterElements")
TENSOR_SCATTER = "TensorScatter"


def written_axis(model: ModelProto, past: str, present: str) -> int | None:
    """The dimension of the rows that are written; None where none are."""
    makers = {name: node for node in model.graph.node for name in node.output}
    made, _ = _origin(makers, present)
    node = makers.get(made)
    if node is None or node.op_type not in (*SCATTERS, TENSOR_SCATTER):
        return None
    source, perm = _origin(makers, node.input[0])
    if source != past:
        return None
    usual = -2 if node.op_type == TENSOR_SCATTER else 0
    axis = next((a.i for a in node.attribute if a.name == "axis"), usual)
    rank = next(len(v.type.tensor_type.shape.dim) for v in model.graph.input if v.name == past)
    return perm[axis] if perm else axis % max(1, rank)


def first_places(model: ModelProto) -> frozenset[str]:
    """Tensors that are the place of the first new row in static caches."""
    nodes = (n for n in model.graph.node if n.op_type == TENSOR_SCATTER and len(n.input) > 2)
    return frozenset(node.input[2] for node in nodes)


def counted_places(model: ModelProto) -> frozenset[str]:
    """Tensors that are the number of places that count in static caches, of each sample."""
    nodes = (n for n in model.graph.node if n.op_type == "Attention" and len(n.input) > 6)
    return frozenset(node.input[6] for node in nodes)


def _origin(makers: Mapping[str, NodeProto], name: str) -> tuple[str, list[int]]:
    """The tensor that another one is but for the order of its dimensions, and that order."""
    perm: list[int] = []
    while (node := makers.get(name)) is not None and node.op_type in ("Identity", "Transpose"):
        perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), perm)
        name = node.input[0]
    return name, perm
