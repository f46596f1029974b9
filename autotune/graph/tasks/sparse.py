"""① Sparse weights: a product with a pruned constant as a task over its nonzero blocks.

    y[m, n] = Σ_k x[m, k] · w[k, n]
 -> y[m, j, c] = Σ_b<row j, k<4  x[m, starts[p] + k] · values[p, k, c]     p = indptr[j] + b

Block row j holds 16 neighbouring results. Its nonzero blocks of `w` are contiguous in `values`;
`starts` are their first rows of `w`, and `indptr` is where the blocks of each j begin: BSR. The
definition alone decides where this applies: dense layers, 1×1 convolutions, batches of products.
Data that meet only omitted zeros are assumed to be finite.

The dense task stays as an alternative (`Chain`): measuring decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.graph.ir import Array
from autotune.graph.tasks.sparse_task import (
    Product,
    as_matrices,
    names_of,
    pointwise_after,
    products,
    sparse_dag,
)
from autotune.graph.tasks.subgraph import Subgraph

MIN_ZEROS = 0.4
"""Least share of zeros of a weight for which blocks are considered."""
MAX_WORK = 0.7
"""Most multiply-adds of blocks, as a share of the dense ones."""
_WIDTHS = (16, 8, 4)
"""Results of a block row: a vector, or part of one where nothing wider divides all results."""
_HEIGHTS = (1, 2, 4, 8, 16)
"""Terms of a block."""
_START_COST = 0.75
"""Overhead of a block in vector multiply-adds (measured)."""
_GOOD = 0.3
"""Share of the dense work below which narrower blocks are not tried."""
_MIN_ROWS = 16
"""Rows of data that fill a vector."""
_NARROW = (1, 4)
"""Results of a block row where vectors run over rows of data."""
_BY_ROWS_COST, _BY_ROWS_START = 1.3, 220.0
"""Relative cost of multiply-adds there, and the overhead of a block, which all rows share."""
_MOVE_COST = 22.0
"""Cost of transposing one element of data or results, in multiply-adds (measured)."""
_ALIKE = 1.15
"""Most ratio between the numbers of blocks of layers that share a task."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Stacked matrices [k, n] by their nonzero blocks of `height` × `width`.

    `values` [n_blocks, height, width]; `starts` [n_blocks]: first row of each block; `indptr`
    [n_matrices · n / width + 1]: where the blocks of each block row begin. At least one block is
    stored; blocks after those of the last row are padding. `by_rows`: vectors run over rows of
    data, not over results.
    """

    values: NDArray[np.float32]
    starts: NDArray[np.int32]
    indptr: NDArray[np.int32]
    by_rows: bool = False

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


def best_blocks(weight: Array, n_rows: int = 1) -> Blocks | None:
    """The blocks of `weight` [matrices, k, n] with least work; None where dense is better.

    `n_rows`: how many rows of data a weight is for.
    """
    if weight.dtype != np.float32 or zero_share(weight) < MIN_ZEROS:
        return None
    work = _work_by_results(weight)
    if min(work.values(), default=1.0) > _GOOD and n_rows >= _MIN_ROWS:
        work |= _work_by_rows(weight, n_rows)
    if not work:
        return None
    best = min(work, key=lambda form: work[form])
    height, width, by_rows = best
    if work[best] > MAX_WORK:
        return None
    return replace(to_blocks(weight, height, width), by_rows=by_rows)


_Form: TypeAlias = tuple[int, int, bool]
"""Height and width of a block, and whether vectors are rows."""


def _work_by_results(weight: Array) -> dict[_Form, float]:
    """Work over that of the dense product for blocks as wide as vectors, of any height."""
    n_matrices, k, n = weight.shape
    width = next((w for w in _WIDTHS if n % w == 0), None)
    if width is None:
        return {}
    there = _there(weight, width)
    dense = n_matrices * k * n / width
    return {
        (h, width, False): np.count_nonzero(_joined(there, h)) * (h + _START_COST) / dense
        for h in _HEIGHTS
        if h <= k
    }


def _work_by_rows(weight: Array, n_rows: int) -> dict[_Form, float]:
    """The same for narrow blocks, between transpositions of data and results."""
    n_matrices, k, n = weight.shape
    dense = n_matrices * k * n
    moves = _MOVE_COST * n_matrices * (k + n)
    work: dict[_Form, float] = {}
    for width in (w for w in _NARROW if n % w == 0):
        there = _there(weight, width)
        for h in (h for h in _HEIGHTS[::2] if h <= k):
            per_block = _BY_ROWS_COST * h * width + _BY_ROWS_START / n_rows
            work[h, width, True] = (np.count_nonzero(_joined(there, h)) * per_block + moves) / dense
    return work


def _there(weight: Array, width: int) -> NDArray[np.bool_]:
    """Mask of nonzero rows of `width` elements, [matrices, k, n / width]."""
    n_matrices, k, n = weight.shape
    found: NDArray[np.bool_] = np.logical_or.reduce(
        (weight != 0).reshape(n_matrices, k, n // width, width), axis=3
    )
    return found


def to_blocks(weight: Array, height: int, width: int) -> Blocks:
    """`weight` [matrices, k, n] in blocks of a shape of which `width` divides n."""
    n_matrices, k, n = weight.shape
    n_rows = n // width
    joined = _joined(_there(weight, width), height)  # [matrices, blocks of k, block rows]
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


# --- the tasks --------------------------------------------------------------------------------


def sparse_subgraphs(subgraphs: Mapping[int, Subgraph]) -> dict[int, Subgraph]:
    """The subgraphs over blocks of those that have a product with a sparse enough weight."""
    found = {n: b for n, s in subgraphs.items() if (b := _blocks_of(s)) is not None}
    alike: dict[object, list[int]] = {}
    for n, (_, blocks) in found.items():
        alike.setdefault((subgraphs[n].dag.key, blocks.shape, blocks.by_rows), []).append(n)
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
    product = next(products(subgraph.dag), None)
    if product is None or 0 in product.weight.tensor.shape:
        return None
    if not pointwise_after(subgraph.dag, product.op):
        return None
    weight = subgraph.constants[product.weight.tensor.name]
    rows = product.rows
    blocks = best_blocks(as_matrices(product, weight), rows.extent if rows else 1)
    return None if blocks is None else (product, blocks)


def _sparse(subgraph: Subgraph, product: Product, blocks: Blocks) -> Subgraph:
    """The subgraph over `blocks` of its weight."""
    name = product.weight.tensor.name
    stored = (blocks.values, blocks.starts, blocks.indptr)
    arrays: dict[str, Array] = dict(zip(names_of(name), stored, strict=True))
    kept = {n: a for n, a in subgraph.constants.items() if n != name}
    height, width = blocks.shape
    return replace(
        subgraph,
        dag=sparse_dag(subgraph.dag, product, blocks.shape, len(blocks.starts), blocks.by_rows),
        constants=kept | arrays,
        label=f"{subgraph.label} in {height}x{width} blocks{', transposed' * blocks.by_rows}",
    )


# --- statistics -----------------------------------------------------------------------


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
    """The zeros of the `weights` of a task; None where few are zero.

    `stored`: constants of the calls over blocks that may replace calls of the task.
    """
    shares = [zero_share(w) for w in weights]
    if max(shares, default=0.0) < MIN_ZEROS:
        return None
    values = [a for arrays in stored for n, a in arrays.items() if n == names_of(_base(n))[0]]
    counts = [
        int(a[-1]) for arrays in stored for n, a in arrays.items() if n == names_of(_base(n))[2]
    ]
    if not values:
        return Zeros(min(shares), max(shares), None, 1.0)
    height, width = values[0].shape[1:]
    left = sum(counts) * height * width / (len(counts) * weights[0].size)
    return Zeros(min(shares), max(shares), (height, width), min(1.0, left))


def _base(name: str) -> str:
    return name.rpartition(".")[0]
