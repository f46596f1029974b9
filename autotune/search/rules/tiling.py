"""⑥ Multi-level tiling: a reduction in registers, its pointwise consumer as epilogue.

From the outside in:

    parallel  blocks of every spatial axis (pixels outside channels, or channels outside pixels)
      [producers: padding, copies, for the block]
      tiles within the block (channels outside pixels, or pixels outside channels)
        reduction loops
          register tile: unrolled spatial axes × vectors of the innermost axis
        consumer on the register tile

and, as branches, the same with the reduction in blocks outside the tiles (`k-blocked`), with
padding that is not copied (`inlined`): register tiles of one row leave out the taps that meet only
padding, and what they read of it elsewhere comes from zeros; and with several partial results of a
channel side by side in the lanes (`interleaved`), where the channels alone leave lanes idle.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from autotune.schedule.state import State
from autotune.schedule.steps import (
    NEXT_PANEL,
    Annotate,
    CacheRead,
    ComputeAt,
    ComputeInline,
    Hole,
    Parallel,
    Prefetch,
    Reorder,
    Split,
)
from autotune.search.partial import (
    MAX_VECTORS,
    Partial,
    channel_holes,
    constants_of,
    count_domain,
    pack_constants,
    place_producer,
    split_channel,
    tile_domain,
    unroll_last,
)
from autotune.search.rules.interleaving import interleaved, interleaving
from autotune.search.rules.rows import only_terms_are_contiguous
from autotune.search.rules.variants import (
    TilingVariant,
    hold_wider,
    matrix_domain,
    row_domain,
    split_dot,
    terms_together,
    widened,
    with_dots,
    with_matrices,
)
from autotune.search.space import Role
from autotune.target import Target
from autotune.te.chains import matches
from autotune.te.dag import Compute, Placeholder
from autotune.te.expr import variables
from autotune.te.numbers import elements
from autotune.te.products import products_of
from autotune.te.windows import MAX_WINDOW, only_pads, reuses, window_size


def tile_reduction_with_consumer(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Multi-level tiling of a pointwise stage around the reduction that feeds it."""
    state = p.state
    found = root_and_anchor(state, name)
    if found is None or only_terms_are_contiguous(state.dag, found[1], target):
        return None
    op, anchor = found
    out: list[Partial] = []
    variants = _variants(anchor, op, interleaving(state.dag, anchor, target))
    for variant in _with_forms(variants, anchor, target, constants_of(state, anchor)):
        out += _tile(p, op, anchor, variant, target)
    return out


# --- facts of the definition ------------------------------------------------------------------


def root_and_anchor(state: State, name: str) -> tuple[Compute, Compute] | None:
    """Stage `name`, if it is a pointwise one at the root, and the reduction that it consumes."""
    op = state[name].op
    if op.reduce_axes or state[name].attach or not op.axes:
        return None
    anchor = anchor_of(state, op)
    return (op, anchor) if anchor else None


def anchor_of(state: State, op: Compute) -> Compute | None:
    """The one reduction that `op` consumes point by point, as its single consumer."""
    found = []
    for name in {x.tensor.name for x in op.reads}:
        producer = state.dag[name]
        if isinstance(producer, Compute) and producer.reduce_axes:
            found.append(producer)
    if len(found) != 1 or not matches(op, found[0]):
        return None
    name = found[0].name
    only = len(state.dag.consumers(name)) == 1 and name not in state.dag.outputs
    return found[0] if only and state[found[0].name].attach is None else None


# --- tiling -----------------------------------------------------------------------------------


def _variants(anchor: Compute, consumer: Compute, factors: tuple[int, ...]) -> list[TilingVariant]:
    pixels = any(a.extent > 1 for a in consumer.axes[:-1])
    if not reuses(anchor):
        window = window_size(anchor) <= MAX_WINDOW
        orders = (True, False) if pixels else (False,)
        return [
            TilingVariant(
                channels_outside=o,
                panels_outside=o,
                unroll_window=unroll,
                inline_producers=inline,
            )
            for o in orders
            for unroll in ((True, False) if window else (False,))
            for inline in (False, True)
        ]
    if not pixels:
        return [TilingVariant(panels_outside=True)]
    orders = (True, False)
    plain = [TilingVariant(channels_outside=o, panels_outside=m) for o in orders for m in orders]
    panels = [v for v in plain if v.panels_outside]
    copied = [replace(v, copy_inputs=True) for v in panels]
    copied += [replace(v, copy_panels=True) for v in panels]
    blocked = [replace(v, k_blocked=True) for v in panels]
    per_k = [replace(v, copy_inputs=c, producers_per_k=True) for v in blocked for c in orders]
    skipping = [replace(v, inline_producers=True) for v in plain + blocked]
    dense = [replace(v, interleave=n) for n in factors for v in plain + skipping[: len(plain)]]
    return plain + copied + blocked + per_k + skipping + dense


