"""② Axis coalescing: extents of 1 vanish, neighbours merge where nothing tells them apart.

    conv[n<1, h<56, w<56, o<64] = sum(x[n, h+kh, w+kw, i] * w[kh, kw, i, o], kh<1, kw<1, i<64)
 -> conv[hw<3136, o<64]         = sum(x[hw, i] * w[i, o], i<64)

A pair of axes merges when everywhere in the DAG it occurs only as a plain consecutive pair that
covers two whole dimensions. The innermost dimension of an input or output never merges unless it
is known to be dense: such a tensor may be a window of a larger one (a part of a concatenation),
dense in all but its last dimension. An axis with a limit merges with those inside of it alone: the
first elements of it are the first of both. Both rewrites keep the order of elements, so tensors
keep their contents: a placeholder's new shape is a free reshape of the old one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder
from autotune.te.expr import Axis, Expr, Load, Reduce, Tensor, Var, idx, map_expr, mul, substitute

Pair = tuple[str, int]
"""(owner, n): dimensions n and n+1 of a tensor, or reduce axes n and n+1 of "reduce <compute>"."""


def collapse(dag: ComputeDAG, dense: Collection[str] = ()) -> ComputeDAG:
    """The same computation over fewer axes; names of tensors stay.

    `dense`: inputs and outputs whose memory has no gaps.
    """
    return merge_axes(drop_unit_axes(dag), dense)


def drop_unit_axes(dag: ComputeDAG) -> ComputeDAG:
    """Remove axes and dimensions of extent 1; a tensor that has some keeps at least one."""
    kept = {op.name: _long_dimensions(op.tensor) for op in dag.ops}
    tensors = {op.name: _picked(op.tensor, kept[op.name]) for op in dag.ops}
    return _rewritten(dag, [_without_units(op, kept, tensors) for op in dag.ops])


def merge_axes(dag: ComputeDAG, dense: Collection[str] = ()) -> ComputeDAG:
    """Merge every pair of axes that is mergeable; see the module."""
    merged = _mergeable(dag, dense)
    runs = {op.name: _runs(op.name, len(op.tensor.shape), merged) for op in dag.ops}
    tensors = {
        op.name: Tensor(
            op.name,
            tuple(math.prod(op.tensor.shape[n] for n in run) for run in runs[op.name]),
            op.tensor.dtype,
        )
        for op in dag.ops
    }
    return _rewritten(dag, [_with_runs(op, runs, tensors, merged) for op in dag.ops])


def _rewritten(dag: ComputeDAG, ops: Iterable[Op]) -> ComputeDAG:
    return ComputeDAG(tuple(ops), dag.outputs)


# --- extents of 1 -----------------------------------------------------------------------------


def _long_dimensions(tensor: Tensor) -> tuple[int, ...]:
    long = tuple(n for n, extent in enumerate(tensor.shape) if extent != 1)
    return long or tuple(range(len(tensor.shape)))[-1:]


def _picked(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    return Tensor(tensor.name, tuple(tensor.shape[n] for n in dims), tensor.dtype)


def _without_units(op: Op, kept: dict[str, tuple[int, ...]], tensors: dict[str, Tensor]) -> Op:
    if isinstance(op, Placeholder):
        return Placeholder(tensors[op.name], op.constant)
    axes = tuple(op.axes[n] for n in kept[op.name])
    gone: dict[str, Expr] = {a.name: idx(0) for a in op.axes if a not in axes}
    gone |= {a.name: idx(0) for a in op.reduce_axes if not _is_wide(a)}

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        indices = tuple(map_expr(e.indices[n], one) for n in kept[e.tensor.name])
        return Load(tensors[e.tensor.name], indices)

    body = map_expr(substitute(op.body, gone), one)
    return Compute(tensors[op.name], axes, _without_unit_reduction(body))


def _without_unit_reduction(body: Expr) -> Expr:
    if not isinstance(body, Reduce):
        return body
    axes = tuple(a for a in body.axes if _is_wide(a))
    return Reduce(body.op, body.body, axes) if axes else body.body


def _is_wide(axis: Axis) -> bool:
    """Whether a reduction over it may have another number of terms than one."""
    return axis.extent != 1 or axis.limit is not None


# --- merging ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Use:
    """A load's dimensions n and n+1; `axes`: the axis pair they plainly follow, if any."""

    tensor: Pair
    axes: Pair | None


def _mergeable(dag: ComputeDAG, dense: Collection[str]) -> set[Pair]:
    """All pairs minus those that something tells apart and those linked to such a pair."""
    links: list[tuple[Pair, Pair]] = []
    spoiled: set[Pair] = set()
    pairs: set[Pair] = set()
    for op in dag.ops:
        pairs |= {(op.name, n) for n in range(len(op.tensor.shape) - 1)}
        is_port = (isinstance(op, Placeholder) and not op.constant) or op.name in dag.outputs
        if is_port and op.name not in dense:
            spoiled.add((op.name, len(op.tensor.shape) - 2))
    for op in dag.computes:
        pairs |= {(_reduce_owner(op), n) for n in range(len(op.reduce_axes) - 1)}
        spoiled |= set(_told_apart(op)) | set(_limited(op))
        for use in _uses(op):
            if use.axes is None:
                spoiled.add(use.tensor)
            else:
                links.append((use.tensor, use.axes))
    return pairs - _closure(spoiled, links)


