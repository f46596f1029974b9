"""④ Pass `prefetch-activations`: software prefetch while a reduction runs.

The operands and results of its consumer (`prefetch_consumer`):

    for k in 16: S(k)  ->  for k in 16: (if k < 12: prefetch y[k, 0], y[k, 16]); S(k)
    for p in 12: for w in 2: for c in 16 lanes: y[p, 16·w + c] = acc[p, w, c]

The operands of the reduction of the next tile (`prefetch_next_tile`):

    for i in 99: for j in 8: for k in 16: S(x[12·i + p, k])
    -> for i in 99: for j in 8: for k in 16: (if 16·j + k < 12: prefetch x[12·(i+1) + k, 0]); S(…)

Each iteration prefetches an equal share. All lines at once would delay the loads of the reduction;
without prefetch the stores of the consumer would wait for their write-allocate reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.dtypes import dtype_bytes
from autotune.loopir.local_buffers import local_region
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import Alloc, Body, For, If, PrefetchLine, Program, Stmt, Store
from autotune.loopir.prefetch_constants import Loops, flat
from autotune.loopir.visitor import kernel_ranges, map_statements, reads_of, statements
from autotune.pages import CACHE_LINE
from autotune.te.arith import Ranges
from autotune.te.expr import (
    Expr,
    Tensor,
    Var,
    add,
    compare,
    floordiv,
    idx,
    loads,
    minimum,
    mod,
    mul,
    substitute,
    variables,
)

_NEAR_BYTES = 8192
"""The operands of the next tile go to L1 if they are at most this, a quarter of L1; else to L2."""

_MOST_AT_ONCE = 32
"""Largest number of lines that one iteration prefetches, about the vectors of a register tile."""


Filled: TypeAlias = Callable[[Body, Body], Body]
"""The statements that fill a buffer, and those that read it -> the former with prefetches."""


def prefetch_activations(program: Program, lowering: Lowering) -> Program:
    """Apply the `prefetch` steps of tensors that are not packed, in local reductions."""
    stages = (*lowering.state.stages.values(), *lowering.exact.stages.values())
    if not any(stage.prefetched_activations for stage in stages):
        return program
    kernels = (
        replace(k, body=_prefetched(k.body, lowering, kernel_ranges(k))) for k in program.kernels
    )
    return replace(program, kernels=tuple(kernels))


def _prefetched(body: Body, lowering: Lowering, ranges: Ranges) -> Body:
    def one(stmt: Stmt, ranges: Ranges) -> Body | None:
        name = stmt.buffer.name if isinstance(stmt, Alloc) else ""
        stage = lowering.stage(name)
        if not isinstance(stmt, Alloc) or stage is None or not stage.op.reduce_axes:
            return None
        state = lowering.state if name in lowering.state.stages else lowering.exact
        consumers = (s for s in state.stages.values() if not s.op.reduce_axes)
        operands = {name for s in consumers for name in s.prefetched_activations}

        def filled(fill: Body, reader: Body) -> Body:
            fill = prefetch_consumer(fill, reader, operands)
            return prefetch_next_tile(fill, stage.prefetched_activations, ranges)

        inside = _prefetched(stmt.body, lowering, ranges)
        return (replace(stmt, body=_with_fill(inside, name, filled)),)

    return map_statements(body, one, ranges)


def _with_fill(body: Body, name: str, f: Filled, decides: bool = False) -> Body:
    """`body` with `f(fill, reader)` in place of the statements that fill the local buffer `name`.

    `decides`: the buffer is filled within the sum of squares on which the reader depends
    (`guarding`): `size: fill; if size is bounded: reader else: …`.
    """
    match body:
        case (Alloc(body=inner) as size,):
            return (replace(size, body=_with_fill(inner, name, f, True)),)
    fills = [_stores_to(stmt, name) for stmt in body]
    begin = fills.index(True)
    end = next((n for n in range(begin, len(fills)) if not fills[n]), len(fills))
    reader = body[end:]
    if decides and isinstance(reader[0], If):
        reader = reader[0].then
    return (*body[:begin], *f(body[begin:end], reader), *body[end:])


def _stores_to(stmt: Stmt, name: str) -> bool:
    stores = (s for s in statements((stmt,)) if isinstance(s, Store))
    return any(s.tensor.name == name for s in stores)


def prefetch_consumer(fill: Body, reader: Body, tensors: set[str]) -> Body:
    """`fill`, a reduction, with prefetches of loads and stores of `tensors` by its `reader`.

    Those are the vectors of its unrolled and vectorised loops. Serial loops of the reader are left
    out: they are too long to prefetch as a whole.
    """
    found = list(_vectors(reader, tensors, ()))
    steps, placed = _in_steps(fill, found, ()) if found else (fill, True)
    return steps if placed else (*_shares(found, ()), *fill)


def prefetch_next_tile(fill: Body, tensors: Iterable[str], around: Ranges) -> Body:
    """`fill`, a reduction, with prefetches of the elements of `tensors` that the next tile reads.

    `around`: the loops around it, outermost first. The next tile is that of the next iteration of
    the innermost loop that what is read depends on; the tiles before it share the work.
    """
    found = [lines for name in tensors for lines in _next_lines(fill, name, around)]
    return _in_steps(fill, found, ())[0] if found else fill


@dataclass(frozen=True, slots=True)
class _Lines:
    """Cache lines at the indices `at`, one for each point of `loops`, which `sharers` fetch."""

    tensor: Tensor
    at: tuple[Expr, ...]
    loops: Loops
    sharers: Loops = ()
    level: int = 1


def _vectors(body: Body, tensors: set[str], loops: Loops) -> Iterator[_Lines]:
    for stmt in body:
        match stmt:
            case For(var=var, kind="vectorize", body=inner):
                for v in _vectors(inner, tensors, loops):
                    yield replace(v, at=tuple(substitute(i, {var: idx(0)}) for i in v.at))
            case For(var=var, extent=extent, kind="unroll", body=inner):
                yield from _vectors(inner, tensors, (*loops, (var, extent)))
            case Store(tensor=tensor, indices=indices, value=value):
                used = [(x.tensor, x.indices) for x in loads(value)]
                wanted = [(t, i) for t, i in (*used, (tensor, indices)) if t.name in tensors]
                yield from (_Lines(t, i, loops) for t, i in wanted)


def _next_lines(fill: Body, name: str, around: Ranges) -> Iterator[_Lines]:
    reads = reads_of(fill, name)
    if not reads:
        return
    tensor = reads[0].load.tensor
    region = [local_region(reads, d, around) for d in range(len(tensor.shape))]
    used = {v for start, _ in region for v in variables(start)}
    depth = max((n for n, v in enumerate(around, 1) if v in used), default=0)
    if not depth:
        return
    var, *inside = list(around)[depth - 1 :]
    following: dict[str, Expr] = {var: add(Var(var), idx(1))}
    loops: list[tuple[str, int]] = []
    at: list[Expr] = []
    for d, (start, extent) in enumerate(region):
        step = CACHE_LINE // dtype_bytes(tensor.dtype) if d == len(region) - 1 else 1
        loops.append((f"line.{d}", -(-extent // step)))
        if var in variables(start):
            start = minimum(substitute(start, following), idx(tensor.shape[d] - extent))
        at.append(add(start, mul(Var(f"line.{d}"), idx(step))))
    sharers = tuple((v, around[v][1] + 1) for v in inside)
    level = 1 if CACHE_LINE * math.prod(e for _, e in loops) <= _NEAR_BYTES else 2
    yield _Lines(tensor, tuple(at), tuple(loops), sharers, level)


def _in_steps(body: Body, found: Sequence[_Lines], loops: Loops) -> tuple[Body, bool]:
    """`body` with the prefetches in its innermost serial loops, and whether it has any."""
    out: list[Stmt] = []
    placed = False
    for stmt in body:
        match stmt:
            case For(var=var, extent=extent, kind="serial", body=inner):
                inside = (*loops, (var, extent))
                inner, deeper = _in_steps(inner, found, inside)
                if not deeper:
                    inner = (*_shares(found, inside), *inner)
                out.append(replace(stmt, body=inner))
                placed = True
            case If(cond=cond, then=then, orelse=orelse):
                (then, a), (orelse, b) = (_in_steps(x, found, loops) for x in (then, orelse))
                out.append(If(cond, then, orelse))
                placed = placed or a or b
            case _:
                out.append(stmt)
    return tuple(out), placed


def _shares(found: Sequence[_Lines], loops: Loops) -> list[Stmt]:
    """The lines that one iteration of `loops` prefetches: equal shares, hardly any line twice."""
    out: list[Stmt] = []
    for lines in found:
        steps = (*lines.sharers, *loops)
        step, n_steps = flat(steps), math.prod(e for _, e in steps)
        n = math.prod(e for _, e in lines.loops)
        per_step = -(-n // n_steps)
        if per_step > _MOST_AT_ONCE:
            continue
        numbers = [add(mul(step, idx(per_step)), idx(k)) for k in range(per_step)]
        if n % per_step:  # the last step has fewer
            numbers = [minimum(number, idx(n - 1)) for number in numbers]
        share = tuple(_line(lines, number) for number in numbers)
        some = compare("lt", step, idx(-(-n // per_step)))
        out += share if n > per_step * (n_steps - 1) else [If(some, share)]
    return out


def _line(lines: _Lines, number: Expr) -> PrefetchLine:
    """Fetch line `number`."""
    at: dict[str, Expr] = {}
    for n, (name, extent) in reversed(list(enumerate(lines.loops))):
        at[name] = mod(number, idx(extent)) if n else number
        number = floordiv(number, idx(extent))
    where = tuple(substitute(i, at) for i in lines.at)
    return PrefetchLine(lines.tensor, where, idx(0), lines.level)
