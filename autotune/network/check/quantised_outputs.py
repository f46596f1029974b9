"""⑩ The steps that outputs of a quantised model come in, read off its file.

    DequantizeLinear(q, scale, zero) → Reshape → output      steps of `scale`
    QuantizeLinear(x, scale, zero)   → output                steps of 1: the integers themselves

A value halfway between two steps falls on either side, whichever way its sum was rounded. So two
right implementations differ by one step in a few elements: that is no error of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from autotune.graph.operators.block_quantised import LEVEL_OF_BYTES
from autotune.graph.reader.node_order import all_nodes

Array = NDArray[Any]

_QUANTISERS = ("QuantizeLinear", "QLinear", "QGemm", "DynamicQuantize")
"""Prefixes of the names of operators that round to steps."""
_WITH_SCALE = "DequantizeLinear"
_MOVES = (
    "Identity",
    "Reshape",
    "Flatten",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Gather",
    "MaxPool",
    "Relu",
)
"""Operators whose results are elements that they read."""
MOST_SHARE = 0.01
"""Elements of an output that may be one step off: more are no ties."""
_SAME = 0.01
"""Of a step: rounding in float32 is less, and another step is more."""


def is_quantised(model: ModelProto) -> bool:
    """Whether something in `model` is rounded to steps while it is computed."""
    return any(map(_rounds, all_nodes(model.graph)))


def _rounds(node: NodeProto) -> bool:
    if node.op_type in ("MatMulNBits", "QMoE"):  # to bytes, where it permits that
        values = {a.name: a.i for a in node.attribute}
        # ONNX Runtime has no product of experts with blocks of bytes that rounds no data
        of_bytes = values.get("block_size", 0) and values.get("expert_weight_bits", 4) == 8
        is_so = node.op_type == "QMoE" and bool(of_bytes)
        return is_so or values.get("accuracy_level", 0) == LEVEL_OF_BYTES
    return node.op_type.startswith(_QUANTISERS)


def has_scales(model: ModelProto) -> bool:
    """Whether `output_steps` may ask for the values of constants."""
    return any(node.op_type == _WITH_SCALE for node in model.graph.node)


def output_steps(model: ModelProto) -> dict[str, float]:
    """The largest distance between neighbouring values of quantised outputs, by name.

    Outputs that no scale is known of, as those of dynamic quantisation, are not in it.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    constants = {t.name: t for t in model.graph.initializer}
    steps = {o.name: _step(o.name, makers, constants) for o in model.graph.output}
    return {name: step for name, step in steps.items() if step is not None}


def _step(
    name: str, makers: Mapping[str, NodeProto], constants: Mapping[str, TensorProto]
) -> float | None:
    node = makers.get(name)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    if node is None:
        return None
    if node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear"):
        return 1.0
    if node.op_type != _WITH_SCALE:
        return None
    scale = _constant(node.input[1], makers, constants)
    return float(np.abs(scale).max(initial=0.0)) if scale is not None else None


def _constant(
    name: str, makers: Mapping[str, NodeProto], constants: Mapping[str, TensorProto]
) -> Array | None:
    if name in constants:
        return numpy_helper.to_array(constants[name]).astype(np.float64)
    node = makers.get(name)
    values = [a.t for a in node.attribute if a.name == "value"] if node is not None else []
    return numpy_helper.to_array(values[0]).astype(np.float64) if values else None


def steps_apart(actual: Array, expected: Array, step: float) -> int:
    """Largest difference of two arrays of one shape in steps, where both are finite."""
    with np.errstate(all="ignore"):
        apart = np.abs(actual.astype(np.float64) - expected.astype(np.float64)) / step
    return int(np.rint(apart.max(initial=0.0, where=np.isfinite(apart))))


def is_within_a_step(actual: Array, expected: Array, step: float) -> bool:
    """Whether no element is off by more than one `step`, and at most `MOST_SHARE` or one are."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    ours, theirs = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return False
    apart = np.abs(ours - theirs) / step
    n_off = int(np.count_nonzero(apart > _SAME))
    return float(apart.max(initial=0.0)) <= 1 + _SAME and n_off <= max(1, MOST_SHARE * apart.size)
