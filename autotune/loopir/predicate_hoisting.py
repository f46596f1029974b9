"""④ Pass `hoist-predicates`: predicate hoisting out of reductions (loop unswitching).

    for kh: for kw: for i: acc[w] += select(0 <= h + kh - 1 and 0 <= w + kw - 1, x[…], 0) * k[…]
    ->  for kh: if 0 <= h + kh - 1: for kw: for i: acc[w] += select(0 <= w + kw - 1, x[…], 0) * k[…]

Where the condition fails, every term is neutral and the iterations are skipped. A condition moves
out of every loop that it does not depend on, up to the outermost serial one; conditions that differ
between elements of the register tile stay. A term that is padding times an infinite weight is
skipped too, so it does not make a NaN. Where the condition is a length that data tell, the loop
over its places is as long as that, and all tiles but the last need no condition.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from autotune.loopir.lowering import Lowering, map_accumulations
from autotune.loopir.nodes import For, If, Program, Stmt, Store
from autotune.loopir.visitor import rewrite_exprs, statements
from autotune.te.expr import (
    Binary,
    Cast,
    Expr,
    Load,
    Select,
    both,
    conjuncts,
    dtype_of,
    idx,
    is_guard,
    map_expr,
    substitute,
    variables,
)
from autotune.te.prefixes import is_prefix, limit_of, prefixes
from autotune.te.reductions import REDUCE_BINARY, identity

Conditions = frozenset[Expr]


def hoist_predicates(program: Program, lowering: Lowering) -> Program:
    """Hoist conditions in the serial loops of reductions in register tiles."""
    return map_accumulations(program, lowering, lambda nest, op, _: (_hoisted(nest, op),))


def _hoisted(stmt: Stmt, op: str) -> Stmt:
    if not isinstance(stmt, For) or stmt.kind != "serial":
        return stmt
    needed = _needed(stmt, op)
    inner = rewrite_exprs(stmt.body, lambda e: _given(e, needed)) if needed else stmt.body
    loop = replace(stmt, body=tuple(_hoisted(s, op) for s in inner))
    if stmt.limit is None:
        loop = _ended(loop, op)
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
        case Select(cond=cond, a=a, b=b) if b == neutral:
            known = conjuncts(cond) if is_guard(term) else frozenset(prefixes(cond))
            return known | conditions(a, op)
        case Binary(op="mul", a=a, b=b) if neutral.value == 0:
            return conditions(a, op) | conditions(b, op)
        case Cast(a=a) if identity(op, dtype_of(a)).value == neutral.value:
            return conditions(a, op)
        case _:
            return frozenset()


def _ended(loop: For, op: str) -> For:
    """`loop` up to the last iteration in which a condition holds that data tell (`te.prefixes`).

    In all but that one it holds for every loop inside, and is asked once for them.
    """
    inner = {s.var: s for s in statements(loop.body) if isinstance(s, For)}
    for cond in sorted(_telling(loop, op), key=repr):
        limit = limit_of(cond, loop.var, inner.keys())
        if limit is None:
            continue
        if any(s.kind == "serial" for s in inner.values()):
            return replace(loop, limit=limit)
        given = frozenset((cond,))
        body = rewrite_exprs(loop.body, partial(_given, known=given))
        last: dict[str, Expr] = {
            name: idx(s.extent - 1) for name, s in inner.items() if name in variables(cond)
        }
        if last:
            body = (If(substitute(cond, last), body, loop.body),)
        return replace(loop, limit=limit, body=body)
    return loop


def _telling(stmt: Stmt, op: str) -> Conditions:
    """Conditions without each of which no store of `stmt` changes anything."""
    match stmt:
        case For(body=body):
            return frozenset.intersection(*(_telling(s, op) for s in body))
        case Store(tensor=tensor, indices=at, value=Binary(op=how, a=a, b=term)):
            if how == REDUCE_BINARY[op] and a == Load(tensor, at):
                return frozenset(c for c in conditions(term, op) if is_prefix(c))
    return frozenset()


def _given(e: Expr, known: Conditions) -> Expr | None:
    """`e` where all `known` conditions hold."""
    if not isinstance(e, Select) or not conjuncts(e.cond) & known:
        return None
    rest = conjuncts(e.cond) - known
    a = map_expr(e.a, lambda x: _given(x, known))
    return Select(reduce(both, sorted(rest, key=repr)), a, e.b) if rest else a
