"""One element that is not finite or huge: results of a network that do not read it are spared."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import NodeProto

from autotune.graph.network import Network, build_network
from autotune.loopir.in_place import replaceable
from autotune.loopir.lower import lower
from autotune.network.compile.aliasing import aliases
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.schedule.steps import Steps, Winograd
from autotune.search.cost.analysis import analyse
from autotune.search.defaults import default_steps
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.dag import ComputeDAG
from tests.graph.onnx_models import model, node

TARGET = host_target()
Array = NDArray[np.float32]


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    out = {n: rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12 for n in "vw"}
    out["v"][:, ::3, 1, 2] = 0
    return out | {"b": rng.standard_normal(16).astype(np.float32)}


def conv(x: str, weight: str, out: str) -> NodeProto:
    return node("Conv", f"{x} {weight} b", out, pads=[1, 1, 1, 1])


RESIDUAL = [
    conv("x", "w", "a"),
    node("Relu", "a", "r"),
    conv("r", "v", "c"),
    node("Relu", "c", "d"),
    conv("d", "w", "e"),
    node("Add", "e r", "s"),
    conv("s", "v", "y"),
]


def built(nodes: list[NodeProto], values: dict[str, Array], path: Path) -> Network:
    onnx.save(model(nodes, {"x": (1, 16, 13, 12)}, values), str(path / "net.onnx"))
    return build_network(path / "net.onnx")


@cache
def summed(dag: ComputeDAG) -> Steps:
    """Plain sums."""
    return default_steps(dag, TARGET, 1, max_error=0.0)


@cache
def filtered(dag: ComputeDAG, structure: str) -> Steps:
    """Minimal filtering of this structure where a task has it, in place where that is possible."""
    rng = np.random.default_rng(1)
    for sketch in generate_sketches(dag, TARGET):
        if sketch.name == structure:
            rows = sketch.sample(50, rng)
            rows = rows[analyse(dag, sketch, rows, TARGET).valid][:4]
            choices = [sketch.bind(row) for row in rows]
            return max(choices, key=lambda steps: len(replaceable(lower(dag, steps))))
    return summed(dag)


def compiled(network: Network, structure: str) -> list[Model]:
    """The network by minimal filtering, on one and on two threads."""
    steps = {key: filtered(dag, structure) for key, dag in network.tasks.items()}
    assert any(isinstance(s, Winograd) for chosen in steps.values() for s in chosen)
    artifact = compile_network(network, steps, TARGET)
    return [Model(artifact, n_threads) for n_threads in (1, 2)]


def plain(network: Network) -> Model:
    steps = {key: summed(dag) for key, dag in network.tasks.items()}
    return Model(compile_network(network, steps, TARGET))


def assert_same(found: Array, expected: Array) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


STRUCTURES = [f"winograd{m}+{how}" for m in (2, 4) for how in ("blocked", "whole")]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_bad_element_at_any_place_spoils_the_nine_results_that_read_it(
    structure: str, tmp_path: Path
) -> None:
    network = built([conv("x", "w", "c"), node("Relu", "c", "y")], weights(), tmp_path)
    models, reference = compiled(network, structure), plain(network)
    rng = np.random.default_rng(0)
    clean = rng.standard_normal((1, 16, 13, 12)).astype(np.float32)
    n_spoilt = []
    for at in np.ndindex(13, 12):
        x = clean.copy()
        x[0, rng.integers(16), *at] = rng.choice([np.nan, np.inf, -np.inf, 1e38, 1e30])
        expected = reference.run({"x": x})["y"]
        n_spoilt.append(int((~np.isfinite(expected)).any(axis=(0, 1)).sum()))
        for m in models:
            assert_same(m.run({"x": x})["y"], expected)
    assert max(n_spoilt) == 9
    again = [m.run({"x": clean})["y"] for m in models]
    assert_same(again[0], reference.run({"x": clean})["y"])
    np.testing.assert_array_equal(*again)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("structure", ["winograd4+blocked", "winograd4+whole"])
def test_a_sum_in_the_place_of_its_operand_is_right_too(structure: str, tmp_path: Path) -> None:
    network = built(RESIDUAL, weights(), tmp_path)
    steps = {key: filtered(dag, structure) for key, dag in network.tasks.items()}
    programs = [lower(network.tasks[c.task], steps[c.task]) for c in network.calls]
    assert len(aliases(network, programs, [None] * len(programs))) == 1
    models, reference = compiled(network, structure), plain(network)
    rng = np.random.default_rng(1)
    for value in (np.nan, np.inf, 1e38, 1e25):
        x = rng.standard_normal((1, 16, 13, 12)).astype(np.float32)
        x[0, 3, 5, 6] = value
        expected = reference.run({"x": x})["y"]
        for m in models:
            assert_same(m.run({"x": x})["y"], expected)


@pytest.mark.slow
def test_huge_weights_make_the_sums_of_their_call_plain(tmp_path: Path) -> None:
    values = weights()
    for channel, value in enumerate((np.nan, np.inf, 1e38)):
        values["v"][channel, 2, 1, 1] = value
    nodes = [conv("x", "w", "c"), node("Relu", "c", "t"), conv("t", "v", "y")]
    network = built(nodes, values, tmp_path)
    models, reference = compiled(network, "winograd4+blocked"), plain(network)
    x = np.random.default_rng(2).standard_normal((1, 16, 13, 12)).astype(np.float32)
    expected = reference.run({"x": x})["y"]
    assert np.isfinite(expected[:, 2:]).all()
    for m in models:
        assert_same(m.run({"x": x})["y"], expected)
