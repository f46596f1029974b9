"""① CumSum and CumProd, and long dimensions cut into blocks.

    CumSum(x)  ->  CumSum within blocks + CumSum of the sums of preceding blocks, recursively

n elements take about n log n operations instead of n². `top_k` uses blocks as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array, Editor, Node, Shape, unsupported
from autotune.graph.operators.definition import Operands, Operator, Scope, axes_of, tensor
from autotune.te.expr import Axis, Const, Reduce, Tensor, compare, select

_SHORT = 64
"""Most elements that are added term by term."""
_BLOCK = 16
"""Elements of a block: a vector."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running operator `op`: its reduction, its neutral element, the operators that reduce a
    block and that join two parts."""

    op: str
    reduction: str
    neutral: int
    whole: str
    joined: str


SUM = Running("CumSum", "sum", 0, "ReduceSum", "Add")


@dataclass(frozen=True)
class Blocks:
    """Writes nodes in place of `node`, which runs along dimension `axis` of its operand."""

    editor: Editor
    node: Node
    axis: int

    def emit(
        self, op: str, inputs: tuple[str, ...], shape: Shape, dtype: str, **attrs: object
    ) -> str:
        """A node with one new result."""
        name = self.editor.new(f"{self.node.name}.{op.lower()}", shape, dtype)
        self.editor.emit(Node(self.node.name, op, inputs, (name,), attrs))
        return name

    def constant(self, value: Array) -> str:
        """A known operand."""
        return self.editor.constant(f"{self.node.name}.value", value)

    def reshape(self, x: str, *extents: int, n_axes: int = 1) -> str:
        """x with `n_axes` dimensions from the axis on replaced by `extents`."""
        kind = self.editor.types[x]
        shape = (*kind.shape[: self.axis], *extents, *kind.shape[self.axis + n_axes :])
        return self.emit("Reshape", (x,), shape, kind.dtype)

    def split(self, x: str, size: int, fill: float) -> str:
        """x (…, n, …) as (…, ⌈n / size⌉, size, …), padded with `fill` at the end."""
        kind, axis = self.editor.types[x], self.axis
        n_blocks, n_more = -(-kind.shape[axis] // size), -kind.shape[axis] % size
        if n_more:
            before, behind = kind.shape[:axis], kind.shape[axis + 1 :]
            more = self.constant(np.full((*before, n_more, *behind), fill, kind.dtype))
            whole = (*before, n_blocks * size, *behind)
            x = self.emit("Concat", (x, more), whole, kind.dtype, axis=axis)
        return self.reshape(x, n_blocks, size)

    def accumulated(self, x: str, exclusive: int, reverse: int, kind_of: Running) -> str:
        """The running sum or product of x."""
        kind, axis = self.editor.types[x], self.axis
        attrs = {"exclusive": exclusive, "reverse": reverse}
        if kind.shape[axis] <= _SHORT:
            along = self.constant(np.array(axis))
            return self.emit(kind_of.op, (x, along), kind.shape, kind.dtype, **attrs)
        blocks = self.split(x, _BLOCK, kind_of.neutral)
        shape, along = self.editor.types[blocks].shape, self.constant(np.array(axis + 1))
        own = self.emit(kind_of.op, (blocks, along), shape, kind.dtype, **attrs)
        sums = (*shape[: axis + 1], *shape[axis + 2 :])
        whole = {"axes": (axis + 1,), "keepdims": 0}
        total = self.emit(kind_of.whole, (blocks,), sums, kind.dtype, **whole)
        before = self.accumulated(total, 1, reverse, kind_of)
        front = self.reshape(before, shape[axis], 1)
        both = self.emit(kind_of.joined, (own, front), shape, kind.dtype)
        joined = self.reshape(both, shape[axis] * _BLOCK, n_axes=2)
        bounds = (self.constant(np.array([n])) for n in (0, kind.shape[axis], axis))
        return self.emit("Slice", (joined, *bounds), kind.shape, kind.dtype)


def _in_blocks(kind: Running, editor: Editor, node: Node) -> None:
    """CumSum or CumProd of a long dimension -> of blocks; see the module."""
    x, along = node.inputs
    shape, axis = editor.types[x].shape, editor.constants.get(along)
    at = int(axis.reshape(-1)[0]) % len(shape) if axis is not None else 0
    if axis is None or shape[at] <= _SHORT:
        editor.emit(node)
        return
    exclusive, reverse = (node.attrs.get(name, 0) for name in ("exclusive", "reverse"))
    total = Blocks(editor, node, at).accumulated(x, exclusive, reverse, kind)
    editor.emit(Node(node.name, "Identity", (total,), node.outputs))


def _accumulated(
    kind: Running, scope: Scope, node: Node, operands: Operands, shape: Shape
) -> Tensor:
    """y[…, i, …] = Σ or Π x[…, r, …] over r ≤ i, `exclusive`: r < i, `reverse`: r ≥ i."""
    x, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of(x.shape)
    r = Axis(f"r{axes[axis].name}", x.shape[axis])
    op = "g" if node.attrs.get("reverse", 0) else "l"
    counts = compare(f"{op}{'t' if node.attrs.get('exclusive', 0) else 'e'}", r.var, axes[axis].var)
    element = select(
        counts,
        x[(*axes[:axis], r, *axes[axis + 1 :])],
        Const(DTYPES[x.dtype].literal(kind.neutral), x.dtype),
    )
    return scope.compute("running", axes, Reduce(kind.reduction, element, (r,)))


def _resolve(editor: Editor, node: Node) -> None:
    """The axis becomes an attribute."""
    axis = editor.constants.get(node.inputs[1])
    if axis is None:
        raise unsupported(node, editor.graph, "its axis is computed at run time")
    at = int(axis.reshape(-1)[0]) % len(editor.types[node.output].shape)
    editor.emit(replace(node, inputs=node.inputs[:1], attrs={**node.attrs, "axis": at}))


def _check_axis(editor: Editor, node: Node) -> str:
    axis, rank = editor.constants.get(node.inputs[1]), len(editor.types[node.inputs[0]].shape)
    at = None if axis is None or axis.size != 1 else int(axis.reshape(-1)[0])
    return f"axis {at} of {rank} dimensions" if at is not None and not -rank <= at < rank else ""


def _record(kind: Running, **fields: Any) -> Operator:
    return Operator(
        define=partial(_accumulated, kind),
        any_type=True,
        canonical=partial(_in_blocks, kind),
        resolve=_resolve,
        check=_check_axis,
        **fields,
    )


OPERATORS: Mapping[str, Operator] = {
    "CumSum": _record(SUM),
    "CumProd": _record(
        Running("CumProd", "prod", 1, "ReduceProd", "Mul"),
        shape=lambda editor, node: editor.types[node.inputs[0]].shape,
    ),
}
