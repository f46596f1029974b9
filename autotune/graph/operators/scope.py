"""① Building a ComputeDAG: canonical names, operands, broadcasting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, compute
from autotune.te.expr import Axis, Const, Expr, Tensor, f32, idx, maximum, minimum

Operand: TypeAlias = Tensor | Const
"""What an operator reads: a tensor, or a literal for a constant of one element."""
Operands: TypeAlias = Sequence[Operand | None]
"""Absent optional operands are None."""

_AXIS_NAMES = {1: "c", 2: "nc", 3: "nwc", 4: "nhwc", 5: "nhwgc"}


class Scope:
    """Collects the operations of one subgraph. Equal subgraphs get equal names."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._used: Counter[str] = Counter()

    def placeholder(
        self, role: str, shape: Sequence[int], constant: bool = False, dtype: str = "float32"
    ) -> Tensor:
        """Declare an input called after its role."""
        op = Placeholder(Tensor(self._name(role), tuple(shape), dtype), constant)
        self.ops.append(op)
        return op.tensor

    def compute(self, role: str, axes: Sequence[Axis], body: Expr) -> Tensor:
        """Define an intermediate or the result."""
        op = compute(self._name(role), axes, body)
        self.ops.append(op)
        return op.tensor

    def take_copy(self, x: Tensor) -> Compute | None:
        """The computation of `x` where it only permutes another tensor; it is then forgotten."""
        op = next((o for o in self.ops if o.name == x.name), None)
        if not isinstance(op, Compute) or not x.name.startswith("transpose"):
            return None
        self.ops.remove(op)
        return op

    def dag(self, *outputs: Tensor) -> ComputeDAG:
        """The finished subgraph."""
        return ComputeDAG(tuple(self.ops), tuple(t.name for t in outputs))

    def _name(self, role: str) -> str:
        self._used[role] += 1
        n = self._used[role]
        return role if n == 1 else f"{role}{n}"


def axes_of(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Axes n, h, w, c of a tensor of `shape`."""
    names = _AXIS_NAMES.get(len(shape)) or tuple(f"i{n}" for n in range(len(shape)))
    return tuple(Axis(name, extent) for name, extent in zip(names, shape, strict=True))


def broadcast_shape(operands: Sequence[Operand]) -> tuple[int, ...]:
    """NumPy's shape of an elementwise result."""
    return np.broadcast_shapes(*(o.shape if isinstance(o, Tensor) else () for o in operands))


def read(operand: Operand, axes: Sequence[Axis]) -> Expr:
    """The element of `operand` at `axes`, dimensions aligned at the end and 1s repeated."""
    if isinstance(operand, Const):
        return operand
    tail = axes[len(axes) - len(operand.shape) :]
    pairs = zip(operand.shape, tail, strict=True)
    return operand[tuple(idx(0) if extent == 1 else axis.var for extent, axis in pairs)]


def inside(index: Expr, extent: int) -> Expr:
    """`index`, moved to the nearest end where it is outside of a dimension."""
    return maximum(idx(0), minimum(index, idx(extent - 1)))


def literal(value: float) -> Const:
    """A float literal."""
    return f32(float(np.float32(value)))


def tensor(operands: Operands, n: int) -> Tensor:
    """Operand `n`, which must be a tensor."""
    operand = operands[n]
    if not isinstance(operand, Tensor):
        raise TypeError(f"operand {n} must be a tensor, found {operand}")
    return operand


def optional(operands: Operands, n: int) -> Tensor | None:
    """Operand `n` where it is given."""
    return tensor(operands, n) if n < len(operands) and operands[n] is not None else None
