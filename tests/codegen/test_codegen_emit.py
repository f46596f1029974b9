"""Loop IR to machine code: statements that lowering seldom combines, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.codegen.compile import assembly
from autotune.codegen.emission.emit import emit_program
from autotune.codegen.emission.lanes import NEAR_STRIDES, strided
from autotune.codegen.emission.text import I64, PTR, FunctionBuilder, Module, Value, vector
from autotune.errors import CodegenError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import (
    Alloc,
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
from autotune.loopir.verify import verify
from autotune.schedule.steps import (
    Annotate,
    ComputeAt,
    ComputeInline,
    Interleave,
    Pack,
    Parallel,
    Reorder,
    Split,
    Steps,
)
from autotune.strides import dense
from autotune.target import Target, parse_target, runs_here
from autotune.target.isa import ISAS
from autotune.te.dag import ComputeDAG
from autotune.te.expr import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Var,
    add,
    both,
    compare,
    dtype_of,
    f32,
    floordiv,
    idx,
    maximum,
    mod,
    mul,
    sub,
)
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, random_inputs, run_compiled
from tests.schedule.small_dags import gemm

Array = NDArray[Any]
AVX2 = parse_target("x86-64-v3")
I, T = Var("i"), Var("t")  # noqa: E741
LANES = 12


def agree(program: Program, inputs: dict[str, Array], rtol: float = 1e-6) -> dict[str, Array]:
    """Outputs of the machine code, after comparing them with the interpreter's."""
    verify(program)
    found = run_compiled(program, inputs, AVX2)
    assert_close(found, interpret(program, inputs), rtol)
    return found


def program_of(inputs: dict[str, Array], out: Tensor, *body: Stmt, extent: int = 1) -> Program:
    tensors = [Tensor(n, a.shape, str(a.dtype)) for n, a in inputs.items()]
    buffers = [Buffer(x, "input", dense(x.shape)) for x in tensors]
    buffers.append(Buffer(out, "output", dense(out.shape)))
    kernel = Kernel("k", extent, "t", tuple(b.name for b in buffers), body)
    return Program(tuple(buffers), (), (kernel,))


def lanewise(value: Expr, inputs: dict[str, Array], kind: str = "vectorize") -> Array:
    """`y[i] = value(i)` for the lanes of one vector, or one by one."""
    out = Tensor("y", (LANES,), dtype_of(value))
    loop = For("i", LANES, kind, (Store(out, (I,), value),))
    return agree(program_of(inputs, out, loop), inputs)["y"]


