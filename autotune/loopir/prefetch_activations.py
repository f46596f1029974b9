"""④ Software prefetch of activations, while a reduction runs.

What the consumer of the reduction reads and writes afterwards (`touch`):

    for k in 16: S(k)  ->  for k in 16: (if k < 12: touch y[k, 0], y[k, 16]); S(k)
    for p in 12: for w in 2: for c in 16 lanes: y[p, 16·w + c] = acc[p, w, c]

What the reduction of the next tile will read (`touch_next`):

    for i in 99: for j in 8: for k in 16: S(x[12·i + p, k])
    -> for i in 99: for j in 8: for k in 16: (if 16·j + k < 12: touch x[12·(i+1) + k, 0]); S(…)

Each step fetches its share: all lines at once would keep what the reduction itself reads waiting,
and none would keep the stores waiting, for a line that is written is read first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.loopir.instance import Ranges
from autotune.loopir.local_buffers import local_region
from autotune.loopir.nodes import Body, For, If, PrefetchLine, Stmt, Store
from autotune.loopir.prefetch_constants import Loops, flat
from autotune.loopir.visitor import reads_of
from autotune.te.expr import (
    Expr,
    Tensor,
    Var,
    add,
    compare,
    dtype_bytes,
    floordiv,
    idx,
    loads,
    minimum,
    mod,
    mul,
    substitute,
    variables,
)
from autotune.te.strides import CACHE_LINE

_NEAR_BYTES = 8192
"""What the next tile reads is fetched into L1 if it is at most this: less than a quarter of L1."""

_MOST_AT_ONCE = 32
"""Lines that one step fetches at most, as many as a register tile has vectors."""


def touch(fill: Body, reader: Body, tensors: set[str]) -> Body:
    """`fill`, a reduction, with prefetches of what its `reader` needs of `tensors` afterwards.

    Those are the vectors that its expanded loops load and store. Loops that are not expanded are
    left out, being longer than what is worth fetching early.
    """
    found = list(_vectors(reader, tensors, ()))
    steps, spread = _in_steps(fill, found, ()) if found else (fill, True)
    return steps if spread else (*_shares(found, ()), *fill)


def touch_next(fill: Body, tensors: Iterable[str], around: Ranges) -> Body:
    """`fill`, a reduction, with prefetches of what it reads of `tensors` in the next tile.

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
    spread = False
    for stmt in body:
        match stmt:
            case For(var=var, extent=extent, kind="serial", body=inner):
                inside = (*loops, (var, extent))
                inner, deeper = _in_steps(inner, found, inside)
                if not deeper:
                    inner = (*_shares(found, inside), *inner)
                out.append(replace(stmt, body=inner))
                spread = True
            case If(cond=cond, then=then, orelse=orelse):
                (then, a), (orelse, b) = (_in_steps(x, found, loops) for x in (then, orelse))
                out.append(If(cond, then, orelse))
                spread = spread or a or b
            case _:
                out.append(stmt)
    return tuple(out), spread


def _shares(found: Sequence[_Lines], loops: Loops) -> list[Stmt]:
    """What one iteration of `loops` fetches: as few as possible, and hardly any twice."""
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
