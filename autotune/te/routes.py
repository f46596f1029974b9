"""② Scattered reductions: each term is added to one element, whose place it computes.

    y[p, c] = Σ_k [place(k) = p] x[k, c]      takes, for every k, one step instead of one for each p

An axis p is *routed* where every term is neutral but at one place that does not depend on it, and
that lies inside of its extent. Loops of routed axes inside the reduction then run once, at that
place (see `loopir.nests`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from autotune.te.arith import Ranges, bounds
from autotune.te.expr import (
    BOOL,
    INDEX,
    Axis,
    Compare,
    Const,
    Expr,
    Reduce,
    Select,
    Var,
    both,
    conjuncts,
    dtype_of,
    identity,
    is_guard,
    loads,
    select,
    variables,
)


@dataclass(frozen=True, slots=True)
class Route:
    """`places`: of the routed axes by name. `guard`: where there are places at all, by loop
    indices. `term`: the reduced one there."""

    places: Mapping[str, Expr]
    guard: Expr
    term: Expr

    @property
    def given(self) -> frozenset[str]:
        """The indices that places and guard depend on."""
        return frozenset[str]().union(variables(self.guard), *map(variables, self.places.values()))


@lru_cache(maxsize=256)
def route(reduction: Reduce, axes: tuple[Axis, ...]) -> Route | None:
    """Route of terms along `axes`, the spatial ones; None where they are not scattered."""
    if any(a.limit is not None for a in reduction.axes):
        return None
    term, guards = reduction.body, list[Expr]()
    while isinstance(term, Select) and term.b == identity(reduction.op, dtype_of(term)):
        conditions = sorted(conjuncts(term.cond), key=repr)
        places = _places(reduction, axes, conditions)
        if places:
            rest = [c for c in conditions if not _tells(c, places)]
            left = select(_all(rest), term.a, term.b)
            return Route(places, _all(guards), left)
        if not is_guard(term):
            return None
        guards.append(term.cond)
        term = term.a
    return None


def _all(conditions: list[Expr]) -> Expr:
    always: Expr = Const(True, BOOL)
    return reduce(both, conditions, always)


def _places(reduction: Reduce, axes: tuple[Axis, ...], conditions: list[Expr]) -> dict[str, Expr]:
    """The place along every axis that some condition compares with one that data tell."""
    extents = {a.name: a.extent for a in axes}
    ranges = {a.name: (0, a.extent - 1) for a in (*axes, *reduction.axes)}
    found: dict[str, Expr] = {}
    for c in conditions:
        match c:
            case Compare(op="eq", a=place, b=Var(name=name)) if name in extents:
                if loads(place) and _is_inside(place, ranges, extents[name]):
                    found.setdefault(name, place)
    given = frozenset[str]().union(*map(variables, found.values()))
    return {} if given & found.keys() else found


def _tells(condition: Expr, places: Mapping[str, Expr]) -> bool:
    match condition:
        case Compare(op="eq", a=place, b=Var(name=name)):
            return places.get(name) == place
    return False


def _is_inside(place: Expr, ranges: Ranges, extent: int) -> bool:
    """Whether a place is an index below `extent`, whatever the data are."""
    try:
        low, high = bounds(place, ranges)
    except KeyError:
        return False
    return dtype_of(place) == INDEX and low >= 0 and high < extent
