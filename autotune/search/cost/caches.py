"""⑥ Cache model: footprint of a stage at every loop level, and bytes that miss each cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from math import gcd

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import dtype_bytes
from autotune.pages import CACHE_LINE
from autotune.search.cost.array_program import one_operation
from autotune.search.cost.nest import Access, Array, Nest, local_bytes, product
from autotune.strides import SET_BYTES, padded_strides
from autotune.target import Target
from autotune.te.arith import linear

RUN_START_BYTES = 96
"""Penalty in bytes per contiguous run: the hardware prefetcher needs a few lines to start."""

USABLE = (0.8, 0.5, 0.8)
"""Usable shares of L1, L2 and L3. Physical pages are scattered, so sets of L2 fill unevenly: a
footprint of 1.2 MB was evicted from an L2 of 2 MiB."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Footprint of one tensor: bytes, contiguous runs, and the buffer that holds them.

    Arrays have shape [depths, n], or [n] where all depths are alike.

    `held`: size of the local buffer; None for a tensor in memory. `crowded`: bytes of L1 that are
    taken, which are more than those touched where the lines share a few of its sets.
    """

    n_bytes: Array
    n_runs: Array
    held: Array | None
    crowded: Array

    def missing(self, size: float, amount: Array) -> Array:
        """The `amount` of this part that a cache of `size` bytes has to fetch."""
        return amount if self.held is None else np.where(self.held <= size, 0.0, amount)


class Caches:
    """Footprints and traffic of one stage."""

    def __init__(self, nest: Nest, target: Target) -> None:
        self.nest, self.target, self.n = nest, target, nest.n
        rolled = {k for k, x in enumerate(nest.loops) if not (x.own and x.annotation)}
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
        trips = [np.ones(self.n), *accumulate((x.extent for x in self.nest.loops), np.multiply)]
        outside = np.stack([trips[d] for d in self._depths])
        last = len(self._depths) - 1
        result = []
        sizes = (self.target.l1_bytes, self.target.l2_bytes, self.target.l3_bytes)
        for level, size in enumerate(s * u for s, u in zip(sizes, USABLE, strict=True)):
            fits = ((feet if level else crowded) <= size)[1:]
            at = np.where(fits.any(axis=0), np.argmax(fits, axis=0), last) if last else last
            n_bytes = self._total(p.missing(size, p.n_bytes) for p in self._parts)
            moved = _at_depth(n_bytes * outside, at)
            if level:  # the penalty per run does not apply to hits in L2
                n_runs = self._total(p.missing(size, p.n_runs) for p in self._parts)
                pieces = _at_depth(n_runs * outside, np.minimum(at + 1, last))
                moved = moved + RUN_START_BYTES * np.minimum(pieces, moved / CACHE_LINE)
            result.append(moved)
        return result[0], result[1], result[2]

    def footprint(self) -> Array:
        """Bytes touched by all loops, shape [n]."""
        footprint: Array = self._total(p.n_bytes for p in self._parts)[0]
        return footprint

    def _total(self, parts: Iterable[Array]) -> Array:
        total: Array = reduce(np.add, parts)
        shape = (len(self._depths), self.n)
        return total if total.shape == shape else np.broadcast_to(total, shape)

    def _touched(self, depths: Sequence[int]) -> list[_Part]:
        """Footprint per tensor of the loops from each of `depths` inwards, shape [depths, n]."""
        inner = self.nest.inner_extents(depths)
        parts = [self._part(x, inner) for x in self.nest.reads]
        out = self.nest.op.tensor
        extents = [inner[a.name] for a in self.nest.op.axes]
        parts.append(self._contiguous(out.name, out.dtype, extents, out.shape, 1))
        return parts

    def _part(self, access: Access, inner: dict[str, Array]) -> _Part:
        tensor = access.load.tensor
        extents = [
            self.nest.distinct(i, size, spread, inner) for size, i, spread in access.dimensions
        ]
        if tensor.name in self.nest.stage.packs:  # packed constants are read contiguously
            n_bytes = product(extents, self.n) * dtype_bytes(tensor.dtype)
            return _Part(n_bytes, np.ones(self.n), None, n_bytes)
        part = self._contiguous(tensor.name, tensor.dtype, extents, tensor.shape, CACHE_LINE)
        return replace(part, crowded=np.maximum(part.n_bytes, self._crowded(access, inner)))

    def _crowded(self, access: Access, inner: dict[str, Array]) -> Array:
        """Bytes of L1 occupied if lines map to few sets: a way of all sets per line of a set."""
        tensor = access.load.tensor
        strides = padded_strides(tensor.shape, tensor.dtype)
        lines, sets = np.ones(self.n), np.ones(self.n)
        for index, size, stride in zip(access.load.indices, tensor.shape, strides, strict=True):
            for atom, coef in linear(index).terms:
                step = abs(coef) * stride * dtype_bytes(tensor.dtype)
                count = self.nest.distinct(atom, size, 0, inner)
                apart = np.minimum(count, SET_BYTES // gcd(step, SET_BYTES))
                lines = lines * np.ceil(count * min(step / CACHE_LINE, 1.0))
                sets = sets * np.ceil(apart * min(step / CACHE_LINE, 1.0))
        few = sets < SET_BYTES // CACHE_LINE
        return np.where(few, (lines / sets - 1.0) * SET_BYTES, 0.0)

    def _contiguous(
        self, name: str, dtype: str, extents: list[Array], shape: tuple[int, ...], line: int
    ) -> _Part:
        """Number of contiguous runs in a box of a tensor, of at least `line` bytes each."""
        run, n_runs = np.full(self.n, float(dtype_bytes(dtype))), np.ones(self.n)
        whole: NDArray[np.bool_] | None = None
        for extent, size in zip(reversed(extents), reversed(shape), strict=True):
            if size == 1:  # neither longer runs nor more of them
                continue
            if whole is None:
                run, whole = run * extent, extent >= size
                continue
            run = np.where(whole, run * extent, run)
            n_runs = np.where(whole, n_runs, n_runs * extent)
            whole = whole & (extent >= size)
        held = self._held(name)
        n_bytes = n_runs * np.maximum(run, line)
        if held is not None:
            n_bytes = np.minimum(n_bytes, held)
        return _Part(n_bytes, n_runs, held, n_bytes)

    def _held(self, name: str) -> Array | None:
        """Bytes of the local buffer of a stage; None where it has none."""
        stage = self.nest.state.stages.get(name)
        return None if stage is None or stage.attach is None else local_bytes(stage, self.n)


@one_operation
def _at_depth(values: Array, depth: NDArray[np.intp] | int) -> Array:
    """Of `values`, shape [depths, n], those at the depth of each candidate."""
    found: Array = values[depth, np.arange(values.shape[1])]
    return found
