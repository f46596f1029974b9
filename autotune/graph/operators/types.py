"""① Types of results from those of operands, for nodes that passes write.

Shapes that operands do not tell (of Reshape, Slice, Resize, …) are stated by the writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Node, Shape, TensorType
from autotune.graph.operators.definition import accumulator_of
from autotune.graph.operators.moves import MOVES, moved
from autotune.graph.operators.table import operator_of
from autotune.te.expr import Tensor, dtype_of, idx


def result_type(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> TensorType | None:
    """The type of the first result of `node`; None where its operands do not tell it."""
    kinds = [types[name] if name else None for name in node.inputs]
    given = [kind for kind in kinds if kind is not None]
    if node.op == "Cast":
        return TensorType(given[0].shape, _named(node.attrs["to"]))
    formula = operator_of(node.op).formula
    if formula is not None:
        elements = [None if k is None else Tensor("x", (1,), k.dtype)[idx(0)] for k in kinds]
        shape = np.broadcast_shapes(*(kind.shape for kind in given))
        return TensorType(shape, dtype_of(formula(node.attrs, *elements)))
    if node.op == "MatMul":
        return _product(node, given[0], given[1])
    if node.op in MOVES:
        return _moved(node, given, constants)
    if node.op.startswith("Reduce") and "axes" in node.attrs:
        return TensorType(_reduced(node, given[0].shape), given[0].dtype)
    is_like = node.op in ("Softmax", "LogSoftmax")
    return given[0] if is_like else None


def _named(to: str | int) -> str:
    return to if isinstance(to, str) else next(d.name for d in DTYPES.values() if d.onnx == to)


def _product(node: Node, a: TensorType, b: TensorType) -> TensorType:
    """That of a matrix product, batches broadcast; vectors lose their dimension."""
    left, right, dtype = a.shape, b.shape, accumulator_of(a.dtype, b.dtype)
    if node.attrs.get("trans_a", 0):
        left = (*left[:-2], left[-1], left[-2])
    if node.attrs.get("trans_b", 0):
        right = (*right[:-2], right[-1], right[-2])
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    return TensorType((*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())), dtype)


def _moved(
    node: Node, kinds: Sequence[TensorType], constants: Mapping[str, Array]
) -> TensorType | None:
    """The type of moved elements: what is moved is an array that holds one."""
    dtype = kinds[0].dtype
    if node.op == "Concat":
        first, axis = kinds[0].shape, node.attrs["axis"] % len(kinds[0].shape)
        extent = sum(kind.shape[axis] for kind in kinds)
        return TensorType((*first[:axis], extent, *first[axis + 1 :]), dtype)
    known = [constants[name] for name in node.inputs[1:] if name in constants]
    if len(known) < len(node.inputs) - 1:
        return None
    result = moved(node, (np.broadcast_to(np.zeros((), bool), kinds[0].shape), *known))
    return None if result is None else TensorType(result.shape, dtype)


def _reduced(node: Node, shape: Shape) -> Shape:
    over = {axis % len(shape) for axis in node.attrs["axes"]}
    if node.attrs.get("keepdims", 1):
        return tuple(1 if n in over else extent for n, extent in enumerate(shape))
    return tuple(extent for n, extent in enumerate(shape) if n not in over)
