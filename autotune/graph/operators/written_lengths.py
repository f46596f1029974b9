"""① Operators whose results have a length that data decide (see `graph.written`).

    count[i] = Σ over j ≤ i of (x[j] is not 0)                  a scan
    place[p] = Σ over j of [x[j] is not 0 and count[j] = p + 1] · j         one step for each j
    NonZero(x) = Front(place, count[last])

What else there is comes from these places: Compress gathers them. `top_k` has TopK, `suppression`
has NonMaxSuppression, `unique` has Unique.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from autotune.graph.ir import Node, Shape, TensorType, malformed
from autotune.graph.operators.definition import (
    Folding,
    Operands,
    Operator,
    Scope,
    axes_of,
    inside,
    tensor,
)
from autotune.graph.rewriter import Rewrite, Rewriter
from autotune.graph.written import FRONT, WrittenLengths
from autotune.te.dag import Compute
from autotune.te.expr import (
    INDEX,
    Axis,
    Compare,
    Const,
    Expr,
    Reduce,
    Select,
    Tensor,
    binary,
    both,
    cast,
    compare,
    dtype_of,
    idx,
    maximum,
    minimum,
    select,
    sub,
)

_LONG = 4096
"""Elements from which blocks of them are looked at first."""
_BLOCK = 64

NONE = Const(0, INDEX)
ONE = Const(1, INDEX)


def written_of(rw: Rewriter) -> WrittenLengths:
    """The lengths of the model that is read."""
    assert rw.editor.written is not None
    return rw.editor.written


def front(rw: Rewriter, x: str, count: str, name: str, axis: int = 0, start: int = 0) -> str:
    """The first `count` elements of a tensor along an axis, a length of this name."""
    kind, most = rw.types[x], rw.types[x].shape[axis] - start
    n = written_of(rw).length(name, most, count)
    shape = (*kind.shape[:axis], n, *kind.shape[axis + 1 :])
    return rw(FRONT, x, count, shape=shape, axis=axis, start=start)


def chosen(rw: Rewriter, flags: str, name: str) -> str:
    """The places of a vector where it is not zero, in order: int64, a length of this name."""
    written = written_of(rw)
    key = (FRONT, flags)
    if key not in written.known:
        n = written.asked[name] = rw.types[flags].shape[0]
        is_long = name in written.fixed and n >= _LONG
        written.known[key] = (_of_blocks if is_long else _of_all)(rw, flags, name)
    return written.known[key]


def _of_all(rw: Rewriter, flags: str, name: str) -> str:
    n = rw.types[flags].shape[0]
    counts = rw("RunningCount", flags, shape=(n,), dtype=INDEX)
    count = rw("LastOf", counts, shape=(1,), dtype=INDEX)
    places = rw("PlacesOf", flags, counts, shape=(n,), dtype=INDEX)
    return front(rw, places, count, name)


def _of_blocks(rw: Rewriter, flags: str, name: str) -> str:
    """Those of the blocks in which there are some, which few are as a rule."""
    kind = rw.types[flags]
    if kind.shape[0] % _BLOCK:
        more = rw.array(np.zeros(-kind.shape[0] % _BLOCK, kind.dtype))
        size = kind.shape[0] + rw.types[more].shape[0]
        flags = rw("Concat", flags, more, shape=(size,), dtype=kind.dtype, axis=0)
    n_blocks = rw.types[flags].shape[0] // _BLOCK
    shape = (n_blocks, _BLOCK)
    rows = rw("Reshape", flags, rw.integers(*shape), shape=shape, dtype=kind.dtype)
    have = rw("AnyOf", rows, shape=(n_blocks,), dtype="int32")
    blocks = _of_all(rw, have, f"{name}.blocks")
    n = rw.types[blocks].shape[0]
    some = rw("Gather", rows, blocks, shape=(n, _BLOCK), dtype=kind.dtype, axis=0)
    some = rw("Reshape", some, rw.integers(n * _BLOCK), shape=(n * _BLOCK,), dtype=kind.dtype)
    places = _of_all(rw, some, name)
    return rw("PlaceInBlocks", places, blocks, shape=rw.types[places].shape, dtype=INDEX)


def told(rw: Rewriter, *names: str) -> None:
    """Let these tensors be the results, of their types."""
    pairs = list(zip(names, rw.node.outputs, strict=False))
    rw.returns(*names)
    rw.types |= {out: rw.types[name] for name, out in pairs if out}


# --- operators of the standard ---


def _non_zero(rw: Rewriter) -> None:
    """NonZero(x) -> the indices of each place, one dimension after the other."""
    if rw.value(0) is not None:
        return
    shape = rw.shape(0)
    flags = flat(rw, rw.input(0))
    places = chosen(rw, flags, rw.node.output)
    n = rw.types[places].shape[0]
    rank = max(1, len(shape))
    told(rw, rw("IndicesOf", places, shape=(rank, n), dtype=INDEX, extents=shape or (1,)))


def flat(rw: Rewriter, x: str) -> str:
    """A tensor as one row, the same for all who ask."""
    known, key = written_of(rw).known, ("flat", x)
    if len(rw.types[x].shape) == 1:
        return x
    if key not in known:
        known[key] = rw.reshaped(x, math.prod(rw.types[x].shape))
        rw.types[known[key]] = TensorType((math.prod(rw.types[x].shape),), rw.types[x].dtype)
    return known[key]


def _compress(rw: Rewriter) -> None:
    """Compress(x, condition) -> Gather(x, places where it holds)."""
    if rw.value(1) is not None:
        return
    shape, axis = rw.shape(0), rw.attr("axis", None)
    if axis is not None and not -len(shape) <= axis < len(shape):
        raise malformed(rw.node, f"axis {axis} of {len(shape)} dimensions")
    x = rw.input(0) if axis is not None else flat(rw, rw.input(0))
    places = chosen(rw, rw.input(1), rw.node.output)
    if axis is None:
        axis = 0
    kind, n = rw.types[x], rw.types[places].shape[0]
    axis %= len(kind.shape)
    shape = (*kind.shape[:axis], n, *kind.shape[axis + 1 :])
    told(rw, rw("Gather", x, places, shape=shape, axis=axis))


def _slice(rw: Rewriter) -> None:
    """Slice(x, start, end) of at most so many elements of a length -> Front from `start` on."""
    if any(rw.value(n) is None for n in range(1, len(rw.node.inputs)) if rw.input(n)):
        return
    shape, values = rw.shape(0), [rw.value(n) for n in range(1, 5)]
    starts, ends = (v.reshape(-1).tolist() for v in values[:2] if v is not None)
    axes = [*range(len(starts))] if values[2] is None else values[2].reshape(-1).tolist()
    steps = [1] * len(starts) if values[3] is None else values[3].reshape(-1).tolist()
    if len(starts) != 1 or steps[0] != 1 or starts[0] < 0 or ends[0] < 0:
        return
    axis, start, end = axes[0] % len(shape), starts[0], ends[0]
    taken = max(0, min(end, shape[axis]) - start)
    looked(rw, axis, (*shape[:axis], taken, *shape[axis + 1 :]))
    if rw.node.outputs[0] not in written_of(rw).shortened:
        return
    most = end - start
    count = rw(
        "AtMost", length_of(rw, shape[axis], axis), shape=(1,), dtype=INDEX, most=most, less=start
    )
    told(rw, shortened(rw, rw.input(0), count, rw.node.outputs[0], axis, start, most))


def looked(rw: Rewriter, axis: int, result: Shape) -> None:
    """Tell that this node may take some of a length along an axis."""
    written_of(rw).looks[rw.node.outputs[0]] = axis, rw.shape(0), result


def length_of(rw: Rewriter, n: int, axis: int) -> str:
    """The number of elements along an axis of the operand, as a tensor."""
    return rw("ExtentOf", rw.input(0), shape=(1,), dtype=INDEX, axis=axis)


def shortened(
    rw: Rewriter, x: str, count: str, name: str, axis: int, start: int, most: int | None
) -> str:
    """`front` of at most `most` elements."""
    kind = rw.types[x]
    room = kind.shape[axis] - start
    n = written_of(rw).length(name, room if most is None else min(most, room), count)
    shape = (*kind.shape[:axis], n, *kind.shape[axis + 1 :])
    return rw(FRONT, x, count, shape=shape, axis=axis, start=start)


RULES: Mapping[str, Rewrite] = {
    "NonZero": _non_zero,
    "Compress": _compress,
    "Slice": _slice,
}
"""Rewrites of nodes, where lengths that data decide are followed."""

# --- definitions ---


def scan(
    scope: Scope, role: str, axes: tuple[Axis, ...], dtype: str, body: Callable[[Tensor], Expr]
) -> Tensor:
    """A computation that reads elements of itself: see `te.dag.Compute.scanned`."""
    own = Tensor(scope.named(role), tuple(a.extent for a in axes), dtype)
    op = Compute(own, axes, body(own))
    scope.ops.append(op)
    return own


def _is_set(x: Expr) -> Expr:
    dtype = dtype_of(x)
    return x if dtype == "bool" else compare("ne", x, Const(0, dtype))


def _running_count(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i] = y[i - 1] + (1 where x[i] is not 0)."""
    x, (i,) = tensor(operands, 0), axes_of(shape)

    def body(y: Tensor) -> Expr:
        before = y[maximum(sub(i.var, idx(1)), idx(0))]
        own = select(_is_set(x[i]), ONE, NONE)
        return select(compare("lt", idx(0), i.var), before, NONE) + own

    return scan(scope, "count", (i,), INDEX, body)


