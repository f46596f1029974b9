"""① Products of sorted rows, group by group, become products with a matrix for each row.

    Concat over g of (x[end g - 1 : end g] · W g + b g)
    ->  e[r] = the number of groups that end at row r or before
        x[r] · W[e[r]] + b[e[r]]

So transformers' exporter writes experts: rows sorted by expert, and for each of these a Range of
rows, whose number data decide. The groups are taken to be all rows, as those of sorted rows are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.graph.ir import Array, Node
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import view_of
from autotune.graph.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows `first` to `end`, names of scalars, of `x`, times a matrix, plus a bias."""

    x: str
    first: str
    end: str
    weight: Array
    bias: Array | None


def grouped_product(rw: Rewriter) -> None:
    """Concat of products of consecutive rows -> MatMul with gathered matrices; see the module."""
    if (
        view_of(rw.node) is not ViewKind.JOINED
        or len(rw.node.inputs) < 2
        or rw.attr("axis", 0) != 0
    ):
        return
    if any(min(rw.types[n].shape, default=0) >= 0 for n in rw.node.inputs if n in rw.types):
        return  # rows that are counted in the file
    groups = [_group(rw, name) for name in rw.node.inputs]
    found = [group for group in groups if group is not None]
    if len(found) < len(groups) or not _are_consecutive(rw, found):
        return
    x = found[0].x
    n_rows = rw.types[x].shape[0]
    ends = [rw("Unsqueeze", g.end, rw.integers(0)) for g in found]
    ended = rw("LessOrEqual", rw("Concat", *ends, axis=0), _rows(rw, n_rows))
    own = rw("ReduceSum", rw.cast(ended, "int64"), rw.integers(1), keepdims=0)
    one = rw.integers(1)
    matrices = rw("Gather", rw.array(np.stack([g.weight for g in found])), own, axis=0)
    y = rw("Squeeze", rw("MatMul", rw("Unsqueeze", x, one), matrices), one)
    biases = [g.bias for g in found if g.bias is not None]
    if biases:
        y = rw("Add", y, rw("Gather", rw.array(np.stack(biases)), own, axis=0))
    rw.result("Identity", y)


def _rows(rw: Rewriter, n: int) -> str:
    return rw.array(np.arange(n, dtype=np.int64)[:, None])


def _are_consecutive(rw: Rewriter, groups: list[_Group]) -> bool:
    """Whether each begins where the one before ends, the first one at 0, with equal shapes."""
    begin, first = rw.constants.get(groups[0].first), groups[0]
    follows = all(b.first == a.end for a, b in pairwise(groups))
    alike = all(
        g.x == first.x
        and g.weight.shape == first.weight.shape
        and (g.bias is None) == (first.bias is None)
        for g in groups
    )
    return begin is not None and begin.size == 1 and not begin.any() and follows and alike


def _group(rw: Rewriter, name: str) -> _Group | None:
    bias = None
    added = rw.maker(name, "Add")
    if added is not None:
        known = [n for n in added.inputs if n in rw.constants]
        if len(known) != 1:
            return None
        bias = rw.constants[known[0]]
        name = next(n for n in added.inputs if n not in known)
    product = rw.maker(name, "MatMul")
    weight = rw.constants.get(product.inputs[1]) if product else None
    rows = rw.maker(product.inputs[0], "Gather") if product else None
    span = rw.maker(rows.inputs[1], "Range") if rows else None
    if rows is None or weight is None or span is None or not _is_rows(rw, rows, span):
        return None
    is_row = bias is None or bias.shape == weight.shape[-1:]
    if weight.ndim != 2 or not is_row:
        return None
    return _Group(rows.inputs[0], span.inputs[0], span.inputs[1], weight, bias)


def _is_rows(rw: Rewriter, rows: Node, span: Node) -> bool:
    kind, step = rw.types.get(rows.inputs[0]), rw.constants.get(span.inputs[2])
    is_matrix = kind is not None and len(kind.shape) == 2 and min(kind.shape) >= 0
    return is_matrix and rows.attrs.get("axis", 0) == 0 and step is not None and int(step) == 1
