"""④ Pass `peel` (loop peeling): a last iteration is split off where it alone needs a condition.

    for k in 24: acc[r] += select(min(k·64, 1436) + r < k·64, 0, x[min(k·64, 1436) + r])
    ->  for k in 23: acc[r] += x[k·64 + r];   acc[r] += select(r < 36, 0, x[1436 + r])

That is the remainder of a reduction whose last tile is shifted inwards. Loops in which other
iterations need a condition as well stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.loopir.lowering import Lowering, map_accumulations
from autotune.loopir.nodes import Body, For, Program, Stmt
from autotune.loopir.visitor import expressions, loop_extents, rewrite_exprs, statements
from autotune.te.arith import Ranges, simplify
from autotune.te.expr import Expr, Select, idx, is_guard, substitute, walk


def peel_remainders(program: Program, lowering: Lowering) -> Program:
    """Peel the serial loops of reductions in register tiles."""
    return map_accumulations(program, lowering, lambda nest, _, ranges: peel_last((nest,), ranges))


def peel_last(body: Body, ranges: Ranges) -> Body:
    """`body` with each serial loop in two that needs conditions in its last iteration only."""
    return tuple(part for stmt in body for part in _peeled(stmt, ranges))


def _peeled(stmt: Stmt, ranges: Ranges) -> Body:
    if not isinstance(stmt, For) or stmt.kind != "serial":
        return (stmt,)
    if stmt.limit is not None:  # the number of iterations is known at run time only
        return (stmt,)
    if not _has_guards(stmt.body):
        return (stmt,)
    var, n_others = stmt.var, stmt.extent - 1
    inside = {**ranges, **{v: (0, n - 1) for v, n in loop_extents(stmt.body).items()}}
    if n_others:
        others = _simplified(stmt.body, inside | {var: (0, n_others - 1)})
        if not _has_guards(others):
            last = _simplified(_at(stmt.body, var, n_others), inside)
            return (replace(stmt, extent=n_others, body=others), *last)
    return (replace(stmt, body=peel_last(stmt.body, inside | {var: (0, n_others)})),)


def _simplified(body: Body, ranges: Ranges) -> Body:
    return rewrite_exprs(body, lambda e: simplify(e, dict(ranges)))


def _at(body: Body, var: str, value: int) -> Body:
    return rewrite_exprs(body, lambda e: substitute(e, {var: idx(value)}))


def _has_guards(body: Body) -> bool:
    parts: list[Expr] = [e for s in statements(body) for x in expressions(s) for e in walk(x)]
    return any(isinstance(e, Select) and is_guard(e) for e in parts)
