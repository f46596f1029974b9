"""⑥ The loop nest around one stage for all candidates of a sketch, and the accesses in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import dtype_bytes
from autotune.loopir.predicate_hoisting import conditions
from autotune.schedule.region import Depth, Extent, UnboundedIndex, span
from autotune.schedule.required import required_extents
from autotune.schedule.state import SplitRelation, Stage, State
from autotune.te.arith import linear
from autotune.te.dag import Compute
from autotune.te.evaluate import n_points
from autotune.te.expr import Expr, Load, Reduce, Select, Var, is_guard, loads, variables, walk

Array = NDArray[np.float64]

_MAX_COUNTED = 1 << 22


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a stage, as all candidates see it; `own`: of the stage itself, not a host."""

    name: str
    extent: Array
    kind: str
    annotation: str
    parallel: bool
    own: bool

    @property
    def is_rows(self) -> bool:
        """Whether it is over the rows of a matrix in a register."""
        return self.annotation == "tile" and self.kind == "spatial"


@dataclass(frozen=True, slots=True)
class Access:
    """Loads of one tensor whose indices differ by constants: the lowest, and the largest offset."""

    load: Load
    spreads: tuple[int, ...]

    @property
    def dimensions(self) -> Iterator[tuple[int, Expr, int]]:
        """Extent, index and spread of each dimension."""
        return zip(self.load.tensor.shape, self.load.indices, self.spreads, strict=True)


@lru_cache(maxsize=256)
def accesses(op: Compute) -> tuple[Access, ...]:
    """All loads of a computation, in groups; its limits are read once, outside of loops."""
    groups: dict[object, list[tuple[Load, tuple[int, ...]]]] = {}
    for load in dict.fromkeys(loads(op.body)):
        forms = [linear(i) for i in load.indices]
        key = (load.tensor.name, tuple(frozenset(f.terms) for f in forms))
        groups.setdefault(key, []).append((load, tuple(f.const for f in forms)))
    return tuple(_access(group) for group in groups.values())


@lru_cache(maxsize=256)
def guarded(op: Compute) -> tuple[tuple[Load, frozenset[str]], ...]:
    """Loads under a condition on loop indices, and the indices of that condition."""
    return tuple(
        (x, frozenset(variables(e.cond)))
        for e in _guards(op)
        for branch in (e.a, e.b)
        for x in walk(branch)
        if isinstance(x, Load)
    )


@lru_cache(maxsize=256)
def needed_shares(op: Compute) -> tuple[tuple[frozenset[str], float], ...]:
    """For each condition without which a term adds nothing: its axes, and its share of points."""
    if not isinstance(op.body, Reduce):
        return ()
    found = sorted(conditions(op.body.body, op.body.op), key=repr)
    return tuple((frozenset(variables(c)), _share(c, op)) for c in found)


def _guards(op: Compute) -> list[Select]:
    body = op.body.body if isinstance(op.body, Reduce) else op.body
    return [e for e in walk(body) if isinstance(e, Select) and is_guard(e)]


def _share(cond: Expr, op: Compute) -> float:
    """Share of points for which `cond` holds; 1 when there are too many points to count."""
    extents = {a.name: a.extent for a in op.axes + op.reduce_axes if a.name in variables(cond)}
    n = prod(extents.values())
    is_counted = n <= _MAX_COUNTED and not loads(cond)
    return n_points(cond, extents) / n if is_counted else 1.0


def _access(group: list[tuple[Load, tuple[int, ...]]]) -> Access:
    columns = list(zip(*(consts for _, consts in group), strict=True))
    first = min(group, key=lambda item: item[1])[0]
    return Access(first, tuple(max(c) - min(c) for c in columns))


