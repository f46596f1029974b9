"""② Numbers of a call: scalars that axes end at, and the DAG for given values of them.

    y[i<512 and n[0], j<64] = …      numbers_of: {"n": 512}      at: y[i<37, j<64] = … for n = 37

Memory stays that of the most: tensors keep their shapes, so that what a statement computes and
reads is that of the number, and its strides are those of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from autotune.te.arith import linear, simplify
from autotune.te.dag import Compute, ComputeDAG, Op
from autotune.te.expr import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Var,
    conjuncts,
    dtype_of,
    loads,
    map_expr,
    variables,
)
from autotune.te.reductions import identity

Numbers: TypeAlias = Mapping[str, int]
"""Values of numbers by the name of the placeholder."""

NO_NUMBERS: Numbers = MappingProxyType({})
"""Of static tasks."""

_FEW = 64
"""A number of at most so many is one of samples, of which one alone is what matters most."""
_LEAST = 16
"""Of longer lengths the smallest that is looked at is the most over this, and at most `_FEW`."""


def numbers_of(dag: ComputeDAG) -> dict[str, int]:
    """The scalars that spatial axes end at, each with the most that its axes have room for."""
    found: dict[str, int] = {}
    for axis in (a for op in dag.computes for a in op.axes):
        name, most = _number_of(axis)
        if name:
            found[name] = min(most, found.get(name, most))
    return found


def _number_of(axis: Axis) -> tuple[str, int]:
    """The number that an axis ends at, and its most: a·n + b is the extent there; ("", 0): none."""
    form = linear(axis.limit) if axis.limit is not None else None
    if form is None or len(form.terms) != 1:
        return "", 0
    ((atom, factor),) = form.terms
    read = loads(atom)
    if len(read) != 1 or variables(atom) or factor < 1:
        return "", 0
    return read[0].tensor.name, max(1, (axis.extent - form.const) // factor)


@lru_cache(maxsize=512)
def usual_numbers(dag: ComputeDAG) -> tuple[Numbers, ...]:
    """The numbers that programs are compared at, smallest first; none where axes follow none.

    One, the root of the most and the most of what has at most `_FEW`, as the samples of a batch; a
    sixteenth, a quarter and all of longer lengths, and of those that have thousands, as the tokens
    of a batch, `_FEW`, all, and what lies between.
    """
    mosts = numbers_of(dag)
    points = (tuple(usual_of(most)[k] for most in mosts.values()) for k in range(3))
    return tuple(dict(zip(mosts, p, strict=True)) for p in dict.fromkeys(points) if mosts)


@lru_cache(maxsize=512)
def at_usual(dag: ComputeDAG) -> tuple[ComputeDAG, ...]:
    """The static DAGs for the usual numbers; `dag` alone where axes follow none."""
    return tuple(at(dag, numbers) for numbers in usual_numbers(dag)) or (dag,)


def usual(dag: ComputeDAG) -> ComputeDAG:
    """That of the usual numbers in the middle: about as much work as they have on average."""
    every = at_usual(dag)
    return every[len(every) // 2]


def usual_of(most: int) -> tuple[int, int, int]:
    """The usual values of a number of at most so many, smallest first."""
    least = 1 if most <= _FEW else min(most // _LEAST, _FEW)
    return least, max(1, round(math.sqrt(least * most))), most


def at(dag: ComputeDAG, numbers: Numbers) -> ComputeDAG:
    """The static DAG for these numbers, in the memory of the longest; others stay inputs."""
    ops = (_op_at(op, numbers) for op in dag.ops)
    return ComputeDAG(tuple(ops), dag.outputs)


def _op_at(op: Op, numbers: Numbers) -> Op:
    return op_at(op, numbers) if isinstance(op, Compute) else op


def op_at(op: Compute, numbers: Numbers) -> Compute:
    """A computation for these numbers: its axes end there, and what they decide is decided."""
    axes = tuple(_axis_at(a, numbers) for a in op.axes)
    body = _given(op.body, numbers)
    if isinstance(body, Reduce):
        inner = tuple(_shortened(_axis_at(a, numbers), body.body, body.op) for a in body.axes)
        ranges = {a.name: (0, a.extent - 1) for a in (*axes, *inner)}
        return replace(op, axes=axes, body=Reduce(body.op, simplify(body.body, ranges), inner))
    ranges = {a.name: (0, a.extent - 1) for a in axes}
    return replace(op, axes=axes, body=simplify(body, ranges))


def _axis_at(axis: Axis, numbers: Numbers) -> Axis:
    limit = None if axis.limit is None else linear(_given(axis.limit, numbers))
    if limit is None or limit.terms:
        return axis
    return Axis(axis.name, max(1, min(axis.extent, limit.const)))


def _shortened(axis: Axis, term: Expr, op: str) -> Axis:
    """The axis of a reduction as far as its term counts: select(k < 37, …) ends it at 37."""
    ends = (c.b.value for c in _needed(term, op) if _is_end(c, axis.name))
    return Axis(axis.name, max(1, min([axis.extent, *map(int, ends)])), axis.limit)


def _needed(term: Expr, op: str) -> frozenset[Any]:
    """Conditions without each of which a term of a reduction is neutral."""
    neutral = identity(op, dtype_of(term))
    match term:
        case Select(cond=cond, a=a, b=b) if b == neutral:
            return conjuncts(cond) | _needed(a, op)
        case Binary(op="mul", a=a, b=b) if neutral.value == 0:
            return _needed(a, op) | _needed(b, op)
    return frozenset()


def _is_end(cond: Expr, name: str) -> bool:
    match cond:
        case Compare(op="lt", a=Var(name=var), b=Const()):
            return var == name
    return False


def _given(e: Expr, numbers: Numbers) -> Expr:
    """An expression with the values of numbers in the place of their loads."""

    def one(x: Expr) -> Expr | None:
        match x:
            case Load(tensor=tensor) if tensor.name in numbers:
                return Const(numbers[tensor.name], tensor.dtype)
            case Cast(dtype=dtype, a=Load(tensor=tensor)) if tensor.name in numbers:
                value = numbers[tensor.name]
                return Const(float(value) if dtype.startswith("float") else value, dtype)
        return None

    return map_expr(e, one)
