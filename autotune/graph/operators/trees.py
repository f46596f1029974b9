"""① Ensembles of decision trees as sets of leaves that are bits of words.

    TreeKeys(x[b, f], …)        ->  keys[c, b]         integers in the order of the numbers
    TreeWords(keys, …)          ->  words[g, v, b]     leaves that no test has ruled out
    TreeLeaves(words, leaves)   ->  [g, k, b]          Σ, min or max over v of the first one's value

A word holds up to 32 leaves of a tree, from left to right. A test that fails rules out the leaves
on its left; what remains begins with the leaf of the row. (Lucchese et al., QuickScorer, SIGIR
2015.) No row is compared with another and no test waits for one, so rows are lanes, or, of one row,
words are. What tests and values are is made in `autotune_operators.forests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.dtypes import DTYPES
from autotune.graph.ir import Node, Shape, TensorType
from autotune.graph.operators.definition import (
    Folding,
    Fusion,
    Operands,
    Operator,
    Scope,
    Typing,
    inside,
    tensor,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Reduce,
    Tensor,
    call,
    cast,
    compare,
    dtype_of,
    identity,
    select,
)

WORD_BITS = 32
"""Leaves of a word."""
_WORD = "int32"


def ordered(x: Expr) -> Expr:
    """A float as an integer of as many bits in the order of the numbers; both zeros are 0."""
    kind = DTYPES[f"int{DTYPES[dtype_of(x)].bits}"]
    bits = call(f"bits_as_{kind.name}", x)
    sign = Binary("shr", bits, Const(kind.bits - 1, kind.name))
    turned = Binary("bitxor", bits, Binary("bitand", sign, Const(int(kind.high), kind.name)))
    is_zero = compare("eq", bits, Const(int(kind.low), kind.name))
    return select(is_zero, Const(0, kind.name), turned)


def _keys(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """keys[c, b] = flip[c] xor (absent[c] where x[b, column[c]] is NaN, else it as an integer)."""
    x, column, absent, flip = (tensor(operands, n) for n in range(4))
    c, b = Axis("c", shape[0]), Axis("b", shape[1])
    value = x[b, inside(cast("int64", column[c]), x.shape[1])]
    key = select(compare("ne", value, value), absent[c], ordered(value))
    return scope.compute("keys", (c, b), Binary("bitxor", key, flip[c]))


def _words(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """words[g, v, b] = AND over n of (all leaves where the test holds, else leaves[g, v, n])."""
    keys, column, threshold, leaves = (tensor(operands, n) for n in range(4))
    g, v, b = (Axis(name, extent) for name, extent in zip("gvb", shape, strict=True))
    n = Axis("n", column.shape[2])
    key = keys[inside(cast("int64", column[g, v, n]), keys.shape[0]), b]
    holds = compare("le", key, threshold[g, v, n])
    term = select(holds, identity("bitand", _WORD), leaves[g, v, n])
    return scope.compute("words", (g, v, b), Reduce("bitand", term, (n,)))


def _leaves(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[g, k, b] = Σ over v of values[g, v, k, zeros below the first leaf of words[g, v, b]].

    Attribute `reduction` is the reduction; with `several`, words may be empty and count for
    nothing; with `by_row`, targets are last: values[g, v, leaf, k] -> y[g, b, k].
    """
    words, values = tensor(operands, 0), tensor(operands, 1)
    by_row, op = node.attrs.get("by_row", 0), node.attrs.get("reduction", "sum")
    g, *rest = (Axis(name, n) for name, n in zip("gbk" if by_row else "gkb", shape, strict=True))
    b, k = rest if by_row else reversed(rest)
    v = Axis("v", words.shape[1])
    word = words[g, v, b]
    leaf = inside(cast("int64", call("trailing_zeros", word)), values.shape[2 if by_row else 3])
    value: Expr = values[(g, v, leaf, k) if by_row else (g, v, k, leaf)]
    if node.attrs.get("several", 0):
        value = select(compare("ne", word, Const(0, _WORD)), value, identity(op, values.dtype))
    return scope.compute("leaves", (g, *rest), Reduce(op, value, (v,)))


def _shape_of_leaves(rw: Rewriter) -> Shape:
    g, b = rw.shape(0)[0], rw.shape(0)[2]
    return (g, b, rw.shape(1)[3]) if rw.attr("by_row", 0) else (g, rw.shape(1)[2], b)


def _told(shape: Callable[[Rewriter], Shape], dtype: Callable[[Rewriter], str]) -> Typing:
    return lambda rw, infer: [TensorType(shape(rw), dtype(rw))]


OPERATORS: Mapping[str, Operator] = {
    "TreeKeys": Operator(
        define=_keys,
        fusion=Fusion.INJECTIVE,
        roles=("x", "column", "absent", "flip"),
        folding=Folding.NEVER,
        typing=_told(lambda rw: (rw.shape(1)[0], rw.shape(0)[0]), lambda rw: rw.kind(2).dtype),
    ),
    "TreeWords": Operator(
        define=_words,
        roles=("keys", "column", "threshold", "leaves"),
        folding=Folding.NEVER,
        typing=_told(lambda rw: (*rw.shape(1)[:2], rw.shape(0)[1]), lambda rw: _WORD),
    ),
    "TreeLeaves": Operator(
        define=_leaves,
        roles=("words", "values"),
        folding=Folding.NEVER,
        typing=_told(_shape_of_leaves, lambda rw: rw.kind(1).dtype),
    ),
}
