"""⑥ Winograd tiling: a reduction between small linear transforms, by minimal filtering.

    x → transforms of a few elements each → batched matrix product → transforms → pointwise consumer

From the outside in:

    parallel  blocks of tiles, blocks of channels
      data transforms of the block (or, as a branch, of everything, in a kernel of their own)
      panels of channels
        batched product of the panel: points, then register tiles around the whole reduction
        tiles × vectors of channels
          inverse transforms and consumer, all in registers

The loads determine which axes are tiles, points, rows and channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.schedule.steps import Annotate, ComputeAt, Hole, Parallel, Reorder, Split
from autotune.search.partial import (
    Partial,
    batch_and_rows,
    channel_holes,
    count_domain,
    lanes_of,
    pack_constants,
    place_producer,
    split_channel,
    tile_domain,
    unroll_last,
)
from autotune.search.rules.interleaving import in_parts, interleaving
from autotune.search.rules.variants import TilingVariant, split_dot, with_dots
from autotune.search.space import Role, Tag
from autotune.target import Target
from autotune.te.chains import only_producer
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Binary, Const, Var, variables, walk


@dataclass(frozen=True, slots=True)
class _Chain:
    """The stages of such a computation, from the consumer back to the data.

    `tiles`: extent of the consumer's axes that are tiled by a divisor, by name.
    """

    consumer: Compute
    inverse: tuple[Compute, ...]
    anchor: Compute
    data: tuple[Compute, ...]
    padding: tuple[Compute, ...]
    tiles: dict[str, int]


def tile_transformed_reduction(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Tile a pointwise stage around a batched product whose results and data it transforms."""
    state = p.state
    if state[name].op.reduce_axes or state[name].attach:
        return None
    chain = _chain(state.dag, state[name].op)
    if chain is None:
        return None
    factors = (1, *interleaving(state.dag, chain.anchor, target)[:1])
    plain = [TilingVariant(interleave=n) for n in factors]
    variants = with_dots(plain, chain.anchor, target)
    return [_tile(p, chain, whole, v, target) for v in variants for whole in (False, True)]


def _chain(dag: ComputeDAG, consumer: Compute) -> _Chain | None:
    """None where the consumer reads no reduction through quotients of its axes."""
    tiles = _divisors(consumer)
    if not tiles:
        return None
    inverse: list[Compute] = []
    anchor = only_producer(dag, consumer)
    if anchor is not None and _divisors(anchor):
        return None  # the consumer of its own; this one only puts results in order
    while anchor is not None and not anchor.reduce_axes:
        inverse.append(anchor)
        anchor = only_producer(dag, anchor)
    if anchor is None:
        return None
    data: list[Compute] = []
    padding: list[Compute] = []
    producer = only_producer(dag, anchor)
    while producer is not None:
        (data if _mixes(producer) and not padding else padding).append(producer)
        producer = only_producer(dag, producer)
    if not data:
        return None
    return _Chain(consumer, tuple(inverse), anchor, tuple(data), tuple(padding), tiles)


def _divisors(op: Compute) -> dict[str, int]:
    """Axes that occur in quotients, with their divisor."""
    found: dict[str, int] = {}
    for x in op.reads:
        for index in x.indices:
            for e in walk(index):
                match e:
                    case Binary(op="floordiv", a=Var(name=name), b=Const(value=n)):
                        found[name] = int(n)
    return found


def _mixes(op: Compute) -> bool:
    """Whether several elements of one tensor make one element."""
    loads = set(op.reads)
    return len(loads) > len({x.tensor.name for x in loads})


