"""④ A scan whose terms count where an earlier element of it says so goes through those alone.

    for k in N: y[k] = op over r < k - a[k]: select(y[a[k] + r] == 0, f(x[a[k] + r], k), identity)
    ->  count[0] = 0
        for k in N: from = count[a[k]]
            y[k] = op over p < count[k] - from: f(x'[from + p], k)
            x'[count[k]] = x[k];  count[k + 1] = count[k] + (1 where y[k] == 0)

`x'` has what terms read of those that count, in order, so that vectors of them are read; in a
suppression they are the boxes that are kept. An OR ends with the block of vectors in which it is
set, for its terms are 0 or one value. It holds for scans along one axis whose terms end in
front of the element that is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autotune.loopir.nodes import Alloc, Body, Buffer, For, If, Let, Store
from autotune.loopir.scans import LANES, joint, placed_at
from autotune.strides import dense
from autotune.te.arith import linear
from autotune.te.expr import (
    INDEX,
    Binary,
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Var,
    add,
    binary,
    both,
    compare,
    floordiv,
    idx,
    loads,
    map_expr,
    maximum,
    minimum,
    mul,
    select,
    sub,
    substitute,
    variables,
)

_BLOCK = 4 * LANES
"""Terms behind which it is looked whether more are needed."""


@dataclass(frozen=True, slots=True)
class ChosenTerms:
    """The loop over the terms that count, what is before it and behind the element, and memory."""

    before: Body
    loop: Body
    after: Body
    buffers: tuple[Buffer, ...]


@dataclass
class _Terms:
    """The terms of the loop over `term` for element `each` of a scan."""

    own: Tensor
    each: Var
    term: Var
    place: Expr
    """Of which element of the scan a term is."""
    copies: dict[Load, Tensor] = field(default_factory=dict)

    def at(self, e: Expr, position: Expr) -> Expr | None:
        """`e` for the term at this position of the copies; None where it needs more of a term."""
        is_more = False

        def one(x: Expr) -> Expr | None:
            nonlocal is_more
            is_more |= x == self.term
            if not isinstance(x, Load) or self.term.name not in variables(x):
                return None
            alone = self.alone(x)
            if alone is None:
                is_more = True
                return x
            return Load(self.copies.setdefault(alone, self._copy(x.tensor)), (position,))

        found = map_expr(e, one)
        return None if is_more else found

    def alone(self, x: Load) -> Load | None:
        """What a term reads, with `each` for the own element; None where more tells."""
        same = linear(self.place).expr
        indices = tuple(self.each if linear(i).expr == same else i for i in x.indices)
        is_alone = all(i == self.each or not variables(i) for i in indices)
        return Load(x.tensor, indices) if is_alone else None

    def _copy(self, source: Tensor) -> Tensor:
        name, extent = f"{self.own.name}.chosen{len(self.copies)}", self.own.shape[0]
        return Tensor(name, (extent + LANES,), source.dtype)  # vectors are read as a whole


def among_chosen(update: Body, own: Tensor, each: Expr, limit: Expr | None) -> ChosenTerms | None:
    """The loop `update` over the terms of element `each` as above; None where it is another."""
    match update:
        case (For(kind="serial", body=(Store(value=Binary(b=Select())) as store,)) as loop,):
            if isinstance(each, Var) and len(own.shape) == 1 and loop.limit is not None:
                return _chosen(loop, store, _Scan(own, each, limit))
    return None


@dataclass(frozen=True, slots=True)
class _Scan:
    own: Tensor
    each: Var
    limit: Expr | None
    """How many elements of it there are."""

    def loads(self, e: Expr) -> list[Load]:
        return [x for x in loads(e) if x.tensor.name == self.own.name]


def _chosen(loop: For, store: Store, scan: _Scan) -> ChosenTerms | None:
    assert isinstance(store.value, Binary)
    assert loop.limit is not None
    conditions, value, neutral = _parts(store.value.b)
    terms = _terms(loop, scan, conditions)
    if terms is None or scan.loads(value) or scan.loads(loop.limit):
        return None
    counts = _counts(terms, [c for c in conditions if scan.loads(c)])
    rest: Expr = Const(True, "bool")
    for cond in conditions:
        if not scan.loads(cond) and not _is_below(cond, terms.term, scan.limit):
            rest = both(rest, cond)
    count = Tensor(f"{scan.own.name}.count", (scan.own.shape[0] + 1,), INDEX)
    begin = substitute(terms.place, {loop.var: idx(0)})
    first = count[maximum(minimum(begin, scan.each), idx(0))]
    moved = terms.at(select(rest, value, neutral), add(first, terms.term))
    if counts is None or moved is None:
        return None
    step = replace(store, value=replace(store.value, b=moved))
    n = count[scan.each]
    inner = _in_blocks(replace(loop, extent=scan.own.shape[0], body=(step,)), step, sub(n, first))
    none, one = Const(0, INDEX), Const(1, INDEX)
    begins = select(Compare("lt", idx(0), scan.each), n, none)
    at = minimum(maximum(n, idx(0)), idx(scan.own.shape[0] - 1))
    more = binary("add", n, select(counts, one, none))
    return ChosenTerms(
        (Store(count, (scan.each,), begins),),
        inner,
        (
            *(Store(copy, (at,), x) for x, copy in terms.copies.items()),
            Store(count, (add(scan.each, idx(1)),), more),
        ),
        tuple(Buffer(t, "workspace", dense(t.shape)) for t in (count, *terms.copies.values())),
    )


def _in_blocks(loop: For, step: Store, n: Expr) -> Body:
    """The loop over n terms in blocks of vectors, the last of fewer, as long as `_is_open`.

    Memory behind the last term is read.
    """
    assert isinstance(step.value, Binary)
    acc, how, term = step.value.a, step.value.op, step.value.b
    lanes = Tensor(f"{step.tensor.name}.lanes", (LANES,), step.tensor.dtype)
    neutral = term.b if isinstance(term, Select) else Const(0, lanes.dtype)
    b, q, lane = Var(f"{loop.var}.b"), Var(f"{loop.var}.q"), Var(f"{loop.var}.l")
    own, is_open = Load(lanes, (lane,)), _is_open(acc, how, term)

    def each(value: Expr) -> For:
        return For(lane.name, LANES, "vectorize", (Store(lanes, (lane,), value),))

    def vectors(first: Expr, limit: Expr | None) -> If:
        lets: dict[Expr, Let] = {}
        begin = add(first, mul(q, idx(LANES)))
        found = placed_at(term, loop.var, begin, lane, lets)
        if limit is not None:
            found = select(compare("lt", add(begin, lane), n), found, neutral)
        steps: Body = (*lets.values(), each(binary(how, own, found)))
        loops = For(q.name, _BLOCK // LANES, "serial", steps, limit)
        end = replace(step, value=joint(acc, lanes, how))
        return If(is_open, (Alloc(Buffer(lanes, "local", (1,)), (each(neutral), loops, end)),))

    n_blocks = floordiv(n, idx(_BLOCK))
    begin = mul(n_blocks, idx(_BLOCK))
    blocks = (vectors(mul(b, idx(_BLOCK)), None),)
    left = floordiv(add(sub(n, begin), idx(LANES - 1)), idx(LANES))
    return (
        For(b.name, max(1, loop.extent // _BLOCK), "serial", blocks, n_blocks),
        vectors(begin, left),
    )


def _is_open(acc: Expr, how: str, term: Expr) -> Expr:
    """Whether more terms may change a result."""
    if how == "bitor" and isinstance(term, Select) and isinstance(term.a, Const):
        return compare("eq", acc, term.b)
    return Const(True, "bool")


def _parts(term: Expr) -> tuple[list[Expr], Expr, Expr]:
    """All conditions under which a term counts, what it is then, and what it is otherwise."""
    assert isinstance(term, Select)
    found, neutral = list(_conjuncts(term.cond)), term.b
    while isinstance(term.a, Select) and term.a.b == neutral:
        term = term.a
        found += _conjuncts(term.cond)
    return found, term.a, neutral


def _conjuncts(cond: Expr) -> Iterator[Expr]:
    """In their order, which `te.expr.conjuncts` leaves open."""
    if isinstance(cond, Binary) and cond.op == "and":
        yield from _conjuncts(cond.a)
        yield from _conjuncts(cond.b)
    else:
        yield cond


def _terms(loop: For, scan: _Scan, conditions: list[Expr]) -> _Terms | None:
    """The terms, if each is of one element, in order, and the last is in front of `each`."""
    places = {x.indices[0] for c in conditions for x in scan.loads(c)}
    if len(places) != 1 or loop.limit is None:
        return None
    place, term = places.pop(), Var(loop.var)
    begin = substitute(place, {loop.var: idx(0)})
    is_next = linear(place).expr == linear(add(begin, term)).expr
    ends = linear(add(begin, loop.limit)).expr == linear(scan.each).expr
    return _Terms(scan.own, scan.each, term, place) if is_next and ends else None


def _counts(terms: _Terms, conditions: list[Expr]) -> Expr | None:
    """Whether the terms of element `each` count for later ones; None where those decide as well."""
    found: Expr = Const(True, "bool")
    for cond in conditions:
        alone = replace(terms, copies={})
        if terms.each.name in variables(alone.at(cond, idx(0)) or terms.each):
            return None

        def one(x: Expr) -> Expr | None:
            return (
                terms.alone(x) if isinstance(x, Load) and terms.term.name in variables(x) else None
            )

        found = both(found, map_expr(cond, one))
    return found


def _is_below(cond: Expr, term: Var, limit: Expr | None) -> bool:
    """Whether it says that a term is in front of the end of the scan, which all are."""
    if limit is None or not isinstance(cond, Compare) or cond.op != "lt":
        return False
    return linear(sub(cond.a, cond.b)).expr == linear(sub(term, limit)).expr
