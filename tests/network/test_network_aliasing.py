"""Results that overwrite an operand: where that is right, and that the numbers stay the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto

from autotune.graph.network import Network, build_network
from autotune.loopir.in_place import replaceable
from autotune.loopir.lower import lower
from autotune.loopir.nodes import If, Program
from autotune.loopir.visitor import statements
from autotune.network.check.check import check_network
from autotune.network.compile.aliasing import Alias, alias_roots, aliases, overwritable
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.schedule.steps import Annotate, Split, Steps
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, add, f32, maximum, mul
from tests.graph.onnx_models import model, node
from tests.schedule.running import assert_close, random_inputs, run_compiled

TARGET = host_target()


def built(rng: np.random.Generator, nodes: list[NodeProto], path: Path) -> Network:
    weights = {n: rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8 for n in "abcd"}
    proto = model(nodes, {"x": (1, 8, 9, 7)}, weights)
    onnx.save(proto, str(path / "net.onnx"))
    return build_network(path / "net.onnx")


def conv(x: str, weight: str, out: str) -> NodeProto:
    return node("Conv", f"{x} {weight}", out, pads=[1, 1, 1, 1])


def steps_of(network: Network) -> dict[str, Steps]:
    return dict.fromkeys(network.tasks, ())


def found_in(network: Network) -> list[Alias]:
    steps = steps_of(network)
    programs = [lower(network.tasks[c.task], steps[c.task]) for c in network.calls]
    return list(aliases(network, programs, [None] * len(programs)).values())


RESIDUAL = [
    conv("x", "a", "t"),
    node("Relu", "t", "u"),
    conv("u", "b", "v"),
    node("Relu", "v", "w"),
    conv("w", "c", "p"),
]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_residual_sum_lies_where_its_operand_lay(
    rng: np.random.Generator, n_threads: int, tmp_path: Path
) -> None:
    network = built(rng, [*RESIDUAL, node("Add", "p u", "s"), conv("s", "d", "y")], tmp_path)
    assert len(found_in(network)) == 1
    compiled = Model(compile_network(network, steps_of(network), TARGET), n_threads)
    assert check_network(compiled, network) < 1e-5


def test_what_the_window_around_reads_stays(rng: np.random.Generator, tmp_path: Path) -> None:
    network = built(rng, [*RESIDUAL, node("Add", "p w", "s"), conv("s", "d", "y")], tmp_path)
    assert found_in(network) == []
    compiled = Model(compile_network(network, steps_of(network), TARGET), 1)
    assert check_network(compiled, network) < 1e-5


def test_what_is_read_later_is_overwritten_then(rng: np.random.Generator, tmp_path: Path) -> None:
    late = [node("Add", "q u", "r"), conv("r", "a", "y")]
    nodes = [*RESIDUAL, node("Add", "p u", "s"), conv("s", "d", "q"), *late]
    network = built(rng, nodes, tmp_path)
    (alias,) = found_in(network)
    first, second = (c for c in network.calls if "Add" in c.label)
    assert alias.new_root in second.outputs.values()
    assert alias.new_root not in first.outputs.values()
    compiled = Model(compile_network(network, steps_of(network), TARGET), 1)
    assert check_network(compiled, network) < 1e-5


def test_operands_that_no_call_of_a_task_needs_afterwards(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    network = built(rng, [*RESIDUAL, node("Add", "p u", "s"), conv("s", "d", "y")], tmp_path)
    (call,) = (c for c in network.calls if "Add" in c.label)
    (alias,) = found_in(network)
    found = overwritable(network)
    assert alias.operand in found[call.task]
    assert network.calls[0].task not in found  # reads what the user gave


def test_an_operand_that_one_of_two_calls_leaves_is_not_overwritten(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [*RESIDUAL, node("Add", "p u", "s"), conv("s", "d", "q"), node("Add", "q u", "r")]
    network = built(rng, [*nodes, conv("r", "a", "y")], tmp_path)
    first, second = (c for c in network.calls if "Add" in c.label)
    assert first.task == second.task
    (alias,) = found_in(network)
    assert alias.operand not in overwritable(network).get(first.task, ())


def test_arrays_of_the_user_stay(tmp_path: Path) -> None:
    flat = {"x": (6, 8)}
    nodes = [node("Relu", "x", "t"), node("Add", "t x", "y")]
    onnx.save(model(nodes, flat), str(tmp_path / "net.onnx"))
    assert found_in(build_network(tmp_path / "net.onnx")) == []


def sum_relu() -> ComputeDAG:
    i = Axis("i", 50)
    a, b = placeholder("a", (50,)), placeholder("b", (50,))
    y = compute("y", (i,), maximum(f32(0), add(a.tensor[i], b.tensor[i])))
    return ComputeDAG((a, b, y), ("y",))


def program(tail: str) -> Program:
    return lower(sum_relu(), (Split("y", "i", (8,), tail), Annotate("y", "i.1", "vectorize")))


def test_tiles_that_overlap_would_read_what_they_wrote() -> None:
    assert replaceable(program("split")) == (("a", "y"), ("b", "y"))
    assert replaceable(program("shift")) == ()


def test_the_last_tile_overlaps_where_it_stands_apart_as_well() -> None:
    """Its place is a number then, not a minimum."""
    tiles = Split("y", "i", (8,), "shift")
    alone = lower(sum_relu(), (tiles, Split("y", "i.0", (2,), "split")))
    assert any(isinstance(s, If) for s in statements(alone.kernels[0].body))
    assert replaceable(alone) == ()
    of_ten = lower(sum_relu(), (replace(tiles, factors=(10,)), Split("y", "i.0", (2,), "split")))
    assert replaceable(of_ten) == (("a", "y"), ("b", "y"))


def product_and_residual(n: int) -> ComputeDAG:
    """x·w + residual, of `n` columns."""
    m, k = 9, 8
    x, residual = placeholder("x", (m, k)), placeholder("residual", (m, n))
    w = placeholder("w", (k, n), constant=True)
    i, j, t = Axis("i", m), Axis("j", n), Axis("t", k)
    total = compute("total", (i, j), Reduce("sum", mul(x.tensor[i, t], w.tensor[t, j]), (t,)))
    y = compute("y", (i, j), add(total.tensor[i, j], residual.tensor[i, j]))
    return ComputeDAG((x, residual, w, total, y), ("y",))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "some"), [(40, True), (48, True), (58, False)])
def test_programs_that_may_overwrite_an_operand_compute_the_same(n: int, some: bool) -> None:
    """Whatever tiles the search would choose; with 58 columns some overlap in all of them."""
    dag = product_and_residual(n)
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    n_in_place = 0
    for sketch in generate_sketches(dag, TARGET):
        rows = sketch.sample(80, np.random.default_rng(n))
        for row in rows[analyse(dag, sketch, rows, TARGET).valid][:4]:
            found = lower(dag, sketch.bind(row))
            if replaceable(found):
                n_in_place += 1
                there = replace(found, shared=("residual", "y"))
                # some multiply parts in bfloat16, where the CPU has tiles
                assert_close(run_compiled(there, inputs, TARGET, 2), expected, 2e-5)
    assert (n_in_place > 0) is some


def test_heirs_of_heirs_lie_in_the_first_place() -> None:
    chain = {2: Alias("a", "y", "one", "two"), 5: Alias("a", "y", "two", "three")}
    assert alias_roots(chain) == {"two": "one", "three": "one"}
