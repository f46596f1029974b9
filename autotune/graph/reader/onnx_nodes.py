"""① Nodes, functions and graphs of an ONNX file as those of `ir`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from autotune.errors import ModelError
from autotune.graph.ir import (
    Array,
    AttributeReference,
    Graph,
    ModelFunction,
    Node,
    Shape,
    TensorType,
)
from autotune.graph.reader.opsets import opset_in_model, opset_of
from autotune.graph.reader.tensors import array_of

Functions = Mapping[str, ModelFunction]


def graph_of(
    proto: GraphProto,
    opset: int,
    weights: Mapping[str, Array] | None = None,
    functions: Functions | None = None,
) -> Graph:
    """A graph with the types of its inputs and constants; results have none yet."""
    constants = dict(weights or {})
    constants |= {t.name: array_of(t, "initialiser") for t in proto.initializer}
    types = {n: TensorType(a.shape, str(a.dtype)) for n, a in constants.items()}
    for value in proto.input:
        if value.type.tensor_type.elem_type and value.name not in types:
            types[value.name] = type_of(value.type)
    return Graph(
        inputs=tuple(i.name for i in proto.input if i.name not in constants),
        outputs=tuple(o.name for o in proto.output),
        nodes=tuple(node_of(n, opset) for n in proto.node),
        constants=constants,
        types=types,
        opset=opset,
        functions=functions or {},
    )


def functions_of(model: ModelProto) -> dict[str, ModelFunction]:
    """The operators that a model defines, by the name that `operator_name` gives their calls."""
    opset = opset_of(model.opset_import)
    return {operator_name(f, f.name): _in_model(function_of(f), opset) for f in model.functions}


def _in_model(function: ModelFunction, opset: int) -> ModelFunction:
    """A function of a model in `opset`: see `opsets.opset_in_model`."""
    return replace(function, nodes=tuple(_node_in_model(n, opset) for n in function.nodes))


def _node_in_model(node: Node, opset: int) -> Node:
    attrs = {
        name: replace(value, nodes=tuple(_node_in_model(n, opset) for n in value.nodes))
        if isinstance(value, Graph)
        else value
        for name, value in node.attrs.items()
    }
    return replace(node, attrs=attrs, opset=opset_in_model(node, opset))


def function_of(proto: FunctionProto, defaults: Mapping[str, Any] | None = None) -> ModelFunction:
    """One function; its nodes are in the opset that it imports."""
    opset = opset_of(proto.opset_import)
    given = {a.name: attribute_of(a, opset) for a in proto.attribute_proto}
    return ModelFunction(
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        nodes=tuple(node_of(n, opset) for n in proto.node),
        defaults={**(defaults or {}), **given},
    )


def operator_name(owner: NodeProto | FunctionProto, name: str) -> str:
    """An operator with its domain where that is not the standard one, and its overload."""
    domain = "" if owner.domain in ("", "ai.onnx") else f"{owner.domain}."
    return f"{domain}{name}" + (f":{owner.overload}" if owner.overload else "")


def node_of(node: NodeProto, opset: int) -> Node:
    """One node; without a name it is called after its first output."""
    name = node.name or next((o for o in node.output if o), node.op_type)
    attrs = {a.name: attribute_of(a, opset) for a in node.attribute}
    op = operator_name(node, node.op_type)
    return Node(name, op, tuple(node.input), tuple(node.output), attrs, opset)


def attribute_of(attribute: AttributeProto, opset: int) -> Any:
    """The value of an attribute: numbers, strings, tuples of them, arrays, graphs.

    Sparse tensors and types stay as they are: no operator here uses them.
    """
    if attribute.ref_attr_name:
        return AttributeReference(attribute.ref_attr_name)
    value = helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.GRAPH:
            return graph_of(value, opset)
        case AttributeProto.TENSOR:
            return array_of(value, f"attribute '{attribute.name}':")
        case AttributeProto.STRING:
            return value.decode(errors="replace")
        case AttributeProto.STRINGS:
            return tuple(v.decode(errors="replace") for v in value)
        case AttributeProto.INTS | AttributeProto.FLOATS:
            return tuple(value)
        case _:
            return value


def type_of(kind: onnx.TypeProto) -> TensorType:
    """The type of a tensor. Raises ModelError for elements that ONNX does not have."""
    tensor = kind.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values():
        raise ModelError(
            f"a tensor has elements of type {tensor.elem_type}, which ONNX does not have",
            "export the model again",
        )
    return TensorType(shape_of(tensor), str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def shape_of(tensor: onnx.TypeProto.Tensor) -> Shape:
    """The shape in a type; -1 for unknown extents, (-1,) for an unknown rank."""
    if not tensor.HasField("shape"):
        return (-1,)
    return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)


def value_info(name: str, kind: TensorType) -> ValueInfoProto:
    """A tensor of static shape as ONNX declares it."""
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return helper.make_tensor_value_info(name, dtype, kind.shape)


def proto_of(node: Node) -> NodeProto:
    """The ONNX form of a node without subgraphs."""
    attrs = {k: _proto_value(v) for k, v in node.attrs.items()}
    return helper.make_node(node.op, node.inputs, node.outputs, **attrs)


def _proto_value(value: Any) -> Any:
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
