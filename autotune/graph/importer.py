"""① From a canonical ONNX model to the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from autotune.errors import ModelError, UnsupportedOperator
from autotune.graph.constants import fold_constants, shape_of
from autotune.graph.ir import Array, Graph, Node, TensorType, unsupported
from autotune.graph.onnx_reader import Model
from autotune.graph.operators import NATIVE
from autotune.graph.opsets import node_name
from autotune.graph.unfolding import CONTROL


def import_graph(model: Model) -> Graph:
    """Nodes, constants and types of a model. Raises ModelError where a shape stays unknown.

    Folds constants: shapes that nodes compute from shapes are then known.
    """
    graph = fold_constants(_graph(model.proto.graph, model.weights, model.opset))
    _require_types(graph)
    return graph


def _graph(proto: GraphProto, weights: Mapping[str, Array], opset: int) -> Graph:
    constants = dict(weights)
    constants |= {t.name: numpy_helper.to_array(t) for t in proto.initializer}
    types = {n: TensorType(a.shape, str(a.dtype)) for n, a in constants.items()}
    for value in (*proto.input, *proto.value_info, *proto.output):
        if value.type.tensor_type.elem_type:
            types.setdefault(value.name, _type(value))
    return Graph(
        inputs=tuple(i.name for i in proto.input if i.name not in constants),
        outputs=tuple(o.name for o in proto.output),
        nodes=tuple(_node(n, opset) for n in proto.node),
        constants=constants,
        types=types,
        opset=opset,
    )


def _type(value: ValueInfoProto) -> TensorType:
    tensor = value.type.tensor_type
    return TensorType(shape_of(tensor), str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def _node(node: NodeProto, opset: int) -> Node:
    attrs = {a.name: _attribute(a, node, opset) for a in node.attribute}
    return Node(node_name(node), node.op_type, tuple(node.input), tuple(node.output), attrs)


def _attribute(attribute: AttributeProto, node: NodeProto, opset: int) -> Any:
    if attribute.type == AttributeProto.GRAPH and node.op_type in CONTROL:
        return _graph(attribute.g, {}, opset)
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        raise UnsupportedOperator(
            f"operator '{node.op_type}' (node '{node_name(node)}', opset {opset}) is not supported",
            "models with control flow cannot be compiled ahead of time",
        )
    value = helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.TENSOR:
        return numpy_helper.to_array(value)
    if attribute.type == AttributeProto.STRING:
        return value.decode()
    if attribute.type == AttributeProto.STRINGS:
        return tuple(v.decode() for v in value)
    return tuple(value) if attribute.type in _LISTS else value


_LISTS = (AttributeProto.INTS, AttributeProto.FLOATS)


def _require_types(graph: Graph) -> None:
    for name in graph.outputs:
        if name in graph.types and 0 in graph.shape(name):
            shape = "x".join(map(str, graph.shape(name)))
            raise ModelError(f"output '{name}' has no elements ({shape})", "leave it out")
    for node in graph.nodes:
        if node.op in CONTROL:
            raise unsupported(node, graph, "its condition depends on the data")
        for name in filter(None, node.outputs):
            if name in graph.types and all(d >= 0 for d in graph.shape(name)):
                continue
            if node.op not in NATIVE:
                raise unsupported(node, graph)
            raise ModelError(
                f"the shape of '{name}' (operator '{node.op}') depends on the data",
                "only models whose shapes are all static can be compiled",
            )
