"""① Types of results from the types and known values of operands, one node at a time.

The `onnx` package infers them. Where it infers or checks less than the standard says, the record of
the operator does (`typing`): the package compares ranks or nothing, and reads outside of a shape
where an axis lies outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.errors import ModelError
from autotune.graph.ir import OPSET, Array, Editor, Node, TensorType, malformed
from autotune.graph.limits import MOST_ELEMENTS, MOST_READ_ELEMENTS, check_type
from autotune.graph.operators.definition import Trait, Types
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.onnx_nodes import proto_of, type_of, value_info
from autotune.graph.reader.opsets import NEWEST, schema_of
from autotune.graph.rewriter import Rewriter

_SMALL = 1024
"""Constants with more elements than this never decide a shape."""
_INFERENCE_ERRORS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)


class Inference:
    """Infers the types of results in one graph; equal nodes are inferred once, of any graph."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    def __call__(self, node: Node) -> None:
        """Set the types of all outputs, as far as they can be inferred.

        Raises ModelError where types do not fit together or are larger than a tensor may be.
        """
        if all(is_static(n, self.editor) for n in node.inputs if n):
            self.editor.types |= self.types_of(node)

    def types_of(self, node: Node) -> dict[str, TensorType]:
        """The types of the outputs of a node of opset 22, as far as they can be inferred."""
        if schema_of(node.op, OPSET) is not None:
            _check_axis(self.editor, node)
        typing, infer = operator_of(node.op).typing, partial(self._inferred, node)
        kinds = typing(Rewriter(node, self.editor), infer) if typing is not None else infer()
        return _of_outputs(node, kinds, self._most(node))

    def _most(self, node: Node) -> int:
        """Elements that a result may have while it is read.

        Passes make products with what data choose of a table, and with what is made of that, read
        the table: what is left is checked behind them (`refusals.require_supported`).
        """
        graph, types = self.editor.graph, self.editor.types
        own = [n for n in node.inputs if n in types and n not in graph.inputs]
        follows = any(prod(types[n].shape) > MOST_ELEMENTS for n in own)
        is_chosen = operator_of(node.op).indexed is not None
        return MOST_READ_ELEMENTS if is_chosen or follows else MOST_ELEMENTS

    def _data(self, name: str) -> Array | None:
        value = self.editor.constants.get(name)
        return value if value is not None and value.size <= _SMALL else None

    def _inferred(self, node: Node, **attrs: Any) -> Types:
        """The types that the `onnx` package infers, given attributes that are left out."""
        schema = schema_of(node.op, OPSET)
        if schema is None:
            return []
        if attrs:
            node = replace(node, attrs={**node.attrs, **attrs})
        asked = partial(self._asked, node)
        try:
            return asked(OPSET)
        except _INFERENCE_ERRORS as error:
            newest = schema_of(node.op, NEWEST)
            if newest is None or newest.since_version <= OPSET:
                raise _unfitting(node, error) from error
            try:  # of types that came later
                return asked(NEWEST)
            except _INFERENCE_ERRORS:
                raise _unfitting(node, error) from error

    def _asked(self, node: Node, opset: int) -> Types:
        """The types by the schema of an opset. Raises the errors of the package."""
        kinds = tuple(self.editor.types[n] if n else None for n in node.inputs)
        data = [self._data(n) for n in node.inputs]
        given = tuple(None if a is None else (a.dtype, a.shape, a.tobytes()) for a in data)
        asked = _Asked(node.op, opset, kinds, tuple(map(bool, node.outputs)))
        if all(isinstance(v, _PLAIN) for v in node.attrs.values()):
            return list(_known_types(asked, tuple(sorted(node.attrs.items())), given))
        return _package_types(asked, node.attrs, given)


_Data: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A node whose types are asked for: the types of operands, and which results there are."""

    op: str
    opset: int
    kinds: tuple[TensorType | None, ...]
    outputs: tuple[bool, ...]


@lru_cache(maxsize=8192)
def _known_types(
    asked: _Asked, attrs: tuple[tuple[str, Any], ...], given: tuple[_Data | None, ...]
) -> Types:
    return _package_types(asked, dict(attrs), given)


def _package_types(
    asked: _Asked, attrs: Mapping[str, Any], given: tuple[_Data | None, ...]
) -> Types:
    inputs = tuple(f"i{n}" if kind else "" for n, kind in enumerate(asked.kinds))
    outputs = tuple(f"o{n}" if is_there else "" for n, is_there in enumerate(asked.outputs))
    pairs = zip(inputs, asked.kinds, strict=True)
    types = {name: value_info(name, kind).type for name, kind in pairs if kind is not None}
    data = {
        name: numpy_helper.from_array(np.frombuffer(one[2], one[0]).reshape(one[1]), name)
        for name, one in zip(inputs, given, strict=True)
        if one is not None
    }
    schema = schema_of(asked.op, asked.opset)
    assert schema is not None
    proto = proto_of(Node("", asked.op, inputs, outputs, attrs))
    imports = [helper.make_opsetid("", asked.opset)]
    found = onnx.shape_inference.infer_node_outputs(
        schema, proto, types, data, opset_imports=imports
    )
    return [_type(found.get(name)) for name in outputs]


_PLAIN = (int, float, str, bytes, tuple)


def is_static(name: str, editor: Editor) -> bool:
    """Whether all extents of a tensor are known."""
    return name in editor.types and min(editor.types[name].shape, default=0) >= 0


def _of_outputs(node: Node, kinds: Types, most: int) -> dict[str, TensorType]:
    """The types of outputs by name. Raises ModelError where one has more than `most` elements."""
    pairs = zip(node.outputs, kinds, strict=bool(kinds))
    found = {name: kind for name, kind in pairs if name and kind is not None}
    for name, kind in found.items():
        check_type(node, name, kind.shape, most)
    return found


def _type(kind: onnx.TypeProto | None) -> TensorType | None:
    return type_of(kind) if kind is not None and kind.tensor_type.elem_type else None


def _unfitting(node: Node, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200]
    if "inconsistent type" in reason or "unsupported type" in reason:
        return ModelError(
            f"the types of the model do not fit together: operator '{node.op}' (node "
            f"'{node.name}'): {reason}",
            "the standard allows no such types here (a zero point has the type of its integers): "
            "export the model again, or quantise it again",
        )
    return ModelError(
        f"the shapes of the model do not fit together: operator '{node.op}' (node '{node.name}'): "
        f"{reason}",
        "check the shapes given with `shapes`",
    )


def _check_axis(editor: Editor, node: Node) -> None:
    """Raises ModelError where attribute `axis` names no dimension of the first input."""
    axis = node.attrs.get("axis")
    if axis is None or not node.inputs or node.inputs[0] not in editor.types:
        return
    rank = len(editor.types[node.inputs[0]].shape)
    most = rank + (Trait.AXIS_MAY_BE_RANK in operator_of(node.op).traits)
    is_single = isinstance(axis, int)
    if not is_single or not (-most <= axis < most or rank == 0 == axis):
        raise malformed(node, f"axis {axis} of {rank} dimensions")
