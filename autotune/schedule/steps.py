"""③ The transform steps: a schedule is a tuple of these, and nothing else.

Every step is a frozen record with named JSON fields; `autotune.schedule.replay` defines its effect.
A field typed `Size` is an int in a concrete schedule; in a sketch it may be a `Hole`, and during
population-wide analysis an integer array with one entry per candidate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.codec import LEFT_OUT, Misfit, coded, tagged, within
from autotune.errors import LogMismatch


@dataclass(frozen=True, slots=True)
class Hole:
    """A parameter of a sketch that a candidate fills with a number."""

    name: str


NEXT_PANEL = -1
"""Prefetch distance: the next weight panel."""

BLOCK_INDICES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_INDICES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
LAUNCH_INDICES = (*BLOCK_INDICES, *THREAD_INDICES)
"""Indices of a GPU's blocks in the grid, and of the threads in a block."""

Size: TypeAlias = Annotated[int | Hole | NDArray[np.int64], coded(int)]


@dataclass(frozen=True, slots=True)
class Split:
    """Split a loop into an outer loop and `len(factors)` inner ones, outermost first.

        for i in 1024:            ->  for i.0 in ⌈⌈1024/T⌉/M⌉:
            S(i)                          for i.1 in M:
                                              for i.2 in T:   S(…)      factors=(M, T)

    `tail` says what happens where the innermost factor does not divide the extent: `shift` moves
    the last tile inwards (it recomputes a few points), `split` runs a second, smaller tile. Outer
    factors that do not divide the tile count always shift. Factors are clipped to the extent.
    """

    stage: str
    iter: str
    factors: tuple[Size, ...]
    tail: str = "shift"


@dataclass(frozen=True, slots=True)
class Fuse:
    """Make one loop `outer+inner` of two that stand directly inside one another.

        for i in 6:                   ->  for i+j in 24:
            for j in 4:   S(i, j)             S(i+j // 4, i+j % 4)

    Both are spatial or both are reduced; nothing is computed between them. The outermost loops of a
    kernel need no fusing to share one parallel range: see `Parallel`.
    """

    stage: str
    outer: str
    inner: str

    @property
    def loop(self) -> str:
        """Name of the new loop."""
        return f"{self.outer}+{self.inner}"


@dataclass(frozen=True, slots=True)
class Reorder:
    """Put the loops of a stage into the given order, outermost first; `iters` names all of them."""

    stage: str
    iters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Fuse the outermost `n` loops of a root stage into the kernel's flat parallel range."""

    stage: str
    n: int