def _with_forms(
    variants: list[TilingVariant], anchor: Compute, target: Target, constants: Container[str]
) -> list[TilingVariant]:
    """The variants with each form of multiply-add that fits the reduction, and with plain ones.

    Several products in place of one are there for such forms alone.
    """
    several = len(products_of(anchor)) > 1
    found = with_dots(variants, anchor, target)
    plain = [v for v in variants if v.interleave == 1 and not v.unroll_window]
    # matrices are read as the unit wants them: padding is not chosen in between
    plain = [v for v in plain if not v.inline_producers]
    matrices = [
        v
        for v in with_matrices(plain, anchor, target, constants)
        if v.is_packed or not (v.copy_inputs or v.copy_panels or v.producers_per_k)
    ]
    found = matrices if several and matrices else found + matrices
    # a condition over several products is outside
    return [v for v in found if not several or not v.producers_per_k]


def _tile(
    p: Partial, op: Compute, anchor: Compute, v: TilingVariant, target: Target
) -> list[Partial]:
    """Tile consumer `op`, put `anchor` inside, then its producers."""
    state = p.state
    producers = _producers(state, anchor)
    copied = [] if producers else _copied(state, anchor, v)
    if (v.copy_inputs or v.copy_panels) and not copied:
        return []
    if (v.inline_producers or v.producers_per_k) and not (producers or copied):
        return []
    skips = v.inline_producers and reuses(anchor)
    if skips and not all(only_pads(state[n].op) for n in producers):
        return []
    rows = _window_axes(op, anchor)[:-1] if skips else []
    wider = {} if v.inline_producers else widened(anchor, v)
    out, op, anchor = interleaved(p, op, anchor, v.interleave)
    if v.matrices is not None and not v.is_packed:
        out, anchor, matrices, name = terms_together(out, anchor, v.matrices, target)
        v = replace(v, matrices=matrices)
        read = [n for n in producers if n in {x.tensor.name for x in out.state[name].op.reads}]
        out = out.add(*map(ComputeInline, read), done=read)  # it reads each element once
        producers = [name, *(n for n in producers if n not in read)]
    for name in copied:
        out = out.add(CacheRead(name, anchor.name, f"{name}.copy", wider.get(name, "")))
        producers.append(f"{name}.copy")
    for n, name in enumerate(producers):
        if name in wider:
            out, producers[n] = hold_wider(out, name, anchor.name, wider[name])
    out, loops = tile_consumer(out, op, target, v, rows)
    out = place_anchor(out, op, anchor, loops, v, target)
    host, loop = op.name, loops.blocks[-1]
    if v.producers_per_k:
        last = -2 if v.matrices and v.matrices.is_pair else -1
        groups = ".0" if v.dot_terms > 1 else ""
        host, loop = anchor.name, f"{anchor.reduce_axes[last].name}{groups}.0"
    for name in producers:
        if v.inline_producers:
            out = out.add(ComputeInline(name), done=(name,))
        else:
            out = place_producer(out, name, host, loop, target)
    return [finish_tiling(out, op, anchor, v)]


def _window_axes(op: Compute, anchor: Compute) -> list[str]:
    """The axes of consumer `op` along which windows of `anchor` move, outermost first."""
    summed = {a.name for a in anchor.reduce_axes}
    indices = [variables(i) for x in anchor.reads for i in x.indices]
    moved = set().union(*(names for names in indices if names & summed))
    pairs = zip(op.axes, anchor.axes, strict=True)
    return [a.name for a, b in pairs if a.extent > 1 and b.name in moved]


def _producers(state: State, anchor: Compute) -> list[str]:
    """The computations whose single consumer is `anchor`."""
    found = (state.dag[n] for n in dict.fromkeys(x.tensor.name for x in anchor.reads))
    return [
        r.name
        for r in found
        if isinstance(r, Compute)
        and not r.reduce_axes
        and state.dag.consumers(r.name) == (anchor,)
        and r.name not in state.dag.outputs
    ]


def _copied(state: State, anchor: Compute, v: TilingVariant) -> list[str]:
    """Inputs that the structure copies for each block; none where that would be all of them.

    A single number, as a length is, has nothing to be copied for.
    """
    found = _activations(state, anchor)
    names = [n for n in found if any(extent > 1 for extent in state.dag[n].tensor.shape)]
    if not v.copy_panels:
        return names if v.copy_inputs else []
    channel = anchor.axes[-1].name
    moved = {x.tensor.name for x in anchor.reads for i in x.indices if channel in variables(i)}
    panels = [n for n in names if n in moved]
    return panels if len(panels) < len(names) else []


