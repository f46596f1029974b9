"""① One computation at two lengths: whether its real elements are equal, and the values it has.

    lengths_of(softmax at 11, softmax at 13, scope)   Lengths, or Refused with the reason

At real places each element has to be the same expression of the same elements, and what is reduced
over padded ones neutral; see `padding`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autotune.graph.ir import Shape
from autotune.graph.padded_axes import (
    REAL,
    REGIONS,
    Lengths,
    PaddedExtent,
    Places,
    Refused,
    Region,
    Regions,
    candidates,
    layout_of,
    places_of,
)
from autotune.graph.row_facts import RowFacts, Rows
from autotune.te.arith import bounds, linear, simplify
from autotune.te.dag import Compute, print_expr
from autotune.te.expr import (
    Axis,
    Binary,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    add,
    children,
    dtype_of,
    idx,
    map_expr,
    mul,
    rebuild,
    substitute,
)
from autotune.te.value_ranges import (
    ANYTHING,
    Values,
    join,
    product,
    total,
    values_of,
)


@dataclass(frozen=True)
class PaddedScope:
    """Facts of the operands of a node, by their names in its definition (`keys`).

    `has_indices`: an index outside of a dimension is an error of its data, and is clamped for
    safety alone.
    """

    pair: PaddedExtent
    has_indices: bool
    known: Mapping[str, Lengths]
    facts: Mapping[str, RowFacts]
    keys: Mapping[str, str]
    shapes: Mapping[str, tuple[Shape, Shape]]

    def lengths(self, name: str) -> Lengths:
        """Those of an operand."""
        return self.known[self.keys[name]]

    def places(self, name: str) -> Places:
        """Padded axes of an operand. Raises Refused."""
        found = places_of(self.lengths(name).layout, *self.shapes[name], self.pair)
        if found is None:
            raise Refused("it joins real and padded places in one dimension")
        return found

    @property
    def rows(self) -> Rows:
        """Facts of the operands."""
        return Rows(self.keys, self.facts)

    def anywhere(self, e: Expr) -> Values:
        """Values of an expression, whatever its indices."""

        def read(x: Expr) -> Values | None:
            if isinstance(x, Load):
                return join(self.lengths(x.tensor.name).values.values())
            return ANYTHING if isinstance(x, Var) else None

        return values_of(e, read)


def lengths_of(a: Compute, b: Compute, scope: PaddedScope) -> Lengths:
    """Lengths of the result of a computation, if its real elements are the same in both graphs."""
    n_own = len(a.axes)
    shape = tuple(x.extent for x in (*a.axes, *a.reduce_axes))
    other = tuple(x.extent for x in (*b.axes, *b.reduce_axes))
    reasons: list[str] = []
    for places in candidates(shape, other, scope.pair):
        try:
            one, longer = (_View(op, places, scope, n) for n, op in enumerate((a, b)))
            if not (one.form() == longer.form() or one.form(True) == longer.form(True)):
                raise Refused("a real element is computed in another way at another length")
            own = sum(p is not None for p in places[:n_own])
            longer.require_neutral(own, one)
            values = {
                regions: (longer if "padded" in regions else one).value(regions)
                for regions in itertools.product(REGIONS, repeat=own)
            }
            return Lengths(layout_of(places[:n_own], a.tensor.shape, scope.pair.n), values)
        except Refused as error:
            reasons.append(str(error))
    raise Refused(reasons[0])


class _View:
    """A computation at one extent, with lengths as variables of their own."""

    def __init__(self, op: Compute, places: Places, scope: PaddedScope, graph: int) -> None:
        self.op, self.places, self.scope, self.graph = op, places, scope, graph
        self.extent = (scope.pair.n, scope.pair.padded)[graph]
        self.lengths: list[str] = []
        """Variables that are lengths, in the order of axes; those of the result first."""
        self.ranges: dict[str, tuple[int, int]] = {}
        self.extents: list[object] = []
        self.counts: list[int] = []
        """Elements of each reduced axis per place; its extent if it has no places."""
        split: dict[str, Expr] = {}
        for axis, inner in zip((*op.axes, *op.reduce_axes), places, strict=True):
            if inner is None:
                self.ranges[axis.name] = 0, axis.extent - 1
                self.extents.append(axis.extent)
                self.counts.append(axis.extent)
                continue
            outer = axis.extent // (self.extent * inner)
            self.extents.append((outer, inner))
            self.counts.append(outer * inner)
            if outer * inner == 1:
                self.lengths.append(axis.name)
                continue
            own, high, low = f"{axis.name}@", f"{axis.name}>", f"{axis.name}<"
            self.lengths.append(own)
            self.ranges |= {high: (0, outer - 1), low: (0, inner - 1)}
            index = mul(Var(own), idx(inner))
            if outer > 1:
                index = add(mul(Var(high), idx(self.extent * inner)), index)
            split[axis.name] = index if inner == 1 else add(index, Var(low))
        self.split = split

    @cached_property
    def body(self) -> Expr:
        body = self.op.body
        return substitute(body.body if isinstance(body, Reduce) else body, self.split)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(
            a if a.limit is None else replace(a, limit=substitute(a.limit, self.split))
            for a in self.op.reduce_axes
        )

    def regioned(self, regions: Iterable[Region]) -> dict[str, tuple[int, int]]:
        """Ranges of all variables where lengths are in these regions."""
        pairs = zip(self.lengths, regions, strict=True)
        return self.ranges | {name: self.scope.pair.range_of(r) for name, r in pairs}

    # --- the same at both extents ---

    def form(self, by_values: bool = False) -> object:
        """Canonical form of a real element: equal for equal expressions."""
        body = self.op.body
        real: Regions = (REAL,) * len(self.lengths)
        ranges = self.regioned(real)
        reduced: tuple[object, ...] = ()
        if isinstance(body, Reduce):
            limits = [a.limit and print_expr(self._apart(a.limit, ranges)) for a in self.axes]
            reduced = (body.op, [a.name for a in self.axes], limits)
        e = self.body
        if by_values:
            e = self._decided(e, real)
        return self.op.tensor.dtype, self.extents, reduced, print_expr(self._apart(e, ranges))

    def _decided(self, e: Expr, real: Regions) -> Expr:
        """`e` folded by the values at real places, with the first of extrema where it is."""
        evaluate = _Evaluator(self, dict(zip(self.lengths, real, strict=True)))

        def known(x: Expr) -> Expr | None:
            if isinstance(x, Select):
                cond = evaluate.value(x.cond)
                if cond.low == cond.high:
                    return map_expr(x.a if cond.low else x.b, known)
            if isinstance(x, Load):
                indices = (self._within(x, d, known) for d in range(len(x.indices)))
                return Load(x.tensor, tuple(indices))
            return None

        e = map_expr(e, known)
        return self._first_of(e)

    def _within(self, x: Load, d: int, known: Any) -> Expr:
        """The index of a load. Those that a model gives are inside of the dimension."""
        index = x.indices[d]
        inner = _unclamped(index, x.tensor.shape[d]) if self.scope.has_indices else None
        if self.scope.places(x.tensor.name)[d] is not None and inner is not None:
            index = inner
        return map_expr(index, known)

    def _first_of(self, e: Expr) -> Expr:
        """min(r where x[r] is the maximum, else the extent): the extent does not occur."""
        body = self.op.body
        if not isinstance(body, Reduce) or body.op != "min" or len(self.axes) != 1:
            return e
        axis = self.axes[0]
        match e:
            case Select(cond=cond, a=Var(name=name), b=Const(value=value)) if (
                name == axis.name and value == axis.extent and self._is_reached(cond, name)
            ):
                return Select(cond, Var(name), Var("∞"))
        return e

    def _is_reached(self, cond: Expr, name: str) -> bool:
        """Whether `x[r] == max x` holds for some r."""
        if isinstance(cond, Binary) and cond.op == "or":
            return self._is_reached(cond.a, name) or self._is_reached(cond.b, name)
        match cond:
            case Compare(op="eq", a=Load() as x, b=Load() as top):
                found = self.scope.rows.peak(Binary("sub", x, top), self.op)
                return found is not None and found[0] == {name}
        return False

    def _apart(self, e: Expr, ranges: Mapping[str, tuple[int, int]]) -> Expr:
        """`e` with the places of every load apart from its other indices."""
        return simplify(self._loads(simplify(e, ranges), ranges), ranges)

    def _loads(self, e: Expr, ranges: Mapping[str, tuple[int, int]]) -> Expr:
        parts = tuple(self._loads(c, ranges) for c in children(e))
        if not isinstance(e, Load):
            return rebuild(e, parts) if parts else e
        indices: list[Expr] = []
        places = self.scope.places(e.tensor.name)
        for inner, extent, index in zip(places, e.tensor.shape, parts, strict=True):
            found = [index] if inner is None else self._digits(index, inner, extent, ranges)
            indices += [simplify(i, ranges) for i in found]
        shape = (self.extent,) * len(indices)
        return Load(Tensor(e.tensor.name, shape, e.tensor.dtype), tuple(indices))

    def _digits(
        self, index: Expr, inner: int, extent: int, ranges: Mapping[str, tuple[int, int]]
    ) -> list[Expr]:
        """An index as `(outer · n + place) · inner + rest`: outer, place and rest."""
        whole = self.extent * inner
        if extent == whole and inner == 1:
            return [index]
        form = linear(index, ranges)
        zero: Expr = idx(0)
        parts = [zero, zero, zero]
        for atom, c in form.terms:
            at, by = (0, whole) if c % whole == 0 else (1, inner) if c % inner == 0 else (2, 1)
            parts[at] = add(parts[at], mul(atom, idx(c // by)))
        left = form.const % whole
        const = (form.const // whole, left // inner, left % inner)
        outer, place, rest = (add(p, idx(c)) for p, c in zip(parts, const, strict=True))
        for part, most in ((place, self.extent), (rest, inner)):
            try:
                low, high = bounds(part, ranges)
            except KeyError:
                low, high = -1, most
            if low < 0 or high >= most:
                raise Refused("it mixes real and padded places")
        return [outer, place, rest]

    # --- values in regions ---

    def value(self, regions: Regions) -> Values:
        """Values of the result where its lengths are in these regions."""
        body = self.op.body
        if not isinstance(body, Reduce):
            return self._of_body(regions)
        parts = list(self.terms(regions))
        dtype = dtype_of(body)
        if any(a.limit is not None for a in self.axes):
            some = [(n, join((v, Values(0, 0)))) for n, v in parts]
            return total(some, dtype) if body.op == "sum" else ANYTHING
        match body.op:
            case "sum":
                found = total(parts, dtype)
            case "prod":
                found = product(parts, dtype)
            case "max":
                every = [v for n, v in parts if n]
                found = replace(join(every), low=max(v.low for v in every))
            case _:
                every = [v for n, v in parts if n]
                found = replace(join(every), high=min(v.high for v in every))
        peak = self.scope.rows.peak(body.body, self.op)
        names = {a.name for a in self.axes}
        is_positive = body.op == "sum" and all(v.low >= 0 for _, v in parts)
        if is_positive and peak is not None and peak[0] <= names:
            found = replace(found, low=max(found.low, peak[1]))
        return found

    def _of_body(self, regions: Regions) -> Values:
        evaluate = _Evaluator(self, dict(zip(self.lengths, regions, strict=True)))
        return evaluate.value(simplify(self.body, self.regioned(regions)))

    def terms(self, regions: Regions) -> Iterator[tuple[int, Values]]:
        """The number of terms of a reduction in each combination of regions."""
        n_own = len(self.op.axes)
        reduced = [p is not None for p in self.places[n_own:]]
        others = math.prod(self.counts[n_own:])
        n_padded = self.extent - self.scope.pair.n
        size = {"anchor": 1, "real": self.scope.pair.n - 1, "padded": n_padded}
        for combination in itertools.product(REGIONS, repeat=sum(reduced)):
            if "padded" in combination and not n_padded:
                continue
            n = others * math.prod(size[r] for r in combination)
            yield n, self._of_body((*regions, *combination))

    def require_neutral(self, n_own: int, one: _View) -> None:
        """Raise where a padded term of a reduction can change a real element."""
        body = self.op.body
        if not isinstance(body, Reduce) or len(self.lengths) == n_own:
            return
        real: Regions = (REAL,) * n_own
        result = one.value(real)
        for combination in itertools.product(REGIONS, repeat=len(self.lengths) - n_own):
            if "padded" not in combination or self._is_beyond(combination, real):
                continue
            term = self._of_body((*real, *combination))
            if not self._is_neutral(body.op, term, result):
                raise Refused(_leak(body.op, term))

    def _is_neutral(self, op: str, term: Values, result: Values) -> bool:
        if op in ("sum", "prod"):
            return term.is_only(0 if op == "sum" else 1)
        if op == "min" and self._first_of(self.body) != self.body:
            return True
        if term.has_nan:
            return False
        return term.high <= result.low if op == "max" else term.low >= result.high

    def _is_beyond(self, combination: Regions, real: Regions) -> bool:
        """Whether all these terms are behind the limit of a ragged axis."""
        names = self.lengths[len(real) :]
        for name, region in zip(names, combination, strict=True):
            axis = next((a for a in self.axes if a.name == name), None)
            if region != "padded" or axis is None or axis.limit is None:
                continue
            regions = dict(zip(self.lengths, (*real, *combination), strict=True))
            limit = _Evaluator(self, regions).value(axis.limit)
            if not limit.has_nan and limit.high <= self.scope.pair.n:
                return True
        return False


def _leak(op: str, term: Values) -> str:
    spread = "" if term.is_finite else ", or no number"
    where = f"from {term.low:.4g} to {term.high:.4g}{spread}"
    return f"a {op} over all places takes padded ones too, which are {where}"


def _unclamped(index: Expr, extent: int) -> Expr | None:
    """x of `max(0, min(x, extent - 1))`."""
    match index:
        case Binary(op="max", a=Const(value=0), b=Binary(op="min", a=x, b=Const(value=most))) if (
            most == extent - 1
        ):
            return x
    return None


class _Evaluator:
    """Values of expressions of a computation whose lengths are in given regions."""

    def __init__(self, view: _View, regions: Mapping[str, Region]) -> None:
        self.view, self.regions = view, regions
        self.pair = view.scope.pair
        self.ranges = view.ranges | {n: self.pair.range_of(r) for n, r in regions.items()}

    def value(self, e: Expr) -> Values:
        return values_of(e, self.read)

    def read(self, e: Expr) -> Values | None:
        """Values of variables, loads, differences from a maximum, and quotients by a norm."""
        match e:
            case Var(name=name):
                low, high = self.ranges[name]
                return Values(low, high)
            case Load():
                return self._load(e)
            case Binary(op="sub", a=Load() as x, b=Load() as top):
                if self.view.scope.rows.below_maximum(x, top) is not None:
                    plain = self._plain(e)
                    return replace(plain, low=min(plain.low, 0.0), high=min(plain.high, 0.0))
            case Binary(op="mul" | "div"):
                scope = self.view.scope
                most = scope.rows.normalised(e, scope.anywhere)
                if most is not None:
                    plain = self._plain(e)
                    return replace(plain, low=max(plain.low, -most), high=min(plain.high, most))
        return None

    def _plain(self, e: Expr) -> Values:
        """Values of `e` by those of its operands."""
        return values_of(e, lambda x: None if x is e else self.read(x))

    def _load(self, e: Load) -> Values:
        scope = self.view.scope
        lengths, places = scope.lengths(e.tensor.name), scope.places(e.tensor.name)
        options: list[list[Region]] = []
        for d, (inner, index) in enumerate(zip(places, e.indices, strict=True)):
            self._require_inside(index, e.tensor.shape[d])
            if inner is not None:
                options.append(self._regions_of(index, inner, e.tensor.shape[d]))
        every = [lengths.values[r] for r in itertools.product(*options) if r in lengths.values]
        return join(every)

    def _regions_of(self, index: Expr, inner: int, extent: int) -> list[Region]:
        """Regions that a place may lie in."""
        place = self.view._digits(index, inner, extent, self.ranges)
        at = place[0] if len(place) == 1 else place[1]
        if isinstance(at, Var) and at.name in self.regions:
            return [self.regions[at.name]]
        found = self.value(at)
        if self.view.graph == 0:
            found = Values(max(0, found.low), min(self.pair.n - 1, found.high))
        first, last = self.pair.range_of("anchor")
        if first == found.low == found.high == last:
            return ["anchor"]
        if found.high < self.pair.n:
            return ["real"]
        return ["padded"] if found.low >= self.pair.n else ["real", "padded"]

    def _require_inside(self, index: Expr, extent: int) -> None:
        """Raise where padded places would read outside of a table."""
        inner = _unclamped(index, extent)
        if inner is None or "padded" not in self.regions.values():
            return
        at = self.value(inner)
        if at.low < 0 or at.high >= extent:
            raise Refused(f"padded places can read outside of {extent} rows")
