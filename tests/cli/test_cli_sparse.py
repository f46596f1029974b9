"""A pruned layer: `tasks` says what is zero, `tune` measures both, `compile` takes the faster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.network.runtime.loading import read_artifact

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense layer of 64 rows, 256 → 256, with every tenth block of 4×16 left."""
    rng = np.random.default_rng(0)
    kept = rng.random((64, 16)) < 0.1
    weight = rng.standard_normal((256, 256)) * kept.repeat(4, axis=0).repeat(16, axis=1)
    arrays = [numpy_helper.from_array(weight.astype(np.float32), "w")]
    nodes = [helper.make_node("Gemm", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 256]) for n in "xy"]
    graph = helper.make_graph(nodes, "pruned", ports[:1], ports[1:], arrays)
    path = tmp_path_factory.mktemp("pruned") / "pruned.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def test_tasks_says_what_is_zero(cli: Cli, pruned: Path) -> None:
    done = cli("tasks", pruned)
    assert done.code == 0, done.err
    assert "in 4x16 blocks for 0" in done.out
    assert "of the weights are zero" in done.out
    dense, sparse = json.loads(cli("tasks", pruned, "--format", "json").out)
    assert sparse["replaces"] == [0]
    assert dense["zeros"]["block"] == [4, 16]
    assert dense["zeros"]["blocks_left"] == pytest.approx(1 - dense["zeros"]["least"], abs=0.01)


def test_without_a_log_blocks_are_taken(cli: Cli, pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.atn"
    done = cli("compile", pruned, "--threads", 1, "-o", out)
    assert done.code == 0, done.err
    assert "outputs agree" in done.err
    (kernel,) = read_artifact(out).kernels
    assert "4x16 blocks" in kernel.label


def test_tuned_explained_distilled_compiled(cli: Cli, pruned: Path, tmp_path: Path) -> None:
    log, small, out = (tmp_path / n for n in ("log.jsonl", "small.jsonl", "m.atn"))
    options = ("--trials", 16, "--threads", 1, "--preset", "ci")
    done = cli("tune", pruned, "--log", log, *options)
    assert done.code == 0, done.err
    for stage in ("steps", "llvm"):
        done = cli("explain", log, "--task", 1, "--stage", stage)
        assert done.code == 0, done.err
    assert "range(min(" in cli("explain", log, "--task", 1, "--stage", "python").out
    done = cli("distill", log, "-o", small)
    assert done.code == 0, done.err
    done = cli("compile", "--log", small, "-o", out)
    assert done.code == 0, done.err
    assert "outputs agree" in done.err
    (kernel,) = read_artifact(out).kernels
    assert "4x16 blocks" in kernel.label
