"""Operators of ai.onnx.ml on numbers (pipelines of scikit-learn) against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from autotune.errors import UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import (
    error_against_onnxruntime,
    execute,
    model,
    onnxruntime_outputs,
    save,
)

ML = "ai.onnx.ml"
NAN = float("nan")
LARGE = 2.0**24
VECTORS: dict[str, Any] = {
    "coefficients": [0.5, -1.0],
    "support_vectors": [0.5, -1.0, 0.25, 2.0, -0.5, 1.0],
    "n_supports": 2,
    "rho": [0.5],
    "kernel_params": [0.1, 0.3, 3.0],
}
LINEAR: dict[str, Any] = {
    "coefficients": [0.5, -1.0, 0.25, 2.0, -0.5, 1.0],
    "intercepts": [0.1, -0.2],
}


def ml_model(
    op: str, attrs: dict[str, Any], shapes: dict[str, Any], outputs: str = "y", **types: str
) -> ModelProto:
    constants = {"i": np.array([[2, 0]])} if op == "ArrayFeatureExtractor" else {}
    node = helper.make_node(op, [*shapes, *constants], outputs.split(), domain=ML, **attrs)
    proto = model(node, shapes, constants, outputs, types=types)
    proto.opset_import.append(helper.make_opsetid(ML, 3))
    return proto


@pytest.mark.parametrize(
    ("op", "attrs", "shapes"),
    [
        ("Scaler", {"offset": [0.5], "scale": [2.0]}, {"x": (4, 3)}),
        ("Scaler", {"offset": [0.5, 1.0, -1.0], "scale": [2.0, 3.0, 0.1]}, {"x": (4, 3)}),
        ("Normalizer", {"norm": "MAX"}, {"x": (4, 3)}),
        ("Normalizer", {"norm": "L1"}, {"x": (4, 3)}),
        ("Normalizer", {"norm": "L2"}, {"x": (4, 3)}),
        ("Binarizer", {"threshold": 0.25}, {"x": (4, 3)}),
        ("ArrayFeatureExtractor", {}, {"x": (4, 3)}),
        ("ArrayFeatureExtractor", {}, {"x": (3,)}),
        ("FeatureVectorizer", {"inputdimensions": [3, 2]}, {"x": (4, 3), "z": (4, 2)}),
        ("LinearRegressor", {**LINEAR, "targets": 2}, {"x": (4, 3)}),
        ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0]}, {"x": (4, 3)}),
        (
            "LinearRegressor",
            {**LINEAR, "targets": 2, "post_transform": "LOGISTIC"},
            {"x": (4, 3)},
        ),
    ],
)
def test_results_are_those_of_onnxruntime(
    op: str, attrs: dict[str, Any], shapes: dict[str, Any], tmp_path: Path
) -> None:
    proto = ml_model(op, attrs, shapes)
    assert error_against_onnxruntime(save(proto, tmp_path), proto) < 1e-6


@pytest.mark.parametrize("sizes", [[3, 2], [2, 1, 3]])
@pytest.mark.parametrize("kernel", ["LINEAR", "RBF"])
def test_classes_by_votes_of_support_vectors(
    sizes: list[int], kernel: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    n, total = len(sizes), sum(sizes)
    attrs: dict[str, Any] = {
        "coefficients": [float(c) for c in rng.normal(size=(n - 1) * total)],
        "support_vectors": [float(v) for v in rng.normal(size=3 * total)],
        "rho": [float(r) for r in rng.normal(size=n * (n - 1) // 2)],
        "vectors_per_class": sizes,
        "kernel_params": [0.1, 0.3, 3.0],
        "classlabels_ints": [5, -2, 9][:n],
        "kernel_type": kernel,
    }
    proto = ml_model("SVMClassifier", attrs, {"x": (19, 3)}, "label y", label="int64")
    assert error_against_onnxruntime(save(proto, tmp_path), proto) < 1e-5


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_probabilities_of_classes_by_support_vectors(
    kernel: str, n: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    sizes = [int(size) for size in rng.integers(1, 4, n)]
    n_pairs = n * (n - 1) // 2
    attrs: dict[str, Any] = {
        "coefficients": rng.normal(size=(n - 1) * sum(sizes)).tolist(),
        "support_vectors": rng.normal(size=3 * sum(sizes)).tolist(),
        "rho": rng.normal(size=n_pairs).tolist(),
        "prob_a": (0.3 * rng.normal(size=n_pairs)).tolist(),
        "prob_b": (0.01 * rng.normal(size=n_pairs)).tolist(),
        "vectors_per_class": sizes,
        "kernel_params": [0.1, 0.3, 3.0],
        "classlabels_ints": [5, -2, 9, 3, 4][:n],
        "kernel_type": kernel,
    }
    proto = ml_model("SVMClassifier", attrs, {"x": (99, 3)}, "label y", label="int64")
    assert error_against_onnxruntime(save(proto, tmp_path), proto) < 1e-5


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_support_vectors_of_every_kernel(kernel: str, tmp_path: Path) -> None:
    proto = ml_model("SVMRegressor", {**VECTORS, "kernel_type": kernel}, {"x": (9, 3)})
    assert error_against_onnxruntime(save(proto, tmp_path), proto) < 1e-5


def test_support_vectors_left_out_are_a_linear_model(tmp_path: Path) -> None:
    attrs = {"coefficients": [1.0, 2.0, 3.0], "rho": [0.5], "kernel_params": [0.1, 0.3, 3.0]}
    proto = ml_model("SVMRegressor", attrs, {"x": (9, 3)})
    assert error_against_onnxruntime(save(proto, tmp_path), proto) < 1e-6


@pytest.mark.parametrize(
    ("op", "attrs", "dtype", "result"),
    [
        ("Scaler", {"offset": [LARGE], "scale": [0.5]}, "float64", "float32"),
        (
            "Imputer",
            {"replaced_value_int64": int(LARGE) + 1, "imputed_value_int64s": [9]},
            "int64",
            "int64",
        ),
    ],
)
def test_numbers_that_float32_does_not_hold(
    op: str, attrs: dict[str, Any], dtype: str, result: str, tmp_path: Path
) -> None:
    feeds = {"x": np.array([[LARGE + 1, LARGE + 3, LARGE]], dtype)}
    proto = ml_model(op, attrs, {"x": (1, 3)}, x=dtype, y=result)
    results = execute(build_network(save(proto, tmp_path)), feeds)
    np.testing.assert_array_equal(results["y"], onnxruntime_outputs(proto, feeds)["y"])


@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_a_classifier_has_labels_and_scores(post_transform: str, tmp_path: Path) -> None:
    attrs = {**LINEAR, "classlabels_ints": [7, -3], "post_transform": post_transform}
    proto = ml_model("LinearClassifier", attrs, {"x": (9, 3)}, "label y", label="int64")
    assert error_against_onnxruntime(save(proto, tmp_path), proto) < 1e-6


@pytest.mark.parametrize(
    ("op", "attrs", "x"),
    [
        ("Imputer", {"imputed_value_floats": [5.0], "replaced_value_float": NAN}, [[NAN, 2, 0]]),
        ("Imputer", {"imputed_value_floats": [5.0, 6.0, 7.0]}, [[0, 2, 0]]),
        ("OneHotEncoder", {"cats_int64s": [3, 1, 2]}, [[1, 2.5, 9]]),
        ("Normalizer", {"norm": "L2"}, [[0, 0, 0], [3, 0, 4]]),
        ("Normalizer", {"norm": "MAX"}, [[0, -1, -2], [-3, -1, -4]]),
    ],
)
def test_values_that_are_special(
    op: str, attrs: dict[str, Any], x: list[list[float]], tmp_path: Path
) -> None:
    feeds = {"x": np.array(x, np.float32)}
    proto = ml_model(op, attrs, {"x": feeds["x"].shape})
    results = execute(build_network(save(proto, tmp_path)), feeds)
    np.testing.assert_allclose(results["y"], onnxruntime_outputs(proto, feeds)["y"], rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("LinearRegressor", {"coefficients": [1.0, 2.0]}, "'coefficients' has 2 elements"),
        ("LinearRegressor", {**LINEAR, "post_transform": "PROBIT"}, "post_transform PROBIT"),
        (
            "LinearRegressor",
            {"coefficients": [1.0] * 3, "post_transform": "SOFTMAX"},
            "post_transform of one",
        ),
        ("SVMRegressor", {**VECTORS, "one_class": 1}, "one class"),
        ("SVMRegressor", {**VECTORS, "rho": [0.0, 1.0]}, "'rho' has 2 elements"),
        ("OneHotEncoder", {"cats_strings": ["a", "b"]}, "strings"),
        ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}, "'offset' has 2 elements"),
    ],
)
def test_what_has_no_form_here_is_refused_with_the_reason(
    op: str, attrs: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = save(ml_model(op, attrs, {"x": (4, 3)}), tmp_path)
    with pytest.raises(UnsupportedOperator, match=reason):
        build_network(path)
