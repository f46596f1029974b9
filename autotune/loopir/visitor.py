"""④ Walking and rewriting loop IR."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import assert_never

from autotune.loopir.nodes import (
    Alloc,
    Barrier,
    Body,
    For,
    If,
    Instruction,
    Kernel,
    Let,
    PrefetchLine,
    Stmt,
    Store,
)
from autotune.te.arith import Ranges, bounds
from autotune.te.expr import (
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Var,
    children,
    is_guard,
    loads,
    map_expr,
)
from autotune.te.numbers import is_number

Rewrite = Callable[[Expr], Expr | None]


def statements(body: Body) -> Iterator[Stmt]:
    """Every statement, parents before children."""
    for stmt in body:
        yield stmt
        match stmt:
            case For(body=inner) | Alloc(body=inner) | Instruction(body=inner):
                yield from statements(inner)
            case If(then=then, orelse=orelse):
                yield from statements(then)
                yield from statements(orelse)


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself holds, not those of its children."""
    match stmt:
        case If(cond=cond):
            return (cond,)
        case Let(value=value):
            return (value,)
        case Store(indices=indices, value=value):
            return (*indices, value)
        case PrefetchLine(indices=indices, offset=offset):
            return (*indices, offset)
        case For(limit=limit):
            return () if limit is None else (limit,)
        case Alloc() | Instruction() | Barrier():
            return ()
        case _:
            assert_never(stmt)


def body_loads(body: Body) -> list[Load]:
    """Every load anywhere in `body`."""
    return [x for s in statements(body) for e in expressions(s) for x in loads(e)]


@dataclass(frozen=True, slots=True)
class Read:
    """A load, the loops around it, and whether a guard or an If decides if it is made."""

    load: Load
    extents: tuple[tuple[str, int], ...]
    guarded: bool

    def loops(self, outside: Container[str]) -> dict[str, int]:
        """Extents of the loops around the load that are not in `outside`."""
        return {var: n for var, n in self.extents if var not in outside}


def reads_of(body: Body, name: str) -> list[Read]:
    """Every load of tensor `name` in `body`."""
    return list(_reads(body, name, (), False))


def _reads(
    body: Body, name: str, loops: tuple[tuple[str, int], ...], guarded: bool
) -> Iterator[Read]:
    for stmt in body:
        for e in expressions(stmt):
            for load, chosen in _guarded_loads(e, guarded):
                if load.tensor.name == name:
                    yield Read(load, loops, chosen)
        match stmt:
            case For(var=var, extent=extent, body=inner):
                yield from _reads(inner, name, (*loops, (var, extent)), guarded)
            case Alloc(body=inner) | Instruction(body=inner):
                yield from _reads(inner, name, loops, guarded)
            case If(then=then, orelse=orelse):
                yield from _reads((*then, *orelse), name, loops, True)


def _guarded_loads(e: Expr, guarded: bool) -> Iterator[tuple[Load, bool]]:
    if isinstance(e, Load):
        yield e, guarded
    for n, part in enumerate(children(e)):
        yield from _guarded_loads(part, guarded or (n > 0 and _decides(e)))


def _decides(e: Expr) -> bool:
    """Whether loops or numbers decide which side of a choice counts."""
    return is_guard(e) or (isinstance(e, Select) and any(map(is_number, loads(e.cond))))


def loop_extents(body: Body) -> dict[str, int]:
    """Extent of every loop variable bound in `body`, the largest where versions differ."""
    out: dict[str, int] = {}
    for s in statements(body):
        if isinstance(s, For):
            out[s.var] = max(out.get(s.var, 0), s.extent)
    return out


def rewrite_exprs(body: Body, f: Rewrite) -> Body:
    """Apply `map_expr(…, f)` to every expression in `body`."""
    return tuple(_rewrite(s, f) for s in body)


def _rewrite(stmt: Stmt, f: Rewrite) -> Stmt:
    match stmt:
        case For(body=body, limit=limit):
            limit = None if limit is None else map_expr(limit, f)
            return replace(stmt, body=rewrite_exprs(body, f), limit=limit)
        case Alloc(body=body) | Instruction(body=body):
            return replace(stmt, body=rewrite_exprs(body, f))
        case If(cond=cond, then=then, orelse=orelse):
            return If(map_expr(cond, f), rewrite_exprs(then, f), rewrite_exprs(orelse, f))
        case Let(var=var, value=value):
            return Let(var, map_expr(value, f))
        case Store(tensor=tensor, indices=indices, value=value):
            return Store(tensor, tuple(map_expr(i, f) for i in indices), map_expr(value, f))
        case PrefetchLine(indices=indices, offset=offset):
            where = tuple(map_expr(i, f) for i in indices)
            return replace(stmt, indices=where, offset=map_expr(offset, f))
        case Barrier():
            return stmt
        case _:
            assert_never(stmt)


def map_statements(body: Body, f: Callable[[Stmt, Ranges], Body | None], ranges: Ranges) -> Body:
    """`body` with `f(statement, ranges)` in place of statements, from the outside in.

    Where `f` gives None, the statement stays and those inside it are mapped. `ranges`: the lowest
    and highest value of each variable that is bound there, outermost loop first.
    """
    out: list[Stmt] = []
    for stmt in body:
        mapped = f(stmt, ranges)
        out += (_map_inside(stmt, f, ranges),) if mapped is None else mapped
        if isinstance(stmt, Let) and stmt.var not in ranges:
            ranges = {**ranges, stmt.var: bounds(stmt.value, ranges)}
    return tuple(out)


def _map_inside(stmt: Stmt, f: Callable[[Stmt, Ranges], Body | None], ranges: Ranges) -> Stmt:
    match stmt:
        case For(var=var, extent=extent, body=body):
            inside = {**ranges, var: (0, extent - 1)}
            return replace(stmt, body=map_statements(body, f, inside))
        case Alloc(body=body) | Instruction(body=body):
            return replace(stmt, body=map_statements(body, f, ranges))
        case If(cond=cond, then=then, orelse=orelse):
            holds, fails = _narrowed(cond, ranges)
            return If(cond, map_statements(then, f, holds), map_statements(orelse, f, fails))
        case _:
            return stmt


def _narrowed(cond: Expr, ranges: Ranges) -> tuple[Ranges, Ranges]:
    """`ranges` where `cond` holds and where it does not; only `variable < constant` narrows."""
    match cond:
        case Compare(op="lt", a=Var(name=name), b=Const(value=int(limit))) if name in ranges:
            low, high = ranges[name]
            below, above = (low, min(high, limit - 1)), (max(low, limit), high)
            return {**ranges, name: below}, {**ranges, name: above}
    return ranges, ranges


def kernel_ranges(kernel: Kernel) -> Ranges:
    """Ranges of the loops that the parallel index of a kernel is decoded into, outermost first."""
    lets = [*takewhile(lambda s: isinstance(s, Let), kernel.body)]
    total = {kernel.var: (0, kernel.extent - 1)}
    return {s.var: bounds(s.value, total) for s in reversed(lets) if isinstance(s, Let)}
