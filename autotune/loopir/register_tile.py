"""④ The order of the loops of a register tile, and of the terms that it adds up."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from math import prod

from autotune.loopir.instance import Instance
from autotune.schedule.state import Iterator, Stage
from autotune.te.expr import variables


def register_tile(inst: Instance) -> Stage:
    """The stage of `inst` with the loops of its register tile in the order that needs the fewest
    live operands, and an unrolled window in the order of the shortest reuse distance."""
    return _shortest_reuse(_fewest_live(inst))


def _fewest_live(inst: Instance) -> Stage:
    """The longer side of the register tile outside, so that the shorter side stays in registers.

    for p in 3: for v in 9: acc[p, v] += x[p]·w[v]   keeps 9 w live; in the other order, 3 x.
    """
    stage = inst.stage
    iters, dots = _without_dot(stage.iters)
    rest, last = _without_vector(iters)
    tile = [*takewhile(_is_unrolled, reversed(rest))]
    if not last or not tile:
        return stage
    vectors, *pixels = tile
    if inst.sizes[vectors.name] <= prod([inst.sizes[i.name] for i in pixels]):
        return stage
    outside = rest[: -len(tile)]
    return replace(stage, iters=(*outside, vectors, *reversed(pixels), *last, *dots))


def _without_vector(iters: tuple[Iterator, ...]) -> tuple[tuple[Iterator, ...], ...]:
    """The loops outside of a vector, or of the matrix that has it as a row, and its own loops."""
    if iters[-1].annotation != "vectorize":
        return iters, ()
    n = 1 + sum(it.annotation == "tile" for it in iters)
    return iters[:-n], iters[-n:]


def _without_dot(iters: tuple[Iterator, ...]) -> tuple[tuple[Iterator, ...], tuple[Iterator, ...]]:
    """The loops outside of the terms that one instruction adds up, and these."""
    n_dots = sum(it.annotation == "dot" for it in iters)
    return iters[: len(iters) - n_dots], iters[len(iters) - n_dots :]


def _shortest_reuse(stage: Stage) -> Stage:
    """The axis of an unrolled window innermost along which the register tile is longest.

    Neighbours in the tile read the same elements. Here each stays live over the 3 terms of a
    column; with the columns inside it would stay live over all 9:

    for u in 3: for v in 3: for p in 7: acc[p] += x[p + u, v]·w[u, v]
    -> for v in 3: for u in 3: for p in 7: acc[p] += x[p + u, v]·w[u, v]

    A tile and its remainder use one order: where tiles overlap, their sums have to be equal.
    """
    iters, dots = _without_dot(stage.iters)
    end = len(iters) - len([*takewhile(_is_in_tile, reversed(iters))])
    window = [*takewhile(_is_term, reversed(iters[:end]))][::-1]
    tile = {i.name: i.extent for i in iters[end:] if i.annotation == "unroll"}
    together = [variables(i) for load in stage.op.reads for i in load.indices]

    def reach(term: Iterator) -> int:
        moves = set().union(*(names for names in together if term.name in names))
        return max((int(tile[n]) for n in tile if n in moves), default=1)

    terms = sorted(window, key=reach)
    return replace(stage, iters=(*iters[: end - len(window)], *terms, *iters[end:], *dots))


def _is_in_tile(it: Iterator) -> bool:
    return it.kind == "spatial" and bool(it.annotation)


def _is_term(it: Iterator) -> bool:
    return it.kind == "reduce" and it.annotation == "unroll"


def _is_unrolled(it: Iterator) -> bool:
    return it.kind == "spatial" and it.annotation == "unroll"
