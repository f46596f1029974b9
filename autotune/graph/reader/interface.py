"""① Interface of a model file: inputs and outputs in ONNX's words, and its origin.

    interface_of(model) ─► Interface: inputs, outputs (name, type, shape), metadata

Nothing is compiled or bound: extents that the file leaves open keep their names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from numpy.typing import NDArray
from onnx import (
    ModelProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.shape_inference import InferenceError, infer_shapes

from autotune.graph.reader.dimensions import is_tensor

Extent: TypeAlias = int | str | None
"""A number, the name of an open dimension, or None where it has none."""

_MADE_UP = re.compile(r"unk__\d+")
"""Names that ONNX's shape inference gives to unnamed dimensions."""
_MOST_ELEMENTS = 1024
"""Larger constants do not decide shapes of outputs."""


@dataclass(frozen=True, slots=True)
class ModelPort:
    """An input or output as the file declares it; `type` as ONNX Runtime writes it.

    `shape` is empty for scalars, for other than tensors, and for an undeclared rank.
    """

    name: str
    type: str
    shape: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Origin of a model, as its file declares it."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs that have no value in the file, outputs, and metadata.

    `open_inputs`: names of the tensors of which the file leaves the rank or extents open.
    `initialisers`: values of those that have one in the file; None where it is large or beside it.
    """

    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    metadata: ModelMetadata
    open_inputs: tuple[str, ...] = ()
    initialisers: Mapping[str, NDArray[Any] | None] = field(default_factory=dict)


def interface_of(model: ModelProto) -> Interface:
    """The interface of a model, which needs no external data. What it
    leaves open of the shapes of outputs is inferred where ONNX can do that.
    """
    constants = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    is_open = [v.name for v in inputs if is_tensor(v) and not _is_static(v.type)]
    ports = tuple(map(_port, inputs)), tuple(_inferred(model))
    names = {value.name for value in model.graph.input}
    values = {t.name: _value(t) for t in model.graph.initializer if t.name in names}
    return Interface(*ports, _metadata(model), tuple(is_open), values)


def _value(tensor: TensorProto) -> NDArray[Any] | None:
    is_beside = tensor.data_location == TensorProto.EXTERNAL
    if is_beside or math.prod(tensor.dims) > _MOST_ELEMENTS:
        return None
    value: NDArray[Any] = numpy_helper.to_array(tensor)
    return value


def type_text(kind: TypeProto) -> str:
    """`tensor(float)`, `seq(tensor(int64))`, `map(int64,tensor(float))`."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({_element(kind.tensor_type.elem_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({_element(kind.sparse_tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({type_text(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(kind.optional_type.elem_type)})"
        case "map_type":
            key = _element(kind.map_type.key_type)
            return f"map({key},{type_text(kind.map_type.value_type)})"
        case _:
            return ""


def _element(number: int) -> str:
    return str(TensorProto.DataType.Name(number)).lower()  # so FLOAT is float, DOUBLE double


def _port(value: ValueInfoProto) -> ModelPort:
    dims = value.type.tensor_type.shape.dim if _has_shape(value.type) else ()
    return ModelPort(value.name, type_text(value.type), tuple(map(_extent, dims)))


def _has_shape(kind: TypeProto) -> bool:
    return bool(kind.HasField("tensor_type") and kind.tensor_type.HasField("shape"))


def _is_static(kind: TypeProto) -> bool:
    dims = kind.tensor_type.shape.dim
    return _has_shape(kind) and all(isinstance(_extent(dim), int) for dim in dims)


def _extent(dim: TensorShapeProto.Dimension) -> Extent:
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or None


def _inferred(model: ModelProto) -> Sequence[ModelPort]:
    """Outputs as declared, with shape inference for open shapes."""
    declared = list(map(_port, model.graph.output))
    if all(_is_static(value.type) for value in model.graph.output):
        return declared
    try:
        inferred = list(map(_port, infer_shapes(_light(model), data_prop=True).graph.output))
    except (InferenceError, ValueError):
        return declared
    return [_merged(*pair) for pair in zip(declared, inferred, strict=True)]


def _merged(declared: ModelPort, inferred: ModelPort) -> ModelPort:
    if not declared.shape:
        named = (None if _MADE_UP.fullmatch(str(n)) else n for n in inferred.shape)
        return replace(declared, shape=tuple(named))
    if len(declared.shape) != len(inferred.shape):
        return declared
    pairs = zip(declared.shape, inferred.shape, strict=True)
    return replace(declared, shape=tuple(b if isinstance(b, int) else a for a, b in pairs))


def _light(model: ModelProto) -> ModelProto:
    """The model without its large constants, which are typed inputs."""
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    large = [t for t in model.graph.initializer if math.prod(t.dims) > _MOST_ELEMENTS]
    names = {t.name for t in large}
    graph.input.extend(v for v in model.graph.input if v.name not in names)
    graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large)
    graph.initializer.extend(t for t in model.graph.initializer if t.name not in names)
    return light


def _metadata(model: ModelProto) -> ModelMetadata:
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version,
        {entry.key: entry.value for entry in model.metadata_props},
    )
