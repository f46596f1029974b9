"""What lowering must make of particular schedules; most were wrong once."""

from __future__ import annotations

from typing import TypeGuard

import pytest

from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Alloc, For, If, Program, Stmt, Store
from autotune.loopir.verify import verify
from autotune.loopir.visitor import body_loads, statements
from autotune.schedule.steps import (
    Annotate,
    ComputeAt,
    ComputeInline,
    Pack,
    Parallel,
    Reorder,
    Split,
    Step,
    Steps,
)
from autotune.target import parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Const, Reduce, Var, add, f32, floordiv, idx, mul
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, random_inputs, run_compiled
from tests.schedule.small_dags import conv, gemm, max_pool


def proven(dag: ComputeDAG, steps: Steps) -> Program:
    """The program, after all checks."""
    program = lower(dag, steps)
    verify(program)
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    assert_close(interpret(program, inputs), expected, 3e-6)
    compiled = run_compiled(program, inputs, parse_target("x86-64-v3"), 2)
    assert_close(compiled, expected, 3e-6)
    return program


def register_tile(rows: int, vectors: int, lanes: int, tail: str, blocks: int) -> Steps:
    """The schedule of a matrix product as a search would find it."""
    steps: list[Step] = [ComputeInline("d"), Split("e", "i", (blocks, rows), tail)]
    steps += [Split("e", "j", (1, vectors, lanes))]
    steps += [Reorder("e", ("i.0", "j.0", "j.1", "i.1", "i.2", "j.2", "j.3")), Parallel("e", 2)]
    steps += [ComputeAt("c", "e", "i.1"), Split("c", "j", (lanes,))]
    steps += [Reorder("c", ("k", "i", "j.0", "j.1"))]
    steps += [Annotate("c", i, "unroll") for i in ("i", "j.0")]
    steps += [Annotate("e", i, "unroll") for i in ("i.2", "j.2")]
    if lanes > 1:
        steps += [Annotate("c", "j.1", "vectorize"), Annotate("e", "j.3", "vectorize")]
    return (*steps, Pack("b", "c"))


@pytest.mark.parametrize("lanes", [16, 8, 4, 1])
@pytest.mark.parametrize("tail", ["split", "shift"])
def test_register_tiles(lanes: int, tail: str) -> None:
    proven(gemm(23, 41, 5), register_tile(4, 2, lanes, tail, 2))


@pytest.mark.parametrize(("rows", "vectors"), [(2, 5), (5, 2), (3, 3)])
def test_register_tile_keeps_the_operands_of_its_shorter_side_live(rows: int, vectors: int) -> None:
    """What belongs to it is held while the longer side passes."""
    program = proven(gemm(rows, 8 * vectors, 5), register_tile(rows, vectors, 8, "shift", 1))
    serial = next(s for s in statements(program.kernels[0].body) if _is_serial(s))
    outer = next(s for s in serial.body if isinstance(s, For))
    assert outer.extent == max(rows, vectors)


def window_tile(rows: int, columns: int) -> Steps:
    """A depthwise convolution whose window is unrolled inside of its register tile."""
    steps: list[Step] = [Split("e", "h", (rows,), "split"), Split("e", "w", (columns,), "split")]
    steps += [Split("e", "k", (8,)), Reorder("e", ("k.0", "h.0", "w.0", "h.1", "w.1", "k.1"))]
    steps += [Annotate("e", "h.1", "unroll"), Annotate("e", "w.1", "unroll")]
    steps += [Annotate("e", "k.1", "vectorize"), ComputeAt("c", "e", "w.0")]
    steps += [Reorder("c", ("u", "v", "h", "w", "k")), Annotate("c", "k", "vectorize")]
    return (*steps, *(Annotate("c", i, "unroll") for i in "uvhw"))


