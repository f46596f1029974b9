"""① Upcast of half precision (float16, bfloat16) to float32: constants, types, casts.

Half precision is treated as a storage format: everything is computed in float32, so results are at
least as exact as the model specifies. Inputs and outputs keep the declared types (`narrow_ports`),
and the runtime converts them. A cast is a rounding that the model asks for, and an overflow:

    Cast(x, to=float16)  ->  Cast(Cast(x, to=float16), to=float32)

unless the type has all values of x anyway (`half_casts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from autotune.dtypes import DTYPES, SMALL_TYPES
from autotune.graph.reader.half_casts import Kinds, rounded_casts
from autotune.graph.reader.opsets import opset_of
from autotune.graph.reader.random_weights import replace_all
from autotune.graph.reader.tensors import array_of

_NAMES = {d.onnx: d.name for d in DTYPES.values() if d.is_narrow}
_HALF = tuple(_NAMES)
_FLOAT = TensorProto.FLOAT
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
    _widen_graph(model.graph, Kinds(opset_of(model.opset_import)))
    for function in model.functions:
        _widen_attributes(function.attribute_proto, Kinds(0))
        _widen_nodes(function.node, Kinds(opset_of(function.opset_import)))


def _widen_graph(graph: GraphProto, kinds: Kinds) -> None:
    kinds.declare(graph)
    _widen_nodes(graph.node, kinds)
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(value)


def _widen_nodes(nodes: Any, kinds: Kinds) -> None:
    """Casts that round become two: to half precision, and back to float32."""
    rounded = rounded_casts(nodes, kinds)
    for node in nodes:
        _widen_attributes(node.attribute, kinds)
    if rounded:
        pairs = ((node, rounded.get(n, 0)) for n, node in enumerate(nodes))
        replace_all(nodes, [part for node, to in pairs for part in _apart(node, to)])


def _apart(node: NodeProto, to: int) -> Iterator[NodeProto]:
    if not to:
        yield node
        return
    name, half = node.output[0], f"{node.output[0]}#half"
    yield helper.make_node("Cast", node.input[:1], [half], node.name, to=to)
    yield helper.make_node("Cast", [half], [name], f"{node.name or name}#wide", to=_FLOAT)


def _widen_attributes(attributes: Iterable[AttributeProto], kinds: Kinds) -> None:
    for attribute in attributes:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen_graph(attribute.g, Kinds(kinds.opset, kinds))
        elif attribute.name in _TYPES and attribute.i in _HALF:
            attribute.i = _FLOAT


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _HALF:
        wide = array_of(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _widen_type(value: ValueInfoProto) -> None:
    kind = value.type.tensor_type
    if kind.elem_type in _HALF:
        kind.elem_type = _FLOAT
