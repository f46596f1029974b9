"""① Products with keys and values of a cache, which are read where they are.

MatMul(x, Reshape(Expand(keys)))    ->  Reshape(MatMul(Reshape(x), keys))   heads that share keys
Softmax(Reshape(x))                 ->  Reshape(Softmax(x))
MatMul(x, Transpose(keys))          ->  MatMul(x, keys, trans_b)            a few rows, a state
MatMul(x, moved (keys · c))         ->  MatMul(x, moved keys) · c           one c, a state
Reshape(Transpose(keys))            ->  Transpose(Reshape(keys))            of a batch, a state
Reshape(Cast(narrow keys))          ->  Cast(Reshape(narrow keys))          likewise Dequantize
MatMul(x, Cast(narrow keys))        ->  MatMul(x, narrow keys)
MatMul(x, Dequantize(bytes, steps)) ->  Mul(MatMul(x, bytes), steps)        one step for each column
                                        MatMul(Mul(x, steps), bytes)        one for each term

With few rows a product takes as long as its second operand takes to read, so nothing copies it.
"""

from __future__ import annotations

import math

from autotune.graph.ir import Node
from autotune.graph.operators.state import APPEND
from autotune.graph.passes.hoisting import broadcast_in
from autotune.graph.rewriter import Rewriter, Rule
from autotune.graph.state import CACHE_TYPES

FEW_ROWS = 16
"""Rows up to which copying the second operand costs more than it saves."""


def _swaps_last(node: Node | None, rank: int) -> bool:
    """Whether a node exchanges the last two dimensions, and nothing else."""
    return node is not None and tuple(node.attrs["perm"]) == (*range(rank - 2), rank - 1, rank - 2)


