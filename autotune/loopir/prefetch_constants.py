"""④ Pass `prefetch-constants`: software prefetch in the innermost serial loop that reads them.

A distance d > 0 prefetches the lines d bytes ahead of those that the present iteration reads.
`NEXT_PANEL` is for a weight panel that several consecutive tiles read: while those tiles run over
the present panel, each iteration prefetches its share of the next one, so the requests to memory
are spread evenly over the time in which a panel is used.

No tile precedes the first panel. A thread prefetches its beginning, all at once, before it starts:

    for t in 4: for k in 64: S(w[t, k])  ->  head: for n in 8: prefetch w[t, 0] + 64·n bytes
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from autotune.dtypes import dtype_bytes
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import Alloc, Body, For, If, Kernel, Let, PrefetchLine, Program, Stmt
from autotune.loopir.visitor import body_loads, loop_extents, statements
from autotune.pages import CACHE_LINE
from autotune.schedule.steps import NEXT_PANEL
from autotune.strides import dense
from autotune.te.arith import offset
from autotune.te.expr import Expr, Load, Var, add, floordiv, idx, mul, substitute, variables

Loops = tuple[tuple[str, int], ...]
_MAX_SHARERS = 64
"""With more tiles per panel, loading the next one costs less than computing its addresses."""
_FIRST_BYTES = 8192
"""Prefetched of the first panel: bytes that memory delivers within half a microsecond."""


def prefetch_constants(program: Program, lowering: Lowering) -> Program:
    """Apply the `prefetch` steps of constants that are packed."""
    stages = lowering.state.stages.values()
    distance = {name: int(d) for s in stages for name, d in s.prefetches}
    ahead = {p.packed.name: distance.get(p.source.name, 0) for p in program.packs}
    return replace(program, kernels=tuple(_kernel(k, ahead) for k in program.kernels))


def _kernel(kernel: Kernel, ahead: dict[str, int]) -> Kernel:
    """Insert prefetches; `ahead`: distance in bytes, NEXT_PANEL or 0 by packed constant."""
    if not any(ahead.values()):
        return kernel
    return replace(kernel, body=_body(kernel.body, ahead, ()), head=_head(kernel, ahead))


def _head(kernel: Kernel, ahead: dict[str, int]) -> Body:
    """Prefetches of the first lines that the first iteration reads, for each constant."""
    lets = [s for s in kernel.body if isinstance(s, Let)]
    known = {kernel.var, *(s.var for s in lets)}
    first = {x.tensor.name: x for x in reversed(list(body_loads(kernel.body)))}
    lines = [_beginning(x, known) for name, x in first.items() if ahead.get(name, 0)]
    return (*lets, *lines) if lines else ()


def _beginning(load: Load, known: set[str]) -> For:
    """The first lines of the part of a constant that is read in the iteration of loops `known`."""
    inside = {v for i in load.indices for v in variables(i)} - known
    sizes = zip(load.tensor.shape, load.indices, strict=True)
    n_elements = math.prod(n for n, i in sizes if variables(i) & inside)
    n_bytes = min(n_elements * dtype_bytes(load.tensor.dtype), _FIRST_BYTES)
    line = PrefetchLine(load.tensor, _at_zero(load, inside), mul(Var("line"), idx(CACHE_LINE)))
    return For("line", -(-n_bytes // CACHE_LINE), "serial", (line,))


def _body(body: Body, ahead: dict[str, int], loops: Loops) -> Body:
    return tuple(_stmt(s, ahead, loops) for s in body)


def _stmt(stmt: Stmt, ahead: dict[str, int], loops: Loops) -> Stmt:
    match stmt:
        case For(var=var, extent=extent, kind=kind, body=body):
            inside = (*loops, (var, extent)) if kind == "serial" else loops
            if kind == "serial" and not _has_serial_loop(body):
                return replace(stmt, body=(*_lines(body, ahead, inside), *body))
            return replace(stmt, body=_body(body, ahead, inside))
        case Alloc(body=body):
            return replace(stmt, body=_body(body, ahead, loops))
        case If(cond=cond, then=then, orelse=orelse):
            return If(cond, _body(then, ahead, loops), _body(orelse, ahead, loops))
        case _:
            return stmt


def _has_serial_loop(body: Body) -> bool:
    return any(isinstance(s, For) and s.kind == "serial" for s in statements(body))


def _lines(body: Body, ahead: dict[str, int], loops: Loops) -> list[Stmt]:
    tile = loop_extents(body)
    out: list[Stmt] = []
    for load in {x.tensor.name: x for x in body_loads(body)}.values():
        distance = ahead.get(load.tensor.name, 0)
        if distance == NEXT_PANEL:
            out += _next_panel(load, tile, loops)
        elif distance:
            first = _at_zero(load, tile)
            offsets = _ahead(load, tile, distance)
            out += [PrefetchLine(load.tensor, first, idx(o)) for o in offsets]
    return out


def _ahead(load: Load, tile: dict[str, int], distance: int) -> list[int]:
    """Bytes from the first element of a step to the lines that are read `distance` bytes later.

    Several runs of lines, those of blocks, have a share of the distance each.
    """
    form = offset(load.indices, dense(load.tensor.shape))
    places = np.zeros(1, np.int64)
    for var, extent in tile.items():
        steps = form.coefficient(var) * np.arange(extent)
        places = np.unique(places[:, None] + steps)
    lines = np.unique(places * dtype_bytes(load.tensor.dtype) // CACHE_LINE)
    n_runs = 1 + int((np.diff(lines) > 1).sum())
    share = -(-distance // n_runs)
    return [line * CACHE_LINE + share for line in lines.tolist()]


def _next_panel(load: Load, tile: dict[str, int], loops: Loops) -> list[Stmt]:
    """A share of the next panel in each iteration of each tile that reads the present one."""
    used = {v for i in load.indices for v in variables(i)}
    depth = len(loops)
    while depth and loops[depth - 1][0] in used:
        depth -= 1
    steps = loops[depth:]
    begin = depth
    while begin and loops[begin - 1][0] not in used:
        begin -= 1
    sharers = loops[begin:depth]
    n_sharers = math.prod(e for _, e in sharers)
    if not steps or not 1 < n_sharers <= _MAX_SHARERS:
        return []
    per_step = _bytes_per_step(load, tile)
    panel = per_step * math.prod(e for _, e in steps)
    share = floordiv(mul(flat((*sharers, *steps)), idx(per_step)), idx(n_sharers))
    first = _at_zero(load, dict(steps) | tile)
    lines = range(0, max(1, per_step // n_sharers), CACHE_LINE)
    return [PrefetchLine(load.tensor, first, add(share, idx(panel + o))) for o in lines]


def flat(loops: Loops) -> Expr:
    """The number of the present iteration of nested loops, counted from 0."""
    total: Expr = idx(0)
    for var, extent in loops:
        total = add(mul(total, idx(extent)), Var(var))
    return total


def _at_zero(load: Load, names: Iterable[str]) -> tuple[Expr, ...]:
    return tuple(substitute(i, {v: idx(0) for v in names}) for i in load.indices)


def _bytes_per_step(load: Load, tile: dict[str, int]) -> int:
    used = {v for i in load.indices for v in variables(i)}
    count = math.prod(e for v, e in tile.items() if v in used)
    return count * dtype_bytes(load.tensor.dtype)
