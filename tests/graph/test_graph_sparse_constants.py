"""Sparse constants of a file: the same numbers as dense ones, or one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

import autotune
from autotune.errors import ModelError
from autotune.graph.reader.sparse_constants import dense

value = helper.make_tensor_value_info


def sparse(array: Any, by_dimension: bool = False) -> Any:
    places = np.argwhere(array != 0) if by_dimension else np.flatnonzero(array)
    values = numpy_helper.from_array(array[array != 0], "w")
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(places.astype(np.int64)), array.shape
    )


def model(w: Any, place: str) -> ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if place != "initializer":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], **{place: w}))
    ports = [value("x", 1, [2, 6])], [value("y", 1, [2, 5])]
    graph = helper.make_graph(nodes, "g", *ports)
    if place == "initializer":
        graph.sparse_initializer.append(w)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("place", ["initializer", "sparse_value"])
@pytest.mark.parametrize("fallback", [False, True])
def test_a_product_by_a_sparse_constant(
    place: str, fallback: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    w = (rng.standard_normal((6, 5)) * (rng.random((6, 5)) < 0.3)).astype(np.float32)
    save(model(sparse(w), place), tmp_path / "m.onnx")
    made = autotune.compile(tmp_path / "m.onnx", fallback=fallback)
    assert made.report is not None
    assert made.report.oracles == ("ONNX Runtime",)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "?", "f2"])
@pytest.mark.parametrize("by_dimension", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 3, 4), (0, 3)])
def test_zeros_are_where_nothing_is_said(
    dtype: str, by_dimension: bool, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    array = (rng.integers(0, 3, shape) == 0).astype(dtype)
    found = dense(sparse(array, by_dimension))
    assert found.name == "w"
    assert numpy_helper.to_array(found).dtype == array.dtype
    assert np.array_equal(numpy_helper.to_array(found), array)


@pytest.mark.parametrize(
    ("dims", "indices", "what"),
    [
        ([3, 3], [0, 9], "indices"),
        ([3, 3], [-1, 2], "indices"),
        ([3, 3], [0], "indices"),
        ([3, 3], [[0, 1], [3, 0]], "indices"),
        ([3, 3], [[0, 1, 1], [1, 0, 1]], "indices"),
        ([1 << 20, 1 << 20], [0, 1], "takes"),
        ([1 << 14, 1 << 13], [0, 1], "takes"),
        ([-3, 3], [0, 1], "takes"),
    ],
)
def test_others_are_refused_by_name(
    dims: list[int], indices: Any, what: str, tmp_path: Path
) -> None:
    w = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]),
        numpy_helper.from_array(np.array(indices, np.int64)),
        dims,
    )
    save(model(w, "initializer"), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=f"'w'.*{what}"):
        autotune.compile(tmp_path / "m.onnx")


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("attribute", ["value", "sparse_value"])
def test_a_sparse_output_is_refused_in_a_line(
    fallback: bool, attribute: str, tmp_path: Path
) -> None:
    node = helper.make_node("Constant", [], ["w"], **{attribute: sparse(np.eye(3, dtype="f"))})
    output = helper.make_sparse_tensor_value_info("w", TensorProto.FLOAT, [3, 3])
    graph = helper.make_graph([node], "g", [], [output])
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="'w' is a sparse tensor") as caught:
        autotune.compile(tmp_path / "m.onnx", fallback=fallback)
    assert caught.value.hint
