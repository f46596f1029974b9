"""① Sparse constants of an ONNX file as dense ones: `sparse_initializer`, `Constant.sparse_value`.

    values [1, 2], indices [0, 3], of shape 2x2  ─►  [[1, 0], [0, 2]]

What multiplies by them finds the zeros again (`graph/tasks/sparse.py`).
"""

from __future__ import annotations

import math

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto, numpy_helper

from autotune.errors import ModelError
from autotune.graph.limits import MOST_FOLDED_BYTES
from autotune.graph.reader.node_order import bodies
from autotune.graph.reader.tensors import array_of
from autotune.units import format_bytes, format_shape

_MOST_TIMES = 100
"""A dense constant may be as many times as large as what is stored, or `MOST_FOLDED_BYTES`: a small
file may state any shape."""
_AGAIN = "export the model again"


def make_dense(model: ModelProto) -> None:
    """Replace sparse constants. Raises ModelError for others than the standard has, and for inputs
    and outputs that are sparse."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.WhichOneof("value") == "sparse_tensor_type":
            raise ModelError(
                f"'{value.name}' is a sparse tensor: inputs and outputs are dense",
                "export the model with a dense one",
            )
    for graph in (model.graph, *model.functions):
        _make_dense(graph)


def _make_dense(graph: GraphProto | FunctionProto) -> None:
    if isinstance(graph, GraphProto) and graph.sparse_initializer:
        graph.initializer.extend(map(dense, graph.sparse_initializer))
        del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("sparse_tensor"):
                tensor = dense(attribute.sparse_tensor)
                attribute.Clear()
                attribute.name, attribute.type = "value", attribute.TENSOR
                attribute.t.CopyFrom(tensor)
        for body in bodies(node):
            _make_dense(body)


def dense(sparse: SparseTensorProto) -> TensorProto:
    """A sparse tensor with its zeros. Raises ModelError."""
    shape, name = tuple(sparse.dims), sparse.values.name
    values = array_of(sparse.values, "sparse constant")
    n_bytes = math.prod(shape) * values.dtype.itemsize
    most = max(MOST_FOLDED_BYTES, _MOST_TIMES * sparse.ByteSize())
    if min(shape, default=0) < 0 or n_bytes > most:
        size = f"of shape {format_shape(shape)} takes {format_bytes(n_bytes)}"
        raise ModelError(f"sparse constant '{name}' {size} with its zeros", _AGAIN)
    found = np.zeros(math.prod(shape), values.dtype)
    if values.dtype == object:
        found[:] = b""
    found[_indices(sparse, values.size)] = values.reshape(-1)
    return numpy_helper.from_array(found.reshape(shape), name)


def _indices(
    sparse: SparseTensorProto, n_values: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where values are among all elements, from either form: of elements, or of dimensions."""
    indices, shape = array_of(sparse.indices, "sparse constant"), tuple(sparse.dims)
    try:
        if indices.ndim == 2 and indices.shape[1] == len(shape):
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        is_right = indices.shape == (n_values,) and not (
            indices.size and (indices.min() < 0 or indices.max() >= math.prod(shape))
        )
    except ValueError:
        is_right = False
    if not is_right:
        text = f"sparse constant '{sparse.values.name}' has indices beyond its shape or values"
        raise ModelError(text, _AGAIN)
    return indices.astype(np.int64)