def numbers(n: int = LANES, dtype: str = "float32", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        return rng.standard_normal(n).astype(dtype)
    return rng.integers(0 if dtype == "uint8" else -9, 250 if dtype == "uint8" else 9, n).astype(
        dtype
    )


def load(name: str, at: Expr = I, n: int = LANES, dtype: str = "float32") -> Load:
    return Load(Tensor(name, (n,), dtype), (at,))


BOTH = pytest.mark.parametrize("kind", ["vectorize", "serial", "unroll"])


@BOTH
@pytest.mark.parametrize("n", [3, 4])
def test_floordiv_and_mod_of_lanes(n: int, kind: str) -> None:
    below = sub(I, idx(7))
    chosen = Select(compare("eq", mod(below, idx(n)), idx(1)), load("x"), f32(0))
    lanewise(chosen, {"x": numbers()}, kind)
    lanewise(Cast("float32", floordiv(below, idx(n))), {"x": numbers()}, kind)
    lanewise(load("x", mod(mul(I, idx(5)), idx(LANES))), {"x": numbers()}, kind)


@BOTH
def test_each_side_of_a_select_is_guarded(kind: str) -> None:
    """The loads lie far outside where they are not chosen."""
    far = 1 << 40
    first = compare("lt", I, idx(5))
    value = Select(first, load("a", mul(I, idx(1)), 5), load("b", sub(I, idx(5)), 7))
    lanewise(value, {"a": numbers(5), "b": numbers(7)}, kind)
    only = load("x", mul(sub(I, idx(5)), idx(far)))
    lanewise(Select(compare("eq", I, idx(5)), only, f32(1)), {"x": numbers()}, kind)
    lanewise(Select(compare("ne", I, idx(5)), f32(1), only), {"x": numbers()}, kind)


@BOTH
def test_guards_of_nested_selects(kind: str) -> None:
    low, high = compare("ge", I, idx(3)), compare("lt", I, idx(8))
    inner = Select(high, load("x", sub(I, idx(3)), 5), f32(-1))
    lanewise(Select(low, inner, f32(-2)), {"x": numbers(5)}, kind)
    window = Select(both(low, high), load("x", sub(I, idx(3)), 5), f32(0))
    lanewise(add(window, f32(1)), {"x": numbers(5)}, kind)


@BOTH
def test_scalar_guard_of_a_vector_load(kind: str) -> None:
    out = Tensor("y", (3, LANES))
    x = numbers(LANES)
    value = Select(
        compare("eq", T, idx(1)), load("x", add(mul(sub(T, idx(1)), idx(1 << 40)), I)), f32(5)
    )
    program = program_of(
        {"x": x}, out, For("i", LANES, kind, (Store(out, (T, I), value),)), extent=3
    )
    found = run_compiled(program, {"x": x}, AVX2)["y"]
    np.testing.assert_array_equal(found, [np.full(LANES, 5), x, np.full(LANES, 5)])


@BOTH
def test_masked_load_of_bools(kind: str) -> None:
    flags = (numbers() > 0)[:7]
    cond = compare("lt", I, idx(7))
    value = Select(cond, load("f", I, 7, "bool"), Const(False, "bool"))
    lanewise(value, {"f": flags}, kind)


@BOTH
@pytest.mark.parametrize("stride", [0, 2, -1])
def test_strides_of_lanes(stride: int, kind: str) -> None:
    at = add(mul(I, idx(stride)), idx(LANES if stride < 0 else 0))
    lanewise(mul(load("x", at, 24), f32(3)), {"x": numbers(24)}, kind)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool"])
@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_near_strides_with_and_without_a_mask(first: int, stride: int, dtype: str) -> None:
    """Far outside of x where the mask does not hold."""
    x = numbers(stride * (LANES - 1) + 2) > 0 if dtype == "bool" else numbers(64, dtype)
    at = add(mul(I, idx(stride)), idx(1))
    whole = load("x", at, len(x), dtype)
    lanewise(whole, {"x": x})
    below, nothing = sub(at, idx(first * stride)), Const(x.dtype.type(0).item(), dtype)
    inside = both(compare("ge", I, idx(first)), compare("lt", I, idx(first + 4)))
    part = load("x", below, 4 * stride, dtype)
    lanewise(Select(inside, part, nothing), {"x": x[: 4 * stride].copy()})


@pytest.mark.parametrize("count", [2, 4, 12, 16])
@pytest.mark.parametrize("stride", NEAR_STRIDES)
def test_near_strides_read_nothing_behind_the_last_element(stride: int, count: int) -> None:
    b = FunctionBuilder(Module(ISAS[-1]), "f", {"x": PTR}, ())
    starts = []

    def part(start: int, mask: Value | None) -> Value:
        starts.append(start)
        return b.load(b.arguments[0], vector(I64, count), 8)

    strided(b, count, stride, None, part)
    assert starts[0] == 0
    assert max(starts) + count == (count - 1) * stride + 1
    assert len(starts) <= stride


def transposition(n_lanes: int, n_columns: int, dtype: str, cond: Expr | None = None) -> Program:
    """y[u, t, v] = x[v, t, u] where `cond` holds: lanes along v, unrolled along u."""
    x = Tensor("x", (n_lanes, 3, n_columns), dtype)
    out = Tensor("y", (n_columns, 3, n_lanes), dtype)
    u, v = Var("u"), Var("v")
    whole, empty = (
        For("v", n_lanes, "vectorize", (Store(out, (u, T, v), value),))
        for value in (Load(x, (v, T, u)), Const(0, dtype))
    )
    lanes: Stmt = If(cond, (whole,), (empty,)) if cond else whole
    inputs = {"x": numbers(x.size, dtype).reshape(x.shape)}
    return program_of(inputs, out, For("u", n_columns, "unroll", (lanes,)), extent=3)


@pytest.mark.parametrize("n_lanes", [4, 8, 16])
@pytest.mark.parametrize("n_columns", [4, 8, 16, 5])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_transposed_in_registers(dtype: str, n_columns: int, n_lanes: int) -> None:
    program = transposition(n_lanes, n_columns, dtype)
    x = numbers(n_lanes * 3 * n_columns, dtype).reshape(n_lanes, 3, n_columns)
    found = agree(program, {"x": x})
    np.testing.assert_array_equal(found["y"], x.transpose(2, 1, 0))
    n_inserted = emit_program(program).count("insertelement")
    assert (n_inserted > 0) == (n_columns == 5)


@pytest.mark.parametrize("bound", [3, 8])
def test_columns_that_may_not_be_there_are_not_read_together(bound: int) -> None:
    """Even where all of them are: who says so is not looked at."""
    program = transposition(8, 8, "float32", compare("lt", Var("u"), idx(bound)))
    assert "<8 x float>, ptr" not in emit_program(program)
    agree(program, {"x": numbers(8 * 3 * 8).reshape(8, 3, 8)})


def test_columns_behind_a_number_that_depends_on_them_are_not_read_together() -> None:
    """y[u, v] = x[v, u + least], where `least` is another number for every u."""
    x, out = Tensor("x", (8, 16)), Tensor("y", (4, 8))
    u, v, least = Var("u"), Var("v"), Var("least")
    store = Store(out, (u, v), Load(x, (v, add(u, least))))
    body = (Let("least", mod(mul(u, idx(3)), idx(4))), For("v", 8, "vectorize", (store,)))
    agree(
        program_of({"x": numbers(128).reshape(8, 16)}, out, For("u", 4, "unroll", body)),
        {"x": numbers(128).reshape(8, 16)},
    )


@BOTH
@pytest.mark.parametrize("period", [1, 2, 3, 4, 12, 16])
def test_elements_that_repeat_over_the_lanes(period: int, kind: str) -> None:
    """The last ones of their tensor: nothing behind them is read."""
    x, at = numbers(LANES + period), add(idx(LANES), mod(I, idx(period)))
    lanewise(mul(load("x", at, len(x)), f32(3)), {"x": x}, kind)


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("stride", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_every_second_element_of_stored_vectors(dtype: str, stride: int, width: int) -> None:
    """y[j, r] = parts[stride·j + r], where `parts` was stored in vectors of some width."""
    n = 16 * stride
    parts, out = Tensor("parts", (n,), dtype), Tensor("y", (16, stride), dtype)
    j, r, v = Var("j"), Var("r"), Var("v")
    at = add(mul(v, idx(width)), I)
    fill = For(
        "v",
        n // width,
        "serial",
        (For("i", width, "vectorize", (Store(parts, (at,), load("x", at, n, dtype)),)),),
    )
    two = For(
        "j",
        8,
        "vectorize",
        (
            Store(
                out,
                (add(mul(T, idx(8)), j), r),
                Load(parts, (add(mul(add(mul(T, idx(8)), j), idx(stride)), r),)),
            ),
        ),
    )
    local = Alloc(
        Buffer(parts, "local", dense(parts.shape)), (fill, For("r", stride, "unroll", (two,)))
    )
    x = numbers(n, dtype)
    agree(program_of({"x": x}, out, local, extent=2), {"x": x})


@BOTH
def test_strided_store(kind: str) -> None:
    out = Tensor("y", (LANES, 3))
    inner = For("i", LANES, kind, (Store(out, (I, T), load("x")),))
    agree(program_of({"x": numbers()}, out, inner, extent=3), {"x": numbers()})


@BOTH
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int64"])
def test_integers(dtype: str, kind: str) -> None:
    x, y = numbers(dtype=dtype), numbers(dtype=dtype, seed=1)
    if dtype == "uint8":
        x, y = x // 2, y // 2  # sums wrap in machine code only
    a, b = load("a", dtype=dtype), load("b", dtype=dtype)
    for op in ("add", "min", "max"):
        lanewise(Binary(op, a, b), {"a": x, "b": y}, kind)
    lanewise(Compare("lt", a, b), {"a": x, "b": y}, kind)
    lanewise(Cast("float32", a), {"a": x}, kind)
    lanewise(Cast("bool", a), {"a": x}, kind)
    lanewise(Cast("int64", a), {"a": x}, kind)
    if dtype != "uint8":
        lanewise(Call("abs", (a,)), {"a": x}, kind)
        lanewise(Call("neg", (a,)), {"a": x}, kind)


@BOTH
def test_unsigned_is_not_signed(kind: str) -> None:
    x = np.linspace(0, 255, LANES).astype(np.uint8)
    a = load("a", dtype="uint8")
    lanewise(Cast("float32", a), {"a": x}, kind)
    lanewise(Cast("int32", a), {"a": x}, kind)
    lanewise(Binary("max", a, Const(100, "uint8")), {"a": x}, kind)
    lanewise(Compare("gt", a, Const(100, "uint8")), {"a": x}, kind)
    lanewise(Cast("uint8", load("f")), {"f": np.linspace(0, 255, LANES).astype(np.float32)}, kind)


@BOTH
def test_bools(kind: str) -> None:
    f, g = load("f", dtype="bool"), load("g", dtype="bool")
    values = {"f": numbers() > 0, "g": numbers(seed=2) > 0}
    for e in (Binary("and", f, g), Binary("or", f, g), Call("not", (f,))):
        lanewise(e, values, kind)
    lanewise(Cast("float32", f), {"f": values["f"]}, kind)
    lanewise(Cast("int32", f), {"f": values["f"]}, kind)
    lanewise(Cast("bool", load("x")), {"x": np.array([0.0, -0.0, 0.5] * 4, np.float32)}, kind)
    lanewise(Select(f, load("x"), f32(0)), {"f": values["f"], "x": numbers()}, kind)


def test_maximum_is_relu_for_nan() -> None:
    x = np.array([np.nan, -1, 2, 0] * 3, np.float32)
    lanewise(maximum(f32(0), load("x")), {"x": x})


def test_load_after_an_inner_loop_that_stores() -> None:
    """The value read before the loop is not the value after it."""
    out, x = Tensor("y", (2,)), {"x": numbers(4)}
    cell = Buffer(Tensor("cell", (1,)), "local", (1,))
    c = Load(cell.tensor, (idx(0),))
    body: tuple[Stmt, ...] = (
        Store(cell.tensor, (idx(0),), f32(1)),
        Store(out, (idx(0),), c),
        For("i", 4, "serial", (Store(cell.tensor, (idx(0),), add(c, load("x", I, 4))),)),
        Store(out, (idx(1),), c),
    )
    agree(program_of(x, out, Alloc(cell, body)), x)


def test_load_after_a_branch_that_stores() -> None:
    out, x = Tensor("y", (4, 2)), {"x": numbers(4)}
    body: tuple[Stmt, ...] = (
        Store(out, (T, idx(0)), load("x", T, 4)),
        Store(out, (T, idx(1)), Load(out, (T, idx(0)))),
        If(compare("lt", T, idx(2)), (Store(out, (T, idx(0)), f32(9)),)),
        Store(out, (T, idx(1)), add(Load(out, (T, idx(0))), f32(1))),
    )
    agree(program_of(x, out, *body, extent=4), x)


def test_branch_on_an_unrolled_loop_is_decided() -> None:
    out, x = Tensor("y", (4,)), {"x": numbers(4)}
    body = If(
        compare("lt", I, idx(2)), (Store(out, (I,), load("x", I, 4)),), (Store(out, (I,), f32(0)),)
    )
    program = program_of(x, out, For("i", 4, "unroll", (body,)))
    agree(program, x)
    assert emit_program(program).count("load float") == 2


def test_local_buffers_of_one_name() -> None:
    """Two versions of a tile, with different strides."""
    out, x = Tensor("y", (2, 6)), {"x": numbers(6)}

    def version(padding: int) -> Stmt:
        local = Buffer(Tensor("l", (2, 3)), "local", (3 + padding, 1))
        at = (floordiv(I, idx(3)), mod(I, idx(3)))
        fill = For("i", 6, "serial", (Store(local.tensor, at, load("x", I, 6)),))
        read = For("i", 6, "unroll", (Store(out, (T, I), Load(local.tensor, at)),))
        return Alloc(local, (fill, read))

    branch = If(compare("eq", T, idx(0)), (version(0),), (version(16),))
    agree(program_of(x, out, branch, extent=2), x)


def test_prefetch_may_lie_past_the_end() -> None:
    out, x = Tensor("y", (4,)), {"x": numbers(4)}
    ahead = PrefetchLine(Tensor("x", (4,)), (T,), idx(1 << 20))
    program = program_of(x, out, ahead, Store(out, (T,), load("x", T, 4)), extent=4)
    agree(program, x)
    assert "prefetcht1" in assembly(program, AVX2)


def test_empty_range_does_nothing() -> None:
    out, x = Tensor("y", (4,)), {"x": numbers(4)}
    program = program_of(x, out, Store(out, (T,), load("x", T, 4)), extent=4)
    agree(program, x)
    assert_close(run_compiled(program, x, AVX2, 7), interpret(program, x), 0)


def test_two_vector_loops_are_refused() -> None:
    out = Tensor("y", (2, 2))
    store = Store(out, (I, Var("j")), f32(0))
    nested = For("i", 2, "vectorize", (For("j", 2, "vectorize", (store,)),))
    with pytest.raises(CodegenError, match="inside another vector loop"):
        emit_program(program_of({}, out, nested))


TILE: Steps = (
    ComputeInline("d"),
    Split("e", "i", (6,), "split"),
    Split("e", "j", (2, 16)),
    Reorder("e", ("i.0", "j.0", "i.1", "j.1", "j.2")),
    Parallel("e", 2),
    ComputeAt("c", "e", "j.0"),
    Split("c", "j", (16,)),
    Reorder("c", ("k", "i", "j.0", "j.1")),
    Annotate("c", "i", "unroll"),
    Annotate("c", "j.0", "unroll"),
    Annotate("c", "j.1", "vectorize"),
    Annotate("e", "i.1", "unroll"),
    Annotate("e", "j.1", "unroll"),
    Annotate("e", "j.2", "vectorize"),
    Pack("b", "c"),
)


@pytest.mark.parametrize("target", [AVX2, parse_target("x86-64-v4")], ids=lambda t: t.cpu)
def test_register_tile_stays_in_registers(target: Target) -> None:
    """Tiles of 6 and of 3 rows: no accumulator is kept on the stack."""
    dag = gemm(9, 64, 40)
    steps = TILE if target.lanes == 16 else tuple(_narrow(s) for s in TILE)
    text = without_spills(dag, steps, target)
    assert "vfmadd231ps" in text
    assert ("%zmm" in text) == (target.lanes == 16)


def without_spills(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    """The assembly, which moves no vector to or from the stack; run where that is possible."""
    program = lower(dag, steps)
    text = assembly(program, target)
    wide = "%zmm" if target.lanes == 16 else "%ymm"
    assert "(%rsp)" not in "".join(x for x in text.splitlines() if "vmov" in x and wide in x)
    if runs_here(target):
        inputs = random_inputs(dag)
        assert_close(run_compiled(program, inputs, target, 3), interpret(program, inputs), 3e-6)
    return text


@pytest.mark.parametrize("rows", [2, 9])
def test_interleaved_register_tile_stays_in_registers(rows: int) -> None:
    """Tiles of 9 × 3 and of 2 × 12 vectors, whose pairs of lanes are added up at the end."""
    target, vectors = parse_target("x86-64-v4"), {9: 3, 2: 12}[rows]
    dag = gemm(18, 12 * 8, 40)
    steps = (
        ComputeInline("d"),
        Interleave("c", 2, "c.parts"),
        ComputeInline("c"),
        Split("e", "i", (rows,)),
        Split("e", "j", (vectors, 8)),
        Reorder("e", ("i.0", "j.0", "i.1", "j.1", "j.2")),
        Parallel("e", 2),
        ComputeAt("c.parts", "e", "j.0"),
        Split("c.parts", "j", (16,)),
        Reorder("c.parts", ("k", "i", "j.0", "j.1")),
        Annotate("c.parts", "i", "unroll"),
        Annotate("c.parts", "j.0", "unroll"),
        Annotate("c.parts", "j.1", "vectorize"),
        Annotate("e", "i.1", "unroll"),
        Annotate("e", "j.1", "unroll"),
        Annotate("e", "j.2", "vectorize"),
        Pack("b", "c.parts"),
    )
    assert without_spills(dag, steps, target).count("vfmadd231ps") == rows * vectors


def _narrow(step: object) -> Any:
    if isinstance(step, Split) and step.iter == "j":
        return Split(step.stage, "j", tuple(8 if f == 16 else f for f in step.factors), step.tail)
    return step


def test_where_data_choose_both_sides_are_read() -> None:
    """No load is masked, and what the condition has read is not read again."""
    flag, inputs = load("f", dtype="bool"), {"x": numbers(), "z": numbers(seed=1)}
    inputs["f"] = np.arange(LANES) % 3 == 0
    out = Tensor("y", (LANES,))
    chosen = Select(flag, load("x"), load("z"))
    chosen = Select(compare("ne", chosen, chosen), f32(0), chosen)
    loop = For("i", LANES, "vectorize", (Store(out, (I,), chosen),))
    program = program_of(inputs, out, loop)
    text = emit_program(program)
    assert "masked" not in text
    assert text.count(f"load <{LANES} x float>") == 2
    agree(program, inputs, 0)


@pytest.mark.parametrize("kind", ["serial", "unroll"])
def test_rows_of_a_table_are_whole_vectors(kind: str) -> None:
    """y[t, :] = table[ids[t], :]: the index is one number, the row is one vector."""
    table, ids = Tensor("table", (5, LANES)), Tensor("ids", (4,), "int64")
    inputs = {"table": numbers(5 * LANES).reshape(5, LANES), "ids": np.array([3, 0, 7, -2])}
    row = Binary("max", idx(0), Binary("min", Load(ids, (T,)), idx(4)))
    out = Tensor("y", (4, LANES))
    copy = For("i", LANES, "vectorize", (Store(out, (T, I), Load(table, (row, I))),))
    outer = For("t", 4, kind, (copy,))
    buffers = [Buffer(x, "input", dense(x.shape)) for x in (table, ids)]
    buffers.append(Buffer(out, "output", dense(out.shape)))
    kernel = Kernel("k", 1, "n", ("table", "ids", "y"), (outer,))
    program = Program(tuple(buffers), (), (kernel,))
    text = emit_program(program)
    assert "insertelement" not in text
    assert f"<{LANES} x float>" in text
    np.testing.assert_array_equal(agree(program, inputs)["y"], inputs["table"][[3, 0, 4, 0]])


@pytest.mark.parametrize("kind", ["serial", "unroll"])
def test_an_index_that_is_stored_is_read_again(kind: str) -> None:
    """Every round writes the local index anew before it reads the table there."""
    table, at = Tensor("table", (LANES,)), Tensor("at", (1,), "int64")
    inputs = {"table": numbers()}
    out, zero = Tensor("y", (LANES,)), idx(0)
    round_ = (
        Store(at, (zero,), sub(idx(LANES - 1), I)),
        Store(out, (I,), Load(table, (Load(at, (zero,)),))),
    )
    local = Buffer(at, "local", (1,))
    program = program_of(inputs, out, Alloc(local, (For("i", LANES, kind, round_),)))
    np.testing.assert_array_equal(agree(program, inputs)["y"], inputs["table"][::-1])
