"""The rules give the structures that they promise, and every valid row has a correct program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.schedule.replay import replay
from autotune.schedule.steps import ComputeInline, Parallel, steps_text
from autotune.search.cost.analysis import analyse
from autotune.search.cost.features import NAMES
from autotune.search.cost.instructions import operations
from autotune.search.defaults import default_steps
from autotune.search.partial import Partial
from autotune.search.recognise import Recogniser
from autotune.search.sketch import generate_sketches
from autotune.search.space import Tag
from autotune.target import Target
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, add, binary, call, f32, mul
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, random_inputs
from tests.schedule.small_dags import ALL, conv, gemm, softmax
from tests.targets import AVX2, AVX512


def test_sketches_of_a_matrix_product(golden: Callable[[str, str], None]) -> None:
    lines = []
    for sketch in generate_sketches(gemm(128, 96, 64), AVX2):
        middle = {p.name: p.domain[len(p.domain) // 2] for p in sketch.parameters}
        lines += [f"== {sketch.name}", str(replay(gemm(128, 96, 64), sketch.steps, middle))]
    golden("sketches_gemm.txt", "\n".join(lines) + "\n")


def test_a_convolution_may_keep_its_padding_per_block_or_per_reduction_block() -> None:
    names = [s.name for s in generate_sketches(conv(), AVX2)]
    assert any(n.endswith("per-k") for n in names)
    assert any("k-blocked" not in n for n in names)


@pytest.mark.parametrize(
    ("channels", "factors"),
    [(8, {4}), (16, {2}), (24, {2}), (32, set()), (36, {2, 4}), (40, {2}), (144, set())],
)
def test_lanes_that_channels_leave_idle_are_shared(channels: int, factors: set[int]) -> None:
    """Nothing is gained where they leave few, and the factor divides the terms of the sum."""
    wide = AVX512
    names = [s.name for s in generate_sketches(gemm(32, channels, 12), wide)]
    assert {int(n.partition("interleaved")[2] or 1) for n in names} == {1, *factors}
    odd = [s.name for s in generate_sketches(gemm(32, channels, 9), wide)]
    assert not any("interleaved" in n for n in odd)


def test_a_row_that_no_cache_holds_has_a_schedule() -> None:
    steps = default_steps(softmax(4, 500_000), AVX2, 1)
    assert all(buffer.role != "local" for buffer in lower(softmax(4, 500_000), steps).buffers)


def test_rows_are_computed_in_one_nest() -> None:
    (sketch,) = generate_sketches(softmax(4, 64), AVX2)
    state = replay(softmax(4, 64), sketch.steps, {p.name: p.domain[0] for p in sketch.parameters})
    assert sum(s.attach is None for s in state.stages.values()) == 1


def test_what_is_read_twice_at_one_point_joins_its_reader() -> None:
    product = gemm(32, 32, 32)
    i, j = Axis("i", 32), Axis("j", 32)
    shifted = compute("shifted", (i, j), add(product["e"].tensor[i, j], f32(0.5)))
    once = compute("swish", (i, j), call("sigmoid", shifted.tensor[i, j]))
    twice = compute("swish", (i, j), mul(shifted.tensor[i, j], once.body))
    found = [ComputeDAG((*product.ops, shifted, last), ("swish",)) for last in (once, twice)]
    names = [[s.name for s in generate_sketches(dag, AVX2)] for dag in found]
    assert names[0] == names[1] != ["rows"]
    costs = [operations(_inlined(dag)) for dag in found]
    assert costs[1] == costs[0] + 1, "what is written twice counts once"


@pytest.mark.parametrize(("power", "cost"), [(2.0, 2), (3.0, 3), (0.5, 8), (-1.0, 9), (2.2, 130)])
def test_powers_cost_what_they_are_made_of(power: float, cost: int) -> None:
    i, x = Axis("i", 5), placeholder("x", (5,))
    assert operations(compute("y", (i,), binary("pow", x.tensor[i.var], f32(power)))) == cost


def test_what_rearranges_elements_may_run_in_the_order_of_reading() -> None:
    c, h, w = Axis("c", 5), Axis("h", 6), Axis("w", 20)
    x = placeholder("x", (6, 20, 5))
    dag = ComputeDAG((x, compute("y", (c, h, w), x.tensor[h, w, c])), ("y",))
    sketches = {s.name: s for s in generate_sketches(dag, AVX2)}
    assert set(sketches) == {"", "as-read", "gathered", "gathered,as-read"}
    state = replay(dag, sketches["as-read"].steps, {"y.w.unroll": 4})
    assert [i.name for i in state["y"].iters] == ["h", "w.0", "c", "w.1"]
    state = replay(dag, sketches["gathered"].steps, {"y.w.vectors": 2, "y.c.near": 4})
    loops = [(i.name, i.extent, i.annotation) for i in state["y"].iters]
    tile = [("c.1", 4, "unroll"), ("w.1", 2, "unroll"), ("w.2", 8, "vectorize")]
    assert loops[-3:] == tile
    copied = ComputeDAG((x, compute("y", (h, w, c), x.tensor[h, w, c])), ("y",))
    assert [s.name for s in generate_sketches(copied, AVX2)] == [""]


def _inlined(dag: ComputeDAG) -> Compute:
    (sketch, *_) = generate_sketches(dag, AVX2)
    state = replay(dag, sketch.steps, {p.name: p.domain[0] for p in sketch.parameters})
    return state["swish"].op


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", sorted(ALL))
def test_valid_rows_compute_what_the_definition_says(name: str) -> None:
    dag = ALL[name]()
    rng = np.random.default_rng(7)
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    sketches = generate_sketches(dag, AVX2)
    for sketch in (sketches[int(i)] for i in rng.permutation(len(sketches))[:3]):
        rows = sketch.sample(40, rng)
        rows = rows[analyse(dag, sketch, rows, AVX2).valid]
        for row in rows[:1]:
            program = lower(dag, sketch.bind(row), verify=True)
            assert_close(interpret(program, inputs), expected, 3e-6)


@pytest.mark.slow
def test_rows_that_analysis_calls_valid_can_be_lowered(any_target: Target) -> None:
    dag, rng = conv(), np.random.default_rng(1)
    refused = 0
    for sketch in generate_sketches(dag, any_target):
        rows = sketch.sample(200, rng)
        rows = rows[analyse(dag, sketch, rows, any_target).valid][:10]
        for row in rows:
            try:
                lower(dag, sketch.bind(row))
            except ScheduleError:
                refused += 1
    assert refused == 0


def test_a_population_has_the_extents_of_its_members() -> None:
    dag, rng = conv(), np.random.default_rng(3)
    for sketch in generate_sketches(dag, AVX2):
        rows = sketch.sample(16, rng)
        together = replay(dag, sketch.steps, sketch.values(rows))
        for k, row in enumerate(rows):
            alone = replay(dag, sketch.bind(row))
            for name, stage in alone.stages.items():
                for it, many in zip(stage.iters, together[name].iters, strict=True):
                    assert np.broadcast_to(many.extent, (16,))[k] == it.extent


def test_a_row_is_found_again_from_its_schedule() -> None:
    dag, rng = gemm(64, 48, 32), np.random.default_rng(5)
    for sketch in generate_sketches(dag, AVX2):
        for row in sketch.sample(20, rng):
            text = steps_text(sketch.bind(row))
            found = Recogniser(sketch).row(text)
            assert found is not None
            assert sketch.bind(found) == sketch.bind(row)
            assert Recogniser(sketch).row(text + " ") is None


def test_features_know_every_tag_that_a_rule_gives() -> None:
    tags = {tag for make in ALL.values() for s in generate_sketches(make(), AVX2) for tag in s.tags}
    assert {Tag.CHANNELS_OUTSIDE, Tag.INLINED, Tag.ROWS} <= tags <= set(Tag)
    assert {f"structure {tag}" for tag in tags} <= set(NAMES)


def test_rules_of_a_user_decide_about_the_structure() -> None:
    def one_loop(p: Partial, name: str, target: Target) -> list[Partial] | None:
        n_axes = len(p.state[name].op.axes)
        return [p.add(Parallel(name, n_axes), done=(name,), tags=("plain",))]

    (sketch,) = generate_sketches(softmax(4, 64), AVX2, rules=(one_loop,))[:1]
    assert sketch.tags == {"plain"}
    assert all(isinstance(s, Parallel | ComputeInline) for s in sketch.steps)
    with pytest.raises(ScheduleError, match="no sketch rule applies"):
        generate_sketches(softmax(4, 64), AVX2, rules=())
