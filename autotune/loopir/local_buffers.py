"""④ Local buffers: the region that an attached stage computes, and its layout on the stack."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.dtypes import dtype_bytes
from autotune.errors import ScheduleError
from autotune.loopir.nodes import Alloc, Body
from autotune.loopir.visitor import Read, statements
from autotune.schedule.region import UnboundedIndex, low, lowest, span
from autotune.schedule.state import MAX_LOCAL_BYTES
from autotune.te.arith import Ranges, linear, simplify
from autotune.te.expr import Expr, Tensor, Var, idx, maximum, minimum, variables

_CONFLICT_BYTES, _PADDING = 1024, 16


def local_region(reads: list[Read], dim: int, ranges: Ranges) -> tuple[Expr, int]:
    """Start and extent of the region of dimension `dim` that `reads` cover while their loops run.

    Where reads are guarded, or only a bound of their region is known, the start is clamped so that
    the region lies inside of the tensor. An exact region does, and needs no min and max.
    """
    size = max(r.load.tensor.shape[dim] for r in reads)
    indices = [(r.load.indices[dim], r.loops(ranges)) for r in reads]
    try:
        spans = [int(span(i, inner)) for i, inner in indices]
        starts = [linear(low(i, inner), ranges) for i, inner in indices]
    except UnboundedIndex:
        return idx(0), size
    first = lowest(starts)
    if first is None:
        return idx(0), size
    extent = max(s.const + n for s, n in zip(starts, spans, strict=True)) - first.const + 1
    if not any(r.guarded for r in reads) and all(_is_exact(i, inner) for i, inner in indices):
        return simplify(first.expr, ranges), extent
    extent = min(extent, size)
    start = minimum(maximum(first.expr, idx(0)), idx(size - extent))
    return simplify(start, ranges), extent


def _is_exact(index: Expr, inner: Mapping[str, int]) -> bool:
    """Whether `index` takes its lowest and its highest value while the `inner` loops run."""
    return all(
        isinstance(atom, Var) or not variables(atom) & set(inner) for atom, _ in linear(index).terms
    )


def padded_rows(tensor: Tensor) -> tuple[int, ...]:
    """Strides of a local buffer, with a cache line between rows a multiple of 1 KiB apart.

    Without it all rows of a register tile would compete for one set of the L1 cache.
    """
    strides: list[int] = []
    step = 1
    for extent in reversed(tensor.shape):
        if strides and extent > 1 and step * dtype_bytes(tensor.dtype) % _CONFLICT_BYTES == 0:
            step += _PADDING
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def check_stack(name: str, body: Body) -> None:
    """Raises ScheduleError for local buffers that are more than the stack holds."""
    total = sum(s.buffer.n_bytes for s in statements(body) if isinstance(s, Alloc))
    if total > MAX_LOCAL_BYTES:
        raise ScheduleError(
            f"{name}: local buffers need {total} bytes, of {MAX_LOCAL_BYTES} at most",
            "place stages in inner loops by compute_at, or split these loops",
        )
