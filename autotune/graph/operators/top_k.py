"""① TopK: the largest elements in order, by ranks from comparing every pair.

    TopK(x, k)  ->  rank[i] = Σ_j [x[j] comes before x[i]]        j, i < n
                    y[k] = Σ_i [rank[i] = k] · x[i]               and likewise where it is

These are n² vectorised comparisons. Where k is small, blocks of 4k are reduced first:

    TopK(x, k)  ->  TopK(TopK(block, k) of every block, k)
    TopK(x, 1)  ->  ReduceMax(x), ArgMax(x)

NaN is the largest element, as when NumPy sorts; so the smallest of floats is not ReduceMin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.dtypes import is_float
from autotune.graph.ir import Editor, Node, Shape, unsupported
from autotune.graph.operators.cumulative_sum import Blocks
from autotune.graph.operators.definition import Operands, Operator, Scope, axes_of, tensor
from autotune.te.expr import (
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    both,
    call,
    cast,
    compare,
    dtype_of,
    either,
    f32,
    select,
)

_MOST_RANKED = 16_384
"""Every pair is compared. Ranks are floats, which have as many lanes as the elements."""


_LEAST_BLOCK = 32
"""Fewest elements of a block."""
_FEWER = 4
"""Elements of a block per element of the result."""


def _top_k(editor: Editor, node: Node) -> None:
    """TopK -> the cheapest of the above."""
    shape = editor.types[node.inputs[0]].shape
    axis = node.attrs.get("axis", -1) % len(shape)
    k = next(editor.types[name].shape[axis] for name in node.outputs if name)
    block = max(_LEAST_BLOCK, _FEWER * k)
    is_last_nan = _is_float(editor, node) and not node.attrs.get("largest", 1)
    if k == 1 and not is_last_nan:
        _extremum(editor, node, axis)
    elif shape[axis] > 2 * block:
        _best_of_blocks(editor, node, axis, k, block)
    else:
        _by_rank(editor, node, axis)


def _extremum(editor: Editor, node: Node, axis: int) -> None:
    """The largest or smallest element, and the first place where it is."""
    end, outputs = "Max" if node.attrs.get("largest", 1) else "Min", (*node.outputs, "")
    if outputs[0]:
        attrs = {"axes": (axis,), "keepdims": 1}
        editor.emit(Node(node.name, f"Reduce{end}", node.inputs[:1], outputs[:1], attrs))
    if outputs[1]:
        attrs = {"axis": axis, "keepdims": 1}
        editor.emit(Node(node.name, f"Arg{end}", node.inputs[:1], outputs[1:2], attrs))


def _best_of_blocks(editor: Editor, node: Node, axis: int, k: int, size: int) -> None:
    """TopK of every block, then of the results; equal elements stay in order."""
    to, attrs = Blocks(editor, node, axis), node.attrs
    blocks = to.split(node.inputs[0], size, _last(editor, node))
    shape, dtype = editor.types[blocks].shape, editor.types[blocks].dtype
    n_blocks, of_each = shape[axis], (*shape[: axis + 1], k, *shape[axis + 2 :])
    best = editor.new(f"{node.name}.best", of_each, dtype)
    inside = editor.new(f"{node.name}.inside", of_each, "int64")
    _top_k(editor, Node(node.name, "TopK", (blocks,), (best, inside), {**attrs, "axis": axis + 1}))
    left = to.reshape(best, n_blocks * k, n_axes=2)
    value, where = (*node.outputs, "")[:2]
    among = editor.new(f"{node.name}.among", (*shape[:axis], k, *shape[axis + 2 :]), "int64")
    _top_k(editor, Node(node.name, "TopK", (left,), (value, among if where else ""), attrs))
    if where:
        first = np.arange(n_blocks).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        at = to.emit("Add", (inside, to.constant(first * size)), of_each, "int64")
        listed = to.reshape(at, n_blocks * k, n_axes=2)
        attrs = {"axis": axis}
        editor.emit(Node(node.name, "GatherElements", (listed, among), (where,), attrs))


def _last(editor: Editor, node: Node) -> float:
    """The element that is ordered last, to pad blocks with."""
    dtype, largest = editor.types[node.inputs[0]].dtype, node.attrs.get("largest", 1)
    if _is_float(editor, node):
        return -np.inf if largest else np.nan
    limits = np.iinfo(dtype)
    return int(limits.min if largest else limits.max)


def _is_float(editor: Editor, node: Node) -> bool:
    return is_float(editor.types[node.inputs[0]].dtype)


def _by_rank(editor: Editor, node: Node, axis: int) -> None:
    shape = editor.types[node.inputs[0]].shape
    if shape[axis] > _MOST_RANKED:
        raise unsupported(node, editor.graph, f"it ranks more than {_MOST_RANKED} elements")
    ranks = editor.new(f"{node.name}.rank", shape)
    attrs = {"axis": axis, "largest": node.attrs.get("largest", 1)}
    editor.emit(Node(node.name, "Rank", node.inputs[:1], (ranks,), attrs))
    for name, source in zip(node.outputs, (node.inputs[:1], ()), strict=False):
        if name:
            editor.emit(Node(node.name, "Ranked", (ranks, *source), (name,), {"axis": axis}))


def _rank(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """How many elements of dimension `axis` come before each one: those that are larger (not
    `largest`: smaller), and equal ones that are further in front; NaN is the largest."""
    x, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of(x.shape)
    r = Axis(f"r{axes[axis].name}", x.shape[axis])
    other, own = x[(*axes[:axis], r, *axes[axis + 1 :])], x[axes]
    in_front = compare("lt", cast("float32", r.var), cast("float32", axes[axis].var))
    before = _comes_before(other, own, in_front, node.attrs["largest"])
    counts = select(before, f32(1), f32(0))
    return scope.compute("rank", axes, Reduce("sum", counts, (r,)))


def _comes_before(other: Expr, own: Expr, in_front: Expr, largest: int) -> Expr:
    """Whether `other` is ordered before `own`.

    Comparisons with NaN are false except `ne`: `not other < own` is true for a NaN in `other`.
    """
    if largest:
        wins = call("not", select(in_front, compare("lt", other, own), compare("le", other, own)))
    else:
        wins = select(in_front, compare("le", other, own), compare("lt", other, own))
    if not is_float(dtype_of(own)):
        return wins
    is_nan = compare("ne", other, other)
    of_nan = both(in_front, is_nan) if largest else either(in_front, call("not", is_nan))
    return select(compare("ne", own, own), of_nan, wins)


def _ranked(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, k, …] = the element of x that has rank k or, without x, where it is."""
    ranks, axis = tensor(operands, 0), node.attrs["axis"]
    axes = axes_of((*ranks.shape[:axis], shape[axis], *ranks.shape[axis + 1 :]))
    r = Axis(f"r{axes[axis].name}", ranks.shape[axis])
    at = (*axes[:axis], r, *axes[axis + 1 :])
    element = tensor(operands, 1)[at] if len(operands) > 1 else r.var
    is_it = compare("eq", ranks[at], cast("float32", axes[axis].var))
    one = Reduce("sum", select(is_it, element, Const(0, dtype_of(element))), (r,))
    return scope.compute("ranked", axes, one)


OPERATORS: Mapping[str, Operator] = {
    "TopK": Operator(canonical=_top_k),
    "Rank": Operator(define=_rank, any_type=True),
    "Ranked": Operator(define=_ranked, any_type=True),
}
