"""Import is linear in the number of nodes, and large graphs become many small tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from autotune.graph.network import build_network
from tests.graph.onnx_models import execute, model, node, random_feeds, save


def chain(n: int) -> ModelProto:
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    ops = (("Sin", "Relu")[i % 2] for i in range(n))
    nodes = [node(op, names[i], names[i + 1]) for i, op in enumerate(ops)]
    return model(nodes, {"x": (4,)})


def residual(n: int) -> ModelProto:
    nodes, last = [], "x"
    for i in range(n // 2):
        nodes += [node("Tanh", last, f"t{i}"), node("Sub", f"{last} t{i}", f"s{i}")]
        last = f"s{i}"
    return model([*nodes, node("Neg", last, "y")], {"x": (4,)})


def scales(n: int) -> ModelProto:
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    nodes = [node(("Mul", "Add")[i % 2], f"{names[i]} c", names[i + 1]) for i in range(n)]
    return model(nodes, {"x": (4,)}, {"c": np.full(4, 0.75, "f4")})


def wide(n: int) -> ModelProto:
    nodes = [node(("Tanh", "Exp")[i % 2], "x", f"b{i}") for i in range(n)]
    return model([*nodes, node("Concat", " ".join(f"b{i}" for i in range(n)), axis=0)], {"x": (4,)})


def repeated(n: int) -> ModelProto:
    return model(node("Concat", " ".join(["x"] * n), axis=0), {"x": (4,)})


def n_lines(path: Path) -> int:
    """Lines of Python that an import runs: a cost without noise."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal counted
        counted += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        build_network(path)
    finally:
        sys.settrace(before)
    return counted


@pytest.mark.parametrize("make", [chain, residual, scales, wide, repeated])
def test_four_times_the_nodes_cost_four_times_as_much(
    make: Callable[[int], ModelProto], tmp_path: Path
) -> None:
    build_network(save(make(100), tmp_path))  # what is remembered between imports
    small, large = (n_lines(save(make(n), tmp_path)) for n in (100, 400))
    assert large < 4.5 * small


def test_a_long_chain_becomes_many_calls_of_few_tasks(tmp_path: Path) -> None:
    network = build_network(save(chain(500), tmp_path))
    assert len(network.calls) == 16
    assert len(network.tasks) == 2
    feeds = random_feeds(network)
    want = feeds["x"].astype(float)
    for n in range(500):
        want = np.maximum(want, 0) if n % 2 else np.sin(want)
    np.testing.assert_allclose(execute(network, feeds)["y"], want, atol=1e-6)


def test_equal_groups_with_other_constants_keep_their_own(tmp_path: Path) -> None:
    """A group is defined once; weights and scalars of its likes are theirs."""
    rng = np.random.default_rng(0)
    nodes, constants, last = [], {}, "x"
    for i in range(4):
        constants |= {
            f"w{i}": rng.standard_normal((8, 8)).astype("f4"),
            f"s{i}": np.float32(i // 2),
        }
        nodes += [node("MatMul", f"{last} w{i}", f"m{i}"), node("Tanh", f"m{i}", f"t{i}")]
        nodes += [node("Max", f"t{i} s{i}", f"b{i}")]
        last = f"b{i}"
    network = build_network(
        save(model([*nodes, node("Neg", last, "y")], {"x": (3, 8)}, constants), tmp_path)
    )
    feeds = random_feeds(network)
    want = feeds["x"]
    for i in range(4):
        want = np.maximum(np.tanh(want @ constants[f"w{i}"]), i // 2)
    np.testing.assert_allclose(execute(network, feeds)["y"], -want, atol=1e-5)
