"""The interpreter refuses what no machine would report."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.loopir.nodes import Alloc, Body, Buffer, For, If, Kernel, Packing, Program, Store
from autotune.loopir.python_text import PythonNames, print_python
from autotune.strides import dense
from autotune.te.evaluate import evaluate
from autotune.te.expr import (
    Axis,
    Const,
    Expr,
    Select,
    Tensor,
    Var,
    add,
    call,
    compare,
    f32,
    idx,
    maximum,
    mul,
)
from tests.loopir.interp import InvalidAccess, interpret
from tests.schedule.random_schedules import lowered
from tests.schedule.running import assert_close, random_inputs
from tests.schedule.small_dags import ALL

X, Y = Tensor("x", (4,)), Tensor("y", (4,))
I, T = Var("i"), Var("t")  # noqa: E741
GIVEN = {"x": np.arange(4, dtype=np.float32)}


def program(*body: object, extent: int = 4) -> Program:
    buffers = (Buffer(X, "input", (1,)), Buffer(Y, "output", (1,)))
    kernel = Kernel("k", extent, "t", ("x", "y"), body)  # type: ignore[arg-type]
    return Program(buffers, (), (kernel,))


def store(at: Expr, value: Expr) -> Store:
    return Store(Y, (at,), value)


def test_runs() -> None:
    found = interpret(program(store(T, mul(X[T], f32(3)))), GIVEN)["y"]
    np.testing.assert_array_equal(found, [0, 3, 6, 9])
    assert found.dtype == np.float32


def test_rounds_once_where_it_stores() -> None:
    third = add(mul(f32(1 / 3), f32(3)), f32(2.0**-30))
    found = interpret(program(store(T, third)), GIVEN)["y"]
    assert (found == np.float32(1)).all()


@pytest.mark.parametrize(("at", "extent"), [(add(T, idx(1)), 4), (add(T, idx(-1)), 4)])
def test_outside(at: Expr, extent: int) -> None:
    with pytest.raises(InvalidAccess, match=r"x\[.*\] is outside \(4,\)"):
        interpret(program(store(T, X[at]), extent=extent), GIVEN)


def test_masked_load_is_not_made() -> None:
    value = Select(compare("lt", T, idx(3)), X[add(T, idx(1))], f32(7))
    np.testing.assert_array_equal(interpret(program(store(T, value)), GIVEN)["y"], [1, 2, 3, 7])


def test_reading_before_writing() -> None:
    local = Buffer(Tensor("l", (2,)), "local", (1,))
    body: Body = (Store(local.tensor, (idx(0),), f32(1)), store(T, local.tensor[idx(1)]))
    with pytest.raises(InvalidAccess, match="read before it is written"):
        interpret(program(Alloc(local, body)), GIVEN)


def test_output_with_holes() -> None:
    with pytest.raises(InvalidAccess, match="y is not written in full"):
        interpret(program(store(T, f32(0)), extent=3), GIVEN)


def test_reading_what_another_iteration_wrote() -> None:
    body = If(compare("lt", T, idx(3)), (store(T, Y[add(T, idx(1))]),), (store(T, f32(1)),))
    with pytest.raises(InvalidAccess, match="written by another iteration"):
        interpret(program(body), GIVEN)


def test_two_iterations_may_write_the_same_value_only() -> None:
    fill = For("i", 4, "serial", (store(I, f32(2)),))
    assert (interpret(program(fill), GIVEN)["y"] == 2).all()
    clash = For("i", 4, "serial", (store(I, X[T]),))
    with pytest.raises(InvalidAccess, match="two values"):
        interpret(program(clash), GIVEN)


def test_barrier_between_kernels() -> None:
    w = Buffer(Tensor("w", (4,)), "workspace", (1,))
    one = Kernel("k0", 4, "t", ("x", "w"), (Store(w.tensor, (T,), X[T]),))
    two = Kernel("k1", 4, "t", ("w", "y"), (store(T, w.tensor[add(idx(3), mul(T, idx(-1)))]),))
    both = Program((*program().buffers, w), (), (one, two))
    np.testing.assert_array_equal(interpret(both, GIVEN)["y"], [3, 2, 1, 0])


def test_packing_outside_the_source_is_zero() -> None:
    w, packed = Tensor("w", (3,)), Tensor("w.packed", (2, 2))
    i, j = Axis("i0", 2), Axis("i1", 2)
    packing = Packing(packed, w, (i, j), (add(mul(i.var, idx(2)), j.var),))
    body = (Store(Y, (T,), packed[idx(1), idx(1)]),)
    buffers = (Buffer(packed, "constant", dense(packed.shape)), Buffer(Y, "output", (1,)))
    done = Program(buffers, (packing,), (Kernel("k", 4, "t", ("w.packed", "y"), body),))
    assert (interpret(done, {"w": np.ones(3)})["y"] == 0).all()


def test_maximum_propagates_nan_like_machine_code() -> None:
    value = maximum(f32(0), X[T])
    nan = np.array([1, np.nan, -1, 2], np.float32)
    found = interpret(program(store(T, value)), {"x": nan})["y"]
    np.testing.assert_array_equal(found, [1, np.nan, 0, 2])


def test_limits_of_functions() -> None:
    x = np.array([-np.inf, 1000, 0, -1], np.float32)
    exp = interpret(program(store(T, call("exp", X[T]))), {"x": x})["y"]
    log = interpret(program(store(T, call("log", X[T]))), {"x": x})["y"]
    np.testing.assert_allclose(exp, [0, np.inf, 1, np.exp(-1)], rtol=1e-6)
    np.testing.assert_allclose(log, [np.nan, np.log(1000), -np.inf, np.nan], rtol=1e-6)


def test_names_are_python_and_differ() -> None:
    names = PythonNames()
    texts = [names.tensor("t"), names.var("t"), names.var("a.b"), names.var("a_b")]
    texts += [names.var("lambda"), names.tensor("0"), names.tensor("max"), names.tensor("begin")]
    assert len(set(texts)) == len(texts)
    assert all(t.isidentifier() for t in texts)
    assert names.var("a.b") == "a_b"


@pytest.mark.parametrize("name", ["gemm", "conv_stride", "softmax", "scalars", "integers"])
def test_printed_python_runs_over_arrays(name: str) -> None:
    dag = ALL[name]()
    inputs = random_inputs(dag)
    scope: dict[str, object] = {}
    exec(print_python(lowered(dag, 4)), scope)
    run = scope["run"]
    count = run.__code__.co_argcount  # type: ignore[attr-defined]
    order = run.__code__.co_varnames[:count]  # type: ignore[attr-defined]
    found = run(*(inputs[n] for n in order))  # type: ignore[operator]
    found = found if isinstance(found, tuple) else (found,)
    expected = evaluate(dag, inputs)
    assert_close(dict(zip(expected, found, strict=True)), expected, 1e-5)


def test_bool_values() -> None:
    b = Buffer(Tensor("b", (4,), "bool"), "output", (1,))
    body: Body = (Store(b.tensor, (T,), compare("gt", X[T], f32(1.5))),)
    done = Program((program().buffers[0], b), (), (Kernel("k", 4, "t", ("x", "b"), body),))
    found = interpret(done, GIVEN)["b"]
    assert found.dtype == np.bool_
    assert found.tolist() == [False, False, True, True]
    assert Const(True, "bool").value is True
