"""① Inputs whose values decide what is computed: sampling rates, sizes, flags.

    deciding_inputs(model) ─► ("sr",)      If(Equal(sr, 16000)) { … }

A few numbers decide where they reach the condition of a branch, the trip count of a loop or the
shape of a tensor, and nothing else reaches it but constants and shapes. For each of their values
the model is one without that decision, as for each shape of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

MOST_ELEMENTS = 8
"""Of an input that may decide: as many as a tensor may have dimensions."""

_SHAPES_ONLY = ("Shape", "Size")
_DECIDING_SLOTS: Mapping[str, tuple[int, ...]] = {
    "If": (0,), "Loop": (0, 1), "Range": (0, 1, 2), "Reshape": (1,), "Expand": (1,),
    "Slice": (1, 2, 3, 4), "Resize": (2, 3), "Upsample": (1,), "Tile": (1,), "Pad": (1, 3),
    "ConstantOfShape": (0,), "TopK": (1,), "OneHot": (1,), "Split": (1,), "Squeeze": (1,),
    "Unsqueeze": (1,), "CenterCropPad": (1,), "Col2Im": (1, 2), "MaxUnpool": (2,),
    "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,), "DFT": (1, 2),
    "STFT": (1, 3), "AffineGrid": (1,), "CumSum": (1,), "ReduceSum": (1,), "ReduceMean": (1,),
    "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceSumSquare": (1,),
}  # fmt: skip
"""Operands that say what an operator computes, not with which numbers."""


def deciding_inputs(model: ModelProto) -> tuple[str, ...]:
    """Names of the inputs of a model that decide, in its order."""
    stored = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    small = {value.name for value in inputs if _is_small(value)}
    if not small:
        return ()
    reached: dict[str, frozenset[str]] = {i.name: frozenset((i.name,)) for i in inputs}
    decided = {
        name for origins in _decisions(model.graph, reached) if origins <= small for name in origins
    }
    return tuple(value.name for value in inputs if value.name in decided)


def _decisions(graph: GraphProto, reached: dict[str, frozenset[str]]) -> Iterator[frozenset[str]]:
    """Which inputs each decision of a graph depends on; `reached` is filled for its tensors."""
    for node in graph.node:
        for slot in _DECIDING_SLOTS.get(node.op_type, ()):
            if slot < len(node.input):
                yield reached.get(node.input[slot], frozenset())
        origins = _origins(node, reached)
        for body in _bodies(node):
            inner = {**reached, **{value.name: origins for value in body.input}}
            yield from _decisions(body, inner)
            origins |= frozenset().union(*(inner.get(o.name, frozenset()) for o in body.output))
        if node.op_type in _SHAPES_ONLY:
            origins = frozenset()
        reached.update(dict.fromkeys(node.output, origins))


def _origins(node: NodeProto, reached: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*(reached.get(name, frozenset()) for name in node.input))


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    return (a.g for a in node.attribute if a.type == AttributeProto.GRAPH)


def _is_small(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return False
    extents = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1 for dim in kind.shape.dim
    ]
    return all(n > 0 for n in extents) and math.prod(extents) <= MOST_ELEMENTS
