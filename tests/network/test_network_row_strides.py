"""Rows of 4 KiB: those of the caller are dense, those inside of a network are padded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from autotune import Task, te
from autotune.graph.network import build_network
from autotune.measure.build import build_program
from autotune.network.compile.row_strides import dense_operands
from autotune.records import read_log
from autotune.search.sketch import generate_sketches
from autotune.search.space import Tag
from autotune.target import host_target
from tests.graph.onnx_models import model, node
from tests.search.random_rows import assert_random_rows_compute

PADDED = 1024 + 16


def matmul(n: int, m: int, k: int) -> te.Tensor:
    a, b, r = te.placeholder((n, k), "a"), te.placeholder((k, m), "b"), te.reduce_axis(k, "r")
    return te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "y")


@pytest.mark.slow
def test_the_rows_of_the_caller_are_measured_as_they_are(tmp_path: Path) -> None:
    task = Task(matmul, (4, 1024, 8), threads=1)
    log = tmp_path / "m.jsonl"
    task.tune(trials=1, log=log, show="nothing")
    assert read_log(log).header.dense == {task.key: ("b", "y")}
    strides = {
        is_dense: {
            b.name: b.strides
            for b in build_program(task.dag, (), task.target, dense=dense).program.buffers
        }
        for is_dense, dense in ((True, {task.key: ("b", "y")}), (False, {}))
    }
    assert (strides[True]["b"], strides[False]["b"]) == ((1024, 1), (PADDED, 1))


def test_inside_of_a_network_rows_are_padded(tmp_path: Path) -> None:
    weight = np.ones((1024, 1024), np.float32)
    nodes = [node("MatMul", "x w", "t"), node("Softmax", "t", "u"), node("MatMul", "u w", "y")]
    onnx.save(model(nodes, {"x": (4, 1024)}, {"w": weight}), tmp_path / "net.onnx")
    network = build_network(tmp_path / "net.onnx")
    product = network.calls[0].task
    assert network.weights[product] == 2  # one reads the caller's rows, one the network's
    assert product not in dense_operands([network])


@pytest.mark.slow
def test_what_varies_along_the_columns_can_be_copied_alone() -> None:
    target = host_target()
    dag = Task(matmul, (12, 40, 24), threads=1).dag
    sketches = [s for s in generate_sketches(dag, target) if Tag.COPIED_PANELS in s.tags]
    assert len(sketches) == 2
    copied = {step.tensor for s in sketches for step in s.steps if hasattr(step, "reader")}
    assert copied == {"b"}
    assert_random_rows_compute(dag, target, 30, (1, 3), seed=0)
