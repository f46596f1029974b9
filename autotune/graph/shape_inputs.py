"""① Inputs of a model that decide shapes: bound to what they always are, they make them static.

Reshape(x, Concat(Cast(rows), 4))  ─►  rows
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from onnx import NodeProto

_OPERANDS: Mapping[str, tuple[int, ...]] = {
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
_EXTENTS_ONLY = ("Shape", "Size")
_MOST_ELEMENTS = 8
"""Of an input that is a shape: as many as a tensor may have dimensions."""


def deciding_inputs(
    nodes: Sequence[NodeProto],
    undecided: Iterable[int],
    shapes: Mapping[str, Sequence[int]],
) -> tuple[str, ...]:
    """Inputs that the shapes of what the nodes `undecided` make follow from, in their order.

    `shapes`: of the inputs; what has more elements than a shape is none.
    """
    makers = {name: node for node in nodes for name in node.output if name}
    todo = [
        nodes[n].input[slot]
        for n in undecided
        for slot in _OPERANDS.get(nodes[n].op_type, ())
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
