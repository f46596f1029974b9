"""The verifier accepts what lowering makes, and names what is wrong with anything else."""

from __future__ import annotations

import pytest

from autotune.loopir.nodes import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    PrefetchLine,
    Program,
    Stmt,
    Store,
)
from autotune.loopir.verify import MAX_POINTS, MalformedProgram, verify
from autotune.te.expr import (
    Axis,
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    add,
    compare,
    f32,
    floordiv,
    idx,
    minimum,
    mod,
    mul,
    sub,
)

X, Y = Tensor("x", (8,)), Tensor("y", (8,))
I, T = Var("i"), Var("t")  # noqa: E741


def check(*body: Stmt, extent: int = 8) -> None:
    buffers = (Buffer(X, "input", (1,)), Buffer(Y, "output", (1,)))
    verify(Program(buffers, (), (Kernel("k", extent, "t", ("x", "y"), body),)))


def store(at: Expr, value: Expr | None = None) -> Store:
    return Store(Y, (at,), value or f32(0))


def loop(*body: Stmt, extent: int = 8, kind: str = "serial", var: str = "i") -> For:
    return For(var, extent, kind, body)


LOCAL = Buffer(Tensor("l", (2,)), "local", (1,))
SHIFTED = add(minimum(mul(T, idx(3)), idx(5)), I)
SOUND: dict[str, tuple[Stmt, ...]] = {
    "plain": (store(T, X[T]),),
    "vector": (loop(loop(store(I), extent=2, kind="unroll", var="u"), kind="vectorize"),),
    "let": (
        Let("a", mod(T, idx(4))),
        Let("b", floordiv(T, idx(4))),
        store(add(Var("a"), Var("b"))),
    ),
    "local": (Alloc(LOCAL, (Store(LOCAL.tensor, (idx(1),), f32(0)), store(T))),),
    "prefetch": (PrefetchLine(X, (T,), idx(4096)),),
    "shift": (loop(store(SHIFTED), extent=3),),
    "guarded": (store(T, Select(compare("ge", T, idx(2)), X[sub(T, idx(2))], f32(0))),),
    "guarded_else": (store(T, Select(compare("lt", T, idx(2)), f32(0), X[sub(T, idx(2))])),),
    "version": (
        loop(
            If(
                compare("lt", T, idx(2)),
                (store(add(mul(T, idx(3)), I)),),
                (store(add(mul(idx(2), idx(3)), minimum(I, idx(1)))),),
            ),
            extent=3,
        ),
    ),
    "let_in_guard": (
        Let("row", floordiv(T, idx(2))),
        store(T, Select(compare("ge", Var("row"), idx(1)), X[sub(Var("row"), idx(1))], f32(0))),
    ),
}
BROKEN: dict[str, tuple[str, tuple[Stmt, ...]]] = {
    "unbound": ("i is not bound", (store(I),)),
    "bound_twice": ("t is bound twice", (loop(store(T), var="t"),)),
    "extent": ("cannot be serial in 0", (loop(store(I), extent=0),)),
    "kind": ("cannot be parallel", (loop(store(I), kind="parallel"),)),
    "vector_of_loops": (
        "holds more than stores",
        (loop(loop(store(I), var="j"), kind="vectorize"),),
    ),
    "vector_of_if": (
        "holds more than stores",
        (loop(If(compare("lt", T, idx(2)), (store(I),)), kind="vectorize"),),
    ),
    "lanes_to_one": ("all lanes of i go to one element", (loop(store(T), kind="vectorize"),)),
    "unknown_tensor": ("z is not in scope", (store(T, Load(Tensor("z", (8,)), (T,))),)),
    "local_left": (
        "l is not in scope",
        (Alloc(LOCAL, (store(T),)), Store(LOCAL.tensor, (idx(0),), f32(0))),
    ),
    "other_shape": ("x does not have the shape", (store(T, Load(Tensor("x", (9,)), (T,))),)),
    "rank": ("x does not have the shape", (store(T, Load(X, (T, T))),)),
    "input_written": ("x is not to be written", (Store(X, (T,), f32(0)),)),
    "dtype": ("a int64 goes into float32", (store(T, idx(3)),)),
    "reduction": ("a reduction has no loops", (store(T, Reduce("sum", f32(1), (Axis("k", 2),))),)),
    "condition": ("the condition is not one bool", (If(T, (store(T),)),)),
    "below": ("of y leaves 0 ≤ … < 8", (store(sub(T, idx(1))),)),
    "above": ("of x leaves 0 ≤ … < 8", (store(T, X[add(T, idx(1))]),)),
    "wrong_guard": (
        "of x leaves",
        (store(T, Select(compare("ge", T, idx(1)), X[sub(T, idx(2))], f32(0))),),
    ),
    "guard_of_other_side": (
        "of x leaves",
        (store(T, Select(compare("ge", T, idx(2)), f32(0), X[sub(T, idx(2))])),),
    ),
    "prefetch": ("i is not bound", (PrefetchLine(X, (T,), I),)),
    "alloc_twice": ("l cannot be allocated", (Alloc(LOCAL, (Alloc(LOCAL, (store(T),)),)),)),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound(name: str) -> None:
    check(*SOUND[name], extent=3 if name in ("shift", "version") else 8)


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    message, body = BROKEN[name]
    with pytest.raises(MalformedProgram, match=message):
        check(*body)


def test_message_holds_the_statement() -> None:
    with pytest.raises(MalformedProgram, match=r"y\[t \+ -1\] = 0") as error:
        check(loop(store(add(T, idx(-1)))))
    assert str(error.value).count("\n") == 1


def test_programs_as_a_whole() -> None:
    buffers = (Buffer(X, "input", (1,)), Buffer(Y, "output", (1,)))
    body: Body = (store(T),)
    with pytest.raises(MalformedProgram, match="two buffers have one name"):
        verify(Program((*buffers, buffers[0]), (), ()))
    with pytest.raises(MalformedProgram, match="wrong arguments"):
        verify(Program(buffers, (), (Kernel("k", 8, "t", ("x", "z"), body),)))
    with pytest.raises(MalformedProgram, match="extent 0"):
        verify(Program(buffers, (), (Kernel("k", 0, "t", ("x", "y"), body),)))


def test_accesses_with_too_many_points_are_trusted() -> None:
    small, large = idx(7), idx(MAX_POINTS)
    for extent, sound in ((small, False), (large, True)):
        at = mod(mul(T, I), idx(9))
        wide = loop(store(T, X[at]), extent=int(extent.value) if isinstance(extent, Const) else 0)
        if sound:
            check(wide)
        else:
            with pytest.raises(MalformedProgram, match="of x leaves"):
                check(wide)


def test_negated_guard_is_understood() -> None:
    outside = Call("not", (compare("lt", T, idx(2)),))
    check(store(T, Select(outside, X[sub(T, idx(2))], f32(0))))