class Nest:
    """One stage of `n` candidates: `chain` of hosts, all `loops`, outermost first, and `reads`."""

    def __init__(self, state: State, stage: Stage, n: int) -> None:
        self.state, self.stage, self.n = state, stage, n
        self.op: Compute = stage.op
        self.reads = accesses(stage.op)
        self.chain = self._hosts()
        self.loops = [loop for s, depth in self.chain for loop in self._own_loops(s, depth)]

    def _hosts(self) -> list[tuple[Stage, int]]:
        """The stage and its hosts, outermost first, each with the number of its loops around it."""
        out = [(self.stage, len(self.stage.iters))]
        stage = self.stage
        while stage.attach:
            host = self.state[stage.attach.target]
            out.insert(0, (host, host.position(stage.attach.iter) + 1))
            stage = host
        return out

    def _own_loops(self, stage: Stage, depth: int) -> list[Loop]:
        own = stage.name == self.stage.name
        found = None if stage.routed_depth is None else stage.op.route
        routed = found.places if found else ()
        return [
            Loop(
                it.name,
                full(1 if it.name in routed else it.extent, self.n),
                it.kind,
                it.annotation,
                k < stage.n_parallel,
                own,
            )
            for k, it in enumerate(stage.iters[:depth])
        ]

    def extent_of(self, stage: Stage, name: str) -> Array:
        """Extent of an axis of a stage, or of a part that a split made of one, shape [n]."""
        for axis, extent in zip(stage.axes, stage.axis_extents, strict=True):
            if axis.name == name:
                return full(extent, self.n)
        rel = next(r for r in stage.splits if name in r.children)
        k = rel.children.index(name)
        if k:
            return full(rel.factors[k - 1], self.n)
        parts = [full(f, self.n) for f in rel.factors]
        return np.ceil(self.extent_of(stage, rel.parent) / product(parts, self.n))

    @cached_property
    def splits_around(self) -> tuple[tuple[SplitRelation, Array], ...]:
        """Splits whose tile loop surrounds this statement, with the extents of their parents."""
        return tuple(
            (relation, self.extent_of(stage, relation.parent))
            for stage, depth in self.chain
            for relation in stage.splits
            if any(i.name == relation.children[-2] for i in stage.iters[:depth])
        )

    def distinct(self, index: Expr, size: int, spread: int, inner: dict[str, Array]) -> Array:
        """Most values that an index takes: its span, less those that strides skip."""
        if isinstance(index, Var) and index.name in inner and not spread:
            return np.minimum(inner[index.name], size)
        points = product([inner[v] for v in variables(index) if v in inner], self.n)
        try:
            reach: Extent = span(index, inner) + 1
        except UnboundedIndex:
            reach = size
        most = points * (1 + spread) if spread else points
        return np.minimum(np.minimum(reach + spread, most), size)

    def inner_extents(self, depths: Sequence[int]) -> dict[str, Array]:
        """Values that each own axis takes while all loops from a depth inwards run: [depths, n]."""
        parts: list[dict[str, Array]] = []
        first = 0
        for stage, count in self.chain:
            is_own = stage.name == self.stage.name
            here = [d - first for d in depths if first <= d and (is_own or d < first + count)]
            if here:
                inner = self._own_extents(stage, tuple(d - 1 for d in here))
                shape = (len(here), self.n)
                parts.append({k: np.broadcast_to(v, shape) for k, v in inner.items()})
            first += count
        return {name: np.concatenate([p[name] for p in parts], dtype=float) for name in parts[0]}

    def _own_extents(self, host: Stage, depth: Depth) -> dict[str, Extent]:
        """Extents of the region that this stage, or its host, needs below loop `depth`."""
        if host.name == self.stage.name:
            return host.inner_extents(depth)
        needed = required_extents(self.state, self.stage.name, host, depth)
        return dict(zip((a.name for a in self.stage.axes), needed, strict=True))


def local_bytes(stage: Stage, n: int) -> Array:
    """Size of the local buffer of an attached stage; 0 at the root."""
    if stage.attach is None:
        return np.zeros(n)
    spatial = stage.axis_extents[: len(stage.op.axes)]
    size = product([full(e, n) for e in spatial], n)
    return size * dtype_bytes(stage.op.tensor.dtype)


def full(x: Extent, n: int) -> Array:
    """A size broadcast to all candidates, shape [n]."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) else np.full(n, x, np.float64)


def product(parts: list[Array], n: int) -> Array:
    """Product of arrays of shape [n]; of none, ones."""
    return reduce(np.multiply, parts) if parts else np.ones(n)
