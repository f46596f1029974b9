"""What real models and several shapes are measured with: inputs, comparison, artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import real_inputs, real_models, shapes


def test_no_real_model_is_wrong_or_refused() -> None:
    rows = real_models.read()
    assert {row["outcome"] for row in rows} <= {"right", "unsteady"}
    assert {row["model"] for row in rows} <= {model.name for model in real_models.MODELS}


@pytest.mark.parametrize("model", real_models.MODELS, ids=lambda model: model.name)
def test_inputs_of_a_kind_are_numbers_and_differ(model: real_models.RealModel) -> None:
    for feed in model.feeds():
        assert all(np.isfinite(array).all() for array in feed.values())
        assert any(np.unique(array).size > 1 for array in feed.values())


def test_other_numbers_shapes_and_types_are_told_apart() -> None:
    want = {"y": np.array([1.0, -4.0], np.float32)}
    assert real_models.distance(want, want) == 0
    assert real_models.distance({"y": np.array([1.0, -3.0], np.float32)}, want) == 0.25
    for other in (np.ones(3, np.float32), np.array([1.0, -4.0])):
        assert real_models.distance({"y": other}, want) == float("inf")


def test_a_page_has_letters() -> None:
    (first, second) = real_inputs.page("x", 96)
    assert first["x"].shape == (1, 3, 96, 96)
    assert 0.02 < float((first["x"] < -0.5).mean()) < 0.5
    assert not np.array_equal(first["x"], second["x"])


def _small(tmp_path: Path) -> Path:
    value = helper.make_tensor_value_info
    weight = helper.make_tensor("w", TensorProto.FLOAT, (16, 16), np.ones(256, np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 16])],
        [value("y", TensorProto.FLOAT, ["n", 16])],
        [weight],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_every_shape_of_one_artifact_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("openvino")

    def feed(n: int) -> dict[str, Any]:
        return {"x": np.ones((n, 16), np.float32)}

    case = shapes.Case("small", lambda folder: _small(folder), "n", (1, 4), {}, feed)
    model, made = shapes._compiled(case, case.path(tmp_path), None, 1, tmp_path)
    assert int(made["one_bytes"]) <= int(made["bytes"])
    rows = list(shapes._measured(case, model, case.path(tmp_path), 1, 0.0))
    assert [row["shape"] for row in rows] == ["n=1", "n=4"]
    assert all(float(row["error"]) < 1e-5 and float(row["ratio"]) > 0 for row in rows)
