"""Two alternatives for a chain: `tasks` shows both, `tune` measures both, `compile` takes one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.graph.network import build_network
from autotune.network.runtime.loading import read_artifact
from autotune.records import read_log

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def separable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A depthwise and a pointwise convolution with a relu between them."""
    rng = np.random.default_rng(0)
    shapes = {"d": (16, 1, 3, 3), "p": (16, 16, 1, 1)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["a"], group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "p"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16, 8, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "separable", ports[:1], ports[1:], weights)
    path = tmp_path_factory.mktemp("separable") / "separable.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def test_tasks_tells_alternatives_apart(cli: Cli, separable: Path) -> None:
    done = cli("tasks", separable)
    assert done.code == 0, done.err
    assert "Conv for 1, 2" in done.out
    rows = json.loads(cli("tasks", separable, "--format", "json").out)
    (whole,) = [row for row in rows if row["replaces"]]
    assert whole["replaces"] == [1, 2]
    assert whole["id"] == len(rows) - 1


def test_without_a_log_the_cost_model_decides(cli: Cli, separable: Path, tmp_path: Path) -> None:
    done = cli("compile", separable, "--threads", 1, "-o", tmp_path / "m.atn")
    assert done.code == 0, done.err
    assert "outputs agree" in done.err


def test_the_faster_measured_alternative_is_compiled(
    cli: Cli, separable: Path, tmp_path: Path
) -> None:
    log_path, out = tmp_path / "log.jsonl", tmp_path / "m.atn"
    options = ("--trials", 32, "--threads", 1, "--preset", "ci")
    done = cli("tune", separable, "--log", log_path, *options)
    assert done.code == 0, done.err
    network, log = build_network(separable), read_log(log_path)
    assert log.header.parts == network.parts
    assert {r.workload for r in log.records} >= set(network.tasks)
    done = cli("compile", "--log", log_path, "-o", out)
    assert done.code == 0, done.err
    (whole, parts), *_ = network.parts.items()
    used = {kernel.task for kernel in read_artifact(out).kernels}
    assert whole in used or used >= set(parts)
    assert not (whole in used and used & set(parts))
