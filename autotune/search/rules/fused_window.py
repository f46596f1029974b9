"""⑥ Fused producer: a window computed inside the blocks of the reduction that reads it.

    data → reduction over a small window (depthwise, pooling) → pointwise → reduction → pointwise

What lies between the two reductions never leaves the cache. From the outside in:

    parallel  blocks of pixels, blocks of channels
      [padding for the block, or inlined]
      the block's pixels × all channels of the window, in a local buffer:
        tiles of pixels, vectors of channels
          window unrolled, in registers; its pointwise consumer
      the reduction over those channels, tiled as always (see `tiling`)

With several blocks of channels the window is computed for each of them: the search decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.schedule.state import State
from autotune.schedule.steps import (
    Annotate,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Hole,
    Pack,
    Reorder,
    Split,
)
from autotune.search.partial import Partial, constants_of, lanes_of, place_producer
from autotune.search.rules.interleaving import interleaved, interleaving
from autotune.search.rules.tiling import (
    anchor_of,
    finish_tiling,
    place_anchor,
    root_and_anchor,
    tile_consumer,
)
from autotune.search.rules.variants import (
    TilingVariant,
    hold_wider,
    widened,
    with_dots,
    with_matrices,
)
from autotune.search.space import Role, Tag
from autotune.target import Target
from autotune.te.chains import only_producer
from autotune.te.dag import Compute
from autotune.te.expr import Var
from autotune.te.windows import is_window

WINDOW_TILES = (1, 2, 3, 4, 5, 6, 7, 8)
"""Pixels of a register tile of the window, along each axis."""
WINDOW_VECTORS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The stages: `window` is None where `middle`, which is read by `anchor`, is itself the window.

    `padding`: producers of the window alone, the last stage first.
    """

    anchor: Compute
    middle: Compute
    window: Compute | None
    padding: tuple[Compute, ...]


def tile_window_and_reduction(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Tile a pointwise stage around a reduction, and inside its blocks the window that feeds it."""
    state = p.state
    found = root_and_anchor(state, name)
    chain = _chain(state, found[1]) if found else None
    if found is None or chain is None:
        return None
    inlined = (False, True) if chain.padding else (False,)
    factors = (1, *interleaving(state.dag, chain.anchor, target))
    variants = [
        TilingVariant(panels_outside=m, inline_producers=i, interleave=n)
        for m in (True, False)
        for i in inlined
        for n in factors
    ]
    plain = [v for v in variants if v.interleave == 1]
    variants = with_dots(variants, chain.anchor, target)
    constants, rows = constants_of(state, chain.anchor), _row_axis(found[0])
    matrices = with_matrices(plain, chain.anchor, target, constants)
    variants += [v for v in matrices if v.is_packed and v.matrices and v.matrices.rows == rows]
    return [_tile(p, found[0], chain, v, target) for v in variants]


def _row_axis(op: Compute) -> int:
    """The position of the axis along which register tiles are wide: the last of several pixels."""
    return max((n for n, a in enumerate(op.axes[:-1]) if a.extent > 1), default=0)


def _chain(state: State, anchor: Compute) -> _Chain | None:
    middle = only_producer(state.dag, anchor)
    if middle is None or not _point_by_point(anchor, middle) or is_window(anchor):
        return None
    window = middle if middle.reduce_axes else anchor_of(state, middle)
    if window is None or not is_window(window):
        return None
    padding: list[Compute] = []
    source = only_producer(state.dag, window)
    while source is not None:
        padding.append(source)
        source = only_producer(state.dag, source)
    if any(op.reduce_axes for op in padding):
        return None
    return _Chain(anchor, middle, None if middle is window else window, tuple(padding))


def _point_by_point(anchor: Compute, op: Compute) -> bool:
    """Whether the blocks of `anchor` read disjoint elements of `op`: an axis each, no windows."""
    reads = (x for x in anchor.reads if x.tensor.name == op.name)
    return all(isinstance(i, Var) for x in reads for i in x.indices)


def _tile(p: Partial, op: Compute, c: _Chain, v: TilingVariant, target: Target) -> Partial:
    rows = [a.name for a in op.axes[:-1] if a.extent > 1][:-1]
    out, op, anchor = interleaved(p, op, c.anchor, v.interleave)
    out, loops = tile_consumer(out, op, target, v, rows)
    out = place_anchor(out, op, anchor, loops, v, target)
    host, block, middle = op.name, loops.blocks[-1], c.middle.name
    window = c.window
    if window is None:
        out = out.add(CacheWrite(middle, f"{middle}.sum"))
        window = out.state[f"{middle}.sum"].op
    wider = widened(anchor, v)
    if middle in wider:
        out, middle = hold_wider(out, middle, anchor.name, wider[middle])
    out = out.add(ComputeAt(middle, host, block))
    out = _tile_window(out, out.state[middle].op, window, target)
    for stage in c.padding:
        if v.inline_producers:
            out = out.add(ComputeInline(stage.name), done=(stage.name,))
        else:
            out = place_producer(out, stage.name, host, block, target)
    out = out.add(*(Pack(n, window.name) for n in constants_of(out.state, window)))
    out = out.add(done=(middle, window.name), tags=(Tag.FUSED_WINDOW,))
    return finish_tiling(out, op, anchor, v)


def _tile_window(p: Partial, op: Compute, window: Compute, target: Target) -> Partial:
    """Register tiles of pointwise stage `op`, and in each of them all of `window`."""
    *pixels, channel = op.axes
    tiled = [a for a in pixels if a.extent > 1]
    ones = [a.name for a in pixels if a.extent == 1]
    c, lanes = channel.name, lanes_of(channel.extent, target)
    out = p
    for a in tiled:
        hole = f"window.{a.name}"
        out = out.hole(hole, tuple(t for t in WINDOW_TILES if t <= a.extent), Role.TILE)
        out = out.add(Split(op.name, a.name, (Hole(hole),), "split"))
    vectors = tuple(n for n in WINDOW_VECTORS if n * lanes <= channel.extent)
    out = out.hole("window.vectors", vectors, Role.VECTORS)
    out = out.add(Split(op.name, c, (Hole("window.vectors"), lanes)))
    tiles = [*(f"{a.name}.0" for a in tiled), f"{c}.0"]
    inner = [*(f"{a.name}.1" for a in tiled), f"{c}.1"]
    out = out.add(Reorder(op.name, (*ones, *tiles, *inner, f"{c}.2")))
    out = out.add(*(Annotate(op.name, n, "unroll") for n in inner))
    out = out.add(Annotate(op.name, f"{c}.2", "vectorize"))
    return _place_window(out, op, window, f"{c}.0", lanes)


def _place_window(p: Partial, op: Compute, window: Compute, loop: str, lanes: int) -> Partial:
    """The window on one register tile: taps outside, everything unrolled around one vector."""
    *pixels, channel = window.axes
    taps = [a.name for a in window.reduce_axes]
    out = p.add(ComputeAt(window.name, op.name, loop))
    out = out.add(Split(window.name, channel.name, (lanes,)))
    unrolled = [*taps, *(a.name for a in pixels), f"{channel.name}.0"]
    out = out.add(Reorder(window.name, (*unrolled, f"{channel.name}.1")))
    out = out.add(*(Annotate(window.name, n, "unroll") for n in unrolled))
    return out.add(Annotate(window.name, f"{channel.name}.1", "vectorize"))
