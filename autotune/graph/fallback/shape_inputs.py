"""① Inputs of a model that decide shapes: bound to constants, they make shapes static.

Reshape(x, Concat(Cast(rows), 4))  ─►  rows
If(Equal(sr, 16000)) { … }         ─►  sr
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from autotune.graph.reader.node_order import bodies

SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "ConstantOfShape"), (0,)),
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Split", "SplitToSequence", "SequenceAt"), (1,)),
    **dict.fromkeys(("TopK", "OneHot", "Squeeze", "Unsqueeze", "CenterCropPad", "Upsample"), (1,)),
    **dict.fromkeys(("AffineGrid", "DFT", "Compress"), (1,)),
    **dict.fromkeys((f"Reduce{f}" for f in ("Sum", "Mean", "Max", "Min", "Prod")), (1,)),
    **dict.fromkeys((f"Reduce{f}" for f in ("L1", "L2", "SumSquare", "LogSum")), (1,)),
    "ReduceLogSumExp": (1,),
    "NonMaxSuppression": (2,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "MelWeightMatrix": (0, 1),
    "MaxUnpool": (2,),
    "Col2Im": (1, 2),
}
"""Operands of operators that the shapes of results follow from."""
_DECIDING = {**SHAPE_OPERANDS, "If": (0,), "Loop": (0, 1)}
"""Operands that select the computation of an operator, as shapes and axes do."""
_EXTENTS_ONLY = ("Shape", "Size")
_MOST_ELEMENTS = 8
"""Of an input that is a shape: as many as a tensor may have dimensions."""


def deciding_inputs(
    nodes: Sequence[NodeProto],
    undecided: Iterable[int],
    shapes: Mapping[str, Sequence[int]],
) -> tuple[str, ...]:
    """Inputs that determine the shapes of results of the nodes `undecided`, in their order.

    `shapes`: of the inputs; what has more elements than a shape is none.
    """
    makers = {name: node for node in nodes for name in node.output if name}
    todo = [
        nodes[n].input[slot]
        for n in undecided
        for slot in SHAPE_OPERANDS.get(nodes[n].op_type, ())
        if slot < len(nodes[n].input)
    ]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        maker = makers.get(name)
        if name not in seen and maker is not None and maker.op_type not in _EXTENTS_ONLY:
            todo += maker.input
        seen.add(name)
    return tuple(n for n, shape in shapes.items() if n in seen and _is_short(shape))


def _is_short(shape: Sequence[int]) -> bool:
    return len(shape) < 2 and 0 < math.prod(shape) <= _MOST_ELEMENTS


def inputs_bound_by_value(model: ModelProto) -> tuple[str, ...]:
    """Inputs of a few numbers that determine shapes or control flow, in the order of a model.

    They reach the condition of a branch, the trip count of a loop or the shape of a tensor, and
    nothing else reaches it but constants and shapes. For each of their values the model is one
    without that decision, as for each shape of its inputs.
    """
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
    """Inputs that each decision of a graph depends on; `reached` is filled for its tensors."""
    for node in graph.node:
        for slot in _DECIDING.get(node.op_type, ()):
            if slot < len(node.input):
                yield reached.get(node.input[slot], frozenset())
        origins = _origins(node, reached)
        for body in bodies(node):
            inner = {**reached, **{value.name: origins for value in body.input}}
            yield from _decisions(body, inner)
            origins |= frozenset().union(*(inner.get(o.name, frozenset()) for o in body.output))
        if node.op_type in _EXTENTS_ONLY:
            origins = frozenset()
        reached.update(dict.fromkeys(node.output, origins))


def _origins(node: NodeProto, reached: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*(reached.get(name, frozenset()) for name in node.input))


def _is_small(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return False
    extents = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1 for dim in kind.shape.dim
    ]
    return all(n > 0 for n in extents) and math.prod(extents) <= _MOST_ELEMENTS
