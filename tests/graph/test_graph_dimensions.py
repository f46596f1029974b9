"""Dimensions of inputs by name, and tensors without elements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.api.bindings import MOST_VARIANTS, variants
from autotune.errors import DynamicShape, UsageError
from autotune.graph.network import build_network
from autotune.graph.reader.dimensions import SIZE


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: tuple[str, ...] = ("y",),
    constants: dict[str, Any] | None = None,
) -> Path:
    """A float32 model; a name or None among the extents of an input is a dimension of no value."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    weights = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", values, results, weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    """ids and mask share `batch` and `sequence`; the cache is as long as both sequences."""
    nodes = [
        helper.make_node("Mul", ["ids", "mask"], ["a"]),
        helper.make_node("Concat", ["past", "a"], ["b"], axis=1),
        helper.make_node("Add", ["b", "bias"], ["y"]),
    ]
    inputs = {
        "ids": ("batch", "sequence"),
        "mask": ("batch", "sequence"),
        "past": ("batch", "past"),
        "bias": ("batch", "past + sequence"),
    }
    return saved(tmp_path / "attention.onnx", nodes, inputs)


def shapes(path: Path, **options: Any) -> list[dict[str, tuple[int, ...]]]:
    return [v.shapes for v in variants(path, **options)]


def test_a_name_binds_every_input_that_carries_it(attention: Path) -> None:
    (found,) = shapes(attention, dims={"batch": 2, "sequence": 5, "past": 3})
    assert found == {"ids": (2, 5), "mask": (2, 5), "past": (2, 3), "bias": (2, 8)}
    network = build_network(attention, found)
    assert network.outputs[0].shape == (2, 8)


def test_the_shape_of_one_input_says_the_names_of_the_others(attention: Path) -> None:
    network = build_network(attention, {"ids": (2, 5), "past": (2, 3)})
    assert [p.shape for p in network.inputs] == [(2, 5), (2, 5), (2, 3), (2, 8)]


def test_the_error_names_all_open_dimensions_and_where_they_are(attention: Path) -> None:
    with pytest.raises(DynamicShape) as caught:
        build_network(attention)
    assert "batch (ids.0, mask.0, past.0, bias.0)" in caught.value.message
    assert "sequence (ids.1, mask.1), past (past.1)" in caught.value.message
    assert "past + sequence" not in caught.value.message  # it follows from the others
    assert caught.value.settings == {"dims": dict.fromkeys(("batch", "sequence", "past"), SIZE)}


def test_a_dimension_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (None, 3)})
    assert shapes(path, dims={"x.0": [1, 4]}) == [{"x": (1, 3)}, {"x": (4, 3)}]
    with pytest.raises(DynamicShape, match=r"x\.0"):
        build_network(path)


def test_values_of_several_dimensions_are_combined_with_their_shares(attention: Path) -> None:
    dims = {"batch": [1, 2], "sequence": {16: 3.0, 128: 1.0}, "past": 4}
    found = variants(attention, dims=dims)
    assert [(v.shapes["ids"], v.share) for v in found] == [
        ((1, 16), 0.375),
        ((1, 128), 0.125),
        ((2, 16), 0.375),
        ((2, 128), 0.125),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"btach": 1}}, "no dimension 'btach'"),
        ({"dims": {"batch": -1}}, "cannot be -1"),
        ({"dims": {"batch": []}}, "no values"),
        ({"dims": {"batch": [1, 1]}}, "twice"),
        ({"dims": {"batch": {1: 0.0}}}, "not positive"),
        ({"dims": {"batch": range(MOST_VARIANTS + 1)}}, "65 combinations"),
        ({"dims": {"batch": 2}, "shapes": {"ids": (3, 4)}}, "'batch' is 2, and 3"),
    ],
)
def test_a_wrong_dimension_is_refused(attention: Path, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        variants(attention, **options)
    assert caught.value.hint


def test_open_dimensions_beside_given_ones_are_named_alone(attention: Path) -> None:
    with pytest.raises(DynamicShape, match=r"no value: past \(past.1\)\n") as caught:
        variants(attention, dims={"batch": 2, "sequence": 5})
    assert caught.value.settings == {"dims": {"past": SIZE}}
    assert variants(attention, shapes={"past": (2, 3)}, dims={"sequence": 5})


def test_a_fixed_dimension_is_no_open_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 3)})
    with pytest.raises(UsageError, match=r"'x\.1' is 3 in the model"):
        variants(path, dims={"x.1": 4})


# --- tensors without elements -----------------------------------------------------------------

W = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
EMPTY = {
    "product of no rows": ([("MatMul", "x w", "y", {})], {"x": ("n", 4)}, {"w": W}),
    "product of no terms": ([("MatMul", "x z", "y", {})], {"x": (3, "n"), "z": ("n", 5)}, {}),
    "bias of no terms": (
        [("Gemm", "x w c", "y", {"beta": 0.5})],
        {"x": (3, "n"), "c": (3, 5)},
        {"w": W[:0]},
    ),
    "sum over nothing": (
        [("ReduceSum", "x axes", "y", {"keepdims": 0})],
        {"x": ("n", 4)},
        {"axes": np.array([0])},
    ),
    "a cache that is empty": (
        [("Concat", "past x", "p", {"axis": 1}), ("MatMul", "q p", "y", {})],
        {"past": (4, "n"), "x": (4, 2), "q": (1, 4)},
        {},
    ),
    "an output that moves": ([("Transpose", "x", "y", {"perm": [1, 0]})], {"x": ("n", 4)}, {}),
    "a part that is cut off": (
        [("Slice", "x begin begin axis", "y", {})],
        {"x": ("n", 4), "z": (3,)},
        {"begin": np.array([1]), "axis": np.array([1])},
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements_compute_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    steps, inputs, constants = EMPTY[name]
    nodes = [helper.make_node(op, a.split(), b.split(), **attrs) for op, a, b, attrs in steps]
    path = saved(tmp_path / "m.onnx", nodes, inputs, constants=constants)
    artifact = autotune.compile(path, dims={"n": 0}, threads=1).artifact
    artifact.save(tmp_path / "m.atn")
    model = autotune.load(tmp_path / "m.atn")
    rng = np.random.default_rng(0)
    feeds = {e.name: rng.standard_normal(e.shape).astype(np.float32) for e in model.input_info}
    (want,) = runtime.InferenceSession(path).run(None, feeds)
    got = model.run(feeds)["y"]
    assert got.shape == want.shape
    assert np.allclose(got, want, atol=1e-6)
