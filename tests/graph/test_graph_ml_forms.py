"""Operators of ai.onnx.ml on numbers compute what ONNX Runtime computes, over their attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from autotune.errors import AutotuneError
from autotune.graph.network import build_network
from tests.graph.onnx_models import execute, save

Array = NDArray[Any]
RNG = np.random.default_rng(3)
N, K = 7, 5


def floats(*shape: int) -> list[float]:
    return [float(v) for v in RNG.standard_normal(shape).ravel()]


def ml_model(op: str, inputs: dict[str, Array], n_outputs: int = 1, **attrs: Any) -> ModelProto:
    """One operator; its outputs have the types that ONNX Runtime infers."""
    names = ["label", "y"][-n_outputs:]
    dtype = helper.np_dtype_to_tensor_dtype(next(iter(inputs.values())).dtype)
    own = dtype if op in ("Binarizer", "Imputer", "ArrayFeatureExtractor") else TensorProto.FLOAT
    kinds = {"label": TensorProto.INT64, "y": own}
    node = helper.make_node(op, list(inputs), names, domain="ai.onnx.ml", **attrs)
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    outputs = [helper.make_tensor_value_info(n, kinds[n], None) for n in names]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "ml", ports, outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def assert_as_onnxruntime(proto: ModelProto, inputs: dict[str, Array], folder: Path) -> None:
    path = save(proto, folder)
    names = [o.name for o in proto.graph.output]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = execute(build_network(path), inputs)
    for name, want in zip(names, session.run(names, inputs), strict=True):
        assert found[name].shape == want.shape
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=3e-5, atol=3e-6)


def x_of(dtype: str = "float32") -> Array:
    x = (RNG.standard_normal((N, K)) * 3).astype(dtype)
    x[2] = 0
    return x


MATRIX_CASES: list[tuple[str, dict[str, Any]]] = [
    ("Scaler", {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", {"offset": floats(K), "scale": floats(K)}),
    *[("Normalizer", {"norm": norm}) for norm in ("L1", "L2", "MAX")],
    ("Binarizer", {"threshold": 0.25}),
    ("OneHotEncoder", {"cats_int64s": [2, 0, -1], "zeros": 1}),
    ("FeatureVectorizer", {"inputdimensions": [K]}),
    *[
        ("LinearRegressor", {"coefficients": floats(t, K), "targets": t, "intercepts": floats(t)})
        for t in (1, 3)
    ],
    ("LinearRegressor", {"coefficients": floats(K)}),
    ("SVMRegressor", {"coefficients": floats(K), "rho": [0.5], "kernel_params": [0.1, 0.0, 3.0]}),
    *[
        (
            "SVMRegressor",
            {
                "coefficients": floats(4),
                "support_vectors": floats(4, K),
                "n_supports": 4,
                "rho": [0.5],
                "kernel_type": kernel,
                "kernel_params": [0.1, 0.3, 3.0],
            },
        )
        for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID")
    ],
]


@pytest.mark.parametrize(("op", "attrs"), MATRIX_CASES)
def test_results_of_matrices(op: str, attrs: dict[str, Any], tmp_path: Path) -> None:
    inputs = {"x": x_of()}
    assert_as_onnxruntime(ml_model(op, inputs, **attrs), inputs, tmp_path)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_differences_of_large_numbers(dtype: str, tmp_path: Path) -> None:
    inputs = {"x": (x_of("float64") + 2.0**23).astype(dtype)}
    proto = ml_model("Scaler", inputs, offset=[2.0**23], scale=[0.5])
    assert_as_onnxruntime(proto, inputs, tmp_path)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("n", [2, 3])
def test_classes(transform: str, n: int, tmp_path: Path) -> None:
    inputs, labels = {"x": x_of()}, [4, 9, -1][:n]
    attrs = {"coefficients": floats(n, K), "intercepts": floats(n), "classlabels_ints": labels}
    proto = ml_model("LinearClassifier", inputs, 2, post_transform=transform, **attrs)
    assert_as_onnxruntime(proto, inputs, tmp_path)


@pytest.mark.parametrize("missing", [np.nan, 4.0])
def test_missing_values(missing: float, tmp_path: Path) -> None:
    x = x_of()
    x[1, 3] = x[4, 0] = missing
    attrs = {"replaced_value_float": missing, "imputed_value_floats": floats(K)}
    assert_as_onnxruntime(ml_model("Imputer", {"x": x}, **attrs), {"x": x}, tmp_path)


def test_missing_whole_numbers(tmp_path: Path) -> None:
    x = x_of("int64")
    attrs = {"replaced_value_int64": 1, "imputed_value_int64s": [9]}
    assert_as_onnxruntime(ml_model("Imputer", {"x": x}, **attrs), {"x": x}, tmp_path)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_columns_at_run_time(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    inputs = {"x": x, "i": np.array([5, 0, 3])}
    assert_as_onnxruntime(ml_model("ArrayFeatureExtractor", inputs), inputs, tmp_path)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LinearRegressor", {"coefficients": [1.0, 2.0]}),
        ("LinearRegressor", {"coefficients": floats(K), "post_transform": "PROBIT"}),
        ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}),
        ("OneHotEncoder", {"cats_int64s": [1], "zeros": 0}),
        ("SVMRegressor", {"coefficients": floats(K), "rho": [0.0], "one_class": 1}),
        ("FeatureVectorizer", {"inputdimensions": [K + 1]}),
        ("Normalizer", {"norm": "L3"}),
    ],
)
def test_forms_that_do_not_fit_are_refused(op: str, attrs: dict[str, Any], tmp_path: Path) -> None:
    proto = ml_model(op, {"x": x_of()}, **attrs)
    with pytest.raises(AutotuneError, match=f"ai.onnx.ml.{op}.* is not supported"):
        build_network(save(proto, tmp_path))
