"""① Conversion of nodes of older opsets to opset 22.

    Softmax(x), opset 11             ->  Reshape, Softmax, Reshape
    Squeeze(x; axes), opset 11       ->  Squeeze(x, axes)
    Upsample(x, scales), opset 9     ->  Resize(x, "", scales; asymmetric)

Nodes of branches, loops and functions are visited when these are unfolded, so types and constants
are known as far as they can be. A rule brings a node from below an opset to it; what no rule names
means the same in opset 22, and attributes that it lacks go. Meanings: ONNX operator changelog.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
from onnx import helper

from autotune.graph.ir import OPSET, Array, Editor, Node, Shape
from autotune.graph.operators import reductions
from autotune.graph.rewriter import Rewrite, Rewriter


def upgraded(editor: Editor, node: Node) -> list[Node]:
    """The nodes that replace one of an older opset, at least one step nearer to opset 22.

    Raises UnsupportedOperator where opset 22 has no equivalent.
    """
    node = replace(node, attrs={**_lost_defaults(node.op, node.opset), **node.attrs})
    for below, rule in _RULES.get(node.op, ()):
        if node.opset < below:
            rw = Rewriter(replace(node, opset=below), editor)
            rule(rw)
            return rw.nodes or [rw.node]
    known = _known_attributes(node.op)
    attrs = {k: v for k, v in node.attrs.items() if known is None or k in known}
    return [replace(node, attrs=attrs, opset=OPSET)]


def is_converted(op: str, opset: int) -> bool:
    """Whether a rule brings an operator of `opset` to opset 22."""
    return any(opset < below for below, _ in _RULES.get(op, ()))


@cache
def _lost_defaults(op: str, opset: int) -> Mapping[str, Any]:
    """Attributes whose default differs from the one in opset 22."""
    before, now = onnx.defs.get_schema(op, opset), _known_attributes(op) or {}
    return {
        name: value
        for name, attribute in before.attributes.items()
        if (value := default_of(attribute)) is not None and value != now.get(name)
    }


@cache
def _known_attributes(op: str) -> Mapping[str, Any] | None:
    """The attributes of an operator in opset 22 and their defaults; None if there is no such."""
    try:
        schema = onnx.defs.get_schema(op, OPSET)
    except onnx.defs.SchemaError:
        return None
    return {name: default_of(attribute) for name, attribute in schema.attributes.items()}


def default_of(attribute: onnx.defs.OpSchema.Attribute) -> Any:
    """The default of an attribute as in `Node.attrs`; None if it has none."""
    if not attribute.default_value.type:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    if isinstance(value, list):
        return tuple(value)
    return value.decode() if isinstance(value, bytes) else value


# --- parts of rules ---------------------------------------------------------------------------


def _inputs(rw: Rewriter, *values: Array | None) -> None:
    """Values of attributes -> the operands behind the first one, unless these are given."""
    first, *given = rw.node.inputs
    pairs = zip_longest(given, values)
    rw.again(first, *(old or ("" if new is None else rw.array(new)) for old, new in pairs))


def _attribute_to_input(name: str, slot: int, rank: int = 1) -> Rewrite:
    """op(x; name) -> op(x, name) for integers."""

    def rule(rw: Rewriter) -> None:
        value = rw.attr(name)
        array = None if value is None else np.array(value, np.int64, ndmin=rank)
        _inputs(rw, *(None,) * (slot - 1), array)

    return rule


def _shape(rw: Rewriter, n: int = 0) -> Shape:
    """The shape of input `n`, which a rule has to know."""
    kind = rw.types.get(rw.input(n))
    if kind is None or min(kind.shape, default=0) < 0:
        raise rw.refuse("the shape of its input depends on the data")
    return kind.shape


def _known(rw: Rewriter, n: int) -> Array:
    """The value of input `n`, which a rule has to know."""
    value = rw.value(n)
    if value is None:
        raise rw.refuse(f"its input {n} is computed at run time")
    return value


def _dtype(rw: Rewriter) -> str:
    kind = rw.types.get(rw.input(0))
    return "float32" if kind is None else kind.dtype


# --- rules ------------------------------------------------------------------------------------


def _broadcast(rw: Rewriter) -> None:
    """The second operand begins at an axis of the first -> both end together."""
    axis = rw.attr("axis")
    if axis is not None and rw.attr("broadcast", 0):
        ranks = [len(_shape(rw, n)) for n in (0, 1)]
        _widen(rw, ranks[0] - axis % ranks[0] - ranks[1])


def _widen(rw: Rewriter, behind: int) -> None:
    """The second operand with dimensions of 1 behind its own."""
    if behind > 0:
        wide = rw.reshaped(rw.input(1), *_shape(rw, 1), *(1,) * behind)
        rw.again(rw.input(0), wide, *rw.node.inputs[2:])


def _slope(rw: Rewriter) -> None:
    """PRelu of one slope per channel, of shape (c,) -> of shape (c, 1, …)."""
    rank, own = len(_shape(rw)), len(_shape(rw, 1))
    _widen(rw, rank - 2 if own == 1 else 0)


def _inference(rw: Rewriter) -> None:
    if not rw.attr("is_test", 0) and rw.node.op == "BatchNormalization":
        raise rw.refuse("it normalises as in training (is_test = 0)")


def _per_channel(rw: Rewriter) -> None:
    if not rw.attr("spatial", 1):
        raise rw.refuse("spatial = 0")
    _first_output(rw)


def _first_output(rw: Rewriter) -> None:
    """Drop the outputs for training."""
    rw.nodes.append(replace(rw.node, outputs=rw.node.outputs[:1]))


def _cast(rw: Rewriter) -> None:
    """The type by its name -> by its number."""
    to = rw.attr("to")
    if isinstance(to, str):
        if to.upper() not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 (an enum, no dict)
            raise rw.refuse(f"type '{to}'")
        rw.again(to=onnx.TensorProto.DataType.Value(to.upper()))


def _old_pads(rw: Rewriter) -> None:
    rw.again(pads=rw.attr("paddings", ()))


def _pads(rw: Rewriter) -> None:
    """Pad(x; pads, value) -> Pad(x, pads, value)."""
    value = np.array(rw.attr("value", 0.0), _dtype(rw))
    _inputs(rw, np.array(rw.attr("pads", ()), np.int64), value)


def _clip(rw: Rewriter) -> None:
    """Clip(x; min, max) -> Clip(x, min, max)."""
    bounds = (rw.attr(name) for name in ("min", "max"))
    _inputs(rw, *(None if b is None else np.array(b, _dtype(rw)) for b in bounds))


def _slice(rw: Rewriter) -> None:
    """Slice(x; starts, ends, axes) -> Slice(x, starts, ends, axes)."""
    starts, ends = (rw.attr(name, ()) for name in ("starts", "ends"))
    axes = rw.attr("axes", range(len(starts)))
    _inputs(rw, *(np.array(values, np.int64) for values in (starts, ends, axes)))


def _equal_split(rw: Rewriter) -> None:
    """Split into equal parts -> with attribute `num_outputs`."""
    if not rw.input(1):
        rw.again(num_outputs=len(rw.node.outputs))


def _factors(rw: Rewriter) -> None:
    """Upsample(x; height_scale, width_scale) -> Upsample(x; scales)."""
    rw.again(scales=(1.0, 1.0, rw.attr("height_scale", 1.0), rw.attr("width_scale", 1.0)))


def _scales(rw: Rewriter) -> None:
    """Upsample(x; scales) -> Upsample(x, scales)."""
    _inputs(rw, np.array(rw.attr("scales", ()), np.float32))


def _called(op: str) -> Rewrite:
    """The same operator under a newer name."""

    def rule(rw: Rewriter) -> None:
        rw.nodes.append(replace(rw.node, op=op))

    return rule


def _asymmetric(rw: Rewriter) -> None:
    """Resize(x, scales) -> with the implicit modes; nearest mode 'simple' is internal."""
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"}
    rw.again(rw.input(0), "", *rw.node.inputs[1:], **modes)


def _rows(rw: Rewriter) -> None:
    """Softmax(x) over all dimensions from `axis` on -> of a matrix."""
    shape = _shape(rw)
    rank, axis = len(shape), rw.attr("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == rank - 1:
        rw.again(axis=-1)
        return
    two = rw.integers(math.prod(shape[:axis]), math.prod(shape[axis:]))
    rows = rw(rw.node.op, rw("Reshape", rw.input(0), two, allowzero=1), axis=-1)
    rw.result("Reshape", rows, rw.integers(*shape), allowzero=1)


def _tile(rw: Rewriter) -> None:
    """Tile(x, tiles, axis) -> Tile(x, repeats)."""
    n, axis = (int(_known(rw, k).reshape(-1)[0]) for k in (1, 2))
    repeats = np.ones(len(_shape(rw)), np.int64)
    repeats[axis] = n
    rw.again(rw.input(0), rw.array(repeats))


def _whole_power(rw: Rewriter) -> None:
    rw.again(p=round(rw.node.attrs["p"]))


def _interpolation_modes(rw: Rewriter) -> None:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = rw.attr("mode", "bilinear")
    rw.again(mode=names.get(mode, mode))


def _scale_per_channel(rw: Rewriter) -> None:
    """GroupNormalization with a scale and a bias per group -> per channel."""
    n_channels, groups = _shape(rw)[1], rw.node.attrs["num_groups"]

    def per_channel(name: str) -> str:
        column = rw.reshaped(name, groups, 1)
        wide = rw("Expand", column, rw.integers(groups, n_channels // groups))
        return rw.reshaped(wide, n_channels)

    rw.again(rw.input(0), *map(per_channel, rw.node.inputs[1:]))


def _whole_pixels(rw: Rewriter) -> None:
    rw.again(coordinate_transformation_mode="output_half_pixel")


def _refuse(reason: str) -> Rewrite:
    def rule(rw: Rewriter) -> None:
        raise rw.refuse(reason)

    return rule


_AXES = _attribute_to_input("axes", 1)

_RULES: dict[str, tuple[tuple[int, Rewrite], ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), ((7, _broadcast),)),
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "Greater", "Less"), ((7, _broadcast),)),
    **{op: ((18, _AXES),) for op in reductions.OPERATORS if op.startswith("Reduce")},
    "ReduceSum": ((13, _AXES),),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), ((13, _AXES),)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), ((13, _rows),)),
    **dict.fromkeys(("LpPool", "GlobalLpPool"), ((2, _whole_power),)),
    "BatchNormalization": ((7, _inference), (9, _per_channel), (14, _first_output)),
    "Cast": ((6, _cast),),
    "Clip": ((11, _clip),),
    "DFT": ((20, _attribute_to_input("axis", 2, rank=0)),),
    "Dropout": ((7, _inference),),
    "GridSample": ((20, _interpolation_modes),),
    "GroupNormalization": ((21, _scale_per_channel),),
    "MeanVarianceNormalization": ((9, _refuse("it is older than opset 9")),),
    "PRelu": ((7, _slope),),
    "Pad": ((2, _old_pads), (11, _pads)),
    "Reshape": ((5, _attribute_to_input("shape", 1)),),
    "Resize": ((11, _asymmetric),),
    "RoiAlign": ((16, _whole_pixels),),
    "Scan": ((9, _refuse("it is older than opset 9")),),
    "Scatter": ((11, _called("ScatterElements")),),
    "Slice": ((10, _slice),),
    "Split": ((13, _attribute_to_input("split", 1)), (18, _equal_split)),
    "Tile": ((6, _tile),),
    "TopK": ((10, _attribute_to_input("k", 1)),),
    "Upsample": ((7, _factors), (9, _scales), (10, _called("Resize"))),
}
"""Operator -> opsets in ascending order, each with the rule that converts older nodes to it."""
