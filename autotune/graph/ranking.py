"""① The largest elements, in order: every pair is compared, nothing is moved.

    TopK(x, k)  ->  rank[i] = Σ_j [x[j] comes before x[i]]        j, i < n
                    y[k] = Σ_i [rank[i] = k] · x[i]               and likewise where it is

n² comparisons in vectors: 4 ms for the 8,400 candidates of a detector, 13 µs for 300.
"""

from __future__ import annotations

from autotune.graph.ir import Editor, Node, Shape, unsupported
from autotune.graph.scope import Operands, Scope, axes_of, tensor
from autotune.te.expr import (
    Axis,
    Const,
    Reduce,
    Tensor,
    both,
    cast,
    compare,
    dtype_of,
    f32,
    select,
)

_MOST_RANKED = 16_384
"""Every pair is compared. Ranks are floats, which have as many lanes as the elements."""


def top_k(editor: Editor, node: Node) -> None:
    """TopK -> the rank of every element, and for each of the first ranks, which one has it."""
    shape = editor.types[node.inputs[0]].shape
    axis = node.attrs.get("axis", -1) % len(shape)
    if shape[axis] > _MOST_RANKED:
        raise unsupported(node, editor.graph, f"it ranks more than {_MOST_RANKED} elements")
    ranks = editor.new(f"{node.name}.rank", shape)
    attrs = {"axis": axis, "largest": node.attrs.get("largest", 1)}
    editor.emit(Node(node.name, "Rank", node.inputs[:1], (ranks,), attrs))
    for name, source in zip(node.outputs, (node.inputs[:1], ()), strict=False):
        if name:
            editor.emit(Node(node.name, "Ranked", (ranks, *source), (name,), {"axis": axis}))


def rank(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """How many elements of dimension `axis` come before each one: those that are larger (not
    `largest`: smaller), and equal ones that are further in front."""
    x, axis, axes = tensor(operands, 0), node.attrs["axis"], axes_of(shape)
    r = Axis(f"r{axes[axis].name}", shape[axis])
    other, own = x[(*axes[:axis], r, *axes[axis + 1 :])], x[axes]
    wins = compare("gt" if node.attrs["largest"] else "lt", other, own)
    in_front = compare("lt", cast("float32", r.var), cast("float32", axes[axis].var))
    tied = both(compare("eq", other, own), in_front)
    counts = select(wins, f32(1), select(tied, f32(1), f32(0)))
    return scope.compute("rank", axes, Reduce("sum", counts, (r,)))


def ranked(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, k, …] = the element of x that has rank k or, without x, where it is."""
    ranks, axis, axes = tensor(operands, 0), node.attrs["axis"], axes_of(shape)
    r = Axis(f"r{axes[axis].name}", ranks.shape[axis])
    at = (*axes[:axis], r, *axes[axis + 1 :])
    element = tensor(operands, 1)[at] if len(operands) > 1 else r.var
    is_it = compare("eq", ranks[at], cast("float32", axes[axis].var))
    one = Reduce("sum", select(is_it, element, Const(0, dtype_of(element))), (r,))
    return scope.compute("ranked", axes, one)
