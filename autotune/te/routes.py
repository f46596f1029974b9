"""② Scattered reductions: each term is added to one element, whose place it computes.

    y[p, c] = Σ_k [place(k) = p] x[k, c]      takes, for every k, one step instead of one for each p

An axis p is *routed* where every term is neutral but at one place that does not depend on it, and
that lies inside of its extent. Loops of routed axes inside the reduction then run once, at that
place (see `loopir.nests`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from autotune.te.arith import Ranges, bounds, linear
from autotune.te.expr import (
    BOOL,
    INDEX,
    Axis,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Var,
    both,
    conjuncts,
    dtype_of,
    is_guard,
    loads,
    map_expr,
    minimum,
    select,
    variables,
)
from autotune.te.reductions import identity


@dataclass(frozen=True, slots=True)
class Route:
    """`places`: of the routed axes by name. `guard`: where there are places at all, by loop
    indices and by what is loaded with those of terms. `term`: the reduced one there. `ends`: how
    far axes that are reduced go."""

    places: Mapping[str, Expr]
    guard: Expr
    term: Expr
    ends: Mapping[str, Expr]

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
            terms = {a.name for a in reduction.axes}
            guards += [c for c in rest if variables(c) <= terms]
            left = select(_all([c for c in rest if c not in guards]), term.a, term.b)
            return Route(places, _all(guards), left, _ended(guards, terms))
        if not (is_guard(term) or is_known(term.cond)):
            return None
        guards += conditions
        term = term.a
    return None


def is_known(cond: Expr) -> bool:
    """Whether a condition depends on indices, and on elements at fixed places, alone."""
    return not any(variables(x) for x in loads(cond))


def _ends(cond: Expr, terms: Collection[str]) -> bool:
    """Whether a condition ends the loop over a reduced axis."""
    match cond:
        case Compare(op="lt", a=Var(name=name), b=b):
            return name in terms and not variables(b)
    return False


def _ended(guards: list[Expr], terms: Collection[str]) -> dict[str, Expr]:
    found: dict[str, Expr] = {}
    for c in guards:
        if isinstance(c, Compare) and isinstance(c.a, Var) and _ends(c, terms):
            found[c.a.name] = minimum(found[c.a.name], c.b) if c.a.name in found else c.b
    return found


def _all(conditions: list[Expr]) -> Expr:
    always: Expr = Const(True, BOOL)
    return reduce(both, conditions, always)


def _places(reduction: Reduce, axes: tuple[Axis, ...], conditions: list[Expr]) -> dict[str, Expr]:
    """The place along every axis that some condition compares with one that data tell."""
    extents = {a.name: a.extent for a in axes}
    ranges = {a.name: (0, a.extent - 1) for a in (*axes, *reduction.axes)}
    found: dict[str, Expr] = {}
    numbers = dict(_numbers(axes))
    ranges |= {f"number of {x.tensor.name}": (0, most) for x, most in numbers.items()}

    def known(e: Expr) -> Expr | None:
        is_number = isinstance(e, Load) and e in numbers
        return Var(f"number of {e.tensor.name}") if is_number and isinstance(e, Load) else None

    for c in conditions:
        match c:
            case Compare(op="eq", a=place, b=Var(name=name)) if name in extents:
                if loads(place) and _is_inside(map_expr(place, known), ranges, extents[name]):
                    found.setdefault(name, place)
    given = frozenset[str]().union(*map(variables, found.values()))
    return {} if given & found.keys() else found


def _numbers(axes: tuple[Axis, ...]) -> Iterator[tuple[Load, int]]:
    """The numbers that the limits of axes follow, and the most that each can be."""
    for a in axes:
        form = linear(a.limit) if a.limit is not None else None
        if form is not None and len(form.terms) == 1:
            ((atom, factor),) = form.terms
            if isinstance(atom, Load) and factor > 0:
                yield atom, (a.extent - form.const) // factor


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
