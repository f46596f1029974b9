"""What a consumer needs is fetched while the reduction in front runs, a share in each step."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from autotune.loopir.nodes import Body, For, If, PrefetchLine, Stmt, Store
from autotune.loopir.touching import touch
from autotune.te.arith import simplify
from autotune.te.expr import Const, Expr, Load, Tensor, Var, add, idx, mul, substitute

ACC, X, Y = (Tensor(n, (4, 3, 16)) for n in ("acc", "x", "y"))
P, W, C, K = (Var(n) for n in ("p", "w", "c", "k"))
ZERO = idx(0)


def reader(*extents: int) -> Body:
    """y[p, w, c] = acc[p, w, c] + x[p, w, c] over unrolled p, w and 16 lanes."""
    at = (P, W, C)
    body: Stmt = For("c", 16, "vectorize", (Store(Y, at, add(Load(ACC, at), Load(X, at))),))
    for name, extent in reversed(list(zip("pw", extents, strict=True))):
        body = For(name, extent, "unroll", (body,))
    return (body,)


def reduction(*extents: int) -> tuple[Store, Body]:
    """A statement, and serial loops around it."""
    inside = Store(ACC, (ZERO, ZERO, ZERO), Const(0.0, "float32"))
    body: Stmt = inside
    for n, extent in reversed(list(enumerate(extents))):
        body = For(f"k{n}", extent, "serial", (body,))
    return inside, (body,)


def fetched(body: Body, env: dict[str, Expr]) -> Counter[tuple[str, tuple[Expr, ...]]]:
    """Every line that is asked for while `body` runs, and how often."""
    out: Counter[tuple[str, tuple[Expr, ...]]] = Counter()
    for stmt in body:
        match stmt:
            case For(var=var, extent=extent, body=inner):
                for value in range(extent):
                    out += fetched(inner, env | {var: idx(value)})
            case If(cond=cond, then=then, orelse=orelse):
                holds = simplify(substitute(cond, env), {})
                assert isinstance(holds, Const)
                out += fetched(then if holds.value else orelse, env)
            case PrefetchLine(tensor=tensor, indices=indices):
                at = tuple(simplify(substitute(i, env), {}) for i in indices)
                out[tensor.name, at] += 1
    return out


@given(
    tile=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    steps=st.lists(st.integers(1, 6), min_size=1, max_size=3),
)
def test_every_vector_is_asked_for_once(tile: tuple[int, int], steps: list[int]) -> None:
    """The last step that asks may repeat one, where steps have more than one to ask for."""
    _, loops = reduction(*steps)
    found = fetched(touch(loops, reader(*tile), {"x", "y"}), {})
    points = [(idx(p), idx(w), ZERO) for p, w in product(*map(range, tile))]
    assert set(found) == {(t, at) for t in "xy" for at in points}
    per_step = -(-prod(tile) // prod(steps))
    assert sum(found.values()) < 2 * (len(points) + per_step)


def test_a_step_asks_for_its_share_only() -> None:
    """Six vectors over four steps are two in each of three."""
    inside, loops = reduction(4)
    (loop,) = touch(loops, reader(3, 2), {"y"})
    assert isinstance(loop, For)
    *early, update = loop.body
    assert update == inside
    counts = [sum(fetched(tuple(early), {"k0": idx(k)}).values()) for k in range(4)]
    assert counts == [2, 2, 2, 0]


def test_without_a_loop_everything_is_asked_for_in_front() -> None:
    inside = Store(ACC, (ZERO, ZERO, ZERO), Const(0.0, "float32"))
    *early, last = touch((inside,), reader(2, 2), {"x"})
    assert last == inside
    assert [type(s) for s in early] == [PrefetchLine] * 4


def test_nothing_is_asked_for_that_nobody_names() -> None:
    _, loops = reduction(4)
    assert touch(loops, reader(3, 2), {"z"}) == loops


def test_both_versions_of_a_reduction_ask() -> None:
    """A tile and its remainder: whichever runs."""
    _, loops = reduction(4)
    (stmt,) = touch((If(Const(True, "bool"), loops, loops),), reader(3, 2), {"y"})
    assert isinstance(stmt, If)
    for body in (stmt.then, stmt.orelse):
        assert sum(fetched(body, {}).values()) == 6


def test_what_is_asked_for_depends_on_the_loops_around() -> None:
    at = (add(mul(K, idx(2)), P), W, C)
    store = For("c", 16, "vectorize", (Store(Y, at, Load(ACC, (P, W, C))),))
    body = (For("p", 2, "unroll", (For("w", 1, "unroll", (store,)),)),)
    _, loops = reduction(4)
    (loop,) = touch(loops, body, {"y"})
    assert isinstance(loop, For)
    found = fetched((loop,), {"k": idx(3)})
    assert set(found) == {("y", (idx(n), ZERO, ZERO)) for n in (6, 7)}
