"""What rewrites are told of variables is what they are, over random bodies of loops."""

from __future__ import annotations

from random import Random

import pytest

from autotune.loopir.nodes import Body, For, If, Let, Stmt, Store
from autotune.loopir.visitor import map_statements
from autotune.te.arith import Ranges
from autotune.te.expr import Compare, Expr, Tensor, Var, add, compare, f32, floordiv, idx, mul
from tests.te.test_te_arith import value_of

T = Tensor("t", (1,))
Point = dict[str, int]


def body_of(rng: Random, depth: int, names: tuple[str, ...], n: list[int]) -> Body:
    """Loops, conditions and values, each of variables around; a leaf is numbered."""
    if depth == 0:
        n[0] += 1
        return (Store(T, (idx(n[0]),), f32(0)),)
    name = f"v{depth}{n[0]}"
    kind = rng.choice(["for", "if", "let"]) if names else "for"
    if kind == "for":
        inner = body_of(rng, depth - 1, (*names, name), n)
        return (For(name, rng.randint(1, 5), "serial", inner),)
    if kind == "let":
        value = add(mul(Var(rng.choice(names)), idx(rng.randint(1, 3))), idx(rng.randint(0, 2)))
        value = floordiv(value, idx(rng.randint(1, 2)))
        return (Let(name, value), *body_of(rng, depth - 1, (*names, name), n))
    cond = compare("lt", Var(rng.choice(names)), idx(rng.randint(1, 5)))
    if not isinstance(cond, Compare):
        return body_of(rng, depth - 1, names, n)
    then, orelse = (body_of(rng, depth - 1, names, n) for _ in range(2))
    return (If(cond, then, orelse),)


def run(body: Body, point: Point, seen: dict[Expr, dict[str, set[int]]]) -> None:
    """Execute, and remember the values of all variables at each leaf."""
    for stmt in body:
        match stmt:
            case For(var=var, extent=extent, body=inner):
                for k in range(extent):
                    run(inner, point | {var: k}, seen)
            case If(cond=cond, then=then, orelse=orelse):
                run(then if value_of(cond, point) else orelse, point, seen)
            case Let(var=var, value=value):
                point = point | {var: value_of(value, point)}
            case Store(indices=(leaf,)):
                for name, number in point.items():
                    seen.setdefault(leaf, {}).setdefault(name, set()).add(number)


@pytest.mark.parametrize("seed", range(0, 200, 50))
def test_ranges_are_those_of_the_values_that_variables_have(seed: int) -> None:
    """They hold every value; of a loop around one condition on it they are exact."""
    n_exact = 0
    for n in range(seed, seed + 50):
        body = body_of(Random(n), 4, (), [0])
        told: dict[Expr, Ranges] = {}

        def look(stmt: Stmt, ranges: Ranges, told: dict[Expr, Ranges] = told) -> Body | None:
            if isinstance(stmt, Store):
                told[stmt.indices[0]] = dict(ranges)
            return None

        assert map_statements(body, look, {}) == body
        seen: dict[Expr, dict[str, set[int]]] = {}
        run(body, {}, seen)
        lets = {s.var for s in lets_of(body)}
        for leaf, values in seen.items():
            assert told[leaf].keys() == values.keys()
            for name, found in values.items():
                low, high = told[leaf][name]
                assert low <= min(found), (body, name)
                assert max(found) <= high, (body, name)
                if not lets:
                    assert (low, high) == (min(found), max(found)), (body, name)
                    n_exact += 1
    assert n_exact > 20


def lets_of(body: Body) -> list[Let]:
    out: list[Let] = []

    def look(stmt: Stmt, ranges: Ranges) -> Body | None:
        out.extend([stmt] if isinstance(stmt, Let) else [])
        return None

    map_statements(body, look, {})
    return out
