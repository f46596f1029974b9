"""① Types of results from the types and known values of operands, one node at a time.

The `onnx` package does the inference. Where it knows less than the standard says, shapes are
computed here: Resize (its scales are float32), ConvTranspose with `auto_pad` SAME
or `output_shape`, Einsum that
broadcasts, and GroupNormalization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.errors import ModelError
from autotune.graph.ir import OPSET, Array, Editor, Node, Shape, TensorType
from autotune.graph.limits import check_type
from autotune.graph.operators.contraction import einsum_shape
from autotune.graph.reader.onnx_nodes import proto_of, type_of, value_info
from autotune.graph.reader.operands import check_operands
from autotune.graph.reader.opsets import schema_of
from autotune.graph.reader.well_formed import WINDOWED, check_axis, check_window

_SMALL = 1024
"""Constants with more elements than this never decide a shape."""
_IMPORTS = [helper.make_opsetid("", OPSET)]


class Inference:
    """Types of results in one graph; equal nodes are asked for once."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._known: dict[object, list[TensorType | None]] = {}

    def __call__(self, node: Node) -> None:
        """Note the types of all outputs, as far as they can be told.

        Raises ModelError where types do not fit together or are larger than a tensor may be.
        """
        if any(n and not is_static(n, self.editor) for n in node.inputs):
            return
        schema = schema_of(node.op, OPSET)
        if schema is None:
            return
        key = self._key(node)
        kinds = None if key is None else self._known.get(key)
        if kinds is None:
            kinds = self._inferred(schema, node)
            if key is not None:
                self._known[key] = kinds
        for name, kind in zip(node.outputs, kinds, strict=True):
            if name and kind is not None:
                check_type(node, name, kind.shape)
                self.editor.types[name] = kind
        check_operands(self.editor, node)

    def _key(self, node: Node) -> object | None:
        """What the types of the outputs depend on; None if that is long to say."""
        values = [v for v in node.attrs.values() if not isinstance(v, _PLAIN)]
        data = [self._data(name) for name in node.inputs]
        if values:
            return None
        kinds = tuple(self.editor.types[n] if n else None for n in node.inputs)
        known = tuple(None if a is None else a.tobytes() for a in data)
        attrs = tuple(sorted(node.attrs.items()))
        return node.op, attrs, kinds, known, tuple(map(bool, node.outputs))

    def _data(self, name: str) -> Array | None:
        value = self.editor.constants.get(name)
        return value if value is not None and value.size <= _SMALL else None

    def _inferred(self, schema: onnx.defs.OpSchema, node: Node) -> list[TensorType | None]:
        check_axis(self.editor, node)
        own = _SHAPES.get(node.op)
        shape = own(self.editor, node) if own else None
        if shape is not None:
            return [TensorType(shape, self.editor.types[node.inputs[0]].dtype)]
        node = _with_hidden_size(self.editor, node)
        types = {n: value_info(n, self.editor.types[n]).type for n in node.inputs if n}
        data = {n: self._data(n) for n in node.inputs}
        known = {n: numpy_helper.from_array(a, n) for n, a in data.items() if a is not None}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, proto_of(node), types, known, opset_imports=_IMPORTS
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise _unfitting(node, error) from error
        return [_type(found.get(name)) for name in node.outputs]


_PLAIN = (int, float, str, bytes, tuple)


def is_static(name: str, editor: Editor) -> bool:
    """Whether all extents of a tensor are known."""
    return name in editor.types and min(editor.types[name].shape, default=0) >= 0


def _type(kind: onnx.TypeProto | None) -> TensorType | None:
    return type_of(kind) if kind is not None and kind.tensor_type.elem_type else None


def _unfitting(node: Node, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200]
    return ModelError(
        f"the shapes of the model do not fit together: operator '{node.op}' (node '{node.name}'): "
        f"{reason}",
        "check the shapes given with --shape",
    )


def _with_hidden_size(editor: Editor, node: Node) -> Node:
    """A recurrent node that leaves it to its weights how large a state is -> one that says it."""
    if node.op not in ("RNN", "GRU", "LSTM") or "hidden_size" in node.attrs:
        return node
    size = editor.types[node.inputs[2]].shape[-1:] if len(node.inputs) > 2 else ()
    return replace(node, attrs={**node.attrs, "hidden_size": size[0]}) if size else node


# --- shapes that are computed here ------------------------------------------------------------


def _as_its_input(editor: Editor, node: Node) -> Shape:
    return editor.types[node.inputs[0]].shape


def _resized(editor: Editor, node: Node) -> Shape | None:
    """floor(extent · scale) in float32, as the scales are; sizes are left to `onnx`.

    Of a cropped source too, as in ONNX's own inference and reference implementation.
    """
    scales = editor.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    if scales is None or not scales.size:
        return None
    shape = list(editor.types[node.inputs[0]].shape)
    rank = len(shape)
    axes = node.attrs.get("axes", range(rank))
    if len(axes) != scales.size or any(not -rank <= a < rank for a in axes):
        return None
    for axis, scale in zip(axes, scales.reshape(-1), strict=True):
        shape[axis] = int(np.floor(np.float32(shape[axis]) * np.float32(scale)))
    return tuple(shape) if min(shape, default=1) > 0 else None


def _transposed(editor: Editor, node: Node) -> Shape | None:
    """The extents that are asked for, or extent · stride where padding is chosen to give that."""
    check_window(editor, node)
    is_same = node.attrs.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    shape, weight = (editor.types[n].shape for n in node.inputs[:2])
    size = tuple(node.attrs.get("output_shape", ()))
    if not size and not is_same:
        return None
    if not size:
        strides = node.attrs.get("strides", (1,) * (len(shape) - 2))
        size = tuple(n * s for n, s in zip(shape[2:], strides, strict=True))
    if len(size) != len(shape) - 2 or min(size) < 1:
        raise ModelError(
            f"operator 'ConvTranspose' (node '{node.name}') has output_shape {size}",
            "give one extent for every spatial dimension",
        )
    return (shape[0], weight[1] * node.attrs.get("group", 1), *size)


_SHAPES: Mapping[str, Callable[[Editor, Node], Shape | None]] = {
    "Resize": _resized,
    **dict.fromkeys(WINDOWED, check_window),
    "ConvTranspose": _transposed,
    "GroupNormalization": _as_its_input,
    "Einsum": einsum_shape,
}
