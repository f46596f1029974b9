"""① Half precision (float16, bfloat16) -> float32: constants, types, and what operators convert to.

Half precision is treated as a storage format: everything is computed in float32, so results are at
least as exact as the model specifies. Inputs and outputs keep the declared types (`narrow_ports`),
and the runtime converts them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, numpy_helper

from autotune.dtypes import DTYPES, SMALL_TYPES
from autotune.graph.reader.tensors import array_of

_NAMES = {d.onnx: d.name for d in DTYPES.values() if d.is_narrow}
_HALF = tuple(_NAMES)
_TYPES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")
"""Attributes whose number names a type."""


def narrow_ports(model: ModelProto) -> dict[str, str]:
    """The dtypes of the inputs and outputs of `model` that are stored in wider ones, by name."""
    kinds = {
        v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)
    }
    names = _NAMES | {d.onnx: d.name for d in SMALL_TYPES.values()}
    return {name: names[kind] for name, kind in kinds.items() if kind in names}


def widen(model: ModelProto) -> None:
    """Make every half-precision tensor of `model` and its functions a float32."""
    _widen_graph(model.graph)
    for function in model.functions:
        _widen_attributes(function.attribute_proto)
        for node in function.node:
            _widen_attributes(node.attribute)


def _widen_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        _widen_attributes(node.attribute)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(value)


def _widen_attributes(attributes: Iterable[AttributeProto]) -> None:
    for attribute in attributes:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen_graph(attribute.g)
        elif attribute.name in _TYPES and attribute.i in _HALF:
            attribute.i = TensorProto.FLOAT


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _HALF:
        wide = array_of(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _widen_type(value: ValueInfoProto) -> None:
    kind = value.type.tensor_type
    if kind.elem_type in _HALF:
        kind.elem_type = TensorProto.FLOAT
