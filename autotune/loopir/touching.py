"""④ Software prefetch of what a consumer reads and writes, while the reduction in front runs.

    for k in 16: S(k)  ->  for k in 16: (if k < 12: touch y[k, 0], y[k, 16]); S(k)
    for p in 12: for w in 2: for c in 16 lanes: y[p, 16·w + c] = acc[p, w, c]

Each step fetches its share: all lines at once would keep what the reduction itself reads waiting,
and none would keep the stores waiting, for a line that is written is read first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.loopir.nodes import Body, For, If, PrefetchLine, Stmt, Store
from autotune.loopir.prefetch import Loops, flat
from autotune.te.expr import (
    Expr,
    Tensor,
    add,
    compare,
    floordiv,
    idx,
    loads,
    minimum,
    mod,
    mul,
    substitute,
)


def touch(fill: Body, reader: Body, tensors: set[str]) -> Body:
    """`fill`, a reduction, with prefetches of what its `reader` needs of `tensors` afterwards.

    Those are the vectors that its expanded loops load and store. Loops that are not expanded are
    left out, being longer than what is worth fetching early.
    """
    found = list(_vectors(reader, tensors, ()))
    steps, spread = _in_steps(fill, found, ()) if found else (fill, True)
    return steps if spread else (*_shares(found, idx(0), 1), *fill)


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The vectors at the indices `at`, one for each point of expanded `loops`."""

    tensor: Tensor
    at: tuple[Expr, ...]
    loops: Loops


def _vectors(body: Body, tensors: set[str], loops: Loops) -> Iterator[_Vectors]:
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
                yield from (_Vectors(t, i, loops) for t, i in wanted)


def _in_steps(body: Body, found: Sequence[_Vectors], loops: Loops) -> tuple[Body, bool]:
    """`body` with the prefetches in its innermost serial loops, and whether it has any."""
    out: list[Stmt] = []
    spread = False
    for stmt in body:
        match stmt:
            case For(var=var, extent=extent, kind="serial", body=inner):
                inside = (*loops, (var, extent))
                inner, deeper = _in_steps(inner, found, inside)
                if not deeper:
                    n_steps = math.prod(e for _, e in inside)
                    inner = (*_shares(found, flat(inside), n_steps), *inner)
                out.append(replace(stmt, body=inner))
                spread = True
            case If(cond=cond, then=then, orelse=orelse):
                (then, a), (orelse, b) = (_in_steps(x, found, loops) for x in (then, orelse))
                out.append(If(cond, then, orelse))
                spread = spread or a or b
            case _:
                out.append(stmt)
    return tuple(out), spread


def _shares(found: Sequence[_Vectors], step: Expr, n_steps: int) -> list[Stmt]:
    """What step number `step` of `n_steps` fetches: as few as possible, and hardly any twice."""
    out: list[Stmt] = []
    for vectors in found:
        n = math.prod(e for _, e in vectors.loops)
        per_step = -(-n // n_steps)
        numbers = [add(mul(step, idx(per_step)), idx(k)) for k in range(per_step)]
        if n % per_step:  # the last step has fewer
            numbers = [minimum(number, idx(n - 1)) for number in numbers]
        lines = tuple(_line(vectors, number) for number in numbers)
        some = compare("lt", step, idx(-(-n // per_step)))
        out += lines if n > per_step * (n_steps - 1) else [If(some, lines)]
    return out


def _line(vectors: _Vectors, number: Expr) -> PrefetchLine:
    """Touch vector `number`."""
    at: dict[str, Expr] = {}
    for n, (name, extent) in reversed(list(enumerate(vectors.loops))):
        at[name] = mod(number, idx(extent)) if n else number
        number = floordiv(number, idx(extent))
    where = tuple(substitute(i, at) for i in vectors.at)
    return PrefetchLine(vectors.tensor, where, idx(0), level=1)
