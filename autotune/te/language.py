"""② Tensor expressions as a user writes them: placeholders, computations, reductions.

    from autotune import te

    def matmul_add(n, m, k):
        a, b = te.placeholder((n, k), "a"), te.placeholder((k, m), "b")
        c, r = te.placeholder((n, m), "c"), te.reduce_axis(k, "r")
        product = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "product")
        return te.compute((n, m), lambda i, j: product[i, j] + c[i, j], "out")

An `Expression` wraps a node of `autotune.te.expr` and has Python's operators. Numbers take the
dtype of the other operand; two dtypes meet by `.astype` alone. What is wrong is told at once, as a
`DefinitionError` that begins with the user's file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from autotune.dtypes import is_float
from autotune.te.access import first_outside
from autotune.te.dag import Compute, ComputeDAG, Placeholder
from autotune.te.dag import compute as compute_op
from autotune.te.expr import BOOL, INDEX, Axis, Expr, Reduce, sub, variables
from autotune.te.expr import Tensor as TensorNode
from autotune.te.values import (
    MAX_RAGGED,
    Expression,
    Operand,
    ReduceAxis,
    Tensor,
    as_expression,
    fail,
    joined,
    require_dtype,
    require_name,
    require_shape,
    value_of,
)


def placeholder(
    shape: Sequence[int] | int,
    name: str = "",
    dtype: str = "float32",
    constant: bool = False,
) -> Tensor:
    """An input of static `shape`.

    `constant`: known when the task is built, as weights are, so that it may be packed and
    transformed. Raises DefinitionError for a shape, name or dtype that is none.
    """
    node = TensorNode(require_name(name, "x"), require_shape(shape), require_dtype(dtype))
    return Tensor(Placeholder(node, constant))


def reduce_axis(extent: int | tuple[Operand, Operand], name: str = "") -> ReduceAxis:
    """An axis `0 ≤ name < extent` for `sum`, `max`, `min` or `prod`; `(0, n)` is `n`.

    `(begin, end)` read from a tensor of integers make a ragged axis, `begin ≤ name < end`, as the
    rows of a sparse matrix are: `(indptr[i], indptr[i + 1])`, inside of the `compute` that has the
    index i. It may have no steps at all; what is read along it must be as long as all rows.
    """
    if isinstance(extent, tuple):
        begin, end = extent
        if isinstance(begin, Expression) or isinstance(end, Expression):
            return _ragged_axis(begin, end, require_name(name, "r"))
        if begin != 0 or not isinstance(end, int):
            fail(f"a reduction axis cannot begin at {begin}", "it begins at 0: (0, n), or n")
        extent = end
    (size,) = require_shape(extent)
    return ReduceAxis(Axis(require_name(name, "r"), size))


def _ragged_axis(begin: Operand, end: Operand, name: str) -> ReduceAxis:
    first, last = (as_expression(x, INDEX) for x in (begin, end))
    if any(is_float(x.dtype) or x.dtype == BOOL for x in (first, last)):
        fail(f"a reduction axis from {first!r} to {last!r}", "it begins and ends at whole numbers")
    first, last = first.astype(INDEX), last.astype(INDEX)
    axis = Axis(name, MAX_RAGGED, sub(value_of(last), value_of(first)))
    return ReduceAxis(axis, first, joined(*first.reads, *last.reads))


def compute(shape: Sequence[int] | int, function: Callable[..., Operand], name: str = "") -> Tensor:
    """The tensor whose element at (i, j, …) is `function(i, j, …)`.

    `function` is called once, with one index expression per dimension of `shape`; its parameters
    name the axes. A reduction is the whole value: use its result in a further computation. Raises
    DefinitionError, with the place in the user's code, also for an index that leaves its tensor.
    """
    extents = require_shape(shape)
    name = require_name(name, "t")
    axes = tuple(map(Axis, _axis_names(function, len(extents)), extents))
    value = as_expression(function(*(Expression(a.var) for a in axes)))
    body = value.node
    reduced = body.axes if isinstance(body, Reduce) else ()
    _check_axes(name, body, axes, reduced)
    ranges = {a.name: (0, a.extent - 1) for a in axes + reduced}
    outside = first_outside(body, ranges)
    if outside is not None:
        fail(
            f"{name} reads outside of {outside}",
            "guard the access: te.where(condition on the indices, tensor[…], value)",
        )
    op = compute_op(name, axes, body)
    return Tensor(Compute(op.tensor, op.axes, op.body), value.reads)


def dag_of(outputs: Tensor | Sequence[Tensor]) -> ComputeDAG:
    """The task that computes `outputs`, with everything that they read.

    Raises DefinitionError where two tensors have one name or nothing is computed.
    """
    results: list[Any] = [outputs] if isinstance(outputs, Tensor) else [*outputs]
    if not results:
        fail("a task needs its outputs", "return the tensor of a te.compute, or several")
    wrong = next((t for t in results if not isinstance(t, Tensor)), None)
    if wrong is not None:
        fail(f"{wrong!r} is no tensor", "return the tensor of a te.compute, or several")
    order: dict[str, Tensor] = {}
    for tensor in results:
        _collect(tensor, order)
    inputs = [t.op for t in order.values() if isinstance(t.op, Placeholder)]
    computed = [t.op for t in order.values() if isinstance(t.op, Compute)]
    for tensor in results:
        if isinstance(tensor.op, Placeholder):
            fail(f"output {tensor.name} is an input", "compute a copy of it")
    return ComputeDAG((*inputs, *computed), tuple(dict.fromkeys(t.name for t in results)))


def _collect(tensor: Tensor, order: dict[str, Tensor]) -> None:
    known = order.get(tensor.name)
    if known is tensor:
        return
    if known is not None:
        fail(f"two tensors are called {tensor.name}", "give each a name of its own")
    for read in tensor.reads:
        _collect(read, order)
    order[tensor.name] = tensor


def _axis_names(function: Callable[..., Operand], n: int) -> list[str]:
    """The names of the parameters of `function`, as many as there are dimensions."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        fail(f"{function!r} cannot be called", "give a function of the indices")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [f"i{k}" for k in range(n)]
    if len(parameters) != n:
        fail(
            f"the function takes {len(parameters)} indices, the shape has {n} dimensions",
            "one parameter per dimension, or *i",
        )
    return [p.name for p in parameters]


def _check_axes(name: str, body: Expr, axes: tuple[Axis, ...], reduced: tuple[Axis, ...]) -> None:
    names = [a.name for a in axes + reduced]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        fail(f"{name} has two axes called {twice}", "name reduction axes unlike the indices")
    unbound = sorted(variables(body) - set(names))
    if unbound:
        fail(
            f"{name} uses axis {', '.join(unbound)}, which it does not have",
            "reduce over it: te.sum(value, axis), or add a dimension to the shape",
        )
