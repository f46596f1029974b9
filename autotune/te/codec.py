"""② JSON form of a ComputeDAG, so that a log can be read without its model.

Expressions are prefix lists (`["add", a, b]`, `["load", "x", i, j]`, `["var", "i"]`); operations
are objects with named fields. An axis is `[name, extent]`, one with a limit `[name, extent,
limit]`. `dag_from_json(dag_to_json(d)) == d`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from autotune.codec import Coded
from autotune.dtypes import is_float
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder
from autotune.te.expr import (
    Axis,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
)
from autotune.te.integers import INTEGER_OPS

_BINARY = {"add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "pow", "fmod"}
_BINARY |= {"and", "or", *INTEGER_OPS}
_COMPARE = {"lt", "le", "gt", "ge", "eq", "ne"}


def dag_to_json(dag: ComputeDAG) -> dict[str, Any]:
    """Named fields only; floats that JSON lacks are written as strings."""
    return {"ops": [op_to_json(op) for op in dag.ops], "outputs": list(dag.outputs)}


def dag_from_json(data: dict[str, Any]) -> ComputeDAG:
    """Inverse of `dag_to_json`. Raises ValueError or KeyError for anything else."""
    tensors: dict[str, Tensor] = {}
    ops = [op_from_json(item, tensors) for item in data["ops"]]
    return ComputeDAG(tuple(ops), tuple(data["outputs"]))


DagField: TypeAlias = Annotated[ComputeDAG, Coded(dag_to_json, dag_from_json)]
"""A DAG as a field of a record that has a JSON form."""


def expr_to_json(e: Expr) -> list[Any]:
    """Prefix list of an expression."""
    match e:
        case Const(value=value, dtype=dtype):
            plain = str(value) if isinstance(value, float) and not math.isfinite(value) else value
            return ["const", plain, dtype]
        case Var(name=name):
            return ["var", name]
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            return [op, expr_to_json(a), expr_to_json(b)]
        case Call(fn=fn, args=args):
            return ["call", fn, *map(expr_to_json, args)]
        case Select(cond=cond, a=a, b=b):
            return ["select", expr_to_json(cond), expr_to_json(a), expr_to_json(b)]
        case Cast(dtype=dtype, a=a):
            return ["cast", dtype, expr_to_json(a)]
        case Load(tensor=tensor, indices=indices):
            return ["load", tensor.name, *map(expr_to_json, indices)]
        case Reduce(op=op, body=body, axes=axes):
            return ["reduce", op, expr_to_json(body), [_axis_to_json(a) for a in axes]]


def _axis_to_json(a: Axis) -> list[Any]:
    limit = [] if a.limit is None else [expr_to_json(a.limit)]
    return [a.name, a.extent, *limit]


def _axis_from_json(data: list[Any], tensors: dict[str, Tensor]) -> Axis:
    name, extent, *limit = data
    return Axis(name, extent, *(expr_from_json(e, tensors) for e in limit))


def expr_from_json(data: list[Any], tensors: dict[str, Tensor]) -> Expr:
    """Inverse of `expr_to_json`; loads refer to `tensors` by name."""

    def sub(item: list[Any]) -> Expr:
        return expr_from_json(item, tensors)

    match data:
        case ["const", value, dtype]:
            return Const(float(value) if is_float(dtype) else value, dtype)
        case ["var", name]:
            return Var(name)
        case ["call", fn, *args]:
            return Call(fn, tuple(map(sub, args)))
        case ["select", cond, a, b]:
            return Select(sub(cond), sub(a), sub(b))
        case ["cast", dtype, a]:
            return Cast(dtype, sub(a))
        case ["load", name, *indices]:
            return Load(tensors[name], tuple(map(sub, indices)))
        case ["reduce", op, body, axes]:
            return Reduce(op, sub(body), tuple(_axis_from_json(a, tensors) for a in axes))
        case [op, a, b] if op in _BINARY:
            return Binary(op, sub(a), sub(b))
        case [op, a, b] if op in _COMPARE:
            return Compare(op, sub(a), sub(b))
        case _:
            raise ValueError(f"not an expression: {data!r}")


def op_to_json(op: Op) -> dict[str, Any]:
    """Named fields of one operation."""
    head = {"name": op.name, "shape": list(op.tensor.shape), "dtype": op.tensor.dtype}
    if isinstance(op, Placeholder):
        return {"kind": "placeholder", **head, "constant": op.constant}
    axes = [_axis_to_json(a) for a in op.axes]
    return {"kind": "compute", **head, "axes": axes, "body": expr_to_json(op.body)}


def op_from_json(item: dict[str, Any], tensors: dict[str, Tensor]) -> Op:
    """Inverse of `op_to_json`; adds the tensor of the operation to `tensors`, which it reads."""
    tensor = Tensor(item["name"], tuple(item["shape"]), item["dtype"])
    if item["kind"] == "placeholder":
        op: Op = Placeholder(tensor, item["constant"])
    else:
        known = tensors | {tensor.name: tensor}
        axes = tuple(_axis_from_json(a, tensors) for a in item["axes"])
        op = Compute(tensor, axes, expr_from_json(item["body"], known))
    tensors[tensor.name] = tensor
    return op
