"""⑥ Cache model: footprint of a stage at every loop level, and bytes that miss each cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from math import gcd
from operator import add, mul

import numpy as np
from numpy.typing import NDArray

from autotune.array_program import one_operation
from autotune.dtypes import dtype_bytes
from autotune.pages import CACHE_LINE
from autotune.schedule.region import larger, smaller
from autotune.search.cost.amounts import Amount, Array, choose, full, product, rounded_up
from autotune.search.cost.nest import Access, Nest, local_bytes
from autotune.strides import SET_BYTES
from autotune.target import Target

RUN_START_BYTES = 96
"""Penalty in bytes per contiguous run: the hardware prefetcher needs a few lines to start."""

USABLE = (0.8, 0.5, 0.8)
"""Usable shares of L1, L2 and L3. Physical pages are scattered, so sets of L2 fill unevenly: a
footprint of 1.2 MB was evicted from an L2 of 2 MiB."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Footprint of one tensor: bytes, contiguous runs, and the buffer that holds them.

    `held`: size of the local buffer; None for a tensor in memory. `crowded`: bytes of L1 that are
    taken, which are more than those touched where the lines share a few of its sets.
    """

    n_bytes: Amount
    n_runs: Amount
    held: Amount | None
    crowded: Amount

    def missing(self, size: float, what: Amount) -> Amount:
        """The amount `what` of this part that a cache of `size` bytes has to fetch."""
        return what if self.held is None else choose(self.held <= size, 0.0, what)


class Caches:
    """Footprints and traffic of one stage."""

    def __init__(self, nest: Nest, target: Target) -> None:
        self.nest, self.target, self.n = nest, target, nest.n
        rolled = nest.rolled_depths
        inside = max(rolled) + 1 if rolled else 0  # one execution of the unrolled body
        self._depths = sorted({0, *rolled, inside})
        self._parts = self._touched(self._depths)

    def traffic(self) -> tuple[Array, Array, Array]:
        """Bytes fetched from beyond L1, L2 and L3.

        The body of loop d fits a cache when its footprint does; then each tensor moves once per
        run of loop d, over all runs of the loops outside it. A local buffer that fits is no
        traffic at all: its producer finds and leaves it there.
        """
        feet = self._total(p.n_bytes for p in self._parts)
        crowded = self._total(p.crowded for p in self._parts)
        all_runs = self._total(p.n_runs for p in self._parts)
        is_held = any(p.held is not None for p in self._parts)
        trips = [1.0, *accumulate((x.extent for x in self.nest.loops), mul)]
        outside = np.stack([full(trips[d], self.n) for d in self._depths])
        last = len(self._depths) - 1
        result = []
        sizes = (self.target.l1_bytes, self.target.l2_bytes, self.target.l3_bytes)
        for level, size in enumerate(s * u for s, u in zip(sizes, USABLE, strict=True)):
            fits = ((feet if level else crowded) <= size)[1:]
            at = np.where(fits.any(axis=0), np.argmax(fits, axis=0), last) if last else last
            n_bytes, n_runs = feet, all_runs
            if is_held:
                n_bytes = self._total(p.missing(size, p.n_bytes) for p in self._parts)
            moved = _at_depth(n_bytes * outside, at)
            if level:  # the penalty per run does not apply to hits in L2
                if is_held:
                    n_runs = self._total(p.missing(size, p.n_runs) for p in self._parts)
                pieces = _at_depth(n_runs * outside, np.minimum(at + 1, last))
                moved = moved + RUN_START_BYTES * np.minimum(pieces, moved / CACHE_LINE)
            result.append(moved)
        return result[0], result[1], result[2]

    def footprint(self) -> Array:
        """Bytes touched by all loops, shape [n]."""
        footprint: Array = self._total(p.n_bytes for p in self._parts)[0]
        return footprint

    def _total(self, parts: Iterable[Amount]) -> Array:
        total, shape = reduce(add, parts), (len(self._depths), self.n)
        if isinstance(total, np.ndarray) and total.shape == shape:
            return total
        found: Array = np.broadcast_to(total, shape)
        return found

    def _touched(self, depths: Sequence[int]) -> list[_Part]:
        """Footprint per tensor of the loops from each of `depths` inwards."""
        inner = self.nest.inner_extents(depths)
        parts = [self._part(x, inner) for x in self.nest.reads]
        out = self.nest.op.tensor
        extents = [inner[a.name] for a in self.nest.op.axes]
        parts.append(self._contiguous(out.name, out.dtype, extents, out.shape, 1))
        return parts

    def _part(self, access: Access, inner: dict[str, Amount]) -> _Part:
        tensor = access.load.tensor
        extents = [index.distinct(inner) for index in access.dimensions]
        if tensor.name in self.nest.stage.packs:  # packed constants are read contiguously
            n_bytes = product(extents) * dtype_bytes(tensor.dtype)
            return _Part(n_bytes, 1.0, None, n_bytes)
        part = self._contiguous(tensor.name, tensor.dtype, extents, tensor.shape, CACHE_LINE)
        return replace(part, crowded=larger(part.n_bytes, _crowded(access, inner)))

    def _contiguous(
        self, name: str, dtype: str, extents: list[Amount], shape: tuple[int, ...], line: int
    ) -> _Part:
        """Number of contiguous runs in a box of a tensor, of at least `line` bytes each."""
        run: Amount = float(dtype_bytes(dtype))
        n_runs: Amount = 1.0
        whole: bool | np.ndarray | None = None
        for extent, size in zip(reversed(extents), reversed(shape), strict=True):
            if size == 1:  # neither longer runs nor more of them
                continue
            if whole is None:
                run, whole = run * extent, extent >= size
                continue
            run = choose(whole, run * extent, run)
            n_runs = choose(whole, n_runs, n_runs * extent)
            whole = whole & (extent >= size)
        held = self._held(name)
        n_bytes = n_runs * larger(run, line)
        if held is not None:
            n_bytes = smaller(n_bytes, held)
        return _Part(n_bytes, n_runs, held, n_bytes)

    def _held(self, name: str) -> Amount | None:
        """Bytes of the local buffer of a stage; None where it has none."""
        stage = self.nest.state.stages.get(name)
        return (
            None if stage is None or stage.attach is None else local_bytes(stage, self.nest.amount)
        )


def _crowded(access: Access, inner: dict[str, Amount]) -> Amount:
    """Bytes of L1 occupied if lines map to few sets: a way of all sets per line of a set."""
    lines: Amount = 1.0
    sets: Amount = 1.0
    for term in access.terms:
        share = min(term.step / CACHE_LINE, 1.0)
        count = term.distinct(inner)
        apart = smaller(count, SET_BYTES // gcd(term.step, SET_BYTES))
        lines = lines * (count if share == 1.0 else rounded_up(count * share))
        sets = sets * (apart if share == 1.0 else rounded_up(apart * share))
    return choose(sets < SET_BYTES // CACHE_LINE, (lines / sets - 1.0) * SET_BYTES, 0.0)


@one_operation
def _at_depth(values: Array, depth: NDArray[np.intp] | int) -> Array:
    """Of `values`, shape [depths, n], those at the depth of each candidate."""
    found: Array = values[depth, np.arange(values.shape[1])]
    return found
