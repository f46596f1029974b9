"""① What is known before anything runs: values of constant operators, and types that follow."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.graph.ir import Array, Editor, Graph, Node, Shape, TensorType
from autotune.graph.unfolding import CONTROL, Unfolding

_OPSET = 22
_SMALL = 1024
"""Constants with more elements than this never decide a shape."""
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")


def fold_constants(graph: Graph) -> Graph:
    """op(constants) -> constant; Shape and Size of static tensors -> constant.

    What has no elements is a constant; branches and sequences are unfolded (see `unfolding`).
    Types that are not known are inferred from the constants found on the way.
    """
    editor = Editor(graph)
    unfold = Unfolding(editor)
    waiting = deque(graph.nodes)
    while waiting:
        node = editor.updated(waiting.popleft())
        unfolded = unfold(node)
        if unfolded is not None:
            waiting.extendleft(reversed(unfolded))
            continue
        node = _without_empty_parts(node, editor)
        values = _known_result(node, editor)
        if values is None:
            _infer_types(node, editor)
            values = _empty_results(node, editor)
        if values is None:
            editor.emit(node)
            continue
        for name, value in zip(node.outputs, values, strict=False):
            editor.set_constant(name, value)
    return editor.build()


def _without_empty_parts(node: Node, editor: Editor) -> Node:
    """A Concat without the parts that have no elements."""
    parts = tuple(n for n in node.inputs if n not in editor.types or 0 not in editor.types[n].shape)
    return replace(node, inputs=parts) if node.op == "Concat" and parts else node


def _empty_results(node: Node, editor: Editor) -> list[Array] | None:
    """The results of a node of which none has an element."""
    kinds = [editor.types[n] for n in node.outputs if n in editor.types]
    if len(kinds) < len(node.outputs) or any(0 not in k.shape or -1 in k.shape for k in kinds):
        return None
    return [np.zeros(k.shape, k.dtype) for k in kinds]


def _known_result(node: Node, editor: Editor) -> list[Array] | None:
    if node.op in ("Shape", "Size") and not _is_static(node.inputs[0], editor):
        return None
    if node.op == "Shape":
        shape = editor.types[node.inputs[0]].shape
        part = slice(node.attrs.get("start"), node.attrs.get("end"))
        return [np.array(shape[part], np.int64)]
    if node.op == "Size":
        return [np.array(np.prod(editor.types[node.inputs[0]].shape, dtype=np.int64))]
    if node.op == "CastLike" and node.inputs[0] in editor.constants:
        return [editor.constants[node.inputs[0]].astype(editor.types[node.inputs[1]].dtype)]
    if node.op in _RANDOM or any(n and n not in editor.constants for n in node.inputs):
        return None
    if node.op == "GatherElements":  # the reference implementation gives up beyond 64 elements
        return [_gather_elements(node, *(editor.constants[n] for n in node.inputs))]
    return _evaluate(node, {n: editor.constants[n] for n in node.inputs if n})


def _gather_elements(node: Node, x: Array, index: Array) -> Array:
    axis = node.attrs.get("axis", 0) % x.ndim
    near = tuple(slice(None if d == axis else n) for d, n in enumerate(index.shape))
    taken: Array = np.take_along_axis(x[near], index, axis)
    return taken


def _is_static(name: str, editor: Editor) -> bool:
    return name in editor.types and all(d >= 0 for d in editor.types[name].shape)


def shape_of(tensor: onnx.TypeProto.Tensor) -> Shape:
    """The shape in a type; -1 for what is unknown, be it the number of dimensions."""
    if not tensor.HasField("shape"):
        return (-1,)
    return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)


def _infer_types(node: Node, editor: Editor) -> None:
    """Types of outputs that are not known yet, from the types and constants of the inputs."""
    inputs = [name for name in node.inputs if name]
    if node.op in CONTROL:
        return
    if all(_is_static(name, editor) for name in filter(None, node.outputs)):
        return
    if not all(_is_static(name, editor) for name in inputs):
        return
    types = {name: _value_info(name, editor.types[name]).type for name in inputs}
    known = {name: editor.constants[name] for name in inputs if name in editor.constants}
    data = {n: numpy_helper.from_array(a, n) for n, a in known.items() if a.size <= _SMALL}
    try:
        found = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op, _OPSET),
            _proto(node),
            types,
            data,
            opset_imports=[helper.make_opsetid("", _OPSET)],
        )
    except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError):
        return  # whoever asks for the type says so
    tensors = {name: kind for name, kind in found.items() if kind.tensor_type.elem_type}
    for name, kind in tensors.items():
        dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        editor.types[name] = TensorType(shape_of(kind.tensor_type), str(dtype))


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return helper.make_tensor_value_info(name, dtype, kind.shape)


def _proto(node: Node) -> onnx.NodeProto:
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in node.attrs.items()
    }
    return helper.make_node(node.op, node.inputs, node.outputs, **attrs)


def _evaluate(node: Node, inputs: dict[str, Array]) -> list[Array] | None:
    """One operator through the reference implementation of the `onnx` package."""
    types = [_value_info(n, TensorType(a.shape, str(a.dtype))) for n, a in inputs.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.outputs]
    graph = helper.make_graph([_proto(node)], "constant", types, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    try:
        with np.errstate(all="ignore"):  # a value may be one that nobody takes
            return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, inputs)]
    except Exception:  # it has faults of its own: what it cannot compute stays an operator
        return None