@dataclass(frozen=True, slots=True)
class Annotate:
    """Mark a loop `unroll` (expanded in full), `vectorize` (one vector; extent = lanes), `dot` or
    `tile`.

    `dot` marks the innermost loop of a sum of products: its terms are added up by one instruction
    of the CPU, the multiply-add of such factors that has so many (`autotune.target.isa`). A sum
    without a vector loop is one of scalars: its terms are unrolled.

    `tile` marks two of the four innermost loops of such a sum: rows (tile), groups of terms (tile),
    columns (vectorize), terms of a group (dot). Together they are one instruction on matrices in
    registers. Code for a CPU without the instruction is refused.
    """

    stage: str
    iter: str
    kind: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Run the iterations of a spatial loop on a GPU: `index` is one of `LAUNCH_INDICES`.

        for i.0 in 64:              ->  blockIdx.x i.0 in 64
            for i.1 in 16: S(…)             threadIdx.x i.1 in 16: S(…)

    The loops of a root stage that are bound are the launch of its kernel. A stage in shared memory
    is computed by all threads of a block together, by loops that are bound to the same indices.
    """

    stage: str
    iter: str
    index: str


@dataclass(frozen=True, slots=True)
class ComputeInline:
    """Substitute a pointwise stage into its readers."""

    stage: str


@dataclass(frozen=True, slots=True)
class ComputeAt:
    """Compute the region of `stage` that loop `iter` of stage `target` needs inside that loop."""

    stage: str
    target: str
    iter: str


@dataclass(frozen=True, slots=True)
class CacheRead:
    """Add a stage `name` that copies the part of `tensor` that `reader` reads.

    reader[…] = f(tensor[…])   ->   name[…] = tensor[…];  reader[…] = f(name[…])

    With a `dtype` the copy is of that type, which holds all values of the tensor's: integers that
    an instruction takes wider than they are stored. `scope`: "shared" for the memory that the
    threads of a block of a GPU share; the copy then holds what they read together.
    """

    tensor: str
    reader: str
    name: str
    dtype: Annotated[str, LEFT_OUT] = ""
    scope: Annotated[str, LEFT_OUT] = ""


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """Add a stage `name`: loads of `tensor` by `reader`, `terms` of its sum side by side.

    c[…, j] = Σ a[…, k]·tensor[k, j]   ->   name[g, j, t] = tensor[g·T + t, j];
                                            c[…, j] = Σ a[…, g·T + t]·name[g, j, t]

    Instructions on matrices read their second operand so. The last reduction axis k becomes `k.g`
    and `k.t`; it and the last axis of the reader must be dimensions of `tensor` as they are.
    """

    tensor: str
    reader: str
    name: str
    terms: int


@dataclass(frozen=True, slots=True)
class WholeTerms:
    """Add stages: the factors of sum `stage` with zeros behind its last axis, up to `extent` terms.

    c[…, j] = Σ a[…, k]·b[k, j], k<K   ->   stage.a[…, k] = a[…, k] if k<K else 0, k<extent; …
                                            c[…, j] = Σ stage.a[…, k]·stage.b[k, j], k<extent

    Instructions that add up several products take all terms in groups.
    """

    stage: str
    extent: int


@dataclass(frozen=True, slots=True)
class FlatTaps:
    """Add a stage: what sum `stage` reads, with the last two dimensions as one; so are its taps.

    c[…, j] = Σ x[j·S + v, k]·w[v, k], v<V, k<K   ->   stage.x[d] = x[d // K, d % K];
                                   c[…, j] = Σ stage.x[j·S·K + t]·w[t // K, t % K], t<V·K

    The last two reduction axes v, k become one: the elements of a row of a window, which are
    neighbours where k is the whole last dimension.
    """

    stage: str


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Move the computation of `stage` into a new stage `name`, which `stage` then copies.

    c[…] = e   ->   name[…] = e;  c[…] = name[…]
    """

    stage: str
    name: str


@dataclass(frozen=True, slots=True)
class RFactor:
    """Split the reduction of `stage` so that `factor` partial results can be computed side by side.

    s = sum(x[k], k<K)   ->   name[r] = sum(x[o·R + r], o<K/R);  s = sum(name[r], r<R)

    The last reduction axis is split. Where `factor` does not divide its extent K, the last part
    begins at K - R, and terms that it shares with the part before count once.
    """

    stage: str
    factor: Size
    name: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Split-K: cut the reduction of `stage` into `factor` consecutive parts, each a partial result.

    s[c] = sum(x[c, k], k<K)   ->   name[p, c] = sum(x[c, p·K/P + o], o<K/P)
                                    s[c] = sum(name[p, c], p<P)

    Parts can run in parallel, and rounding errors of a long sum grow with K/P + P instead of K.
    The first reduction axis is cut, and P divides its extent K.
    """

    stage: str
    factor: int
    name: str


@dataclass(frozen=True, slots=True)
class Interleave:
    """K-interleaving: `factor` partial results of `stage` as neighbours along its innermost axis.

    s[c] = sum(x[c, k], k<K)   ->   name[j] = sum(x[j/R, o·R + j%R], o<K/R)
                                    s[c] = name[c·R] + … + name[c·R + R-1]

    It fills vectors when there are few channels. The last reduction axis is split; R divides K.
    """

    stage: str
    factor: int
    name: str


@dataclass(frozen=True, slots=True)
class Winograd:
    """Rewrite convolution `stage` by minimal filtering F(tile, ·) along the reduction axes `taps`.

    The products of a window become fewer and are summed in the transformed domain; the constant
    weights are transformed at compile time. See `schedule/winograd.py` for the stages it makes.
    """

    stage: str
    taps: tuple[str, ...]
    tile: int


@dataclass(frozen=True, slots=True)
class NarrowProducts:
    """Rewrite sum `stage` of float32 products by 3 or 6 (`n_products`) products of bfloat16 each.

    Every factor becomes a sum of bfloat16 parts: those of constants are made at compile time, those
    of data by a stage of their own. See `schedule/narrow_products.py`.
    """

    stage: str
    n_products: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Store constant `tensor` in the order in which the loops of `stage` read it.

    `block`: in an order that all programs can share instead, blocks of so many neighbours of the
    last dimension, one block after another: (k, n) -> (n/block, k, block).
    """

    tensor: str
    stage: str
    block: Annotated[int, within(0), LEFT_OUT] = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prefetch packed `tensor` ahead of the loads of `stage`.

    `distance` is in bytes; 0: no prefetch; NEXT_PANEL: while several tiles read one weight panel,
    prefetch the next one in equal shares.

    An activation is prefetched for any distance but 0, while a reduction runs: where that is
    `stage`, the elements that its next tile reads; where `stage` consumes the reduction, the
    elements of `tensor` that `stage` then reads or writes.
    """

    tensor: str
    stage: str
    distance: Size


Step: TypeAlias = (
    Split
    | Fuse
    | Reorder
    | Parallel
    | Annotate
    | Bind
    | ComputeInline
    | ComputeAt
    | CacheRead
    | CacheTerms
    | WholeTerms
    | FlatTaps
    | CacheWrite
    | RFactor
    | Parts
    | Interleave
    | Winograd
    | NarrowProducts
    | Pack
    | Prefetch
)
Steps: TypeAlias = tuple[Step, ...]
Algorithm: TypeAlias = Winograd | NarrowProducts
"""Steps behind which a sum is not computed as it is defined."""

_KINDS: dict[str, type] = {
    "split": Split,
    "fuse": Fuse,
    "reorder": Reorder,
    "parallel": Parallel,
    "annotate": Annotate,
    "bind": Bind,
    "compute_inline": ComputeInline,
    "compute_at": ComputeAt,
    "cache_read": CacheRead,
    "cache_terms": CacheTerms,
    "whole_terms": WholeTerms,
    "flat_taps": FlatTaps,
    "cache_write": CacheWrite,
    "rfactor": RFactor,
    "parts": Parts,
    "interleave": Interleave,
    "winograd": Winograd,
    "narrow_products": NarrowProducts,
    "pack": Pack,
    "prefetch": Prefetch,
}
_STEPS = coded(tuple[Annotated[Step, tagged("step", _KINDS)], ...])


@lru_cache(maxsize=4096)
def holes_of(step: Step) -> tuple[str, ...]:
    """Names of the holes of a step, in their order."""
    values = (getattr(step, name) for name in step.__slots__)
    parts = (part for v in values for part in (v if isinstance(v, tuple) else (v,)))
    return tuple(part.name for part in parts if isinstance(part, Hole))


def steps_text(steps: Steps) -> str:
    """Canonical JSON text of a schedule; equal texts are equal schedules."""
    return json.dumps(steps_to_json(steps), ensure_ascii=False, separators=(",", ":"))


def steps_to_json(steps: Steps) -> list[dict[str, Any]]:
    """Concrete steps as objects `{"step": "split", "stage": …}`."""
    found: list[dict[str, Any]] = _STEPS.write(steps)
    return found


def steps_from_json(data: list[dict[str, Any]]) -> Steps:
    """Inverse of `steps_to_json`. Raises LogMismatch for an unknown step or field."""
    try:
        steps: Steps = _STEPS.read(data)
    except Misfit as error:
        item = data[int(error.path[0])] if error.path else data
        raise LogMismatch(
            f"the log holds a schedule step that this version does not know: {item}",
            "use the version of autotune that wrote the log, or tune anew",
        ) from error
    return steps
