"""④ Steps of a reduction that add nothing are not run.

    for kh: for kw: for i: acc[w] += select(0 <= h + kh - 1 and 0 <= w + kw - 1, x[…], 0) * k[…]
    ->  for kh: if 0 <= h + kh - 1: for kw: for i: acc[w] += select(0 <= w + kw - 1, x[…], 0) * k[…]

A condition moves out of every loop that it does not depend on, up to the outermost serial one. What
differs within the register tile stays where it is. A padding times an infinite weight is not NaN
then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from autotune.loopir.nodes import Body, For, If, Stmt, Store
from autotune.loopir.visitor import rewrite_exprs
from autotune.te.expr import (
    REDUCE_BINARY,
    Binary,
    Expr,
    Load,
    Select,
    both,
    conjuncts,
    dtype_of,
    identity,
    is_guard,
    map_expr,
    variables,
)

Conditions = frozenset[Expr]


def skip_neutral(body: Body, op: str) -> Body:
    """`body`, which accumulates by `op`, without the steps whose every term is neutral."""
    return tuple(_skip(s, op) for s in body)


def _skip(stmt: Stmt, op: str) -> Stmt:
    if not isinstance(stmt, For) or stmt.kind != "serial":
        return stmt
    needed = _needed(stmt, op)
    inner = rewrite_exprs(stmt.body, lambda e: _given(e, needed)) if needed else stmt.body
    loop = replace(stmt, body=skip_neutral(inner, op))
    if not needed:
        return loop
    return If(reduce(both, sorted(needed, key=repr)), (loop,), ())


def _needed(stmt: Stmt, op: str) -> Conditions:
    """Conditions each of which must hold for `stmt` to change anything."""
    match stmt:
        case For(var=var, body=body):
            inside = frozenset.intersection(*(_needed(s, op) for s in body))
            return frozenset(c for c in inside if var not in variables(c))
        case Store(tensor=tensor, indices=at, value=Binary(op=how, a=a, b=term)):
            if how == REDUCE_BINARY[op] and a == Load(tensor, at):
                return conditions(term, op)
    return frozenset()


def conditions(term: Expr, op: str) -> Conditions:
    """Conditions without each of which `term` is neutral."""
    neutral = identity(op, dtype_of(term))
    match term:
        case Select(cond=cond, a=a, b=b) if is_guard(term) and b == neutral:
            return conjuncts(cond) | conditions(a, op)
        case Binary(op="mul", a=a, b=b) if neutral.value == 0:
            return conditions(a, op) | conditions(b, op)
        case _:
            return frozenset()


def _given(e: Expr, known: Conditions) -> Expr | None:
    """`e` where all `known` conditions hold."""
    if not isinstance(e, Select) or not conjuncts(e.cond) & known:
        return None
    rest = conjuncts(e.cond) - known
    a = map_expr(e.a, lambda x: _given(x, known))
    return Select(reduce(both, sorted(rest, key=repr)), a, e.b) if rest else a
