"""Iterations of a reduction whose terms are all padding are skipped; other padding is zero."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autotune.codegen.emission.emit import emit_program
from autotune.loopir.lower import lower
from autotune.loopir.nodes import For, If, Program, Store
from autotune.loopir.verify import verify
from autotune.loopir.visitor import expressions, statements
from autotune.schedule.replay import replay
from autotune.schedule.steps import Annotate, ComputeAt, ComputeInline, Reorder, Split, Steps
from autotune.search.cost import stage_facts
from autotune.search.cost.analysis import analyse
from autotune.search.cost.nest import needed_shares
from autotune.search.sketch import generate_sketches
from autotune.target import Target, parse_target, runs_here
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, Select, add, cast, idx, select, sub, variables, walk
from autotune.te.reductions import identity
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, random_inputs, run_compiled
from tests.schedule.small_dags import attention_below, conv, inside, max_pool

AVX2 = parse_target("x86-64-v3")
TARGETS = [t for t in (AVX2, parse_target("x86-64-v4")) if runs_here(t)]
on_each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.lanes} lanes")


def rows_of(n_rows: int, n_columns: int) -> Steps:
    """Register tiles of `n_rows` by `n_columns` pixels and eight channels, padding inlined."""
    return (
        ComputeInline("biased"),
        ComputeInline("pad"),
        Split("relu", "h", (n_rows,)),
        Split("relu", "w", (n_columns,)),
        Reorder("relu", ("h.0", "w.0", "h.1", "w.1", "o")),
        ComputeAt("conv", "relu", "w.0"),
        Reorder("conv", ("kh", "kw", "c", "h", "w", "o")),
        *(Annotate("conv", n, "unroll") for n in ("h", "w")),
        Annotate("conv", "o", "vectorize"),
    )


def program_of(dag: ComputeDAG, steps: Steps) -> Program:
    program = lower(dag, steps)
    verify(program)
    return program


def conditions(program: Program) -> list[set[str]]:
    """The loops that each condition around loops is made of."""
    found = [s for s in statements(program.kernels[0].body) if isinstance(s, If)]
    assert all(isinstance(s.then[0], For) and not s.orelse for s in found)
    return [{v.rpartition(".")[2] for v in variables(s.cond)} for s in found]


def selects(program: Program) -> int:
    stores = [s for s in statements(program.kernels[0].body) if isinstance(s, Store)]
    return sum(isinstance(e, Select) for s in stores for x in expressions(s) for e in walk(x))


def test_condition_is_hoisted_out_of_all_loops_it_does_not_depend_on() -> None:
    """One pixel: its row decides before the columns of the window, its column before channels."""
    program = program_of(conv(oc=8), rows_of(1, 1))
    assert conditions(program) == [{"0", "kh"}, {"0", "kw"}]
    assert selects(program) == 0


def test_condition_that_differs_within_the_register_tile_is_not_hoisted() -> None:
    """A row of pixels leaves out rows of the window; each pixel has its own columns."""
    assert conditions(program_of(conv(oc=8), rows_of(1, 7))) == [{"0", "kh"}]
    assert selects(program_of(conv(oc=8), rows_of(1, 7))) == 1
    assert conditions(program_of(conv(oc=8), rows_of(2, 7))) == []


@on_each_target
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 3), (1, 4), (4, 7)])
@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 3), (1, 5), (3, 3)])
def test_skipped_iterations_change_no_result(
    shape: tuple[int, int], stride: int, size: int, target: Target
) -> None:
    dag = conv(7, 9, 5, 8, size, stride)
    program = program_of(dag, rows_of(*shape))
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    assert_close(interpret(program, inputs), expected, 3e-6)
    assert_close(run_compiled(program, inputs, target, 2), expected, 3e-6)


@on_each_target
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_padding_of_narrow_data_is_skipped(dtype: str, target: Target) -> None:
    """Data that products widen are padding where what they are widened from is."""
    dag = conv(7, 9, 5, 8, dtype=dtype)
    program = program_of(dag, rows_of(1, 7))
    assert conditions(program) == [{"0", "kh"}]
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    assert_close(interpret(program, inputs), expected, 3e-6)
    assert_close(run_compiled(program, inputs, target, 2), expected, 3e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_padding_of_a_maximum_of_narrow_data_is_skipped_if_it_is_least_when_widened(
    dtype: str,
) -> None:
    """The least byte is no padding of float32: negative infinity is."""
    x = placeholder("x", (7, 6, 2), dtype)
    y, ch, k, j = Axis("h", 7), Axis("c", 6), Axis("k", 3), Axis("j", 2)
    row = sub(add(y.var, k.var), idx(1))
    least = identity("max", dtype)
    padded = cast("float32", select(inside(row, 7), x.tensor[row, ch, j], least))
    dag = ComputeDAG((x, compute("pool", (y, ch), Reduce("max", padded, (k, j)))), ("pool",))
    program = program_of(dag, ())
    assert conditions(program) == ([{"h", "k"}] if dtype == "bfloat16" else [])
    inputs = random_inputs(dag)
    assert_close(interpret(program, inputs), evaluate(dag, inputs), 0.0)


def test_padding_times_infinite_weight_is_skipped() -> None:
    """By the definition it is not a number; no step that would find that out is run."""
    dag = conv(7, 7, 3, 8)
    inputs = {n: np.abs(x) for n, x in random_inputs(dag).items()}
    inputs["weight"][:] = np.inf
    with np.errstate(invalid="ignore"):
        assert np.isnan(evaluate(dag, inputs)["relu"][0]).all()
    assert np.isinf(interpret(program_of(dag, rows_of(1, 1)), inputs)["relu"]).all()


def test_padding_of_a_maximum_is_skipped() -> None:
    dag = max_pool()
    steps: Steps = (ComputeInline("scaled"),)
    program = program_of(dag, steps)
    assert conditions(program) == [{"h", "kh"}]
    assert_close(interpret(program, inputs := random_inputs(dag)), evaluate(dag, inputs), 0.0)


@on_each_target
@pytest.mark.parametrize("channels", [128, 5000])
def test_one_selected_address_serves_all_channels_of_masked_loads(
    channels: int, target: Target
) -> None:
    """As many as are read in a row, up to a limit; beyond, each read chooses for itself."""
    dag = conv(3, 7, channels, 8)
    program = program_of(dag, rows_of(1, 7))
    found = re.search(r"zeros = internal constant \[(\d+) x i8\]", emit_program(program))
    assert found is not None
    assert int(found[1]) == (256 if channels > 4096 else 4 * channels)
    inputs = random_inputs(dag)
    assert_close(run_compiled(program, inputs, target, 1), evaluate(dag, inputs), 3e-5)


def test_cost_model_counts_skipped_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 rows and 3 taps: 19 of 21 pairs are inside, by two conditions of 20 each."""
    dag = conv(7, 9, 16, 16)
    (sketch, *_) = [s for s in generate_sketches(dag, AVX2) if s.name.endswith("inlined")]
    anchor = replay(dag, sketch.steps, {p.name: p.domain[0] for p in sketch.parameters})["conv"]
    shares = {"".join(sorted(axes)): share for axes, share in needed_shares(anchor.op)}
    assert shares == {"hkh": 20 / 21, "kww": 26 / 27}
    rows = sketch.sample(100, np.random.default_rng(0))
    wide = sketch.values(rows)["w.tile"]
    assert np.ptp(wide) > 0
    (found,) = (s for s in analyse(dag, sketch, rows, AVX2).statements if s.name == "conv")
    assert not found.guards.any(), "chosen outside of the channels"
    monkeypatch.setattr(stage_facts, "needed_shares", lambda _: ())
    monkeypatch.setattr(stage_facts, "_facts_of", stage_facts._facts_of.__wrapped__)
    (whole,) = (s for s in analyse(dag, sketch, rows, AVX2).statements if s.name == "conv")
    expected = (20 / 21) ** 2 * np.where(wide == 1, (26 / 27) ** 2, 1)
    np.testing.assert_allclose(found.steps / whole.steps, expected, rtol=1e-12)


def test_loops_end_at_a_length_that_data_tell() -> None:
    """In any of the sketches: the right numbers, and no term behind the length is added up."""
    dag = attention_below()
    n_limited = 0
    rng = np.random.default_rng(0)
    for sketch in generate_sketches(dag, TARGETS[0]):
        rows = sketch.sample(8, rng)
        valid = rows[analyse(dag, sketch, rows, TARGETS[0]).valid]
        program = program_of(dag, sketch.bind(valid[0]))
        loops = [s for k in program.kernels for s in statements(k.body) if isinstance(s, For)]
        n_limited += sum(s.limit is not None for s in loops)
        for length in (1, 7, 16, 44, 45, 200):
            inputs = random_inputs(dag) | {"length": np.array([length])}
            expected = evaluate(dag, inputs)
            inputs["k"][length:] = np.nan  # what they make is not read
            assert_close(run_compiled(program, inputs, TARGETS[0]), expected, 3e-6)
    assert n_limited, "no loop is shorter"