def _tile(p: Partial, c: _Chain, whole: bool, v: TilingVariant, target: Target) -> Partial:
    op = c.consumer
    if v.interleave > 1:
        p, total, anchor = in_parts(p, c.anchor, v.interleave)
        c = replace(c, inverse=(*c.inverse, total), anchor=anchor)
    pixels = [a for a in op.axes[:-1] if a.extent > 1]
    ones = [a.name for a in op.axes[:-1] if a.extent == 1]
    channel = op.axes[-1]
    out = p
    for a in pixels:
        many, size = f"{a.name}.tiles", c.tiles.get(a.name, 1)
        out = out.hole(many, count_domain(-(-a.extent // size)), Role.TILES)
        if size > 1:
            out = out.add(Split(op.name, a.name, (Hole(many), size), "split"))
        else:
            out = out.add(Split(op.name, a.name, (Hole(many),), "shift"))
    out = channel_holes(out, channel, target)
    out, (block, panel, vector, lane) = split_channel(out, op, channel)
    blocks = [f"{a.name}.0" for a in pixels]
    blocks = [block, *blocks] if whole else [*blocks, block]
    tiles = [f"{a.name}.1" for a in pixels]
    inner = [f"{a.name}.2" for a in pixels if a.name in c.tiles]
    order = (*ones, *blocks, panel, *tiles, vector, *inner, lane)
    out = out.add(Reorder(op.name, order), Parallel(op.name, len(ones) + len(blocks)))
    out = out.add(*(Annotate(op.name, n, "unroll") for n in inner))
    out = out.add(Annotate(op.name, lane, "vectorize"))
    for stage in c.inverse:
        out = _place_transform(out, stage, op.name, vector)
    out = _place_product(out, c, panel, v, target)
    out = _place_data(out, c, None if whole else blocks[-1], target)
    names = (s.name for s in (op, *c.inverse, c.anchor, *c.data))
    tags = (Tag.WHOLE if whole else Tag.BLOCKED, *v.form_tags)
    return out.add(done=names, tags=tags)


def _place_transform(p: Partial, op: Compute, host: str, loop: str) -> Partial:
    """A transform in registers: everything unrolled around one vector."""
    out = p.add(ComputeAt(op.name, host, loop))
    out = out.add(*(Annotate(op.name, a.name, "unroll") for a in op.axes[:-1]))
    return out.add(Annotate(op.name, op.axes[-1].name, "vectorize"))


def _place_product(p: Partial, c: _Chain, loop: str, v: TilingVariant, target: Target) -> Partial:
    """The batched product of one panel: batch, register tiles, reduction."""
    a = c.anchor
    batch, rows = batch_and_rows(a)
    channel = a.axes[-1].name
    lanes = target.lanes if v.interleave > 1 else Hole("lanes")
    out = p.add(ComputeAt(a.name, c.consumer.name, loop))
    for name in rows:
        extent = next(x.extent for x in a.axes if x.name == name)
        out = out.hole(f"{name}.rows", tile_domain(extent), Role.TILE)
        out = out.add(Split(a.name, name, (Hole(f"{name}.rows"),), "split"))
    out = out.add(Split(a.name, channel, (lanes,)))
    out, terms = split_dot(out, a, v)
    reduction = [*terms.outer, terms.steps.name]
    out, reduction, unrolled = unroll_last(out, a, terms.steps, reduction)
    inner = [f"{n}.1" for n in rows] + [f"{channel}.0"]
    kept = [n for n in unrolled if n not in reduction]
    order = (
        *batch,
        *(f"{n}.0" for n in rows),
        *reduction,
        *kept,
        *inner,
        f"{channel}.1",
        *terms.dots,
    )
    out = out.add(Reorder(a.name, order))
    out = out.add(*(Annotate(a.name, n, "unroll") for n in (*unrolled, *inner)))
    out = out.add(Annotate(a.name, f"{channel}.1", "vectorize"))
    out = out.add(*(Annotate(a.name, n, "dot") for n in terms.dots))
    return pack_constants(out, a)


def _place_data(p: Partial, c: _Chain, loop: str | None, target: Target) -> Partial:
    """The data transforms, in loop `loop` of the consumer or (None) in a kernel of their own."""
    final, *others = c.data
    tiles, points = _tiles_and_points(final, c.anchor)
    channel = final.axes[-1]
    lanes = lanes_of(channel.extent, target)
    out = p if loop is None else p.add(ComputeAt(final.name, c.consumer.name, loop))
    out = out.add(Split(final.name, channel.name, (lanes,)))
    vector = f"{channel.name}.0"
    out = out.add(Reorder(final.name, (*tiles, vector, *points, f"{channel.name}.1")))
    out = out.add(*(Annotate(final.name, n, "unroll") for n in points))
    out = out.add(Annotate(final.name, f"{channel.name}.1", "vectorize"))
    if loop is None:
        out = out.add(Parallel(final.name, len(tiles)))
    for stage in others:
        out = _place_transform(out, stage, final.name, vector)
    for stage in c.padding:
        out = place_producer(out, stage.name, final.name, tiles[-1], target)
    return out


def _tiles_and_points(op: Compute, anchor: Compute) -> tuple[list[str], list[str]]:
    """Axes of the transformed data, but the last: those for each tile, and those of the batch."""
    batch, _ = batch_and_rows(anchor)
    at = next(x.indices for x in anchor.reads if x.tensor.name == op.name)
    names = [(a.name, variables(i)) for a, i in zip(op.axes, at, strict=True)]
    points = [n for n, used in names[:-1] if used <= set(batch)]
    return [n for n, _ in names[:-1] if n not in points], points
