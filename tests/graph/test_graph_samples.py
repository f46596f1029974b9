"""Parts of a result are apart just where the definition of its node says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.graph.bound_model import BoundModel
from autotune.graph.network import prepared_graphs
from autotune.graph.samples import keeps_apart

N, C, S = 5, 4, 6
RNG = np.random.default_rng(0)
TENSORS = {
    "w": RNG.standard_normal((S, 5)).astype(np.float32),
    "kernel": RNG.standard_normal((3, C, 3)).astype(np.float32),
    "first": np.array([0]),
    "second": np.array([1]),
    "zero": np.array(0),
}


def kept(folder: Path, op: str, inputs: list[str], axis: int, attrs: dict[str, Any]) -> bool:
    """Whether samples of `x` (batch, C, S) are kept apart by all nodes that one becomes.

    `axis`: of the samples in all results.
    """
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (N, C, S))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(a, n) for n, a in TENSORS.items() if n in inputs]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], **attrs)], "g", [x], [y], constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    prepared = [*prepared_graphs(BoundModel(folder / "m.onnx"), {"x": (N, C, S)})][-1][1]
    own, found = {"x": 0}, []
    for node in prepared.nodes:
        operands = {x: own[x] for x in node.inputs if x in own}
        at = axis if node.output in prepared.outputs else 0
        found.append(keeps_apart(prepared, node, operands, at))
        own[node.output] = at
    assert found
    return all(found)


@pytest.mark.parametrize(
    ("op", "inputs", "axis", "attrs"),
    [
        ("MatMul", ["x", "w"], 0, {}),
        ("Conv", ["x", "kernel"], 0, {"pads": [1, 1]}),
        ("Softmax", ["x"], 0, {"axis": 1}),
        ("ReduceMean", ["x", "second"], 0, {}),
        ("Transpose", ["x"], 1, {"perm": [1, 0, 2]}),
        ("Concat", ["x", "x"], 0, {"axis": 2}),
        ("MaxPool", ["x"], 0, {"kernel_shape": [2]}),
        ("CumSum", ["x", "second"], 0, {}),
    ],
)
def test_parts_that_are_apart(
    op: str, inputs: list[str], axis: int, attrs: dict[str, Any], tmp_path: Path
) -> None:
    assert kept(tmp_path, op, inputs, axis, attrs)


@pytest.mark.parametrize(
    ("op", "inputs", "axis", "attrs"),
    [
        ("ReduceMean", ["x", "first"], 0, {}),
        ("Softmax", ["x"], 0, {"axis": 0}),
        ("CumSum", ["x", "zero"], 0, {}),
        ("Slice", ["x", "first", "second", "first"], 0, {}),
        ("Transpose", ["x"], 0, {"perm": [1, 0, 2]}),
        ("Concat", ["x", "x"], 0, {"axis": 0}),
    ],
)
def test_parts_that_are_mixed(
    op: str, inputs: list[str], axis: int, attrs: dict[str, Any], tmp_path: Path
) -> None:
    assert not kept(tmp_path, op, inputs, axis, attrs)
