"""① Ensembles of decision trees as sets of leaves that are bits of words.

    TreeKeys(x[b, f], …)        ->  keys[c, b]         integers in the order of the numbers
    TreeWords(keys, …)          ->  words[g, v, b]     leaves that no test has ruled out
    TreeLeaves(words, leaves)   ->  [g, k, b]          Σ, min or max over v of the first one's value

A word holds up to 32 leaves of a tree, from left to right. A test that fails rules out the leaves
on its left; what remains begins with the leaf of the row. (Lucchese et al., QuickScorer, SIGIR
2015.) No row is compared with another and no test waits for one, so rows are lanes, or, of one row,
words are.

    TreeSteps(places, keys, nodes)  ->  places[g, t, b]    from a node to a branch of it, or a leaf
    TreeValues(places, values)      ->  [g, k, b]          Σ, min or max over t

is the walk from node to node, which visits few nodes of large trees. `Trees` has the tables of
both; pass `canonical` takes the one that is estimated to be faster (`_is_walked`). What tests,
nodes and values are is made in `autotune_operators.forests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

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
    idx,
    select,
)
from autotune.te.reductions import identity

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


def _steps(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """places'[g, t, b] = places[g, t, b] + step + (keys[column, b] > threshold), of its node.

    nodes[m] is step to the first branch in the upper half and column in the lower one, threshold;
    the second branch follows the first. A leaf stays.
    """
    places, keys, nodes = (tensor(operands, n) for n in range(3))
    g, t, b = (Axis(name, extent) for name, extent in zip("gtb", shape, strict=True))
    at = inside(cast("int64", places[g, t, b]), nodes.shape[0])
    branch, threshold = (nodes[at, idx(n)] for n in range(2))
    half = DTYPES[nodes.dtype].bits // 2
    column = Binary("bitand", branch, Const((1 << half) - 1, nodes.dtype))
    key = keys[inside(cast("int64", column), keys.shape[0]), b]
    step = Binary("shr", branch, Const(half, nodes.dtype))
    second = select(
        compare("gt", cast(nodes.dtype, key), threshold), Const(1, _WORD), Const(0, _WORD)
    )
    return scope.compute("places", (g, t, b), places[g, t, b] + cast(_WORD, step) + second)


def _values(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[g, k, b] = Σ over t of values[places[g, t, b], k]; attribute `reduction` is the Σ."""
    places, values = tensor(operands, 0), tensor(operands, 1)
    g, k, b = (Axis(name, extent) for name, extent in zip("gkb", shape, strict=True))
    t = Axis("t", places.shape[1])
    value = values[inside(cast("int64", places[g, t, b]), values.shape[0]), k]
    body = Reduce(node.attrs.get("reduction", "sum"), value, (t,))
    return scope.compute("values", (g, k, b), body)


# --- the choice ---------------------------------------------------------------------------------

_MANY = 8
"""Rows from which on they are lanes; choices do not depend on how many more there are."""
_PER_TEST, _PER_STEP, _PER_STEP_OF_ROW, _PER_KERNEL = 2.6, 6.5, 10.0, 500.0
"""Cycles of a test of a vector of rows or of a single one, of a step of a walk (a single row waits
for memory), of a call."""
_LANES = 16


def _is_walked(n_rows: int, n_tests: int, depths: Sequence[tuple[int, int]]) -> bool:
    """Whether the walk is estimated to be faster; `depths`: trees, and their steps."""
    n_steps, n_kernels = sum(n * d for n, d in depths), sum(d for _, d in depths)
    if n_rows == 1:
        return _PER_STEP_OF_ROW * n_steps + _PER_KERNEL * n_kernels < _PER_TEST * n_tests
    if n_rows >= _MANY:
        return _PER_STEP * n_steps < _PER_TEST * n_tests / _LANES
    return _PER_STEP * n_steps * n_rows + _PER_KERNEL * n_kernels < _PER_TEST * n_tests


def _chosen(rw: Rewriter) -> None:
    """Trees(keys, values of words, values of nodes, nodes, tests…, roots…) -> words, or a walk."""
    keys, of_words, of_nodes, nodes, *rest = rw.node.inputs
    n_tables, depths = 3 * rw.attr("n_tables"), rw.attr("depths")
    n_rows, dtype = rw.kind(0).shape[1], rw.kind(1).dtype
    tables, roots = rest[:n_tables], rest[n_tables:]
    n_tests = sum(prod(rw.types[name].shape) for name in tables[::3])
    sizes = [rw.types[name].shape[:2] for name in roots]
    walks = [(prod(shape), d) for shape, d in zip(sizes, depths, strict=True)]
    g, k = rw.kind(1).shape[0], rw.kind(2).shape[1]
    if _is_walked(n_rows, n_tests, walks):
        parts = []
        for place, depth, shape in zip(roots, depths, sizes, strict=True):
            place = rw("Expand", place, shape=(*shape, n_rows)) if n_rows > 1 else place
            for _ in range(depth):
                place = rw("TreeSteps", place, keys, nodes, shape=(*shape, n_rows), dtype=_WORD)
            parts.append(place)
        places = rw("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        attrs = {"reduction": rw.attr("reduction")}
        found = rw("TreeValues", places, of_nodes, shape=(g, k, n_rows), dtype=dtype, **attrs)
    else:
        words = [
            rw("TreeWords", keys, *tables[n : n + 3], shape=(*shape[:2], n_rows), dtype=_WORD)
            for n in range(0, n_tables, 3)
            for shape in [rw.types[tables[n]].shape]
        ]
        word = rw("Concat", *words, axis=1) if len(words) > 1 else words[0]
        by_row = rw.attr("by_row")
        shape = (g, n_rows, k) if by_row else (g, k, n_rows)
        names = ("reduction", "by_row", "several")
        attrs = {name: rw.attr(name) for name in names}
        found = rw("TreeLeaves", word, of_words, shape=shape, dtype=dtype, **attrs)
        if by_row:  # targets are of one group
            rw.result("Reshape", found, shape=(n_rows, k))
            return
    flat = rw("Reshape", found, shape=(g * k, n_rows))
    rw.result("Transpose", flat, perm=(1, 0))


def _shape_of_leaves(rw: Rewriter) -> Shape:
    g, b = rw.shape(0)[0], rw.shape(0)[2]
    return (g, b, rw.shape(1)[3]) if rw.attr("by_row", 0) else (g, rw.shape(1)[2], b)


def _told(shape: Callable[[Rewriter], Shape], dtype: Callable[[Rewriter], str]) -> Typing:
    return lambda rw, infer: [TensorType(shape(rw), dtype(rw))]


OPERATORS: Mapping[str, Operator] = {
    "Trees": Operator(
        canonical=_chosen,
        folding=Folding.NEVER,
        typing=_told(
            lambda rw: (rw.shape(0)[1], rw.shape(1)[0] * rw.shape(2)[1]),
            lambda rw: rw.kind(1).dtype,
        ),
    ),
    "TreeSteps": Operator(
        define=_steps,
        roles=("places", "keys", "nodes"),
        folding=Folding.NEVER,
        typing=_told(lambda rw: (*rw.shape(0)[:2], rw.shape(1)[1]), lambda rw: _WORD),
    ),
    "TreeValues": Operator(
        define=_values,
        roles=("places", "values"),
        folding=Folding.NEVER,
        typing=_told(
            lambda rw: (rw.shape(0)[0], rw.shape(1)[1], rw.shape(0)[2]),
            lambda rw: rw.kind(1).dtype,
        ),
    ),
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
