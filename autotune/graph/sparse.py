"""① Sparse weights: a product with a pruned constant as a task over the blocks that are there.

    y[m, n] = Σ_k x[m, k] · w[k, n]
 -> y[m, j, c] = Σ_b<row j, k<4  x[m, starts[p] + k] · values[p, k, c]     p = indptr[j] + b

Block row j are 16 neighbouring results. Its blocks, those of `w` with anything but zeros in them,
lie one behind another in `values`; `starts` are their first rows of `w`, `indptr` says where the
blocks of each j begin: BSR. Which tasks compute y point by point is all that counts, so this holds
for dense layers, for 1×1 convolutions and for batches of products. What is multiplied by a zero
that is left out is taken for finite.

The dense task stays: measuring decides, as between the alternatives of a `Chain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.graph.ir import Array
from autotune.graph.subgraph import Subgraph
from autotune.te.arith import simplify
from autotune.te.dag import Compute, ComputeDAG, Placeholder
from autotune.te.expr import (
    INDEX,
    Axis,
    Binary,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    add,
    cast,
    idx,
    map_expr,
    mul,
    sub,
    variables,
)

MIN_ZEROS = 0.4
"""Weights with a smaller share of zeros are not looked at."""
MAX_WORK = 0.6
"""Share of the dense multiply-adds beyond which blocks are no alternative."""
_WIDTHS = (16, 8, 4)
"""Results of a block row: a vector, or part of one where nothing wider divides all results."""
_HEIGHTS = (1, 2, 4, 8, 16)
"""Terms of a block."""
_START_COST = 0.75
"""Multiply-adds of vectors that take as long as beginning a block does (measured)."""
_ALIKE = 1.15
"""Layers whose numbers of blocks differ by no more share a task, that of the largest."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Matrices [k, n], one behind another, by their blocks of `height` × `width` that are not zero.

    `values` [n_blocks, height, width]; `starts` [n_blocks]: first row of each block; `indptr`
    [n_matrices · n / width + 1]: where the blocks of each block row begin. At least one block is
    stored, and there may be more behind the last row, which nothing reads.
    """

    values: NDArray[np.float32]
    starts: NDArray[np.int32]
    indptr: NDArray[np.int32]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a block."""
        return self.values.shape[1], self.values.shape[2]

    def of_size(self, n_blocks: int) -> Blocks:
        """The same blocks with storage for `n_blocks`, which are not fewer."""
        more = n_blocks - len(self.starts)
        values = np.pad(self.values, ((0, more), (0, 0), (0, 0)))
        return replace(self, values=values, starts=np.pad(self.starts, (0, more)))


def zero_share(weight: Array) -> float:
    """Share of the elements of `weight` that are zero."""
    return 1.0 - np.count_nonzero(weight) / max(1, weight.size)


