"""⑥ The structural choices of multi-level tiling, and the instruction variants among them.

Eight registers of a unit (AMX) hold up to six matrices of 16 × 16 sums and two operands: register
tiles of 2 × 2, 1 × 4, 2 × 3, …
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from math import prod

from autotune.dtypes import is_float
from autotune.schedule.steps import CacheRead, CacheTerms, ComputeInline, Split
from autotune.search.partial import Partial
from autotune.search.rules.interleaving import interleave_tags
from autotune.search.space import Tag
from autotune.target import Target
from autotune.te.dag import Compute
from autotune.te.expr import Axis, Load, dtype_of
from autotune.te.products import Matrices, as_matrices, dot_form, dot_forms, in_order, products_of

_LEAST_ROWS = 4
"""Rows of a matrix, where there are as many: an instruction takes as long as it has rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TilingVariant:
    """One structural choice of multi-level tiling.

    `channels_outside`: blocks of channels are outside blocks of pixels. `panels_outside`: within a
    block, panels of channels are outside tiles of pixels. `k_blocked`: the reduction runs in blocks
    outside the tiles. `producers_per_k`: producers are computed for each of these blocks.
    `copy_inputs`: what the reduction reads is copied for each block; `copy_panels`: only what
    varies along the channels, so that the rows of a panel are neighbours.
    `interleave`: partial results of a channel in neighbouring lanes. `dot_terms`: terms that one
    multiply-add adds up. `matrices`: the register tile is of matrices in registers.
    `is_packed`: constants alone are second factors; else a copy for each block has their order.
    """

    channels_outside: bool = False
    panels_outside: bool = False
    k_blocked: bool = False
    unroll_window: bool = False
    inline_producers: bool = False
    copy_inputs: bool = False
    copy_panels: bool = False
    producers_per_k: bool = False
    interleave: int = 1
    dot_terms: int = 1
    matrices: Matrices | None = None
    is_packed: bool = True

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The structure as tags of a sketch."""
        marked = {
            Tag.CHANNELS_OUTSIDE: self.channels_outside,
            Tag.PIXELS_OUTSIDE: not self.channels_outside,
            Tag.PANELS_OUTSIDE: self.panels_outside,
            Tag.TILES_OUTSIDE: not self.panels_outside,
            Tag.K_BLOCKED: self.k_blocked,
            Tag.WINDOW_UNROLLED: self.unroll_window,
            Tag.INLINED: self.inline_producers,
            Tag.COPIED: self.copy_inputs,
            Tag.COPIED_PANELS: self.copy_panels,
            Tag.PER_K: self.producers_per_k,
            Tag.MATRICES: self.matrices is not None,
        }
        return (*(tag for tag, is_on in marked.items() if is_on), *self.form_tags)

    @property
    def form_tags(self) -> tuple[Tag, ...]:
        """How lanes and terms of a multiply-add are used."""
        dots = {2: (Tag.DOT2,), 4: (Tag.DOT4,)}.get(self.dot_terms, ())
        return (*interleave_tags(self.interleave), *dots)


def with_dots(
    variants: list[TilingVariant], anchor: Compute, target: Target
) -> list[TilingVariant]:
    """The variants with each form on vectors that fits the reduction, and with plain ones.

    A window that is unrolled as a whole has no terms left to add up at once. Sums of integers are
    the same by every form: that with the most terms is the fastest.
    """
    forms = dot_forms(anchor, target.isa.forms)
    integers = [f for f in forms if not is_float(f.accumulator)]
    forms = (max(integers, key=lambda f: f.terms),) if integers else forms
    plain = [v for v in variants if v.interleave == 1 and not v.unroll_window]
    dots = [replace(v, dot_terms=f.terms) for f in forms for v in plain]
    is_all = len(products_of(anchor)) > 1 or (dots and integers)
    return dots if is_all else variants + dots


@dataclass(frozen=True, slots=True)
class Terms:
    """The reduction loops of an anchor: `outer` ones, `steps` of one multiply-add each, and inside
    of one: loops over the `groups` of terms that it takes, and over the terms of one (`dots`)."""

    outer: tuple[str, ...]
    steps: Axis
    groups: tuple[str, ...] = ()
    dots: tuple[str, ...] = ()


def split_dot(p: Partial, anchor: Compute, v: TilingVariant) -> tuple[Partial, Terms]:
    """The last reduction axis, or the last two, in steps of one multiply-add."""
    *outer, last = anchor.reduce_axes
    if v.dot_terms == 1:
        return p, Terms(tuple(a.name for a in outer), last)
    factors: tuple[int, ...] = (v.dot_terms,)
    dots = (f"{last.name}.1",)
    if v.matrices is not None and v.matrices.is_pair:
        factors, dots, last = (v.matrices.groups,), (last.name,), outer.pop()
    elif v.matrices is not None:
        factors, dots = (v.matrices.groups, v.dot_terms), (f"{last.name}.2",)
    out = p.add(Split(anchor.name, last.name, factors, "split"))
    steps = Axis(f"{last.name}.0", last.extent // prod(factors))
    groups = () if v.matrices is None else (f"{last.name}.1",)
    return out, Terms(tuple(a.name for a in outer), steps, groups, dots)


def with_matrices(
    variants: Iterable[TilingVariant], anchor: Compute, target: Target, constants: Container[str]
) -> list[TilingVariant]:
    """The variants with register tiles of matrices; none where the reduction is no such product.

    A second factor that is no constant, which would be packed as the unit wants it, is copied for
    each block: of one product alone.
    """
    m = as_matrices(anchor, target.isa.forms)
    if m is None:
        return []
    is_packed = all(b.tensor.name in constants for _, b in m.factors)
    taken = variants if is_packed or len(m.factors) == 1 else ()
    terms = m.form.terms
    return [replace(v, dot_terms=terms, matrices=m, is_packed=is_packed) for v in taken]


def widened(anchor: Compute, v: TilingVariant) -> dict[str, str]:
    """Operands that the instruction of `v` takes upcast, with their types; without constants.

    Held as that it is widened once, not wherever it is multiplied.
    """
    form = dot_form(anchor, v.dot_terms) if v.matrices is None else None
    if form is None:
        return {}
    ordered = (in_order(form, *pair) for pair in products_of(anchor))
    return {
        e.tensor.name: dtype
        for pair in ordered
        for e, dtype in zip(pair or (), form.operands, strict=True)
        if isinstance(e, Load) and dtype_of(e) != dtype
    }


def hold_wider(p: Partial, name: str, reader: str, dtype: str) -> tuple[Partial, str]:
    """Pointwise stage `name` as `dtype` for `reader`: the new stage in its place."""
    wide = f"{name}.wide"
    out = p.add(CacheRead(name, reader, wide, dtype))
    return out.add(ComputeInline(name), done=(name,)), wide


def row_domain(extent: int, m: Matrices) -> tuple[int, ...]:
    """Rows of a matrix: divisors of `extent`, and as many as a register has."""
    most = min(m.unit.rows, extent)
    least = min(_LEAST_ROWS, most)
    return tuple(r for r in range(least, most + 1) if extent % r == 0 or r == most)


def matrix_domain(extent: int, m: Matrices, is_row: bool) -> tuple[int, ...]:
    """Sizes of a register tile along an axis: of one to six matrices of the same rows."""
    counts = range(1, m.unit.most_sums + 1)
    if not is_row:
        return tuple(n for n in counts if n <= extent)
    sizes = {n * r for n in counts for r in row_domain(extent, m)}
    return tuple(sorted(s for s in sizes if s <= extent))


def terms_together(
    p: Partial, anchor: Compute, m: Matrices, target: Target
) -> tuple[Partial, Compute, Matrices, str]:
    """`anchor` with a copy of its second factor in the order of matrices, and that stage."""
    ((_, b),) = m.factors
    name = f"{anchor.name}.{b.tensor.name}.terms"
    out = p.add(CacheTerms(b.tensor.name, anchor.name, name, m.form.terms))
    changed = out.state[anchor.name].op
    found = as_matrices(changed, target.isa.forms)
    assert found is not None
    return out, changed, found, name
