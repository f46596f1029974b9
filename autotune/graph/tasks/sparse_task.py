"""① The computation of a product over the nonzero blocks of its weight.

Vectors run over results (`ByResults`) or, where blocks are too narrow for that, over rows of data
(`ByRows`), with data and results transposed.

    y[m, n] = Σ_k x[m, k] · w[k, n]
 -> y[m, j, c] = Σ_b,k  x[m, starts[p] + k] · values[p, k, c]          p = indptr[j] + b
 -> t[k, m] = x[m, k];  s[j, c, m] = Σ_b,k  t[starts[p] + k, m] · values[p, k, c]
    y[m, n] = s[n / width, n % width, m]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autotune.graph.ir import Array
from autotune.te.arith import simplify
from autotune.te.dag import Compute, ComputeDAG, Placeholder, compute
from autotune.te.expr import (
    INDEX,
    Axis,
    Binary,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    cast,
    idx,
    map_expr,
    variables,
)


@dataclass(frozen=True, slots=True)
class Product:
    """Σ_k x·w of a task: the computation, the loads of weight and data, and the batch axes."""

    op: Compute
    weight: Load
    data: Load
    batch: tuple[Axis, ...]

    @property
    def term(self) -> Axis:
        """The axis that is summed over."""
        return self.op.reduce_axes[0]

    @property
    def rows(self) -> Axis | None:
        """The longest axis of rows, by which the data differ and the weight does not."""
        found = [a for a in self.op.axes[:-1] if a not in self.batch and a.extent > 1]
        return max(found, key=lambda a: a.extent, default=None)


def products(dag: ComputeDAG) -> Iterator[Product]:
    """Sums of data times a constant with a single consumer, along one axis."""
    for op in dag.computes:
        match op.body:
            case Reduce(op="sum", body=Binary(op="mul", a=Load() as a, b=Load() as b)):
                for weight, data in ((a, b), (b, a)):
                    found = _product(dag, op, weight, data)
                    if found is not None:
                        yield found
                        break


def _product(dag: ComputeDAG, op: Compute, weight: Load, data: Load) -> Product | None:
    source = dag[weight.tensor.name]
    is_weight = isinstance(source, Placeholder) and source.constant
    if not is_weight or dag.consumers(source.name) != (op,) or len(op.reduce_axes) != 1:
        return None
    names = [i.name if isinstance(i, Var) else "" for i in weight.indices]
    term, channel = op.reduce_axes[0], op.axes[-1]
    batch = tuple(a for a in op.axes[:-1] if a.name in names)
    wanted = sorted([*(a.name for a in batch), channel.name, term.name])
    if sorted(names) != wanted or channel.name in variables(data) or term.limit is not None:
        return None
    sizes = dict(zip(names, weight.tensor.shape, strict=True))
    whole = all(sizes[a.name] == a.extent for a in (*batch, channel, term))
    return Product(op, weight, data, batch) if whole else None


def pointwise_after(dag: ComputeDAG, op: Compute) -> bool:
    """Whether everything that depends on `op` is pointwise in its axes."""
    after = {op.name}
    for other in dag.computes:
        reads = [x for x in other.reads if x.tensor.name in after]
        if not reads:
            continue
        here = tuple(a.var for a in other.axes)
        same = tuple(a.extent for a in other.axes) == op.tensor.shape
        if other.reduce_axes or not same or any(x.indices != here for x in reads):
            return False
        after.add(other.name)
    return set(dag.outputs) <= after


def as_matrices(product: Product, weight: Array) -> Array:
    """The weight as [matrices, k, n]."""
    names = [i.name for i in product.weight.indices if isinstance(i, Var)]
    order = [*(a.name for a in product.batch), product.term.name, product.op.axes[-1].name]
    shaped = weight.reshape(product.weight.tensor.shape).transpose([names.index(n) for n in order])
    return np.ascontiguousarray(shaped).reshape(-1, *shaped.shape[-2:])


def names_of(weight: str) -> tuple[str, str, str]:
    """The constants that replace a weight: its blocks, their first rows, the row pointers."""
    return f"{weight}.values", f"{weight}.starts", f"{weight}.indptr"


def sparse_dag(
    dag: ComputeDAG, product: Product, shape: tuple[int, int], n_blocks: int, by_rows: bool
) -> ComputeDAG:
    """`dag` with `product` over `n_blocks` blocks of `shape`, rows of data in vectors or not."""
    kind = ByRows if by_rows else ByResults
    rewrite = kind(product, shape, n_blocks)
    ops: list[Placeholder | Compute] = []
    for op in dag.ops:
        if op.name == product.weight.tensor.name:
            ops += [Placeholder(t, constant=True) for t in rewrite.constants]
        elif isinstance(op, Placeholder):
            ops.append(op)
        else:
            ops += rewrite.product_ops() if op is product.op else [rewrite.pointwise(op)]
    return ComputeDAG(tuple(ops), dag.outputs)


class ByResults:
    """Channel n becomes block row and column, of which the columns are vectors."""

    def __init__(self, product: Product, shape: tuple[int, int], n_blocks: int) -> None:
        self.product = product
        self.height, self.width = shape
        values, starts, indptr = names_of(product.weight.tensor.name)
        n = product.op.axes[-1]
        n_rows = n.extent // self.width
        for axis in product.batch:
            n_rows *= axis.extent
        self.constants = (
            Tensor(values, (n_blocks, *shape), "float32"),
            Tensor(starts, (n_blocks,), "int32"),
            Tensor(indptr, (n_rows + 1,), "int32"),
        )
        self.changed: dict[str, Tensor] = {}

    def product_ops(self) -> list[Compute]:
        """The computations that replace the product."""
        row, column = self._row_and_column(self.product.op)
        return [self._result(self.product.op, self._sum(self.product.data, row, column))]

    def pointwise(self, op: Compute) -> Compute:
        """A computation that depends on the product, or is independent of it."""
        if not any(x.tensor.name in self.changed for x in op.reads):
            return op
        row, column = self._row_and_column(op)
        n = row * self.width + column
        channel = op.axes[-1].var

        def one(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.tensor.name in self.changed:
                at = (*e.indices[:-1], row.var, column.var)
                return Load(self.changed[e.tensor.name], at)
            return n if e == channel else None

        return self._result(op, simplify(map_expr(op.body, one)))

    def _row_and_column(self, op: Compute) -> tuple[Axis, Axis]:
        n = op.axes[-1]
        return Axis(f"{n.name}.row", n.extent // self.width), Axis(f"{n.name}.in", self.width)

    def _result(self, op: Compute, body: Expr) -> Compute:
        axes = (*op.axes[:-1], *self._row_and_column(op))
        tensor = Tensor(op.name, tuple(a.extent for a in axes), op.tensor.dtype)
        self.changed[op.name] = tensor
        return Compute(tensor, axes, body)

    def _sum(self, data: Load, row: Axis, column: Axis) -> Reduce:
        """The product over blocks of block row `row`; `data`: its loads, by the old terms."""
        term = self.product.term
        values, starts, indptr = self.constants
        at: Expr = idx(0)
        for axis in (*self.product.batch, row):
            at = at * axis.extent + axis
        begin, end = (cast(INDEX, Load(indptr, (i,))) for i in (at, at + 1))
        n_blocks = -(-term.extent // self.height)
        block = Axis(f"{term.name}.block", n_blocks, end - begin)
        inner = Axis(f"{term.name}.in", self.height)
        number = begin + block
        first = cast(INDEX, Load(starts, (number,))) + inner
        moved = map_expr(data, lambda e: first if e == term.var else None)
        body = moved * Load(values, (number, inner.var, column.var))
        return Reduce("sum", body, (block, inner))


class ByRows(ByResults):
    """Data and results are transposed, so that their rows are vectors."""

    def product_ops(self) -> list[Compute]:
        """Transposed data, the transposed product, and the product as it was."""
        op, term, rows = self.product.op, self.product.term, self.product.rows
        assert rows is not None
        row, column = self._row_and_column(op)
        outer = tuple(a for a in op.axes[:-1] if a != rows)
        used = tuple(a for a in outer if a.name in variables(self.product.data))
        turned = compute(
            f"{op.name}.data", (*used, Axis(term.name, term.extent), rows), self.product.data
        )
        data = turned.tensor[(*used, term, rows)]
        total = compute(
            f"{op.name}.rows", (*outer, row, column, rows), self._sum(data, row, column)
        )
        n, width = op.axes[-1].var, idx(self.width)
        at = (*outer, n // width, n % width, rows)
        return [turned, total, Compute(op.tensor, op.axes, total.tensor[at])]

    def pointwise(self, op: Compute) -> Compute:
        """A computation that depends on the product, unchanged."""
        return op
