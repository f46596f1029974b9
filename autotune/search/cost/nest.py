"""⑥ The loop nest around one stage for all candidates of a sketch, and the accesses in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import cast

import numpy as np

from autotune.dtypes import dtype_bytes
from autotune.loopir.predicate_hoisting import conditions
from autotune.schedule.region import Depth, Extent, Spans, UnboundedIndex, smaller, span_of
from autotune.schedule.required import required_extents
from autotune.schedule.state import SplitRelation, Stage, State
from autotune.search.cost.amounts import Amount, Amounts, product, rounded_up
from autotune.strides import padded_strides
from autotune.te.arith import Linear, linear
from autotune.te.dag import Compute
from autotune.te.evaluate import n_points
from autotune.te.expr import (
    Binary,
    Expr,
    Load,
    Reduce,
    Select,
    Var,
    is_guard,
    loads,
    variables,
    walk,
)

_MAX_COUNTED = 1 << 22


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a stage, as all candidates see it."""

    name: str
    extent: Amount
    kind: str
    annotation: str
    parallel: bool

    @property
    def is_rows(self) -> bool:
        """Whether it is over the rows of a matrix in a register."""
        return self.annotation == "tile" and self.kind == "spatial"


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a dimension of `size` elements, or a part of one, and its terms.

    `spread`: largest offset of indices that differ by constants. `name`: the variable, where it is
    one alone. `step`: bytes between neighbours in memory.
    """

    form: Linear
    size: float
    spread: int
    names: frozenset[str]
    name: str | None
    step: int = 0

    @staticmethod
    def of(e: Expr, size: int, spread: int = 0, step: int = 0) -> Index:
        """Of an expression."""
        name = e.name if isinstance(e, Var) and not spread else None
        return Index(linear(e), float(size), spread, variables(e), name, step)

    @property
    def alone(self) -> Index:
        """The same of one load."""
        return self if not self.spread else replace(self, spread=0)

    def distinct(self, inner: dict[str, Amount]) -> Amount:
        """Most values that it takes: its span, less those that strides skip."""
        if self.name is not None and self.name in inner:
            return smaller(inner[self.name], self.size)
        points = product(inner[v] for v in self.names if v in inner)
        try:
            reach: Amount = span_of(self.form, cast(Spans, inner)) + 1.0
        except UnboundedIndex:
            reach = self.size
        most = points * (1 + self.spread) if self.spread else points
        return smaller(smaller(reach + self.spread, most), self.size)


@dataclass(frozen=True, slots=True)
class Access:
    """Loads of one tensor whose indices differ by constants: the lowest one, and its indices.

    `outside_mod`: variables that are in an index, not only in patterns that repeat. `terms`: the
    parts of the indices.
    """

    load: Load
    dimensions: tuple[Index, ...]
    outside_mod: frozenset[str]
    terms: tuple[Index, ...]

    @staticmethod
    def of(load: Load, spreads: Sequence[int]) -> Access:
        """The accesses from `load` on."""
        tensor = load.tensor
        pairs = list(zip(load.indices, tensor.shape, strict=True))
        strides = padded_strides(tensor.shape, tensor.dtype)
        terms = [
            Index.of(atom, size, 0, abs(coef) * stride * dtype_bytes(tensor.dtype))
            for (index, size), stride in zip(pairs, strides, strict=True)
            for atom, coef in linear(index).terms
        ]
        return Access(
            load,
            tuple(Index.of(*pair, spread) for pair, spread in zip(pairs, spreads, strict=True)),
            frozenset().union(*map(_outside_mod, load.indices)),
            tuple(terms),
        )


@lru_cache(maxsize=256)
def accesses(op: Compute) -> tuple[Access, ...]:
    """All loads of a computation, in groups; its limits are read once, outside of loops."""
    groups: dict[object, list[tuple[Load, tuple[int, ...]]]] = {}
    for load in dict.fromkeys(loads(op.body)):
        forms = [linear(i) for i in load.indices]
        key = (load.tensor.name, tuple(frozenset(f.terms) for f in forms))
        groups.setdefault(key, []).append((load, tuple(f.const for f in forms)))
    return tuple(_access(group) for group in groups.values())


def _access(group: list[tuple[Load, tuple[int, ...]]]) -> Access:
    columns = list(zip(*(consts for _, consts in group), strict=True))
    first = min(group, key=lambda item: item[1])[0]
    return Access.of(first, [max(c) - min(c) for c in columns])


def _outside_mod(e: Expr) -> frozenset[str]:
    terms = linear(e).terms
    return frozenset().union(*(variables(a) for a, _ in terms if not _is_mod(a)))


def _is_mod(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op == "mod"


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


class Nests:
    """What the nests of a population of `n` candidates share: amounts, and the loops of stages."""

    def __init__(self, state: State, n: int) -> None:
        self.state, self.n, self.amount = state, n, Amounts()
        self._loops: dict[str, list[Loop]] = {}

    def loops_of(self, stage: Stage) -> list[Loop]:
        """All loops of a stage, outermost first."""
        if stage.name not in self._loops:
            found = None if stage.routed_depth is None else stage.op.route
            routed = found.places if found else ()
            self._loops[stage.name] = [
                Loop(
                    it.name,
                    1.0 if it.name in routed else self.amount(it.extent),
                    it.kind,
                    it.annotation,
                    k < stage.n_parallel,
                )
                for k, it in enumerate(stage.iters)
            ]
        return self._loops[stage.name]


class Nest:
    """One stage: `chain` of hosts, all `loops`, outermost first, and `reads`.

    `own`: the loops of the stage itself; `rolled`: those that are not expanded.
    """

    def __init__(self, nests: Nests, stage: Stage) -> None:
        self.state, self.n, self.amount = nests.state, nests.n, nests.amount
        self.stage = stage
        self.op: Compute = stage.op
        self.reads = accesses(stage.op)
        self.chain = self._hosts()
        self.own = nests.loops_of(stage)
        around = [x for s, depth in self.chain[:-1] for x in nests.loops_of(s)[:depth]]
        self.loops = [*around, *self.own]
        self.rolled = [*around, *(x for x in self.own if not x.annotation)]
        self.rolled_depths = [
            k for k, x in enumerate(self.loops) if k < len(around) or not x.annotation
        ]

    def _hosts(self) -> list[tuple[Stage, int]]:
        """The stage and its hosts, outermost first, each with the number of its loops around it."""
        out = [(self.stage, len(self.stage.iters))]
        stage = self.stage
        while stage.attach:
            host = self.state[stage.attach.target]
            out.insert(0, (host, host.position(stage.attach.iter) + 1))
            stage = host
        return out

    def extent_of(self, stage: Stage, name: str) -> Amount:
        """Extent of an axis of a stage, or of a part that a split made of one."""
        for axis, extent in zip(stage.axes, stage.axis_extents, strict=True):
            if axis.name == name:
                return self.amount(extent)
        rel = next(r for r in stage.splits if name in r.children)
        k = rel.children.index(name)
        if k:
            return self.amount(rel.factors[k - 1])
        parts = product(map(self.amount, rel.factors))
        return rounded_up(self.extent_of(stage, rel.parent) / parts)

    @cached_property
    def splits_around(self) -> tuple[tuple[SplitRelation, Amount], ...]:
        """Splits whose tile loop surrounds this statement, with the extents of their parents."""
        found = []
        for stage, depth in self.chain:
            around = {i.name for i in stage.iters[:depth]}
            found += [
                (relation, self.extent_of(stage, relation.parent))
                for relation in stage.splits
                if relation.children[-2] in around
            ]
        return tuple(found)

    def inner_extents(self, depths: Sequence[int]) -> dict[str, Amount]:
        """Values that each own axis takes while all loops from a depth inwards run."""
        parts: list[tuple[int, dict[str, Extent]]] = []
        first = 0
        for stage, count in self.chain:
            is_own = stage.name == self.stage.name
            here = [d - first for d in depths if first <= d and (is_own or d < first + count)]
            if here:
                parts.append((len(here), self._own_extents(stage, tuple(d - 1 for d in here))))
            first += count
        names = [a.name for a in self.stage.axes]
        return {name: _stacked([(k, part[name]) for k, part in parts]) for name in names}

    def _own_extents(self, host: Stage, depth: Depth) -> dict[str, Extent]:
        """Extents of the region that this stage, or its host, needs below loop `depth`."""
        if host.name == self.stage.name:
            return host.inner_extents(depth)
        needed = required_extents(self.state, self.stage.name, host, depth)
        return dict(zip((a.name for a in self.stage.axes), needed, strict=True))


def _stacked(parts: Sequence[tuple[int, Extent]]) -> Amount:
    """Amounts at several depths each, one after the other."""
    first = parts[0][1]
    if isinstance(first, np.ndarray):
        if len(parts) == 1:
            return first.astype(np.float64)
    elif all(not isinstance(x, np.ndarray) and x == first for _, x in parts):
        return float(first)
    n = max(np.shape(x)[-1] if isinstance(x, np.ndarray) else 1 for _, x in parts)
    return np.concatenate([np.broadcast_to(x, (k, n)) for k, x in parts], dtype=float)


def local_bytes(stage: Stage, amount: Amounts) -> Amount:
    """Size of the local buffer of an attached stage; 0 at the root."""
    if stage.attach is None:
        return 0.0
    spatial = stage.axis_extents[: len(stage.op.axes)]
    return product(map(amount, spatial)) * dtype_bytes(stage.op.tensor.dtype)
