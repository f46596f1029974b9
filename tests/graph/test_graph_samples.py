"""Samples of a batch are apart just where the definitions of all nodes say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from autotune.errors import UsageError
from autotune.graph.bound_model import BoundModel
from autotune.graph.network import prepared_graphs
from autotune.graph.samples import PROOF_EXTENTS, Axes, sample_axes

N, C, S = "batch", 4, 6
Nodes = list[tuple[str, list[str], dict[str, Any]]]

RNG = np.random.default_rng(0)
TENSORS = {
    "w": RNG.standard_normal((S, 5)).astype(np.float32),
    "kernel": RNG.standard_normal((3, C, 3)).astype(np.float32),
    "token": RNG.standard_normal((1, 1, S)).astype(np.float32),
    "first": np.array([0]),
    "second": np.array([1]),
    "minus": np.array([-1]),
    "back": np.array([-(2**62)]),
    "one": np.array(1),
    "zero": np.array(0),
    "rows": np.array([-1, S]),
    "none": np.array([C, S]),
    "as_first": np.array([1]),
}


def proved(folder: Path, nodes: Nodes) -> Axes:
    """The axes of the output `y` of nodes on `x` (batch, C, S)."""
    protos: list[NodeProto] = [
        helper.make_node(op, inputs, ["y" if n == len(nodes) - 1 else f"t{n}"], **attrs)
        for n, (op, inputs, attrs) in enumerate(nodes)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (N, C, S))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    used = {i for p in protos for i in p.input}
    constants = [numpy_helper.from_array(a, n) for n, a in TENSORS.items() if n in used]
    graph = helper.make_graph(protos, "g", [x], [y], constants)
    opset = helper.make_opsetid("", 18)
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    first, second = (
        [*prepared_graphs(BoundModel(path), {"x": (n, C, S)})][-1][1] for n in PROOF_EXTENTS
    )
    return sample_axes((first, second), N, {"x": 0})


APART: dict[str, tuple[Nodes, tuple[int, int]]] = {
    "product": ([("MatMul", ["x", "w"], {})], (0, 1)),
    "rows": ([("Reshape", ["x", "rows"], {}), ("Gemm", ["t0", "w"], {})], (0, C)),
    "convolution": ([("Conv", ["x", "kernel"], {"pads": [1, 1]}), ("Relu", ["t0"], {})], (0, 1)),
    "softmax": ([("Softmax", ["x"], {"axis": 1})], (0, 1)),
    "sum of a sample": ([("ReduceMean", ["x", "second"], {})], (0, 1)),
    "turned": ([("Transpose", ["x"], {"perm": [1, 0, 2]}), ("Exp", ["t0"], {})], (1, 1)),
    "joined": ([("Concat", ["x", "x"], {"axis": 2}), ("MaxPool", ["t0"], {"kernel_shape": [2]})],
               (0, 1)),
    "attention": ([("Transpose", ["x"], {"perm": [0, 2, 1]}), ("MatMul", ["x", "t0"], {})], (0, 1)),
    "repeated constant": (
        [("Shape", ["x"], {"end": 1}), ("Concat", ["t0", "second", "second"], {"axis": 0}),
         ("Expand", ["token", "t1"], {}), ("Concat", ["t2", "x"], {"axis": 1})], (0, 1)),
    "numbered": (
        [("Shape", ["x"], {"end": 1}), ("Squeeze", ["t0"], {}),
         ("Range", ["zero", "t1", "one"], {}),
         ("Unsqueeze", ["t2", "second"], {}), ("GatherND", ["x", "t3"], {})], (0, 1)),
}  # fmt: skip
MIXED: dict[str, Nodes] = {
    "sum over all": [("ReduceMean", ["x", "first"], {}), ("Sub", ["x", "t0"], {})],
    "softmax over all": [("Softmax", ["x"], {"axis": 0})],
    "sum so far": [("CumSum", ["x", "zero"], {})],
    "the first": [("Slice", ["x", "first", "second", "first"], {}), ("Add", ["x", "t0"], {})],
    "turned round": [("Slice", ["x", "minus", "back", "first", "minus"], {}), ("Exp", ["t0"], {})],
    "each with each": [
        ("Transpose", ["x"], {"perm": [1, 0, 2]}),
        ("Transpose", ["x"], {"perm": [1, 2, 0]}),
        ("MatMul", ["t0", "t1"], {}),
    ],
    "its own number": [
        ("Shape", ["x"], {"end": 1}),
        ("Squeeze", ["t0"], {}),
        ("Range", ["zero", "t1", "one"], {}),
        ("Cast", ["t2"], {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["t3", "second"], {}),
        ("Unsqueeze", ["t4", "second"], {}),
        ("Add", ["x", "t5"], {}),
    ],
    "how many there are": [
        ("Shape", ["x"], {"end": 1}),
        ("Cast", ["t0"], {"to": TensorProto.FLOAT}),
        ("Div", ["x", "t1"], {}),
    ],
    "one after the other": [("Concat", ["x", "x"], {"axis": 0}), ("Exp", ["t0"], {})],
    "interleaved": [("Transpose", ["x"], {"perm": [1, 0, 2]}), ("Reshape", ["t0", "rows"], {})],
}


@pytest.mark.parametrize("name", APART)
def test_samples_that_are_apart(name: str, tmp_path: Path) -> None:
    nodes, where = APART[name]
    assert proved(tmp_path, nodes) == {"y": where}


@pytest.mark.parametrize("name", MIXED)
def test_samples_that_are_mixed_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'batch' cannot be any"):
        proved(tmp_path, MIXED[name])
