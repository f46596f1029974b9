"""⑥ Rules for whole rows: softmax, normalisation, and reductions along the direction of memory."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.dtypes import dtype_bytes
from autotune.schedule.state import MAX_LOCAL_BYTES
from autotune.schedule.steps import Annotate, ComputeAt, Parallel, Reorder, RFactor, Split
from autotune.search.partial import Partial, advances, lanes_of, place_producer, split_into_vectors
from autotune.search.space import Tag
from autotune.target import Target
from autotune.te.arith import linear
from autotune.te.chains import matches, shared_axes
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, Expr, Load, Reduce, Var, variables
from autotune.te.numbers import elements
from autotune.te.windows import reuses

_FEW = 4
"""Numbers that are added up one after the other."""
_NARROW_STEPS = 12
"""Steps of parts of a vector that take no longer than few of whole ones and a remainder."""


def rfactor_contiguous_reduction(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A reduction along the direction of memory: partial results side by side in vector lanes."""
    state = p.state
    op = state[name].op
    if not op.axes or not terms_fill_lanes(op, target):
        return None
    contiguous = only_terms_are_contiguous(state.dag, op, target)
    if op.axes[-1].extent >= target.lanes and not contiguous:
        return None
    last = op.axes[-1].name
    out = _place_row_reduction(p, op, None, last, target)
    return [out.add(Parallel(name, len(op.axes)), done=(name,), tags=(Tag.LANES,))]


def terms_fill_lanes(op: Compute, target: Target) -> bool:
    """Whether the terms of a reduction are neighbours in memory, enough for vectors of them."""
    return bool(op.reduce_axes) and _rfactor_width(op, op.reduce_axes[-1], target) > 0


def only_terms_are_contiguous(dag: ComputeDAG, op: Compute, target: Target) -> bool:
    """Whether a reduction runs along the direction of memory, and neighbouring results do not.

    Constants that all results share do not count: the weights of a single channel.
    """
    if not op.axes or _are_neighbours(op, op.axes[-1]):
        return False
    if reuses(op) and not all(_is_own(op, x) or _is_common(dag, op, x) for x in elements(op)):
        return False
    return terms_fill_lanes(op, target)


def _are_neighbours(op: Compute, axis: Axis) -> bool:
    """Whether results along `axis` read elements that lie next to one another, or the same."""
    steps = (abs(linear(x.indices[-1]).coefficient(axis.name)) for x in op.reads if x.indices)
    return advances(op, axis) and all(step <= 1 for step in steps)


def _is_own(op: Compute, x: Load) -> bool:
    """Whether each result of `op` reads elements of its own."""
    return all(a.name in variables(x) for a in op.axes if a.extent > 1)


def _is_common(dag: ComputeDAG, op: Compute, x: Load) -> bool:
    """Whether all results of `op` read the same constants."""
    return dag.is_constant(x.tensor.name) and not any(a.name in variables(x) for a in op.axes)


