"""③ Required region: the part of a tensor that one iteration of a loop reads."""

from __future__ import annotations

from autotune.errors import ScheduleError
from autotune.schedule.region import (
    Depth,
    Extent,
    UnboundedIndex,
    larger,
    plain,
    smaller,
    span,
    span_of,
)
from autotune.schedule.state import Stage, State
from autotune.te.arith import linear
from autotune.te.expr import Expr, Load


def required_extents(state: State, name: str, target: Stage, depth: Depth) -> tuple[Extent, ...]:
    """Extents of the region of tensor `name` that an iteration of loop `depth` of `target` reads.

    Reduction axes keep their extents. Quotients take regions to be tiles of the divisor: lowering
    computes the exact region. Every reader must be computed inside that loop, else ScheduleError.
    """
    key = (name, target.name, depth)
    if key not in state._extents:
        state._extents[key] = _required_extents(state, name, target, depth)
    return state._extents[key]


def _required_extents(state: State, name: str, target: Stage, depth: Depth) -> tuple[Extent, ...]:
    op = state[name].op
    reads = [
        (load, _extents_inside(state, state[reader.name], target, depth))
        for reader in state.dag.consumers(name)
        for load in reader.loads_of[name]
    ]
    spans = (_needed(reads, d, size) for d, size in enumerate(op.tensor.shape))
    return (*map(plain, spans), *(a.extent for a in op.reduce_axes))


def _needed(reads: list[tuple[Load, dict[str, Extent]]], dim: int, size: int) -> Extent:
    """Elements of dimension `dim` that the loads reach, each with the extents around it."""
    if len(reads) == 1:
        load, inner = reads[0]
        try:
            return smaller(larger(span(load.indices[dim], inner, aligned=True) + 1, 1), size)
        except UnboundedIndex:
            return size
    first: dict[frozenset[tuple[Expr, int]], int] = {}
    last: dict[frozenset[tuple[Expr, int]], Extent] = {}
    for load, inner in reads:
        form = linear(load.indices[dim])
        try:
            reach: Extent = span_of(form, inner, aligned=True)
        except UnboundedIndex:
            return size
        terms = frozenset(form.terms)
        first[terms] = min(first.get(terms, form.const), form.const)
        last[terms] = larger(last.get(terms, form.const), form.const + reach)
    longest: Extent = 1
    for form_terms, end in last.items():
        longest = larger(longest, end - first[form_terms] + 1)
    return smaller(longest, size)


def _extents_inside(state: State, reader: Stage, target: Stage, depth: Depth) -> dict[str, Extent]:
    if reader.name == target.name:
        return reader.inner_extents(depth)
    attach = reader.attach
    while attach and attach.target != target.name:
        attach = state[attach.target].attach
    if attach is None or target.position(attach.iter) < _deepest(depth):
        raise ScheduleError(f"{reader.name} reads outside loop {depth} of {target.name}")
    needed = required_extents(state, reader.name, target, depth)
    return dict(zip((a.name for a in reader.axes), needed, strict=True))


def _deepest(depth: Depth) -> int:
    return depth if isinstance(depth, int) else max(depth)
