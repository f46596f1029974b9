"""⑥ Attention as one task: a product, its rows normalised, and the product that reads them.

    data → product → pointwise → stages of whole rows → product → pointwise

The rows between the two products never leave the cache. From the outside in:

    parallel  everything that all of the last product's loads share, blocks of rows
      the first product for the block's rows × all columns, in a local buffer:
        register tiles: rows × vectors of columns, around the whole reduction; pointwise consumer
      for each row
        the stages of whole rows, partial results of reductions side by side (see `rows`)
      [where register tiles are of matrices: a copy of the values in the order that they want]
      the last product over those columns:
        register tiles: rows × vectors of channels, around the whole reduction; pointwise consumer

The loads determine which axes are rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from autotune.schedule.state import State
from autotune.schedule.steps import Annotate, CacheWrite, ComputeAt, Hole, Parallel, Reorder, Split
from autotune.search.partial import (
    Partial,
    batch_and_rows,
    count_domain,
    lanes_domain,
    pack_constants,
    panel_domain,
    place_producer,
    split_into_vectors,
    tile_domain,
)
from autotune.search.rules.rows import place_row_stage
from autotune.search.rules.tiling import (
    Loops,
    finish_tiling,
    place_anchor,
    prefetch_next_tile,
    root_and_anchor,
)
from autotune.search.rules.variants import TilingVariant, matrix_domain, terms_together, with_dots
from autotune.search.space import Role, Tag
from autotune.target import Target
from autotune.te.chains import RowChain, row_chain
from autotune.te.dag import Compute
from autotune.te.products import Matrices, as_matrices


def tile_products_of_rows(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Tile a pointwise stage around the last product of a chain of rows, and the rest inside."""
    state = p.state
    found = root_and_anchor(state, name)
    chain = row_chain(state.dag, found[1]) if found else None
    if found is None or chain is None:
        return None
    orders = product((True, False), repeat=2)
    variants = [
        (TilingVariant(panels_outside=inner), TilingVariant(panels_outside=outer))
        for inner, outer in orders
    ]
    forms = target.isa.forms
    m, n = as_matrices(chain.first, forms), as_matrices(chain.last, forms)
    if m or n:
        variants += [(_with(v, m, state), _with(w, n, state)) for v, w in variants]
    else:
        dots = [
            (
                [v, *with_dots([v], chain.first, target)][-1],
                [w, *with_dots([w], chain.last, target)][-1],
            )
            for v, w in variants
        ]
        variants += [pair for pair in dots if pair not in variants]
    return [_tile(p, found[0], chain, v, w, target) for v, w in variants]


def _with(v: TilingVariant, m: Matrices | None, state: State) -> TilingVariant:
    """The structure with register tiles of matrices, where the product is one of them."""
    if m is None:
        return v
    is_packed = all(state.dag.is_constant(b.tensor.name) for _, b in m.factors)
    if not is_packed and len(m.factors) > 1:
        return v
    return replace(v, dot_terms=m.form.terms, matrices=m, is_packed=is_packed)


def _tile(
    p: Partial, op: Compute, c: RowChain, inner: TilingVariant, outer: TilingVariant, target: Target
) -> Partial:
    """`inner`, `outer`: the structures of the first and of the last product."""
    out, first = p, c.first
    if c.scores is first:
        out = out.add(CacheWrite(first.name, f"{first.name}.sum"))
        first = out.state[f"{first.name}.sum"].op
    out, last, outer, copied = _copied(out, c.last, outer, target)
    out, first, inner, copies = _copied(out, first, inner, target)
    out, loops = _tile_registers(out, op, last, outer, target)
    out = out.add(Parallel(op.name, len(loops.blocks)))
    out = place_anchor(out, op, last, loops, outer, target)
    host, block = op.name, loops.blocks[-1]
    for name in (*copied, *(op.name for op in c.beside)):
        out = place_producer(out, name, host, block, target)
    out = _place_rows(out, c.rows, host, block, target)
    out = out.add(ComputeAt(c.scores.name, host, block))
    out, tiles = _tile_registers(out, c.scores, first, inner, target, "scores.")
    out = place_anchor(out, c.scores, first, tiles, inner, target)
    for name in (*copies, *(stage.name for stage in reversed(c.before))):
        out = place_producer(out, name, host, block, target)
    out = pack_constants(out, first)
    out = prefetch_next_tile(out, c.scores, first, "scores.")
    order = Tag.PANELS_OUTSIDE if inner.panels_outside else Tag.TILES_OUTSIDE
    forms = () if inner.matrices else inner.form_tags
    out = out.add(done=(c.scores.name, first.name), tags=(Tag.ATTENTION, order, *forms))
    return finish_tiling(out, op, last, outer)


