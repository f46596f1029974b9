"""Limits of what is read up to a number alone."""

from __future__ import annotations

from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Expr, Reduce, add, call, compare, f32, mul, select
from autotune.te.reach import limited

N = placeholder("n", (1,), "int64")
ROW, J, K = Axis("i", 4), Axis("j", 50), Axis("k", 50)
X, W = placeholder("x", (4, 50)), placeholder("w", (50,))
END = N.tensor[0]
LAST = Axis("j", 50, END)


def _ends(dag: ComputeDAG, name: str) -> list[Expr | None]:
    op = dag[name]
    assert isinstance(op, Compute)
    return [a.limit for a in op.axes]


def test_what_is_read_up_to_a_number_ends_there() -> None:
    """Its own operand too, but for what data tell the place of."""
    a = compute("a", (ROW, J), call("exp", X.tensor[ROW, J]))
    b = compute("b", (ROW, LAST), add(a.tensor[ROW, LAST], f32(1.0)))
    made, inputs = limited(ComputeDAG((X, N, a, b), ("b",)), {})
    assert _ends(made, "a") == [None, END]
    assert inputs["x"] == {1: END}
    assert inputs["n"] == {}


def test_a_sum_reads_its_guarded_factor_up_to_the_number() -> None:
    """The other one is multiplied by 0 behind it, which does not hide a NaN."""
    a = compute("a", (ROW, J), call("exp", X.tensor[ROW, J]))
    term = mul(select(compare("lt", K.var, END), a.tensor[ROW, K], f32(0.0)), W.tensor[K])
    b = compute("b", (ROW,), Reduce("sum", term, (K,)))
    made, inputs = limited(ComputeDAG((X, W, N, a, b), ("b",)), {})
    assert _ends(made, "a") == [None, END]
    assert inputs["x"] == {1: END}
    assert inputs["w"] == {}


def test_one_reader_of_all_elements_is_enough_to_compute_them() -> None:
    a = compute("a", (ROW, J), call("exp", X.tensor[ROW, J]))
    b = compute("b", (ROW, LAST), add(a.tensor[ROW, LAST], a.tensor[ROW, 0]))
    made, _ = limited(ComputeDAG((X, N, a, b), ("b",)), {})
    assert _ends(made, "a") == [None, None]


def test_an_output_ends_where_its_readers_do() -> None:
    a = compute("a", (ROW, J), call("exp", X.tensor[ROW, J]))
    made, inputs = limited(ComputeDAG((N, X, a), ("a",)), {"a": {1: END}})
    assert _ends(made, "a") == [None, END]
    assert inputs["x"] == {1: END}
