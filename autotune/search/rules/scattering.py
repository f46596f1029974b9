"""⑥ Scans, and scattered reductions, each term of which is added where it belongs.

    parallel  axes that the places depend on, further ones, vectors of the innermost axis
      the terms, in their order
        neighbours whose places differ
          the element, or the vectors, at the place of the term

Every thread reads the places of all terms that may be its own. The sums are complete when all terms
are, so their consumer is a kernel of its own.
"""

from __future__ import annotations

from autotune.schedule.steps import Annotate, Hole, Parallel, Reorder, Split
from autotune.search.partial import Partial, advances, lanes_of
from autotune.search.space import Role, Tag
from autotune.target import Target

_VECTORS = (1, 2, 4, 8)
_BESIDE = (16, 64, 256)
"""Elements that each have a place of their own and are added for one term."""


def scan_in_order(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A stage that reads itself: one element after the other, parts of their own in parallel."""
    stage = p.state[name]
    n_apart = stage.op.scanned
    if n_apart is None or stage.attach:
        return None
    if n_apart:
        p = p.add(Parallel(name, n_apart))
    return [p.add(done=(name,), tags=(Tag.SCANNED,))]


def scatter_terms(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A scattered reduction at the root."""
    stage = p.state[name]
    op, found = stage.op, stage.op.route
    if found is None or stage.attach:
        return None
    last = op.axes[-1]
    free = [a.name for a in op.axes if a.name not in found.places]
    is_wide = last.name in free and last.name not in found.given and advances(op, last)
    lanes = lanes_of(last.extent, target) if is_wide else 1
    inner: list[str] = []
    if lanes > 1:
        whole = last.extent // lanes if last.extent % lanes == 0 else 1
        hole = f"{name}.vectors"
        p = p.hole(hole, tuple(v for v in _VECTORS if whole % v == 0), Role.VECTORS)
        p = p.add(Split(name, last.name, (Hole(hole), lanes), "split"))
        free[-1], *inner = (f"{last.name}.{k}" for k in range(3))
    terms, beside = [a.name for a in op.reduce_axes], list[str]()
    if last.name in found.given:  # neighbours have places of their own
        hole = f"{name}.beside"
        widths = tuple(w for w in _BESIDE if w < last.extent)
        p = p.hole(hole, (*widths, last.extent), Role.TILES)
        p = p.add(Split(name, last.name, (Hole(hole),), "split"))
        free[-1], *beside = (f"{last.name}.{k}" for k in range(2))
    routed = [a.name for a in op.axes if a.name in found.places]
    out = p.add(Reorder(name, (*free, *terms, *beside, *routed, *inner)))
    if inner:
        out = out.add(Annotate(name, inner[0], "unroll"), Annotate(name, inner[1], "vectorize"))
    if free:
        out = out.add(Parallel(name, len(free)))
    return [out.add(done=(name,), tags=(Tag.SCATTERED,))]
