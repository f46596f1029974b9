"""① Operators on tensors with unused places: which keep them apart, and what masks them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.graph.operators.state import APPEND, ROWS
from autotune.graph.operators.table import operator_of

LOWEST = float(np.finfo(np.float32).min)
"""In place of scores of unused places."""
_FOLLOWING = frozenset(
    (
        *("Transpose", "Reshape", "Flatten", "Expand", "Unsqueeze", "Squeeze", "Tile", "CumSum"),
        *("ConstantOfShape", "Trilu", "Gather", "Slice", "Concat", "Split", "MatMul", "Softmax"),
        *("ReduceSum", "ReduceMax", "ReduceMin", "ScatterElements", "ScatterND"),
        *("GatherElements", "GatherND", "DequantizeLinear", "QuantizeLinear", "LayerNormalization"),
        *("ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
        *("ReduceLogSumExp", "Pad", "Dropout", "CastLike", "Sum", "Mean", "BitCast", APPEND, ROWS),
    )
)
"""Operators, beside those that are elementwise, whose unused places of results come from unused
places of operands, once those over which they reduce are masked."""
ZERO_KEEPING = frozenset(
    (
        *("Cast", "Identity", "Dropout", "Reshape", "Transpose", "Expand", "Unsqueeze"),
        *("Squeeze", "Mul", "Div"),
    )
)
"""Operators whose results are zero where their first operand is."""
NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys((f"Reduce{f}" for f in ("Sum", "L1", "L2", "SumSquare", "LogSum")), 0.0),
    "ReduceProd": 1.0,
    "ReduceMax": LOWEST,
    "ReduceLogSumExp": LOWEST,
    "ReduceMin": -LOWEST,
}
"""What changes no reduction."""


def follows_places(op: str) -> bool:
    """Whether unused places of results come from unused places of operands alone."""
    return op in _FOLLOWING or operator_of(op).is_elementwise