def finish_tiling(p: Partial, op: Compute, anchor: Compute, v: TilingVariant) -> Partial:
    """Pack the constants in the order of the loops, and prefetch."""
    out = pack_constants(p, anchor)
    if not v.k_blocked:
        out = _prefetch_for_consumer(out, op)
        out = prefetch_next_tile(out, op, anchor)
    return out.add(done=(op.name, anchor.name), tags=v.tags)


def prefetch_next_tile(p: Partial, op: Compute, anchor: Compute, prefix: str = "") -> Partial:
    """While reduction `anchor` runs, prefetch the activations of the next tile of `op`.

    Not where windows move: the next tile overlaps the present one.
    """
    ahead = _activations(p.state, p.state[anchor.name].op)
    if not ahead or _window_axes(op, anchor):
        return p
    hole = f"{prefix}tile.ahead"
    out = p.hole(hole, (NEXT_PANEL, 0), Role.PREFETCH_NEXT_TILE)
    return out.add(*(Prefetch(n, anchor.name, Hole(hole)) for n in ahead))


@dataclass(frozen=True, slots=True)
class Loops:
    """Names of the consumer's loops by level; its holes begin with `prefix`."""

    blocks: tuple[str, ...]
    tiles: tuple[str, ...]
    vector: str
    prefix: str = ""


def tile_consumer(
    p: Partial, op: Compute, target: Target, v: TilingVariant, rows: Container[str] = ()
) -> tuple[Partial, Loops]:
    """Blocks, tiles and register tiles of pointwise stage `op`, one wide along the axes `rows`."""
    pixels = [a for a in op.axes[:-1] if a.extent > 1]
    channel = op.axes[-1]
    ones = [a.name for a in op.axes[:-1] if a.extent == 1]
    out = p
    for a in pixels:
        tile, many = f"{a.name}.tile", f"{a.name}.tiles"
        sizes = (1,) if a.name in rows else tile_domain(a.extent)
        if v.matrices and a.name not in rows:
            sizes = matrix_domain(a.extent, v.matrices, a == op.axes[v.matrices.rows])
        out = out.hole(tile, sizes, Role.TILE).hole(many, count_domain(a.extent), Role.TILES)
        out = out.add(Split(op.name, a.name, (Hole(many), Hole(tile)), "split"))
    most = v.matrices.unit.most_sums if v.matrices else MAX_VECTORS
    out = channel_holes(out, channel, target, most)
    out, (block, panel, vector, lane) = split_channel(out, op, channel)
    pixel_blocks = [f"{a.name}.0" for a in pixels]
    pixel_tiles = [f"{a.name}.1" for a in pixels]
    blocks = [block, *pixel_blocks] if v.channels_outside else [*pixel_blocks, block]
    tiles = [panel, *pixel_tiles] if v.panels_outside else [*pixel_tiles, panel]
    inner = [*(f"{a.name}.2" for a in pixels), vector]
    order = (*ones, *blocks, *tiles, *inner, lane)
    out = out.add(Reorder(op.name, order), Parallel(op.name, len(ones) + len(blocks)))
    unrolled = [vector] if v.matrices else inner
    marks = [Annotate(op.name, n, "unroll") for n in unrolled]
    out = out.add(*marks, Annotate(op.name, lane, "vectorize"))
    return out, Loops(tuple(blocks), tuple(tiles), channel.name)


def place_anchor(
    p: Partial, op: Compute, anchor: Compute, loops: Loops, v: TilingVariant, target: Target
) -> Partial:
    """The reduction on the register tile, or (k-blocked) on the block with tiles of its own."""
    a, rename = anchor.name, dict(zip((x.name for x in op.axes), anchor.axes, strict=True))
    channel = rename[loops.vector].name
    pixels = [x.name for x in anchor.axes if x.name != channel]
    if v.k_blocked:
        return _place_blocked_anchor(p, op, anchor, loops, v)
    out = p.add(ComputeAt(a, op.name, loops.tiles[-1] if loops.tiles else loops.blocks[-1]))
    lanes = Hole(f"{loops.prefix}lanes") if v.interleave == 1 else target.lanes
    out = out.add(Split(a, channel, (lanes,)))
    out, terms = split_dot(out, anchor, v)
    last, groups, dots = terms.steps, terms.groups, terms.dots
    out, pixels, rows = _split_rows(out, anchor, v, pixels, loops.prefix)
    reduction = [*terms.outer, last.name]
    unrolled: list[str] = []
    if v.unroll_window:
        unrolled = reduction
    else:
        out, reduction, unrolled = unroll_last(out, anchor, last, reduction, loops.prefix)
    order = (*reduction, *(n for n in unrolled if n not in reduction), *pixels)
    matrix = (*rows, *groups)
    out = out.add(Reorder(a, (*order, f"{channel}.0", *matrix, f"{channel}.1", *dots)))
    marks = [Annotate(a, n, "unroll") for n in (*unrolled, *pixels, f"{channel}.0")]
    marks += [Annotate(a, n, "tile") for n in matrix]
    marks += [Annotate(a, f"{channel}.1", "vectorize"), *(Annotate(a, n, "dot") for n in dots)]
    return out.add(*marks)