def _places(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[p] = the place j of element p of those of x that are not 0."""
    x, counts = tensor(operands, 0), tensor(operands, 1)
    (p,) = axes_of(shape)
    j = Axis(f"r{p.name}", x.shape[0])
    place = inside(counts[j] - ONE, shape[0])
    counted = both(_is_set(x[j]), compare("eq", place, p.var))
    return scope.compute("places", (p,), Reduce("sum", select(counted, j.var, NONE), (j,)))


def _any(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[b] = 1 where some x[b, i] is not 0, else 0."""
    x, (b,) = tensor(operands, 0), axes_of(shape)
    i = Axis("r", x.shape[1])
    own = select(_is_set(x[b, i]), Const(1, "int32"), Const(0, "int32"))
    return scope.compute("have", (b,), Reduce("bitor", own, (i,)))


def _in_blocks(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i] = the place among all elements of place p[i] in the chosen blocks."""
    places, blocks, (i,) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)
    block = binary("shr", places[i], Const(_BLOCK.bit_length() - 1, INDEX))
    first = blocks[inside(block, blocks.shape[0])]
    inner = binary("bitand", places[i], Const(_BLOCK - 1, INDEX))
    whole = binary("shl", first, Const(_BLOCK.bit_length() - 1, INDEX))
    return scope.compute("places", (i,), binary("bitor", whole, inner))


def _last(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The last element of x; 0 where it has none, as one of a length may."""
    x = tensor(operands, 0)
    n = idx(x.shape[0])
    last = Select(Compare("lt", idx(0), n), x[idx(x.shape[0] - 1)], NONE)  # as it is at any n
    return scope.compute("last", axes_of(shape), last)


def _at_most(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """min(max(n - less, 0), most)."""
    n = cast(INDEX, tensor(operands, 0)[idx(0)])
    left = maximum(binary("sub", n, Const(node.attrs["less"], INDEX)), NONE)
    return scope.compute("number", axes_of(shape), minimum(left, Const(node.attrs["most"], INDEX)))


def _extent(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The extent of x along `axis`."""
    axes = axes_of(shape)
    n = Const(tensor(operands, 0).shape[node.attrs["axis"]], INDEX)
    return scope.compute("extent", axes, n)


def _indices(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[d, i] = index d of place x[i] in a tensor of `extents`."""
    x, (d, i) = tensor(operands, 0), axes_of(shape)
    extents = node.attrs["extents"]
    strides = [math.prod(extents[n + 1 :]) for n in range(len(extents))]
    found: Expr = NONE
    for n, (stride, extent) in reversed([*enumerate(zip(strides, extents, strict=True))]):
        at = x[i] if n == len(extents) - 1 else binary("quot", x[i], Const(stride, INDEX))
        at = at if n == 0 else binary("rem", at, Const(extent, INDEX))
        found = at if n == len(extents) - 1 else select(compare("eq", d.var, idx(n)), at, found)
    return scope.compute("indices", (d, i), found)


def _front(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, i, …] = x[…, start + i, …]."""
    x, axes, axis = tensor(operands, 0), axes_of(shape), node.attrs["axis"]
    at: list[Expr] = [a.var for a in axes]
    at[axis] = at[axis] + node.attrs["start"]
    return scope.compute("front", axes, x[tuple(at)])


OPERATORS: Mapping[str, Operator] = {
    FRONT: Operator(define=_front, roles=("x", "count"), folding=Folding.NEVER),
    "RunningCount": Operator(define=_running_count),
    "PlacesOf": Operator(define=_places, roles=("x", "counts")),
    "LastOf": Operator(define=_last),
    "AnyOf": Operator(define=_any),
    "PlaceInBlocks": Operator(define=_in_blocks, roles=("x", "blocks")),
    "AtMost": Operator(define=_at_most),
    "ExtentOf": Operator(define=_extent, folding=Folding.NEVER),
    "IndicesOf": Operator(define=_indices),
}
