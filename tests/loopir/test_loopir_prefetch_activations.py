"""Operands of a consumer are prefetched while its reduction runs, a share in each iteration."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from autotune.loopir.nodes import Body, For, If, PrefetchLine, Stmt, Store
from autotune.loopir.prefetch_activations import prefetch_consumer, prefetch_next_tile
from autotune.loopir.visitor import statements
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
def test_every_vector_of_the_consumer_is_prefetched_once(
    tile: tuple[int, int], steps: list[int]
) -> None:
    """The last step that asks may repeat one, where steps have more than one to ask for."""
    _, loops = reduction(*steps)
    found = fetched(prefetch_consumer(loops, reader(*tile), {"x", "y"}), {})
    points = [(idx(p), idx(w), ZERO) for p, w in product(*map(range, tile))]
    assert set(found) == {(t, at) for t in "xy" for at in points}
    per_step = -(-prod(tile) // prod(steps))
    assert sum(found.values()) < 2 * (len(points) + per_step)


def test_an_iteration_prefetches_its_share_only() -> None:
    """Six vectors over four steps are two in each of three."""
    inside, loops = reduction(4)
    (loop,) = prefetch_consumer(loops, reader(3, 2), {"y"})
    assert isinstance(loop, For)
    *early, update = loop.body
    assert update == inside
    counts = [sum(fetched(tuple(early), {"k0": idx(k)}).values()) for k in range(4)]
    assert counts == [2, 2, 2, 0]


def test_without_a_serial_loop_all_prefetches_precede_the_reduction() -> None:
    inside = Store(ACC, (ZERO, ZERO, ZERO), Const(0.0, "float32"))
    *early, last = prefetch_consumer((inside,), reader(2, 2), {"x"})
    assert last == inside
    assert [type(s) for s in early] == [PrefetchLine] * 4


def test_tensors_without_a_prefetch_step_are_not_prefetched() -> None:
    _, loops = reduction(4)
    assert prefetch_consumer(loops, reader(3, 2), {"z"}) == loops


def test_both_versions_of_a_reduction_prefetch() -> None:
    """A tile and its remainder: whichever runs."""
    _, loops = reduction(4)
    (stmt,) = prefetch_consumer((If(Const(True, "bool"), loops, loops),), reader(3, 2), {"y"})
    assert isinstance(stmt, If)
    for body in (stmt.then, stmt.orelse):
        assert sum(fetched(body, {}).values()) == 6


def test_prefetched_lines_depend_on_the_loops_around() -> None:
    at = (add(mul(K, idx(2)), P), W, C)
    store = For("c", 16, "vectorize", (Store(Y, at, Load(ACC, (P, W, C))),))
    body = (For("p", 2, "unroll", (For("w", 1, "unroll", (store,)),)),)
    _, loops = reduction(4)
    (loop,) = prefetch_consumer(loops, body, {"y"})
    assert isinstance(loop, For)
    found = fetched((loop,), {"k": idx(3)})
    assert set(found) == {("y", (idx(n), ZERO, ZERO)) for n in (6, 7)}


# --- what the next tile reads -----------------------------------------------------------------

ROWS = Tensor("rows", (64, 48))
AROUND = {"i": (0, 7), "j": (0, 2)}
TILE, PANEL = Var("i"), Var("j")


def tile(first_row: Expr, n_rows: int = 6, n_steps: int = 12, unroll: int = 4) -> Body:
    """acc[p] += rows[first_row + p, unroll·k + u] over serial k and unrolled u, p."""
    at = (add(first_row, P), add(mul(K, idx(unroll)), Var("u")))
    store = Store(ACC, (P, ZERO, ZERO), add(Load(ACC, (P, ZERO, ZERO)), Load(ROWS, at)))
    inside = For("u", unroll, "unroll", (For("p", n_rows, "unroll", (store,)),))
    return (For("k", n_steps, "serial", (inside,)),)


def fetched_by_sharers(body: Body, i: int) -> Counter[tuple[str, tuple[Expr, ...]]]:
    total: Counter[tuple[str, tuple[Expr, ...]]] = Counter()
    for j in range(3):
        total += fetched(body, {"i": idx(i), "j": idx(j)})
    return total


@given(n_rows=st.integers(1, 9), n_steps=st.integers(1, 12), unroll=st.sampled_from((1, 2, 4)))
def test_the_next_tile_is_prefetched_once(n_rows: int, n_steps: int, unroll: int) -> None:
    """By all tiles in a row that read the same, together; each line counts 16 elements."""
    body = prefetch_next_tile(
        tile(mul(TILE, idx(n_rows)), n_rows, n_steps, unroll), ["rows"], AROUND
    )
    n_lines = -(-n_steps * unroll // 16)
    rows = range(3 * n_rows, 4 * n_rows)  # of tile 3, while tile 2 runs
    lines = {("rows", (idx(r), idx(16 * n))) for r, n in product(rows, range(n_lines))}
    found = fetched_by_sharers(body, 2)
    assert set(found) == lines
    per_step = -(-len(lines) // (3 * n_steps))
    assert sum(found.values()) < len(lines) + per_step


def test_the_next_tile_is_that_of_the_innermost_loop_it_depends_on() -> None:
    """Where rows depend on both loops around, the inner one."""
    first = add(mul(TILE, idx(18)), mul(PANEL, idx(6)))
    (loop,) = prefetch_next_tile(tile(first), ["rows"], AROUND)
    found = fetched((loop,), {"i": idx(1), "j": idx(1)})
    assert {at[0] for _, at in found} == {idx(r) for r in range(30, 36)}


def test_tiles_that_do_not_depend_on_a_loop_are_not_prefetched() -> None:
    assert prefetch_next_tile(tile(idx(5)), ["rows"], AROUND) == tile(idx(5))
    assert prefetch_next_tile(tile(mul(TILE, idx(6))), ["others"], AROUND) == tile(
        mul(TILE, idx(6))
    )


def test_prefetches_of_the_last_tile_stay_inside_the_tensor() -> None:
    body = prefetch_next_tile(tile(mul(TILE, idx(9))), ["rows"], AROUND)
    found = fetched_by_sharers(body, 7)  # the next one would begin at row 72
    assert {at[0] for _, at in found} == {idx(r) for r in range(58, 64)}


def test_small_tiles_are_prefetched_into_l1_large_ones_into_l2() -> None:
    levels = set()
    for n_rows in (6, 60):
        body = prefetch_next_tile(tile(mul(TILE, idx(n_rows)), n_rows), ["rows"], AROUND)
        levels |= {(n_rows, s.level) for s in statements(body) if isinstance(s, PrefetchLine)}
    assert levels == {(6, 1), (60, 2)}


def test_an_iteration_prefetches_at_most_32_lines() -> None:
    """Rows of 48 elements are three lines; one step for all of them, or one of three tiles."""
    for n_rows, n_lines in ((32, 96), (33, 0)):
        body = prefetch_next_tile(tile(mul(TILE, idx(n_rows)), n_rows, 1, 48), ["rows"], AROUND)
        assert sum(fetched_by_sharers(body, 0).values()) == n_lines