def _copied(
    p: Partial, anchor: Compute, v: TilingVariant, target: Target
) -> tuple[Partial, Compute, TilingVariant, tuple[str, ...]]:
    """`anchor` with a copy of its second factor, where matrices want one, and that stage."""
    if v.matrices is None or v.is_packed:
        return p, anchor, v, ()
    out, changed, matrices, name = terms_together(p, anchor, v.matrices, target)
    return out, changed, replace(v, matrices=matrices), (name,)


def _tile_registers(
    p: Partial, op: Compute, anchor: Compute, v: TilingVariant, target: Target, prefix: str = ""
) -> tuple[Partial, Loops]:
    """Register tiles of pointwise stage `op`, and at the root, without `prefix`, blocks of rows."""
    batch, rows = batch_and_rows(anchor)
    own = dict(zip((a.name for a in anchor.axes), op.axes, strict=True))
    c, extent = op.axes[-1].name, op.axes[-1].extent
    panel, lanes = Hole(f"{prefix}panel"), Hole(f"{prefix}lanes")
    m, panels = v.matrices, panel_domain(extent, target)
    if m:
        panels = panels[: m.unit.most_sums]
    out = p.hole(panel.name, panels, Role.VECTORS)
    out = out.hole(lanes.name, lanes_domain(extent, target), Role.LANES)
    levels: list[list[str]] = []
    for a in (own[n] for n in rows):
        tile, many = f"{prefix}{a.name}.tile", f"{prefix}{a.name}.tiles"
        is_row = m is not None and a == op.axes[m.rows]
        sizes = matrix_domain(a.extent, m, is_row) if m else tile_domain(a.extent)
        out = out.hole(tile, sizes, Role.TILE)
        out = out if prefix else out.hole(many, count_domain(a.extent), Role.TILES)
        factors = (Hole(tile),) if prefix else (Hole(many), Hole(tile))
        out = out.add(Split(op.name, a.name, factors, "split"))
        levels.append([f"{a.name}.{n}" for n in range(len(factors) + 1)])
    out = out.add(Split(op.name, c, (panel,)), Split(op.name, f"{c}.1", (lanes,)))
    blocks = [own[n].name for n in batch] + [x[0] for x in levels if not prefix]
    tiles = [x[-2] for x in levels]
    tiles = [f"{c}.0", *tiles] if v.panels_outside else [*tiles, f"{c}.0"]
    inner = [*(x[-1] for x in levels), f"{c}.1.0"]
    out = out.add(Reorder(op.name, (*blocks, *tiles, *inner, f"{c}.1.1")))
    unrolled = inner[-1:] if m else inner
    out = out.add(*(Annotate(op.name, n, "unroll") for n in unrolled))
    out = out.add(Annotate(op.name, f"{c}.1.1", "vectorize"))
    return out, Loops(tuple(blocks), tuple(tiles), c, prefix)


def _place_rows(
    p: Partial, rows: Sequence[Compute], host: str, block: str, target: Target
) -> Partial:
    """The last of `rows` in loop `block` of `host`, and the others for each of its rows."""
    *others, end = rows
    out = p.add(ComputeAt(end.name, host, block))
    row = end.axes[-2].name
    out = split_into_vectors(out, out.state[end.name].op, target, "row")
    for stage in reversed(others):
        out = place_row_stage(out, stage.name, end.name, row, target)
    return out.add(done=tuple(s.name for s in rows))