def _closure(start: set[Pair], links: Sequence[tuple[Pair, Pair]]) -> set[Pair]:
    near: dict[Pair, list[Pair]] = {}
    for a, b in links:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    reached, todo = set(start), list(start)
    while todo:
        new = [p for p in near.get(todo.pop(), []) if p not in reached]
        reached |= set(new)
        todo += new
    return reached


def _reduce_owner(op: Compute) -> str:
    return f"reduce {op.name}"


def _positions(op: Compute) -> dict[str, Pair]:
    """Axis name -> (owner, position)."""
    spatial = {a.name: (op.name, n) for n, a in enumerate(op.axes)}
    return spatial | {a.name: (_reduce_owner(op), n) for n, a in enumerate(op.reduce_axes)}


def _extents(op: Compute) -> dict[str, int]:
    return {a.name: a.extent for a in op.axes + op.reduce_axes}


def _uses(op: Compute) -> Iterator[_Use]:
    positions, extents = _positions(op), _extents(op)
    for load in op.reads:
        for n in range(len(load.indices) - 1):
            plain = [_plain(load, n + k, extents) for k in (0, 1)]
            first, second = (positions[p] if p else None for p in plain)
            follows = first and second and second == (first[0], first[1] + 1)
            yield _Use((load.tensor.name, n), first if follows else None)


def _plain(load: Load, n: int, extents: dict[str, int]) -> str | None:
    """The axis that index n of the load is and that covers the whole dimension, else None."""
    index = load.indices[n]
    if isinstance(index, Var) and extents[index.name] == load.tensor.shape[n]:
        return index.name
    return None


def _told_apart(op: Compute) -> Iterator[Pair]:
    """Axis pairs of which one occurs without the other."""
    positions, extents = _positions(op), _extents(op)
    for name in _bare_variables(op.body, extents):
        yield from _neighbours(positions[name])
    for load in op.reads:
        names = [_plain(load, n, extents) for n in range(len(load.indices))]
        at = [None, *(positions[name] if name else None for name in names), None]
        for before, here, after in zip(at, at[1:], at[2:], strict=False):
            if here and before != (here[0], here[1] - 1):
                yield (here[0], here[1] - 1)
            if here and after != (here[0], here[1] + 1):
                yield here


def _limited(op: Compute) -> Iterator[Pair]:
    """Axis pairs of which the second one has a limit."""
    for owner, axes in ((op.name, op.axes), (_reduce_owner(op), op.reduce_axes)):
        yield from ((owner, n - 1) for n, a in enumerate(axes) if n and a.limit is not None)


def _neighbours(position: Pair) -> tuple[Pair, Pair]:
    owner, at = position
    return (owner, at - 1), (owner, at)


def _bare_variables(body: Expr, extents: dict[str, int]) -> set[str]:
    """Variables that occur anywhere but as an index over a whole dimension of a load."""
    found: set[str] = set()

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Var):
            found.add(e.name)
        if not isinstance(e, Load):
            return None
        for n, index in enumerate(e.indices):
            if _plain(e, n, extents) is None:
                map_expr(index, visit)
        return e

    map_expr(body, visit)
    return found


def _runs(owner: str, rank: int, merged: set[Pair]) -> list[list[int]]:
    """Dimensions grouped into runs that merge."""
    runs: list[list[int]] = []
    for n in range(rank):
        if n and (owner, n - 1) in merged:
            runs[-1].append(n)
        else:
            runs.append([n])
    return runs


def _with_runs(
    op: Op,
    runs: dict[str, list[list[int]]],
    tensors: dict[str, Tensor],
    merged: set[Pair],
) -> Op:
    if isinstance(op, Placeholder):
        return Placeholder(tensors[op.name], op.constant)
    axes = tuple(_joined(op.axes, run) for run in runs[op.name])
    reduce_runs = _runs(_reduce_owner(op), len(op.reduce_axes), merged)
    reduced = tuple(_joined(op.reduce_axes, run) for run in reduce_runs)
    names: dict[str, Expr] = {}
    for axis, run in zip(axes, runs[op.name], strict=True):
        names |= {op.axes[n].name: axis.var for n in run}
    for axis, run in zip(reduced, reduce_runs, strict=True):
        names |= {op.reduce_axes[n].name: axis.var for n in run}

    def one(e: Expr) -> Expr | None:
        match e:
            case Load(tensor=t, indices=indices):
                firsts = tuple(map_expr(indices[run[0]], one) for run in runs[t.name])
                return Load(tensors[t.name], firsts)
            case Var(name=name):
                return names[name]
            case Reduce(op=kind, body=body):
                return Reduce(kind, map_expr(body, one), reduced)
            case _:
                return None

    return Compute(tensors[op.name], axes, map_expr(op.body, one))


def _joined(axes: Sequence[Axis], run: Sequence[int]) -> Axis:
    """One axis in place of a run, of which the first may have a limit."""
    first, name = axes[run[0]], "".join(axes[n].name for n in run)
    inner = math.prod(axes[n].extent for n in run[1:])
    limit = None if first.limit is None else mul(first.limit, idx(inner))
    return Axis(name, first.extent * inner, limit)
