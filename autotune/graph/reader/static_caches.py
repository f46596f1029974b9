"""① Caches of a fixed shape, in which a step writes rows at the positions of its new places.

    present = Transpose(ScatterND(Transpose(past), position, new))      axis 2 of (1, 4, 270, 8)

The extent of that dimension is the capacity: such a cache is a state as one that grows is.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto

SCATTERS = ("ScatterND", "ScatterElements")


def written_axis(model: ModelProto, past: str, present: str) -> int | None:
    """The dimension of the rows that are written; None where none are."""
    makers = {name: node for node in model.graph.node for name in node.output}
    made, _ = _origin(makers, present)
    node = makers.get(made)
    if node is None or node.op_type not in SCATTERS:
        return None
    source, perm = _origin(makers, node.input[0])
    if source != past:
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return perm[axis] if perm else axis


def _origin(makers: Mapping[str, NodeProto], name: str) -> tuple[str, list[int]]:
    """The tensor that another one is but for the order of its dimensions, and that order."""
    perm: list[int] = []
    while (node := makers.get(name)) is not None and node.op_type in ("Identity", "Transpose"):
        perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), perm)
        name = node.input[0]
    return name, perm