def best_blocks(weight: Array) -> Blocks | None:
    """The blocks of `weight` [matrices, k, n] with least work; None where dense is no more."""
    if weight.dtype != np.float32 or zero_share(weight) < MIN_ZEROS:
        return None
    n_matrices, k, n = weight.shape
    width = next((w for w in _WIDTHS if n % w == 0), None)
    if width is None:
        return None
    there = (weight != 0).reshape(n_matrices, k, n // width, width).any(axis=3)
    heights = [h for h in _HEIGHTS if h <= k]
    work = {h: np.count_nonzero(_joined(there, h)) * (h + _START_COST) for h in heights}
    height = min(work, key=lambda h: work[h])
    if work[height] > MAX_WORK * n_matrices * k * n / width:
        return None
    return to_blocks(weight, height, width)


def to_blocks(weight: Array, height: int, width: int) -> Blocks:
    """`weight` [matrices, k, n] in blocks of a shape of which `width` divides n."""
    n_matrices, k, n = weight.shape
    n_rows = n // width
    there = (weight != 0).reshape(n_matrices, k, n_rows, width).any(axis=3)
    joined = _joined(there, height)  # [matrices, blocks of k, block rows]
    matrix, row, block = np.nonzero(joined.transpose(0, 2, 1))
    first = np.minimum(block * height, k - height)
    inside = first[:, None] + np.arange(height)
    columns = (row * width)[:, None] + np.arange(width)
    found = weight[matrix[:, None, None], inside[:, :, None], columns[:, None, :]]
    found = np.where((inside >= (block * height)[:, None])[:, :, None], found, 0)
    counts = np.bincount(matrix * n_rows + row, minlength=n_matrices * n_rows)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    blocks = Blocks(found.astype(np.float32), first.astype(np.int32), indptr)
    return blocks.of_size(max(1, len(found)))


def _joined(there: NDArray[np.bool_], height: int) -> NDArray[np.bool_]:
    """`there` [matrices, k, rows] for `height` neighbours along k together."""
    n_matrices, k, n_rows = there.shape
    padded = np.zeros((n_matrices, -(-k // height) * height, n_rows), bool)
    padded[:, :k] = there
    blocks = padded.reshape(n_matrices, -1, height, n_rows)
    joined: NDArray[np.bool_] = np.logical_or.reduce(blocks, axis=2)
    return joined


# --- the task ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Product:
    """Σ_k x·w of a task: the computation, its weight, and which axes the weight is read by."""

    op: Compute
    weight: Load
    data: Load
    batch: tuple[Axis, ...]

    @property
    def term(self) -> Axis:
        """The axis that is summed over."""
        return self.op.reduce_axes[0]


def sparse_subgraphs(subgraphs: Mapping[int, Subgraph]) -> dict[int, Subgraph]:
    """The same subgraphs over blocks, where a weight has zeros enough and a use for it."""
    found = {n: b for n, s in subgraphs.items() if (b := _blocks_of(s)) is not None}
    alike: dict[object, list[int]] = {}
    for n, (_, blocks) in found.items():
        alike.setdefault((subgraphs[n].dag.key, blocks.shape), []).append(n)
    sizes: dict[int, int] = {}
    for group in alike.values():
        largest = 0
        for n in sorted(group, key=lambda n: -len(found[n][1].starts)):
            n_blocks = len(found[n][1].starts)
            largest = n_blocks if n_blocks * _ALIKE < largest or not largest else largest
            sizes[n] = largest
    sparse = {n: _sparse(subgraphs[n], p, b.of_size(sizes[n])) for n, (p, b) in found.items()}
    dense: dict[str, str] = {}  # one task may replace calls of one other
    for n, made in sparse.items():
        dense.setdefault(made.dag.key, subgraphs[n].dag.key)
    return {n: s for n, s in sparse.items() if dense[s.dag.key] == subgraphs[n].dag.key}


def _blocks_of(subgraph: Subgraph) -> tuple[Product, Blocks] | None:
    product = next(_products(subgraph.dag), None)
    if product is None or not _is_pointwise_after(subgraph.dag, product.op):
        return None
    weight = subgraph.constants[product.weight.tensor.name]
    blocks = best_blocks(_as_matrices(product, weight))
    return None if blocks is None else (product, blocks)


def _sparse(subgraph: Subgraph, product: Product, blocks: Blocks) -> Subgraph:
    """The subgraph over `blocks` of its weight."""
    name = product.weight.tensor.name
    arrays = {_values(name): blocks.values, _starts(name): blocks.starts}
    arrays[_indptr(name)] = blocks.indptr
    kept = {n: a for n, a in subgraph.constants.items() if n != name}
    height, width = blocks.shape
    return replace(
        subgraph,
        dag=_sparse_dag(subgraph.dag, product, blocks),
        constants=kept | arrays,
        label=f"{subgraph.label} in {height}x{width} blocks",
    )


def _values(name: str) -> str:
    return f"{name}.values"


def _starts(name: str) -> str:
    return f"{name}.starts"


def _indptr(name: str) -> str:
    return f"{name}.indptr"


def _products(dag: ComputeDAG) -> Iterator[Product]:
    """Sums of data times a constant that nobody else reads, along one axis."""
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


def _is_pointwise_after(dag: ComputeDAG, op: Compute) -> bool:
    """Whether all that depends on `op` has its axes and reads the like at the very same point."""
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


def _as_matrices(product: Product, weight: Array) -> Array:
    """The weight as [matrices, k, n]."""
    names = [i.name for i in product.weight.indices if isinstance(i, Var)]
    order = [*(a.name for a in product.batch), product.term.name, product.op.axes[-1].name]
    shaped = weight.reshape(product.weight.tensor.shape).transpose([names.index(n) for n in order])
    return np.ascontiguousarray(shaped).reshape(-1, *shaped.shape[-2:])


class _Rewrite:
    """The computations of a task with channel n as block row and column, and over blocks of k."""

    def __init__(self, dag: ComputeDAG, product: Product, blocks: Blocks) -> None:
        self.dag, self.product = dag, product
        self.height, self.width = blocks.shape
        name = product.weight.tensor.name
        self.constants = (
            Tensor(_values(name), blocks.values.shape, "float32"),
            Tensor(_starts(name), blocks.starts.shape, "int32"),
            Tensor(_indptr(name), blocks.indptr.shape, "int32"),
        )
        self.changed: dict[str, Tensor] = {}

    def axes(self, op: Compute) -> tuple[Axis, ...]:
        """Those of `op` with block row and column in place of the last."""
        *outer, n = op.axes
        return (*outer, Axis(f"{n.name}.row", n.extent // self.width), self.column(op))

    def column(self, op: Compute) -> Axis:
        return Axis(f"{op.axes[-1].name}.in", self.width)

    def result(self, op: Compute, body: Expr) -> Compute:
        axes = self.axes(op)
        tensor = Tensor(op.name, tuple(a.extent for a in axes), op.tensor.dtype)
        self.changed[op.name] = tensor
        return Compute(tensor, axes, body)

    def summed(self) -> Compute:
        """The product over blocks."""
        op, term = self.product.op, self.product.term
        values, starts, indptr = self.constants
        *_, row, column = self.axes(op)
        at: Expr = idx(0)
        for axis in (*self.product.batch, row):
            at = add(mul(at, idx(axis.extent)), axis.var)
        begin, end = (cast(INDEX, Load(indptr, (i,))) for i in (at, add(at, idx(1))))
        n_blocks = -(-term.extent // self.height)
        block = Axis(f"{term.name}.block", n_blocks, sub(end, begin))
        inner = Axis(f"{term.name}.in", self.height)
        number = add(begin, block.var)
        first = add(cast(INDEX, Load(starts, (number,))), inner.var)
        data = map_expr(self.product.data, lambda e: first if e == term.var else None)
        body = mul(data, Load(values, (number, inner.var, column.var)))
        return self.result(op, Reduce("sum", body, (block, inner)))

    def pointwise(self, op: Compute) -> Compute:
        """A computation behind the product, or one that has nothing to do with it."""
        if not any(x.tensor.name in self.changed for x in op.reads):
            return op
        *_, row, column = self.axes(op)
        n = add(mul(row.var, idx(self.width)), column.var)
        channel = op.axes[-1].var

        def one(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.tensor.name in self.changed:
                at = (*e.indices[:-1], row.var, column.var)
                return Load(self.changed[e.tensor.name], at)
            return n if e == channel else None

        return self.result(op, simplify(map_expr(op.body, one)))


def _sparse_dag(dag: ComputeDAG, product: Product, blocks: Blocks) -> ComputeDAG:
    rewrite = _Rewrite(dag, product, blocks)
    ops: list[Placeholder | Compute] = []
    for op in dag.ops:
        if op.name == product.weight.tensor.name:
            ops += [Placeholder(t, constant=True) for t in rewrite.constants]
        elif isinstance(op, Placeholder):
            ops.append(op)
        else:
            ops.append(rewrite.summed() if op is product.op else rewrite.pointwise(op))
    return ComputeDAG(tuple(ops), dag.outputs)


# --- what is told of it -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Zeros:
    """Zeros in the weights of one task: their least and largest share over its calls.

    `block`: height and width of the blocks that an alternative task leaves out, None where there is
    none; `blocks_left`: the share of blocks that it runs over, on average.
    """

    least: float
    most: float
    block: tuple[int, int] | None
    blocks_left: float


def zeros_of(weights: Sequence[Array], stored: Sequence[Mapping[str, Array]]) -> Zeros | None:
    """What to say of the `weights` of a task; None where few are zero.

    `stored`: constants of the calls over blocks that may replace calls of the task.
    """
    shares = [zero_share(w) for w in weights]
    if max(shares, default=0.0) < MIN_ZEROS:
        return None
    values = [a for arrays in stored for n, a in arrays.items() if n == _values(_base(n))]
    counts = [int(a[-1]) for arrays in stored for n, a in arrays.items() if n == _indptr(_base(n))]
    if not values:
        return Zeros(min(shares), max(shares), None, 1.0)
    height, width = values[0].shape[1:]
    left = sum(counts) * height * width / (len(counts) * weights[0].size)
    return Zeros(min(shares), max(shares), (height, width), min(1.0, left))


def _base(name: str) -> str:
    return name.rpartition(".")[0]
