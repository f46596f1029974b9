from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.cache import FileStore
from autotune.errors import CodegenError, NoValidSchedule, WrongNumbers
from autotune.graph.network import Network, TaskCall, build_network
from autotune.loopir.lower import lower
from autotune.network import load
from autotune.network.artifact.artifact import Artifact
from autotune.network.check.check import check_network
from autotune.network.check.differences import max_error
from autotune.network.check.evaluation import evaluate_network
from autotune.network.compile import compiler, objects, outlines
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.records import distill
from autotune.schedule.steps import Steps
from autotune.target import host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, f32, mul
from tests.network.small_networks import (
    branches,
    mlp,
    network,
    packed_steps,
    port,
    value,
    window,
)

pytestmark = pytest.mark.target

TARGET = host_target()


def untuned(network: Network) -> dict[str, Steps]:
    return dict.fromkeys(network.tasks, ())


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("make", [mlp, branches])
def test_networks_compute_what_their_tasks_say(make: object, n_threads: int) -> None:
    network = make()  # type: ignore[operator]
    model = Model(compile_network(network, untuned(network), TARGET), n_threads)
    assert check_network(model, network) < 1e-5


@pytest.mark.parametrize("n_threads", [1, 2])
def test_schedules_with_packed_weights(n_threads: int) -> None:
    network = mlp()
    artifact = compile_network(network, dict.fromkeys(network.tasks, packed_steps()), TARGET)
    assert any(k.extent > 1 for k in artifact.kernels)
    assert check_network(Model(artifact, n_threads), network) < 1e-5


def test_a_saved_network_gives_the_same_bits(tmp_path: Path) -> None:
    network = branches()
    artifact = compile_network(network, untuned(network), TARGET, n_threads=2)
    artifact.save(tmp_path / "net.atn")
    inputs = random_inputs(artifact.inputs)
    before = Model(artifact).run(inputs)
    after = load(tmp_path / "net.atn").run(inputs)
    assert all(np.array_equal(before[name], after[name]) for name in ("y", "sum"))


def test_compiling_twice_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        network = branches()
        compile_network(network, untuned(network), TARGET).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_with_a_warm_store_nothing_is_lowered_or_assembled_and_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "store", 1 << 30)
    n_calls: Counter[str] = Counter()
    for module, name in ((outlines, "lower"), (objects, "compile_program")):
        count(monkeypatch, module, name, n_calls)
    count(monkeypatch, compiler, "compile_entry", n_calls)
    for name, kept in (("alone", None), ("cold", store), ("warm", store)):
        n_calls.clear()
        for make in (mlp, branches):
            network = make()
            steps = untuned(network)
            compile_network(network, steps, TARGET, store=kept).save(
                tmp_path / f"{make.__name__}-{name}"
            )
        assert bool(n_calls) == (name != "warm"), f"{name}: {n_calls}"
    for make in (mlp, branches):
        files = [
            (tmp_path / f"{make.__name__}-{name}").read_bytes()
            for name in ("alone", "cold", "warm")
        ]
        assert files[0] == files[1] == files[2]


def test_an_object_that_is_lost_is_made_again_from_a_known_outline(tmp_path: Path) -> None:
    network = branches()
    store = FileStore(tmp_path, 1 << 30)
    first = compile_network(network, untuned(network), TARGET, store=store)
    for path in tmp_path.glob("??/*.entry"):
        if path.read_bytes()[32:36] == b"\x7fELF":
            path.unlink()
    again = compile_network(network, untuned(network), TARGET, store=store)
    assert again.image == first.image


def count(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, n_calls: Counter[str]
) -> None:
    """Count the calls of a function of a module."""
    function = getattr(module, name)

    def counted(*args: Any, **named: Any) -> Any:
        n_calls[name] += 1
        return function(*args, **named)

    monkeypatch.setattr(module, name, counted)


def n_programs(artifact: Artifact) -> int:
    """How many there are, by the beginnings of their kernels' names."""
    return len({name.partition("_")[0] for name in artifact.image.symbols if name[0] == "p"})


def test_equal_programs_are_compiled_once() -> None:
    network = mlp()
    artifact = compile_network(network, untuned(network), TARGET)
    assert len(network.calls) == 3
    assert n_programs(artifact) == 2  # one per task
    # two tasks; the convolutions differ in nothing, the sums in the layout of their operands
    network = branches()
    assert n_programs(compile_network(network, untuned(network), TARGET)) == 3


def test_equal_constants_are_stored_once() -> None:
    network = mlp()
    artifact = compile_network(network, untuned(network), TARGET)
    # w of 12 × 20, one w of 20 × 20 for two calls, one b for all three, each a multiple of 64
    assert artifact.constants.nbytes == 960 + 1600 + 128