def _split_rows(
    p: Partial, anchor: Compute, v: TilingVariant, pixels: list[str], prefix: str = ""
) -> tuple[Partial, list[str], tuple[str, ...]]:
    """The loops `pixels` of a register tile with the rows of its matrices apart, and these."""
    if v.matrices is None:
        return p, pixels, ()
    axis = anchor.axes[v.matrices.rows]
    at = next(n for n, name in enumerate(pixels) if p.state[anchor.name].axis_of(name) == axis.name)
    out = p.hole(f"{prefix}rows", row_domain(axis.extent, v.matrices), Role.TILE)
    out = out.add(Split(anchor.name, pixels[at], (Hole(f"{prefix}rows"),)))
    outer, inner = (f"{pixels[at]}.{n}" for n in (0, 1))
    return out, [*pixels[:at], outer, *pixels[at + 1 :]], (inner,)


def _place_blocked_anchor(
    p: Partial, op: Compute, anchor: Compute, loops: Loops, v: TilingVariant
) -> Partial:
    a, rename = anchor.name, dict(zip((x.name for x in op.axes), anchor.axes, strict=True))
    channel = rename[loops.vector].name
    tiled = [(rename[x.name].name, f"{x.name}.tile") for x in op.axes[:-1] if x.extent > 1]
    ones = [rename[x.name].name for x in op.axes[:-1] if x.extent == 1]
    out = p.add(ComputeAt(a, op.name, loops.blocks[-1]))
    out, terms = split_dot(out, anchor, v)
    last, groups, dots = terms.steps, terms.groups, terms.dots
    reduction = [*terms.outer, f"{last.name}.1"]
    blocks = _block_domain(last.extent, 4 if v.matrices else 16)
    out = out.hole("k.block", blocks, Role.BLOCK).add(
        Split(a, last.name, (Hole("k.block"),), "split")
    )
    unrolled: list[str] = []
    if blocks[0] < last.extent:
        out = out.hole("k.unroll", (1, 2, 4, 8), Role.UNROLL)
        out = out.add(Split(a, reduction[-1], (Hole("k.unroll"),), "split"))
        reduction[-1:], unrolled = [f"{last.name}.1.0"], [f"{last.name}.1.1"]
    for name, tile in tiled:
        out = out.add(Split(a, name, (Hole(tile),), "split"))
    out = out.add(Split(a, channel, (Hole("lanes"),)))
    out = out.add(Split(a, f"{channel}.0", (Hole("vectors"),), "split"))
    panel, tiles = f"{channel}.0.0", [f"{n}.0" for n, _ in tiled]
    middle = [panel, *tiles] if v.panels_outside else [*tiles, panel]
    out, inner, rows = _split_rows(out, anchor, v, [f"{n}.1" for n, _ in tiled])
    inner, matrix = [*inner, f"{channel}.0.1"], (*rows, *groups)
    order = (*ones, f"{last.name}.0", *middle, *reduction, *unrolled)
    out = out.add(Reorder(a, (*order, *inner, *matrix, f"{channel}.1", *dots)))
    marks = [Annotate(a, n, "unroll") for n in (*unrolled, *inner)]
    marks += [Annotate(a, n, "tile") for n in matrix]
    marks += [Annotate(a, f"{channel}.1", "vectorize"), *(Annotate(a, n, "dot") for n in dots)]
    return out.add(*marks)


def _prefetch_for_consumer(p: Partial, op: Compute) -> Partial:
    """While a reduction runs, prefetch the operands and the result of its consumer `op`."""
    out = p.hole("tile.touch", (0, 1), Role.PREFETCH_CONSUMER)
    names = (*_activations(p.state, p.state[op.name].op), op.name)
    return out.add(*(Prefetch(n, op.name, Hole("tile.touch")) for n in names))


def _activations(state: State, op: Compute) -> list[str]:
    """Non-constant inputs that `op` reads directly."""
    names = dict.fromkeys(x.tensor.name for x in elements(op))
    return [n for n in names if isinstance(o := state.dag[n], Placeholder) and not o.constant]


def _block_domain(extent: int, least: int) -> tuple[int, ...]:
    """Length of a reduction block: divisors from `least` up to half of the reduction."""
    found = tuple(d for d in range(least, extent // 2 + 1) if extent % d == 0)
    return found or (extent,)
