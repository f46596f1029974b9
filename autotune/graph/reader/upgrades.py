"""① Conversion of nodes of older opsets to opset 22.

    Softmax(x), opset 11             ->  Reshape, Softmax, Reshape
    Squeeze(x; axes), opset 11       ->  Squeeze(x, axes)
    Upsample(x, scales), opset 9     ->  Resize(x, "", scales; asymmetric)

Nodes of branches, loops and functions are visited when these are unfolded, so types and constants
are known as far as they can be. A rule brings a node from below an opset to it; what no rule names
means the same in opset 22. Meanings: ONNX operator changelog.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from autotune.graph.ir import OPSET, Array, Editor, Node, Shape, unsupported
from autotune.graph.operators import reductions

Rule: TypeAlias = Callable[[Editor, Node], list[Node]]


def upgraded(editor: Editor, node: Node) -> list[Node]:
    """The nodes that replace one of an older opset, at least one step nearer to opset 22.

    Raises UnsupportedOperator where opset 22 has no equivalent.
    """
    node = replace(node, attrs={**_lost_defaults(node.op, node.opset), **node.attrs})
    for below, rule in _RULES.get(node.op, ()):
        if node.opset < below:
            return rule(editor, replace(node, opset=below))
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


def _without(node: Node, *names: str, **more: Any) -> Node:
    """`node` without some attributes, and with others."""
    attrs = {k: v for k, v in node.attrs.items() if k not in names}
    return replace(node, attrs={**attrs, **more})


def _integers(editor: Editor, stem: str, values: Any) -> str:
    return editor.constant(stem, np.array(values, np.int64))


def _with_input(editor: Editor, node: Node, slot: int, name: str, value: Array | None) -> Node:
    """Turn an attribute into input `slot`, unless it has no value or the input is given."""
    inputs = list(node.inputs)
    if value is not None and (len(inputs) <= slot or not inputs[slot]):
        inputs += [""] * (slot + 1 - len(inputs))
        inputs[slot] = editor.constant(f"{node.output}.{name}", value)
    return replace(_without(node, name), inputs=tuple(inputs))


def _attribute_to_input(name: str, slot: int, rank: int = 1) -> Rule:
    """op(x; name) -> op(x, name) for integers."""

    def rule(editor: Editor, node: Node) -> list[Node]:
        value = node.attrs.get(name)
        array = None if value is None else np.array(value, np.int64, ndmin=rank)
        return [_with_input(editor, node, slot, name, array)]

    return rule


def _shape(editor: Editor, node: Node, n: int = 0) -> Shape:
    """The shape of input `n`, which a rule has to know."""
    kind = editor.types.get(node.inputs[n])
    if kind is None or min(kind.shape, default=0) < 0:
        raise unsupported(node, editor.graph, "the shape of its input depends on the data")
    return kind.shape


def _known(editor: Editor, node: Node, n: int) -> Array:
    """The value of input `n`, which a rule has to know."""
    value = editor.constants.get(node.inputs[n]) if n < len(node.inputs) else None
    if value is None:
        raise unsupported(node, editor.graph, f"its input {n} is computed at run time")
    return value


# --- rules ------------------------------------------------------------------------------------


def _broadcast(editor: Editor, node: Node) -> list[Node]:
    """The second operand begins at an axis of the first -> both end together."""
    axis = node.attrs.get("axis")
    plain = _without(node, "axis", "broadcast")
    if axis is None or not node.attrs.get("broadcast", 0):
        return [plain]
    ranks = [len(_shape(editor, node, n)) for n in (0, 1)]
    behind = ranks[0] - axis % ranks[0] - ranks[1]
    return _widened(editor, plain, behind)


def _widened(editor: Editor, node: Node, behind: int) -> list[Node]:
    """The second operand with dimensions of 1 behind its own."""
    if behind <= 0:
        return [node]
    wide = f"{node.output}.wide"
    shape = _integers(editor, f"{wide}.shape", (*_shape(editor, node, 1), *(1,) * behind))
    inputs = (node.inputs[0], wide, *node.inputs[2:])
    return [
        Node(node.name, "Reshape", (node.inputs[1], shape), (wide,)),
        replace(node, inputs=inputs),
    ]


def _slope(editor: Editor, node: Node) -> list[Node]:
    """PRelu of one slope per channel, of shape (c,) -> of shape (c, 1, …)."""
    rank, own = len(_shape(editor, node)), len(_shape(editor, node, 1))
    return _widened(editor, node, rank - 2 if own == 1 else 0)


def _inference(editor: Editor, node: Node) -> list[Node]:
    if not node.attrs.get("is_test", 0) and node.op == "BatchNormalization":
        raise unsupported(node, editor.graph, "it normalises as in training (is_test = 0)")
    return [_without(node, "is_test")]


def _per_channel(editor: Editor, node: Node) -> list[Node]:
    if not node.attrs.get("spatial", 1):
        raise unsupported(node, editor.graph, "spatial = 0")
    return [replace(_without(node, "spatial"), outputs=node.outputs[:1])]


def _first_output(editor: Editor, node: Node) -> list[Node]:
    """Drop the outputs for training, and the ratio of a Dropout in inference."""
    return [replace(_without(node, "ratio"), outputs=node.outputs[:1])]


def _dropout(editor: Editor, node: Node) -> list[Node]:
    return [_without(node, "ratio")]


def _cast(editor: Editor, node: Node) -> list[Node]:
    """The type by its name -> by its number."""
    to = node.attrs.get("to")
    if isinstance(to, str):
        if to.upper() not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 (an enum, no dict)
            raise unsupported(node, editor.graph, f"type '{to}'")
        to = onnx.TensorProto.DataType.Value(to.upper())
    return [_without(node, to=to)]


def _old_pads(editor: Editor, node: Node) -> list[Node]:
    return [_without(node, "paddings", pads=node.attrs.get("paddings", ()))]


def _pads(editor: Editor, node: Node) -> list[Node]:
    """Pad(x; pads, value) -> Pad(x, pads, value)."""
    value = np.array(node.attrs.get("value", 0.0), _dtype(editor, node))
    node = _with_input(editor, node, 1, "pads", np.array(node.attrs.get("pads", ()), np.int64))
    return [_with_input(editor, node, 2, "value", value)]


def _dtype(editor: Editor, node: Node) -> str:
    kind = editor.types.get(node.inputs[0])
    return "float32" if kind is None else kind.dtype


def _clip(editor: Editor, node: Node) -> list[Node]:
    """Clip(x; min, max) -> Clip(x, min, max)."""
    for slot, name in enumerate(("min", "max"), 1):
        bound = node.attrs.get(name)
        value = None if bound is None else np.array(bound, _dtype(editor, node))
        node = _with_input(editor, node, slot, name, value)
    return [node]


def _slice(editor: Editor, node: Node) -> list[Node]:
    """Slice(x; starts, ends, axes) -> Slice(x, starts, ends, axes)."""
    axes = node.attrs.get("axes", range(len(node.attrs.get("starts", ()))))
    for slot, name in enumerate(("starts", "ends"), 1):
        values = np.array(node.attrs.get(name, ()), np.int64)
        node = _with_input(editor, node, slot, name, values)
    return [_with_input(editor, node, 3, "axes", np.array(axes, np.int64))]


def _equal_split(editor: Editor, node: Node) -> list[Node]:
    """Split into equal parts -> with attribute `num_outputs`."""
    if len(node.inputs) > 1 and node.inputs[1]:
        return [node]
    return [_without(node, num_outputs=len(node.outputs))]


def _factors(editor: Editor, node: Node) -> list[Node]:
    """Upsample(x; height_scale, width_scale) -> Upsample(x; scales)."""
    factors = (1.0, 1.0, node.attrs.get("height_scale", 1.0), node.attrs.get("width_scale", 1.0))
    return [_without(node, "height_scale", "width_scale", scales=factors)]


def _scales(editor: Editor, node: Node) -> list[Node]:
    """Upsample(x; scales) -> Upsample(x, scales)."""
    return [_with_input(editor, node, 1, "scales", np.array(node.attrs.get("scales", ()), "f4"))]


def _to_resize(editor: Editor, node: Node) -> list[Node]:
    return [replace(node, op="Resize")]


def _asymmetric(editor: Editor, node: Node) -> list[Node]:
    """Resize(x, scales) -> with the implicit modes; nearest mode 'simple' is internal."""
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"}
    inputs = (node.inputs[0], "", *node.inputs[1:])
    return [replace(_without(node, **modes), inputs=inputs)]


def _rows(editor: Editor, node: Node) -> list[Node]:
    """Softmax(x) over all dimensions from `axis` on -> of a matrix."""
    shape = _shape(editor, node)
    rank, axis = len(shape), node.attrs.get("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == rank - 1:
        return [_without(node, axis=-1)]
    flat, rows = f"{node.output}.flat", f"{node.output}.rows"
    two = _integers(editor, f"{flat}.shape", (math.prod(shape[:axis]), math.prod(shape[axis:])))
    back = _integers(editor, f"{rows}.shape", shape)
    return [
        Node(node.name, "Reshape", (node.inputs[0], two), (flat,), {"allowzero": 1}),
        replace(_without(node, axis=-1), inputs=(flat,), outputs=(rows,)),
        Node(node.name, "Reshape", (rows, back), node.outputs, {"allowzero": 1}),
    ]


def _tile(editor: Editor, node: Node) -> list[Node]:
    """Tile(x, tiles, axis) -> Tile(x, repeats)."""
    n, axis = (int(_known(editor, node, k).reshape(-1)[0]) for k in (1, 2))
    repeats = np.ones(len(_shape(editor, node)), np.int64)
    repeats[axis] = n
    name = editor.constant(f"{node.output}.repeats", repeats)
    return [replace(node, inputs=(node.inputs[0], name))]


def _whole_power(editor: Editor, node: Node) -> list[Node]:
    return [_without(node, p=round(node.attrs["p"]))]


def _scatter(editor: Editor, node: Node) -> list[Node]:
    return [replace(node, op="ScatterElements")]


def _interpolation_modes(editor: Editor, node: Node) -> list[Node]:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attrs.get("mode", "bilinear")
    return [_without(node, mode=names.get(mode, mode))]


def _scale_per_channel(editor: Editor, node: Node) -> list[Node]:
    """GroupNormalization with a scale and a bias per group -> per channel."""
    shape, groups = _shape(editor, node), node.attrs["num_groups"]
    nodes, inputs = [], [node.inputs[0]]
    sizes = ((groups, 1), (groups, shape[1] // groups), (shape[1],))
    for n, name in enumerate(node.inputs[1:], 1):
        for step, (op, size) in enumerate(
            zip(("Reshape", "Expand", "Reshape"), sizes, strict=True)
        ):
            out = f"{node.output}.channels{n}.{step}"
            nodes.append(
                Node(node.name, op, (name, _integers(editor, f"{out}.shape", size)), (out,))
            )
            name = out
        inputs.append(name)
    return [*nodes, replace(node, inputs=tuple(inputs))]


def _whole_pixels(editor: Editor, node: Node) -> list[Node]:
    return [_without(node, coordinate_transformation_mode="output_half_pixel")]


def _refuse(reason: str) -> Rule:
    def rule(editor: Editor, node: Node) -> list[Node]:
        raise unsupported(node, editor.graph, reason)

    return rule


_AXES = _attribute_to_input("axes", 1)

_RULES: dict[str, tuple[tuple[int, Rule], ...]] = {
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
    "Dropout": ((7, _inference), (12, _dropout)),
    "GridSample": ((20, _interpolation_modes),),
    "GroupNormalization": ((21, _scale_per_channel),),
    "MeanVarianceNormalization": ((9, _refuse("it is older than opset 9")),),
    "PRelu": ((7, _slope),),
    "Pad": ((2, _old_pads), (11, _pads)),
    "Reshape": ((5, _attribute_to_input("shape", 1)),),
    "Resize": ((11, _asymmetric),),
    "RoiAlign": ((16, _whole_pixels),),
    "Scan": ((9, _refuse("it is older than opset 9")),),
    "Scatter": ((11, _scatter),),
    "Slice": ((10, _slice),),
    "Split": ((13, _attribute_to_input("split", 1)), (18, _equal_split)),
    "Tile": ((6, _tile),),
    "TopK": ((10, _attribute_to_input("k", 1)),),
    "Upsample": ((7, _factors), (9, _scales), (10, _to_resize)),
}
"""Operator -> opsets in ascending order, each with the rule that converts older nodes to it."""