def test_kernels_carry_task_and_label() -> None:
    network = mlp()
    kernels = compile_network(network, untuned(network), TARGET).kernels
    assert [(k.task, k.label) for k in kernels[:: len(kernels) // 3]] == [
        ("first", "linear a"),
        ("rest", "linear b"),
        ("rest", "linear y"),
    ]


def test_a_task_without_a_schedule_is_named() -> None:
    with pytest.raises(NoValidSchedule, match=r"rest \(linear b\)"):
        compile_network(mlp(), {"first": ()}, TARGET)


def test_a_window_that_the_task_cannot_express_is_an_internal_error() -> None:
    network = branches()
    # rows of 7 elements with a row stride of 16 cannot be seen as the 36 × 8 that the sum reads
    broken = window("a", (1, 6, 6, 8), (576, 96, 15, 1), "join", 0)
    with pytest.raises(CodegenError, match="internal"):
        compile_network(
            replace(network, values=network.values | {"a": broken}), untuned(network), TARGET
        )


def test_an_output_that_is_also_the_input() -> None:
    network = mlp()
    ports = (*network.outputs, port("same", (12,), "x"), port("again", (20,), "y"))
    network = replace(network, outputs=ports)
    model = Model(compile_network(network, untuned(network), TARGET), 2)
    inputs = random_inputs(model.input_info)
    outputs = model.run(inputs)
    assert np.array_equal(outputs["same"], inputs["image"].reshape(12))
    assert np.array_equal(outputs["again"], outputs["scores"])
    assert not np.shares_memory(outputs["again"], outputs["scores"])


def test_an_input_that_is_a_window() -> None:
    network = branches()
    outer = value("outer", (1, 6, 6, 8))
    x = window("x", (1, 6, 6, 4), (288, 48, 8, 1), "outer", 4)
    network = replace(network, values=network.values | {"outer": outer, "x": x})
    assert (
        check_network(Model(compile_network(network, untuned(network), TARGET), 2), network) < 1e-5
    )


# --- the check --------------------------------------------------------------------------------


def test_wrong_numbers_are_noticed() -> None:
    network = mlp()
    model = Model(compile_network(network, untuned(network), TARGET))
    call = network.calls[0]
    other = replace(call, constants={**call.constants, "b": call.constants["b"] + 1})
    with pytest.raises(WrongNumbers, match="'scores'"):
        check_network(model, replace(network, calls=(other, *network.calls[1:])))


def test_evaluation_follows_windows() -> None:
    network = branches()
    x = random_inputs(Model(compile_network(network, untuned(network), TARGET)).input_info)["x"]
    a, b = (np.maximum(0, x @ call.constants["f"][0, 0]) for call in network.calls[:2])
    outputs = evaluate_network(network, {"x": x})
    assert max_error(outputs["y"], np.concatenate([a + b, a], axis=3)) < 1e-6
    assert max_error(outputs["sum"], (a + b).reshape(36, 8)) < 1e-6


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [2.0, 1.0], np.inf),
        ([np.inf, 1.0], [2.0, 1.0], np.inf),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([0.0, 0.0], [7e-40, 0.0], 7e-40 / 1e-30),
        ([1.0], [1.0, 2.0], np.inf),
    ],
)
def test_max_error(actual: list[float], expected: list[float], error: float) -> None:
    assert max_error(np.array(actual), np.array(expected)) == error


@pytest.mark.parametrize("n_threads", [1, 2])
def test_denormal_numbers_are_zero_inside_and_nowhere_else(n_threads: int) -> None:
    i = Axis("i", 64)
    x = placeholder("x", (64,))
    half = ComputeDAG((x, compute("y", (i,), mul(x.tensor[i], f32(0.5)))), ("y",))
    call = TaskCall("half", {"x": "x"}, {}, {"y": "y"}, "half")
    ports = [[port(n, (64,), n)] for n in "xy"]
    net = network(*ports, [value(n, (64,)) for n in "xy"], [call], {"half": half})
    model = Model(compile_network(net, {"half": ()}, TARGET), n_threads)
    tiny = np.full(64, 1e-39, np.float32)
    assert not model.run({"x": tiny})["y"].any()
    assert (tiny * np.float32(0.5)).all(), "the caller's arithmetic is what it was"


@pytest.mark.slow
def test_a_log_of_equal_tasks_under_other_names_is_compiled_from(tmp_path: Path) -> None:
    texts = {"max": "y = Max (x)", "identity": "y = Identity (x)"}
    for name, node in texts.items():
        head = '<ir_version: 9, opset_import: ["" : 17]> g (float[6] x) => (float[6] y)'
        text = f"{head} {{ {node} }}"
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    networks = {n: build_network(tmp_path / f"{n}.onnx") for n in texts}
    if networks["max"].tasks.keys() != networks["identity"].tasks.keys():
        pytest.skip("these are no longer one task")
    autotune.tune(tmp_path / "max.onnx", tmp_path / "max.jsonl", trials=2, threads=1, compare=False)
    compiled = autotune.compile(tmp_path / "identity.onnx", tmp_path / "max.jsonl", threads=1)
    assert compiled.report is not None
    autotune.tune(
        tmp_path / "identity.onnx", tmp_path / "i.jsonl", trials=2, threads=1, compare=False
    )
    both = distill([tmp_path / "max.jsonl", tmp_path / "i.jsonl"])
    for record in both.records:
        lower(both.workloads[record.workload].dag, record.steps)