def _grouped(rw: Rewriter) -> None:
    """MatMul(x, Reshape(Expand(keys))) -> Reshape(MatMul(Reshape(x), keys))"""
    name, rank = rw.input(1), rw.rank(1)
    if rank < 3 or rw.rank(0) != rank or rw.input(2) or name in rw.constants:
        return
    turned = rw.maker(name, "Transpose")
    if turned is not None and not _swaps_last(turned, rank):
        return
    joined = rw.maker(turned.inputs[0] if turned else name, "Reshape")
    spread = rw.maker(joined.inputs[0], "Expand") if joined else None
    if joined is None or spread is None or spread.inputs[0] in rw.constants:
        return
    small, wide = (rw.types[n].shape for n in (spread.inputs[0], spread.output))
    shape, left = rw.types[joined.output].shape, rw.kind(0).shape
    small = (1,) * (len(wide) - len(small)) + small
    repeated = [d for d, (a, b) in enumerate(zip(small, wide, strict=True)) if a != b]
    if len(repeated) != 1:
        return
    at = repeated[0]
    group = wide[at]
    # the copies are neighbours in one dimension of the batch: (…, heads, group, …) -> (…, all, …)
    after = [math.prod(shape[d + 1 :]) for d in range(rank)]
    inner = math.prod(wide[at + 1 :])
    axis = next((d for d in range(rank - 2) if after[d] == inner), None)
    if axis is None or shape[axis] % group or left[: rank - 2] != shape[: rank - 2]:
        return
    if any(extent != 1 for extent in shape[axis + 1 : rank - 2]):
        return
    lead = (*shape[:axis], shape[axis] // group)
    rest = shape[axis + 1 : rank - 2]
    keys = rw("Reshape", spread.inputs[0], shape=(*lead, 1, *rest, *shape[-2:]))
    if turned is not None:
        order = (*range(rank - 1), rank, rank - 1)
        columns = (*lead, 1, *rest, shape[-1], shape[-2])
        keys = rw("Transpose", keys, shape=columns, perm=order)
    batch = (*lead, group, *rest)
    rows = rw("Reshape", rw.input(0), shape=(*batch, *left[-2:]))
    wanted, more = (*batch, left[-2], rw.type.shape[-1]), rw.node.inputs[2:]
    y = rw(rw.node.op, rows, keys, *more, shape=wanted, **rw.node.attrs)
    rw.result("Reshape", y)


def _softmax(rw: Rewriter) -> None:
    """Softmax(Reshape(MatMul)) -> Reshape(Softmax(MatMul))        along the same last dimension"""
    shape, axis = rw.type.shape, rw.attr("axis", -1)
    view = rw.private(rw.input(0), "Reshape")
    if view is None or axis % len(shape) != len(shape) - 1:
        return
    source = rw.types[view.inputs[0]].shape
    if len(source) < 2 or source[-1:] != shape[-1:] or rw.maker(view.inputs[0]) is None:
        return
    more, attrs = rw.node.inputs[1:], {**rw.node.attrs, "axis": len(source) - 1}
    rw.result("Reshape", rw(rw.node.op, view.inputs[0], *more, shape=source, **attrs))


def _in_place(rw: Rewriter) -> None:
    """MatMul(x, Transpose(keys)) -> MatMul(x, keys, trans_b)      a few rows"""
    rank = rw.rank(1)
    turned = rw.private(rw.input(1), "Transpose")
    if rank < 3 or rw.attr("trans_b", 0) or not _swaps_last(turned, rank) or turned is None:
        return
    shape, keys = rw.type.shape, rw.kind(1).shape
    n_rows = math.prod(shape[:-1]) // max(1, math.prod(keys[:-2]))
    if n_rows > FEW_ROWS or not _is_kept(rw, turned.inputs[0]):
        return
    rw.again(rw.input(0), turned.inputs[0], *rw.node.inputs[2:], trans_b=1)


def _is_kept(rw: Rewriter, name: str) -> bool:
    """Whether a tensor is in memory already: a state, or an input."""
    while (view := rw.maker(name, "Reshape")) is not None:
        name = view.inputs[0]
    return name in rw.editor.graph.inputs or rw.maker(name, APPEND) is not None


def _scaled(rw: Rewriter) -> None:
    """MatMul(x, moved (keys · c)) -> MatMul(x, moved keys) · c        one c, a state"""
    moves, name = _moves(rw, rw.input(1))
    product = rw.private(name, "Mul")
    if product is None or rw.input(2):
        return
    factors = [n for n in product.inputs if n in rw.constants and rw.constants[n].size == 1]
    source = next((n for n in product.inputs if n not in factors), "")
    if not factors or not _is_of_state(rw, source):
        return
    for move in reversed(moves):
        source = rw(move.op, source, shape=rw.types[move.output].shape, **move.attrs)
    y = rw(
        rw.node.op, rw.input(0), source, *rw.node.inputs[2:], shape=rw.type.shape, **rw.node.attrs
    )
    rw.result("Mul", y, rw.array(rw.constants[factors[0]].reshape(())))


def _turned_last(rw: Rewriter) -> None:
    """Reshape(Transpose(keys)) -> Transpose(Reshape(keys))        of a batch, a state"""
    turned, shape = rw.private(rw.input(0), "Transpose"), rw.type.shape
    rank = rw.rank(0)
    if rank < 2 or not _swaps_last(turned, rank) or turned is None:
        return
    if rw.kind(0).shape[-2:] != shape[-2:] or not _is_of_state(rw, turned.inputs[0]):
        return
    last = len(shape) - 2
    joined = rw("Reshape", turned.inputs[0], shape=(*shape[:-2], shape[-1], shape[-2]))
    rw.result("Transpose", joined, perm=(*range(last), last + 1, last))


def _is_of_state(rw: Rewriter, name: str) -> bool:
    """Whether a tensor consists of the elements of a state, as they are or widened."""
    _, origin = _moves(rw, name)
    wide = rw.maker(origin, "Cast", "Dequantize")
    _, origin = _moves(rw, wide.inputs[0]) if wide else ([], origin)
    return rw.maker(origin, APPEND) is not None


def _moves(rw: Rewriter, name: str) -> tuple[list[Node], str]:
    """The nodes that move elements of a tensor to another, the last one first, and that tensor."""
    found = []
    while (move := rw.maker(name, "Reshape", "Transpose", "Expand")) is not None:
        found.append(move)
        name = move.inputs[0]
    return found, name


def _widened(rw: Rewriter, name: str) -> Node | None:
    """The Cast or Dequantize that makes a tensor of a state that is stored in another type."""
    maker = rw.maker(name, "Cast", "Dequantize")
    source = maker.inputs[0] if maker else ""
    if maker is None or rw.types[source].dtype not in CACHE_TYPES.values():
        return None
    while (view := rw.maker(source, "Reshape")) is not None:
        source = view.inputs[0]
    return maker if rw.maker(source, APPEND) else None


def _widen_last(rw: Rewriter) -> None:
    """Reshape(Cast(keys)) -> Cast(Reshape(keys)); likewise Dequantize with its steps"""
    wide = _widened(rw, rw.input(0))
    if wide is None:
        return
    stored, *steps = wide.inputs
    shape, moved = rw.types[stored].shape, rw.type.shape
    shapes = [broadcast_in(rw.types[n].shape, shape, moved) for n in steps]
    if None not in shapes:
        pairs = zip(steps, filter(None, shapes), strict=True)
        others = [rw("Reshape", name, shape=found) for name, found in pairs]
        rw.like(wide, rw("Reshape", stored, shape=moved), *others)


def _as_stored(rw: Rewriter) -> None:
    """MatMul(x, Dequantize(bytes, steps)) -> Mul(MatMul(x, bytes), steps); likewise Cast"""
    name, rank = rw.input(1), rw.rank(1)
    turned = rw.maker(name, "Transpose")
    wide = _widened(rw, turned.inputs[0] if turned else name)
    if wide is None or rw.rank(0) != rank or (turned and not _swaps_last(turned, rank)):
        return
    stored, *steps = wide.inputs
    keys = stored
    if turned is not None:
        keys = rw("Transpose", stored, shape=rw.kind(1).shape, perm=turned.attrs["perm"])
    others = rw.node.inputs[2:]
    if not steps:
        rw.again(rw.input(0), keys, *others)
        return
    *lead, first, last = rw.types[steps[0]].shape
    is_turned = (turned is not None) != bool(rw.attr("trans_b", 0))
    n_terms, n_columns = (last, first) if is_turned else (first, last)
    if n_terms == 1 and not rw.input(2):
        row = rw("Reshape", steps[0], shape=(*lead, 1, n_columns))
        y = rw(rw.node.op, rw.input(0), keys, *others, shape=rw.type.shape, **rw.node.attrs)
        rw.result("Mul", y, row)
    elif n_columns == 1 and not rw.attr("trans_a", 0):
        row = rw("Reshape", steps[0], shape=(*lead, 1, n_terms))
        rw.again(rw("Mul", rw.input(0), row, shape=rw.kind(0).shape), keys, *others)


GROUPED = Rule("grouped-products", _grouped, {"MatMul"})
SOFTMAX = Rule("softmax-of-rows", _softmax, {"Softmax"})
IN_PLACE = Rule("products-in-place", _in_place, {"MatMul"})
TURNED_LAST = Rule("turned-last", _turned_last, {"Reshape"})
SCALED = Rule("scaled-keys", _scaled, {"MatMul"})
WIDEN_LAST = Rule("widen-last", _widen_last, {"Reshape"})
AS_STORED = Rule("keys-as-stored", _as_stored, {"MatMul"})
