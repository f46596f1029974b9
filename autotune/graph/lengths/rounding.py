"""① Extents that are quotients of numbers, rounded down, as strides over any size make them.

    quotients_in(read, {"h": 640})      {"h'": Quotient("h", 1, 1, 2), "h''": …("h'", 1, 1, 2)}

The model is read at a few sizes. An extent that is no affine function of the numbers known so far,
but a quotient of one of them at all these sizes, is one more number. Where several offsets fit, the
model is read at a size that tells them apart.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import or_

from autotune.errors import ModelError, without_frames
from autotune.graph.ir import Graph, Node
from autotune.graph.lengths.formulas import MOST_REMAINDERS, Quotient, roots_of, whole
from autotune.graph.lengths.numbers import Points, Vector
from autotune.graph.operators.windows import OPEN_ENDS
from autotune.graph.passes.cached_products import FEW_ROWS

_MOST_READS = 40
_MOST_FOUND = 16
_FEW = 8
"""Sizes at first, beside one for each number."""
_MOST_DIVISOR = 256

Read = Callable[[Mapping[str, int]], Graph]


def quotients_in(read: Read, mosts: Mapping[str, int]) -> dict[str, Quotient]:
    """The quotients that extents of a model are; none where it cannot be read at other sizes.

    `read`: the model at some numbers; raises ModelError.
    """
    halves = {n: most // 2 + 1 for n, most in mosts.items()}
    few = {n: FEW_ROWS + 1 if half > FEW_ROWS else min(half, 2) for n, half in halves.items()}
    for lows in (few, halves):
        try:
            return _Search(read, mosts, lows).found()
        except ModelError as error:
            without_frames(error)
    return {}


def open_moves(read: Read, sizes: Iterable[Mapping[str, int]]) -> dict[str, tuple[bool, ...]]:
    """The ends at which each Pad of a model may add some at one of two neighbouring sizes, and each
    Slice leave some out, by its result. Raises ModelError."""
    found: dict[str, tuple[bool, ...]] = {}
    for graph in map(read, sizes):
        for node in (n for n in graph.nodes if n.op in ("Pad", "Slice")):
            shapes = graph.shape(node.inputs[0]), graph.shape(node.output)
            ends = tuple(a != b for a, b in zip(*shapes, strict=True)) * 2
            found[node.output] = tuple(map(or_, ends, found.get(node.output, ends)))
    return {name: ends for name, ends in found.items() if any(ends)}


def opened(graph: Graph, moves: Mapping[str, tuple[bool, ...]]) -> Graph:
    """A model of `moves` as it is read where extents are quotients."""
    return replace(graph, nodes=tuple(_with_open_ends(node, moves) for node in graph.nodes))


def _with_open_ends(node: Node, moves: Mapping[str, tuple[bool, ...]]) -> Node:
    """A node whose windows go several places at once, for dimensions that follow a number; and one
    of `moves`, by their results, which moves all at some size: it stays there."""
    if node.output in moves:
        return replace(node, attrs={**node.attrs, OPEN_ENDS: moves[node.output]})
    strides = node.attrs.get("strides", ())
    if not any(s > 1 for s in strides):
        return node
    n = len(strides)
    is_same = str(node.attrs.get("auto_pad", "")).startswith("SAME")
    is_up = is_same or bool(node.attrs.get("ceil_mode"))
    pads = tuple(node.attrs.get("pads", (0,) * 2 * n))
    ends = (*(is_same or b > 0 for b in pads[:n]), *(is_up or e > 0 for e in pads[n:]))
    return replace(node, attrs={**node.attrs, OPEN_ENDS: ends})


@dataclass(frozen=True)
class _Fit:
    """Quotients of a number with any offset from `low` to `high`."""

    of: str
    factor: int
    divisor: int
    low: int
    high: int

    def at(self, offset: int) -> Quotient:
        return Quotient(self.of, self.factor, offset, self.divisor)


class _Search:
    def __init__(self, read: Read, mosts: Mapping[str, int], lows: Mapping[str, int]) -> None:
        self.read, self.mosts, self.lows = read, mosts, lows
        self.rng = random.Random(0)
        self.sizes = [dict(mosts), *self._drawn(_FEW + len(mosts))]
        self.graphs: list[Graph] = []

    def _drawn(self, n: int) -> list[dict[str, int]]:
        def one() -> dict[str, int]:
            return {k: self.rng.randint(self.lows[k], most) for k, most in self.mosts.items()}

        return [one() for _ in range(n)]

    def found(self) -> dict[str, Quotient]:
        while len(self.sizes) <= _MOST_READS:
            found, more = self._fitted()
            if not more:
                return found
            self.sizes += more
        return {}

    def _fitted(self) -> tuple[dict[str, Quotient], list[dict[str, int]]]:
        """The quotients, and sizes at which more is to be seen before these are known."""
        self.graphs += map(self.read, self.sizes[len(self.graphs) :])
        found: dict[str, Quotient] = {}
        points = self._points(found)
        if not points.is_told:
            return {}, self._drawn(1)
        for extent in _extents(self.graphs):
            if len(found) >= _MOST_FOUND or points.affine(extent) is not None:
                continue
            fit = _fit_of(extent, points)
            if fit is None:
                continue
            root = roots_of(found).get(fit.of, fit.of)
            more = self._between_steps(extent, root) if fit.divisor > MOST_REMAINDERS else []
            if more:
                return {}, more
            if fit.low < fit.high:
                return {}, [self._telling(fit, found)]
            name = next(n for n in _primed(root) if n not in points.most)
            found[name] = fit.at(fit.low)
            points = self._points(found)
            if not points.is_told:
                return {}, self._drawn(1)
        return found, []

    def _points(self, found: Mapping[str, Quotient]) -> Points:
        return Points(tuple(whole(found, numbers) for numbers in self.sizes), dict(found))

    def _between_steps(self, extent: Vector, root: str) -> list[dict[str, int]]:
        """Sizes between those where an extent is seen to make its first and its last step."""
        values = sorted((size[root], value) for size, value in zip(self.sizes, extent, strict=True))
        steps = [(a[0], b[0]) for a, b in pairwise(values) if a[1] != b[1]]
        between = {(a + b) // 2 for a, b in (steps[0], steps[-1]) if b > a + 1}
        return [{**self.sizes[-1], root: n} for n in between]

    def _telling(self, fit: _Fit, found: Mapping[str, Quotient]) -> dict[str, int]:
        """A size at which about half of the offsets give one quotient, and half another."""
        root = roots_of(found).get(fit.of, fit.of)
        base = dict(self.sizes[-1])

        def unevenness(n: int) -> int:
            numbers = whole(found, base | {root: n})
            values = [fit.at(b).at(numbers) for b in range(fit.low, fit.high + 1)]
            return max(map(values.count, set(values)))

        best = min(range(self.lows[root], self.mosts[root] + 1), key=unevenness)
        return base | {root: best}


def _extents(graphs: Sequence[Graph]) -> Iterator[Vector]:
    """All extents of a model that differ, at each size."""
    seen = set()
    for name in graphs[0].types:
        shapes = [g.types[name].shape for g in graphs if name in g.types]
        is_known = len(shapes) == len(graphs) and len({len(s) for s in shapes}) == 1
        for extent in zip(*shapes, strict=True) if is_known else ():
            if len(set(extent)) > 1 and extent not in seen:
                seen.add(extent)
                yield extent


def _fit_of(extent: Vector, points: Points) -> _Fit | None:
    """The quotient with the least divisor, of the number that was found last. Of larger divisors
    those that round up or down come first, for extents that make few steps."""
    large: list[_Fit] = []
    for divisor in range(2, _MOST_DIVISOR + 1):
        for name in reversed(list(points.most)):
            found = _of_number(extent, name, [n[name] for n in points.at], divisor)
            if found is not None and divisor <= MOST_REMAINDERS:
                return found
            large += [found] if found is not None else []
    for one in large:
        for offset in (one.divisor - 1, 0):
            if one.low <= offset <= one.high:
                return replace(one, low=offset, high=offset)
    return large[0] if large else None


def _of_number(extent: Vector, name: str, numbers: Sequence[int], divisor: int) -> _Fit | None:
    pairs = sorted(zip(numbers, extent, strict=True))
    (first, least), (last, most) = pairs[0], pairs[-1]
    factor = round(divisor * (most - least) / (last - first)) if last > first else 0
    if factor < 1 or math.gcd(factor, divisor) > 1:
        return None
    ends = [divisor * value - factor * n for n, value in pairs]
    low, high = max(ends), min(ends) + divisor - 1
    return _Fit(name, factor, divisor, low, high) if low <= high else None


def _primed(name: str) -> Iterator[str]:
    while True:
        name += "'"
        yield name
