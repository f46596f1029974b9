"""④ Reductions inside of a scan: over as many terms as there are, in vectors of partial results.

    for r in N and n: acc[] = acc[] op f(r)
    ->  lanes[l] = identity;  for q in N/16 and n/16: for l in 16 (vector): lanes[l] op= f(16·q + l)
        acc[] = acc[] op lanes[0] op lanes[1] op …;  for r in 15 and n - 16·(n/16): acc[] = … f(…)

Every scalar of a scan is waited for by those behind it, so its own terms are what there is of
vectors. Whole vectors end in front of `n`: nothing is read behind it. Where data tell the place of
a vector, it is bound before, inside of its tensor as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.dtypes import DTYPES
from autotune.loopir.nodes import Alloc, Body, Buffer, For, Let, Stmt, Store
from autotune.loopir.visitor import rewrite_exprs
from autotune.te.arith import linear
from autotune.te.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Tensor,
    Var,
    add,
    binary,
    floordiv,
    idx,
    loads,
    map_expr,
    maximum,
    minimum,
    mul,
    sub,
    substitute,
    variables,
)
from autotune.te.reductions import REDUCE_BINARY, identity

LANES = 16
"""Partial results: vectors of more or fewer lanes are made of them."""


def in_vectors(body: Body, op: str) -> Body:
    """A loop over a ragged axis that is alone, as above; others as they are."""
    match body:
        case (For(limit=limit, kind="serial", body=(Store() as store,)) as loop,):
            if limit is not None and loop.extent > LANES and _is_sum(store, op):
                return _split(loop, store, limit, op)
    return body


def with_carry(body: Body, tensor: Tensor) -> Body:
    """A loop over the last axis of a scan with the element before in a register; others as they
    are.

    for i: y[i] = f(y[max(i - 1, 0)])   ->   local c; c[] = 0; for i: { c[] = f(c[]); y[i] = c[] }
    """
    match body:
        case (For(kind="serial", body=(Store() as store,)) as loop,):
            if store.tensor == tensor and store.indices[-1:] == (Var(loop.var),):
                return _carried(loop, store)
    return body


def _carried(loop: For, store: Store) -> Body:
    tensor = store.tensor
    carry = Tensor(f"{tensor.name}.carry", (), tensor.dtype)
    last = maximum(sub(Var(loop.var), idx(1)), idx(0))
    before = _forms((*store.indices[:-1], last))
    own = Load(carry, ())

    def one(e: Expr) -> Expr | None:
        is_own = isinstance(e, Load) and e.tensor == tensor
        return own if is_own and isinstance(e, Load) and _forms(e.indices) == before else None

    value = map_expr(store.value, one)
    if value == store.value:
        return (loop,)
    steps = (Store(carry, (), value), replace(store, value=own))
    first = Store(carry, (), Const(DTYPES[tensor.dtype].literal(0), tensor.dtype))
    return (Alloc(Buffer(carry, "local", ()), (first, replace(loop, body=steps))),)


def _forms(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(linear(i).expr for i in indices)


def _is_sum(store: Store, op: str) -> bool:
    value = store.value
    is_own = isinstance(value, Binary) and value.a == Load(store.tensor, store.indices)
    return is_own and isinstance(value, Binary) and value.op == REDUCE_BINARY[op]


def _split(loop: For, store: Store, limit: Expr, op: str) -> Body:
    assert isinstance(store.value, Binary)
    acc, term, how = Load(store.tensor, store.indices), store.value.b, REDUCE_BINARY[op]
    lanes = Tensor(f"{store.tensor.name}.lanes", (LANES,), store.tensor.dtype)
    q, lane = Var(f"{loop.var}.q"), Var(f"{loop.var}.l")
    limit = maximum(limit, idx(0))  # below, there are no terms
    whole = floordiv(limit, idx(LANES))

    def each(value: Expr) -> For:
        return For(lane.name, LANES, "vectorize", (Store(lanes, (lane,), value),))

    lets: dict[Expr, Let] = {}
    found = placed_at(term, loop.var, mul(q, idx(LANES)), lane, lets)
    own = Load(lanes, (lane,))
    step: Body = (*lets.values(), each(binary(how, own, found)))
    vectors = For(q.name, loop.extent // LANES, "serial", step, whole)
    joined = Store(store.tensor, store.indices, joint(acc, lanes, how))
    begin = mul(whole, idx(LANES))
    last = add(begin, Var(loop.var))
    rest = rewrite_exprs(loop.body, lambda e: last if e == Var(loop.var) else None)
    tail = For(loop.var, LANES - 1, "serial", rest, sub(limit, begin))
    inner: tuple[Stmt, ...] = (each(identity(op, lanes.dtype)), vectors, joined)
    return (Alloc(Buffer(lanes, "local", (1,)), inner), tail)


def joint(acc: Expr, lanes: Tensor, how: str) -> Expr:
    """`acc` and all partial results."""
    for n in range(LANES):
        acc = binary(how, acc, Load(lanes, (idx(n),)))
    return acc


def placed_at(e: Expr, var: str, first: Expr, lane: Var, lets: dict[Expr, Let]) -> Expr:
    """`e` for the vector of terms from `first` on; `lets` bind the places that data tell."""
    terms = {var: add(first, lane)}

    def one(x: Expr) -> Expr | None:
        if not isinstance(x, Load):
            return terms[var] if x == Var(var) else None
        pairs = zip(x.indices, x.tensor.shape, strict=True)
        return Load(x.tensor, tuple(place(i, n) for i, n in pairs))

    def place(index: Expr, extent: int) -> Expr:
        if var not in variables(index) or not loads(index):
            return map_expr(index, one)
        begin = substitute(index, {var: first})
        inside = maximum(minimum(begin, idx(extent - LANES)), idx(0))
        if inside not in lets:
            lets[inside] = Let(f"{var}.at{len(lets)}", inside)
        return add(Var(lets[inside].var), lane)

    return map_expr(e, one)