@pytest.mark.parametrize(("rows", "columns"), [(5, 1), (1, 5), (4, 3), (3, 4), (3, 3)])
def test_unrolled_window_runs_along_the_longest_axis_of_the_tile(rows: int, columns: int) -> None:
    """Also in remainders, whose sums have to be equal where tiles overlap."""
    h, w, k, u, v = (Axis(n, e) for n, e in zip("hwkuv", (7, 7, 8, 3, 3), strict=True))
    x, y = placeholder("x", (9, 9, 8)), placeholder("y", (3, 3, 8))
    product = mul(x.tensor[add(h.var, u.var), add(w.var, v.var), k], y.tensor[u, v, k])
    c = compute("c", (h, w, k), Reduce("sum", product, (u, v)))
    e = compute("e", (h, w, k), add(c.tensor[h, w, k], f32(1)))
    program = proven(ComputeDAG((x, y, c, e), ("e",)), window_tile(rows, columns))
    order = [s.var for s in statements(program.kernels[0].body) if isinstance(s, For)]
    terms = [var[-1] for var in order if var in ("c.u", "c.v")]
    first, second = ("v", "u") if rows > columns else ("u", "v")
    assert terms == [first, second] * (len(terms) // 2)
    assert terms


def _is_serial(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind == "serial"


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_remainder_has_its_own_producer(blocks: int) -> None:
    """7 rows in tiles of 3: a tile of one row computes the last, all indices constant."""
    program = proven(gemm(7, 16, 5), register_tile(3, 1, 16, "split", blocks))
    tiles = [s.buffer for s in statements(program.kernels[0].body) if isinstance(s, Alloc)]
    assert sorted(t.tensor.shape for t in tiles) == [(1, 16), (3, 16)]
    body = program.kernels[0].body
    used = [s.indices for s in statements(body) if isinstance(s, Store) and s.tensor.name == "c"]
    used += [x.indices for x in body_loads(body) if x.tensor.name == "c"]
    assert all(isinstance(i, Const | Var) for indices in used for i in indices)


@pytest.mark.parametrize("panels", [1, 2, 4])
@pytest.mark.parametrize("channels", [56, 53])
def test_last_panel_is_the_remainder_of_the_vectors(channels: int, panels: int) -> None:
    """Seven vectors are four and three, or three, three and one: none is computed twice."""
    for vectors, widths in ((4, {32, 24}), (3, {24, 8})):
        steps: list[Step] = [
            ComputeInline("d"),
            Split("e", "i", (1, 3), "split"),
            Split("e", "j", (8,)),
        ]
        steps += [Split("e", "j.0", (panels, vectors), "split")]
        order = ("i.0", "j.0.0", "i.1", "j.0.1", "i.2", "j.0.2", "j.1")
        steps += [Reorder("e", order), Parallel("e", 2), ComputeAt("c", "e", "j.0.1")]
        steps += [Split("c", "j", (8,)), Reorder("c", ("k", "i", "j.0", "j.1"))]
        steps += [Annotate("c", n, "unroll") for n in ("i", "j.0")]
        steps += [Annotate("e", n, "unroll") for n in ("i.2", "j.0.2")]
        steps += [
            Annotate("c", "j.1", "vectorize"),
            Annotate("e", "j.1", "vectorize"),
            Pack("b", "c"),
        ]
        program = proven(gemm(8, channels, 5), tuple(steps))
        local = [
            s.buffer.tensor.shape
            for s in statements(program.kernels[0].body)
            if isinstance(s, Alloc)
        ]
        assert {shape[1] for shape in local if len(shape) == 2} == widths


def test_overlapping_vectors_accumulate_apart() -> None:
    """24 channels in two vectors of 16 share eight: none may count its products twice."""
    steps: Steps = (
        ComputeInline("biased"),
        ComputeInline("pad"),
        ComputeAt("conv", "relu", "w"),
        Split("conv", "o", (16,)),
        Reorder("conv", ("h", "w", "kh", "kw", "c", "o.0", "o.1")),
        Annotate("conv", "o.0", "unroll"),
        Annotate("conv", "o.1", "vectorize"),
    )
    program = proven(conv(4, 4, 3, 24), steps)
    shapes = {s.buffer.name: s.buffer.tensor.shape for s in _allocs(program)}
    assert shapes == {"conv": (1, 1, 24), "conv.acc": (2, 16)}


def test_remainder_inside_the_tile() -> None:
    """The tile number is an unrolled loop inside of the reduction."""
    steps: Steps = (
        Split("c", "j", (16,), "split"),
        Reorder("c", ("i", "k", "j.0", "j.1")),
        Annotate("c", "j.0", "unroll"),
        Annotate("c", "j.1", "vectorize"),
    )
    program = proven(gemm(2, 19, 3), steps)
    assert any(isinstance(s, If) for s in statements(program.kernels[0].body))


def test_outermost_reduction_loop() -> None:
    proven(gemm(3, 4, 5), (Reorder("c", ("k", "i", "j")),))


def test_reduction_in_blocks() -> None:
    order = ("k.0", "i.0", "j.0", "k.1", "i.1", "j.1")
    steps: Steps = (
        Split("c", "k", (4,), "split"),
        Split("c", "i", (2,), "split"),
        Split("c", "j", (8,), "split"),
        Reorder("c", order),
        Annotate("c", "i.1", "unroll"),
        Annotate("c", "j.1", "vectorize"),
    )
    proven(gemm(5, 19, 11), steps)


def test_unrolled_reduction_with_remainder() -> None:
    steps = (Split("c", "k", (4,), "split"), Annotate("c", "k.1", "unroll"))
    proven(gemm(2, 3, 11), steps)


def test_middle_levels_shift() -> None:
    """Five tiles in groups of three: the second group starts at tile 2."""
    for tail in ("split", "shift"):
        proven(gemm(19, 6, 3), (Split("c", "i", (3, 4), tail),))


def test_remainder_in_the_parallel_range() -> None:
    steps = (Split("e", "i", (4,), "split"), Reorder("e", ("i.0", "j", "i.1")), Parallel("e", 2))
    assert proven(gemm(6, 5, 2), steps).kernels[-1].extent == 10


def test_guarded_region_stays_in_the_tensor() -> None:
    """Padding reads around the image; the producer computes only what exists."""
    program = proven(max_pool(5, 3), (ComputeAt("scaled", "pool", "h"),))
    assert next(s.buffer.tensor.shape for s in _allocs(program)) == (3, 5, 3)


def test_local_rows_are_padded_against_cache_set_conflicts() -> None:
    n, c = 4, 256
    i, k = Axis("i", n), Axis("k", c)
    x = placeholder("x", (n, c))
    doubled = compute("doubled", (i, k), mul(x.tensor[i, k], f32(2)))
    total = compute("total", (i,), Reduce("sum", doubled.tensor[i, k], (k,)))
    dag = ComputeDAG((x, doubled, total), ("total",))
    steps: Steps = (Split("total", "i", (4,)), ComputeAt("doubled", "total", "i.0"))
    (local,) = [s.buffer for s in _allocs(proven(dag, steps)) if s.buffer.name == "doubled"]
    assert local.strides == (c + 16, 1)
    assert local.n_bytes == 4 * (3 * (c + 16) + c)


def test_region_of_a_quotient() -> None:
    """Three neighbours i // 4 may touch two elements, whatever the span of i alone."""
    i, j = Axis("i", 12), Axis("j", 3)
    x = placeholder("x", (3,))
    doubled = compute("doubled", (j,), mul(x.tensor[j], f32(2)))
    grown = compute("grown", (i,), doubled.tensor[floordiv(i.var, idx(4))])
    dag = ComputeDAG((x, doubled, grown), ("grown",))
    proven(dag, (Split("grown", "i", (3,)), ComputeAt("doubled", "grown", "i.0")))


def test_one_constant_packed_for_two_readers() -> None:
    """The second reader needs more of it than the first."""
    x, w = placeholder("x", (8,)), placeholder("w", (8,), constant=True)
    short, long = Axis("j", 3), Axis("j", 8)
    a = compute("a", (short,), mul(x.tensor[short], w.tensor[short]))
    b = compute("b", (long,), add(x.tensor[long], w.tensor[long]))
    program = proven(ComputeDAG((x, w, a, b), ("a", "b")), (Pack("w", "a"), Pack("w", "b")))
    assert [p.packed.shape for p in program.packs] == [(3,), (8,)]


def test_vector_loop_must_be_innermost() -> None:
    steps = (Annotate("c", "j", "vectorize"),)
    with pytest.raises(ScheduleError, match="only unrolled loops fit inside vector loop j"):
        lower(gemm(), steps)


def test_consumer_outside_of_compute_at_is_refused() -> None:
    """A stage placed in one reader, and inlining then makes another."""
    n = 4
    i = Axis("i", n)
    x = placeholder("x", (n,))
    a = compute("a", (i,), mul(x.tensor[i], f32(2)))
    b = compute("b", (i,), add(a.tensor[i], f32(1)))
    out = compute("out", (i,), mul(b.tensor[i], f32(3)))
    dag = ComputeDAG((x, a, b, out), ("out",))
    with pytest.raises(ScheduleError, match="reads a, which is computed elsewhere"):
        lower(dag, (ComputeAt("a", "b", "i"), ComputeInline("b")))


def test_loops_that_run_once_are_left_out() -> None:
    program = proven(gemm(1, 1, 1), ())
    assert not any(isinstance(s, For) for k in program.kernels for s in statements(k.body))


def _allocs(program: Program) -> list[Alloc]:
    found = [s for k in program.kernels for s in statements(k.body)]
    return [s for s in found if isinstance(s, Alloc)]
