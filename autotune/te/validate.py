"""② Whether a DAG that was read from a file is one: names, types, ranks and scopes.

What this package builds is right by construction. What a file says may be anything, and has to be
found out before rules and rewrites rely on it.
"""

from __future__ import annotations

import math
from typing import Any

from autotune.dtypes import DTYPES
from autotune.te.dag import Compute, ComputeDAG, Op
from autotune.te.expr import (
    INDEX,
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    distinct,
    dtype_of,
)
from autotune.te.intrinsics import INTRINSICS
from autotune.te.numbers import follows_numbers
from autotune.te.reductions import BITWISE, REDUCE_BINARY

_MOST_ELEMENTS = 1 << 48


def require_valid(dag: ComputeDAG) -> None:
    """Raise ValueError for a DAG that nothing can compute."""
    for op in dag.ops:
        _require_op(op)
    known = {op.name for op in dag.ops}
    if not dag.outputs or not all(_is_name(name) and name in known for name in dag.outputs):
        raise ValueError("outputs are names of tensors")


def _require_op(op: Op) -> None:
    _require_tensor(op.tensor)
    if not isinstance(op, Compute):
        if type(op.constant) is not bool:
            raise ValueError(f"{op.name} is constant or not")
        return
    reduce_axes = op.reduce_axes
    for axis in (*op.axes, *reduce_axes):
        _require_axis(axis)
    if not all(dtype_of(e) == INDEX and follows_numbers(e) for e in op.limits.values()):
        raise ValueError(f"the limit of an axis of {op.name} does not follow a number")
    if op.tensor.shape != tuple(a.extent for a in op.axes):
        raise ValueError(f"the axes of {op.name} do not span its tensor")
    scope = {a.name for a in (*op.axes, *reduce_axes)}
    if len(scope) < len(op.axes) + len(reduce_axes):
        raise ValueError(f"two axes of {op.name} have one name")
    for e in distinct(op.body):
        _require_expr(e, scope, is_body=e is op.body)


def _require_tensor(tensor: Tensor) -> None:
    sizes = tensor.shape
    if not _is_name(tensor.name) or not isinstance(tensor.dtype, str):
        raise ValueError("a tensor has a name and a dtype")
    if tensor.dtype not in DTYPES or not all(map(_is_extent, sizes)):
        raise ValueError(f"{tensor.name} has a dtype or a shape that no tensor has")
    if math.prod(sizes) > _MOST_ELEMENTS:
        raise ValueError(f"{tensor.name} fits no memory")


def _require_axis(axis: Axis) -> None:
    if not _is_name(axis.name) or not _is_extent(axis.extent):
        raise ValueError("an axis has a name and an extent")


def _require_expr(e: Expr, scope: set[str], is_body: bool) -> None:
    match e:
        case Const(value=value, dtype=dtype):
            right = dtype in DTYPES and isinstance(value, int | float)
        case Var(name=name):
            right = _is_name(name) and name in scope
        case Call(fn=fn, args=args):
            right = _is_name(fn) and fn in INTRINSICS and len(args) == 1
            right = right and (INTRINSICS[fn].takes != "integers" or _is_integer(args[0]))
        case Cast(dtype=dtype):
            right = dtype in DTYPES
        case Load(tensor=tensor, indices=indices):
            right = len(indices) == len(tensor.shape)
        case Reduce(op=op, body=body, axes=axes):
            right = is_body and _is_name(op) and op in REDUCE_BINARY
            right = right and (op not in BITWISE or _is_integer(body))
            right = right and all(a.limit is None or dtype_of(a.limit) == INDEX for a in axes)
        case _:
            right = True
    if not right:
        raise ValueError(f"no expression: {e}")


def _is_integer(e: Expr) -> bool:
    return DTYPES[dtype_of(e)].is_integer


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name != ""


def _is_extent(extent: Any) -> bool:
    return type(extent) is int and extent >= 0