def tile_rows_with_everything(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Several stages that share their leading axes run row by row, all in one loop nest."""
    state = p.state
    inner = [s.op for s in state.stages.values() if s.name != name and s.name not in p.done]
    reductions = [op for op in inner if op.reduce_axes]
    op = state[name].op
    if state.dag.outputs != (name,) or op.reduce_axes or not reductions:
        return None
    if len(reductions) == 1 and matches(op, reductions[0]):
        return None
    shared = shared_axes(state.dag, op, inner)
    if not shared or any(_row_bytes(state.dag, s, shared) > MAX_LOCAL_BYTES for s in inner):
        return None
    row = op.axes[shared - 1].name
    out = split_into_vectors(p, op, target, "row")
    names = [i.name for i in out.state[name].iters]
    out = out.add(Reorder(name, tuple(names)), Parallel(name, shared), tags=(Tag.ROWS,))
    for producer in reversed(inner):
        out = place_row_stage(out, producer.name, name, row, target)
    return [out.add(done=(name, *(i.name for i in inner)))]


def _row_bytes(dag: ComputeDAG, op: Compute, shared: int) -> int:
    """Bytes of one row of a stage that waits for several readers; 0 for those of one."""
    if len(dag.consumers(op.name)) < 2:
        return 0
    return math.prod(a.extent for a in op.axes[shared:]) * dtype_bytes(op.tensor.dtype)


def place_row_stage(p: Partial, name: str, root: str, row: str, target: Target) -> Partial:
    """Stage `name` for one row, in loop `row` of `root`."""
    op = p.state[name].op
    if op.reduce_axes:
        return _place_row_reduction(p, op, root, row, target)
    return place_producer(p, name, root, row, target)


def _place_row_reduction(
    p: Partial, op: Compute, root: str | None, row: str, target: Target
) -> Partial:
    """A reduction of one row, in loop `row` of `root` or (None) of its own nest: by rfactor.

    Partial results in a few vectors become one vector, then four numbers, then one: adding up the
    lanes one after the other would take longer than all before.
    """
    last = op.reduce_axes[-1]
    width = _rfactor_width(op, last, target)
    host = root or op.name
    if width == 0:
        return _place_column_reduction(p.add(ComputeAt(op.name, host, row)), op, target)
    widths = [*dict.fromkeys(w for w in (width, target.lanes, _FEW) if w <= width)]
    partials = [f"{op.name}.lanes{w}" for w in widths]
    out = p.add(*(RFactor(op.name, w, n) for w, n in zip(widths, partials, strict=True)))
    if root is not None:
        out = out.add(ComputeAt(op.name, root, row))
    lane = f"{last.name}{'.r' * len(widths)}"
    out = out.add(Annotate(op.name, lane, "unroll"))
    for width, partial in reversed([*zip(widths, partials, strict=True)]):
        inner = lane.removesuffix(".r")
        out = out.add(ComputeAt(partial, host, row), done=(partial,))
        out = out.add(Split(partial, lane, (min(width, target.lanes),)))
        axes = [a.name for a in op.axes]
        axes += [a.name for a in op.reduce_axes[:-1]] if inner == last.name else []
        out = out.add(Reorder(partial, (*axes, inner, f"{lane}.0", f"{lane}.1")))
        out = out.add(Annotate(partial, f"{lane}.0", "unroll"))
        out = out.add(Annotate(partial, f"{lane}.1", "vectorize"))
        if inner != last.name:
            out = out.add(Annotate(partial, inner, "unroll"))
        lane = inner
    return out


def _place_column_reduction(p: Partial, op: Compute, target: Target) -> Partial:
    """A reduction whose innermost spatial axis can be the vector."""
    if not op.axes:
        return p
    last = op.axes[-1]
    lanes = lanes_of(last.extent, target)
    body = op.body.body if isinstance(op.body, Reduce) else op.body
    if lanes == 1 or not advances(replace(op, body=body), last):
        return p
    out = p.add(Split(op.name, last.name, (lanes,)))
    outer = [a.name for a in op.axes[:-1]] + [f"{last.name}.0"]
    reduction = [a.name for a in op.reduce_axes]
    out = out.add(Reorder(op.name, (*outer, *reduction, f"{last.name}.1")))
    return out.add(Annotate(op.name, f"{last.name}.1", "vectorize"))


def _rfactor_width(op: Compute, last: Axis, target: Target) -> int:
    """Partial results of a contiguous reduction: up to four vectors, a quarter wasted at most.

    0 where the reduction is not contiguous, or too short.
    """
    if last.limit is not None:
        return 0
    contiguous = all(
        x.indices and _runs_along(x.indices[-1], last) and not _elsewhere(x, last)
        for x in op.reads
        if any(last.name in variables(i) for i in x.indices)
    )
    if not contiguous:
        return 0
    lanes, n = target.lanes, last.extent
    widths = [w for w in (4 * lanes, 2 * lanes, lanes, lanes // 2, _FEW) if n > w]
    if len(op.reduce_axes) > 1 and n in (4 * lanes, 2 * lanes, lanes, lanes // 2):
        widths.insert(0, n)  # other axes are left to run over
    exact = [w for w in widths if n % w == 0]
    close = [w for w in widths if w >= lanes and -(-n // w) * w <= 1.25 * n]
    whole = [w for w in widths if w == lanes]
    quick = [w for w in exact if w >= lanes or n // w <= _NARROW_STEPS]
    return next(iter(quick + close + exact + whole), 0)


def _runs_along(index: Expr, axis: Axis) -> bool:
    """Whether an index is `axis`, behind whole multiples of its extent: a row of its own."""
    terms = linear(index).terms
    others = (c for atom, c in terms if atom != Var(axis.name))
    return (Var(axis.name), 1) in terms and all(c % axis.extent == 0 for c in others)


def _elsewhere(x: Load, axis: Axis) -> bool:
    return any(axis.name in variables(i) for i in x.indices[:-1])
