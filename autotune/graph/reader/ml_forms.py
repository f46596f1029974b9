"""① Operators of ai.onnx.ml on numbers -> others of opset 22: what scikit-learn is converted to.

    Scaler(x)                    ->  (x - offset)·scale
    Normalizer(x)                ->  x / (max x, Σ|x| or √Σx²), rows of sum 0 as they are
    LinearRegressor(x)           ->  post_transform(x·coefficientsᵀ + intercepts)
    LinearClassifier(x)          ->  classlabels[argmax s], post_transform(s); s as above
    SVMRegressor(x)              ->  kernel(x, support vectors)·coefficients + rho
    ArrayFeatureExtractor(x, i)  ->  Gather(x, i) of the last axis

All but a Scaler of float64 is computed in float32, as ONNX Runtime does. Strings,
trees and classes by support vectors have no composition here. Meanings: https://onnx.ai/onnx/operators/index.html#ai-onnx-ml
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array
from autotune.graph.reader.composer import Composer, Composition

_POST_TRANSFORMS = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}


def _floats(c: Composer, name: str, *shape: int) -> Array:
    """The attribute as float32 [*shape]; refused where it has another number of elements."""
    values = np.array(c.attr(name, ()), np.float32)
    if values.size != abs(int(np.prod(shape))) and -1 not in shape:
        raise c.refuse(f"'{name}' has {values.size} elements")
    return values.reshape(shape)


def _number(c: Composer, n: int = 0) -> str:
    """Input `n` as float32; refused where it is not of numbers."""
    kind = c.types.get(c.input(n))
    if kind is None or kind.dtype in ("object", "string"):
        raise c.refuse("the operand is not a tensor of numbers")
    return c.input(n) if kind.dtype == "float32" else c.cast(c.input(n), "float32")


def _n_features(c: Composer, n: int = 0) -> int:
    """Columns of the matrix that input `n` is."""
    if c.rank(n) != 2:
        raise c.refuse(f"an operand of {c.rank(n)} dimensions")
    return c.shape(n)[1]


# --- of features --------------------------------------------------------------------------------


def _scaler(c: Composer) -> None:
    """x[…, k] -> float32[…, k]; an offset and a scale for each feature, or one for all.

    Numbers of float64 are moved in float64, because most of their digits may cancel.
    """
    x, dtype = _number(c), "float32"
    if c.types[c.input(0)].dtype == "float64":
        x, dtype = c.input(0), "float64"
    moved = c("Sub", x, c.array(_per_feature(c, "offset").astype(dtype)))
    scaled = c("Mul", moved, c.array(_per_feature(c, "scale").astype(dtype)))
    c.result("Cast", scaled, to=DTYPES["float32"].onnx)


def _per_feature(c: Composer, name: str, dtype: str = "float32") -> Array:
    values = np.array(c.attr(name, ()), dtype)
    if values.size not in (1, c.shape(0)[-1]):
        raise c.refuse(f"'{name}' has {values.size} elements")
    return values


def _normalizer(c: Composer) -> None:
    """x[n, k] -> float32[n, k], of each row."""
    _n_features(c)
    x, axis = _number(c), c.integers(1)
    norm = c.attr("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise c.refuse(f"norm {norm}")
    reduction = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[norm]
    size = c(reduction, x, axis)
    is_zero = c("Equal", size, c.float(0.0))
    c.result("Div", x, c("Where", is_zero, c.float(1.0), size))


def _binarizer(c: Composer) -> None:
    """1 where x > threshold, else 0; elements of the type of x."""
    is_more = c("Greater", _number(c), c.float(float(c.attr("threshold", 0.0))))
    c.result("CastLike", is_more, c.input(0))


def _imputer(c: Composer) -> None:
    """Another value for each feature, or one for all, where x is the value that stands for none."""
    kind = c.types.get(c.input(0))
    if kind is None or kind.dtype not in ("float32", "int64"):
        raise c.refuse("the operand is neither of float32 nor of int64")
    x, given = c.input(0), "float" if kind.dtype == "float32" else "int64"
    absent = np.array(c.attr(f"replaced_value_{given}", 0), kind.dtype)
    is_absent = c("IsNaN", x) if np.isnan(absent) else c("Equal", x, c.array(absent))
    values = _per_feature(c, f"imputed_value_{given}s", kind.dtype)
    c.result("Where", is_absent, c.array(values), x)


def _extractor(c: Composer) -> None:
    """x[…, k], indices of n elements -> […, n]; of a vector [1, n]."""
    kind = c.types.get(c.input(0))
    if kind is None or kind.dtype in ("object", "string"):
        raise c.refuse("the operand is not a tensor of numbers")
    indices = c.reshaped(c.input(1), int(np.prod(c.shape(1))))
    x = c.input(0) if c.rank(0) > 1 else c("Unsqueeze", c.input(0), c.integers(0))
    c.result("Gather", x, indices, axis=-1)


def _one_hot(c: Composer) -> None:
    """x[…] -> float32[…, n]: 1 at the place of the category that x is, 0 everywhere for others."""
    categories = np.array(c.attr("cats_int64s", ()), np.int64)
    if not categories.size or not c.attr("zeros", 1):
        raise c.refuse("categories that are strings, or values without a category")
    _number(c)
    x = c("Unsqueeze", c.cast(c.input(0), "int64"), c.integers(-1))
    c.result("Cast", c("Equal", x, c.array(categories)), to=1)


def _vectorizer(c: Composer) -> None:
    """Matrices of one number of rows -> float32[n, Σk]."""
    n_columns = tuple(_n_features(c, k) for k in range(len(c.node.inputs)))
    if n_columns != tuple(c.attr("inputdimensions", ())):
        raise c.refuse("columns of another number than 'inputdimensions'")
    c.result("Concat", *(_number(c, k) for k in range(len(n_columns))), axis=1)


# --- linear models ------------------------------------------------------------------------------


def _scores(c: Composer, n_targets: int) -> str:
    """x[n, k] -> x·coefficientsᵀ + intercepts, [n, n_targets]."""
    n_features = _n_features(c)
    weights = _floats(c, "coefficients", n_targets, n_features)
    product = c("MatMul", _number(c), c.array(np.ascontiguousarray(weights.T)))
    if not c.attr("intercepts", ()):
        return product
    return c("Add", product, c.array(_floats(c, "intercepts", n_targets)))


def _post_transform(c: Composer) -> tuple[str, dict[str, Any]]:
    """The operator that turns scores into results."""
    name = c.attr("post_transform", "NONE")
    if name not in _POST_TRANSFORMS:
        raise c.refuse(f"post_transform {name}")
    return _POST_TRANSFORMS[name], {"axis": -1} if name == "SOFTMAX" else {}


def _regressor(c: Composer) -> None:
    """x[n, k] -> float32[n, targets]. A transformed single target is refused: ONNX Runtime leaves
    it as it is, against the standard."""
    op, attrs = _post_transform(c)
    n_targets = int(c.attr("targets", 1))
    if n_targets == 1 and op != "Identity":
        raise c.refuse("post_transform of one target")
    c.result(op, _scores(c, n_targets), **attrs)


def _classifier(c: Composer) -> None:
    """x[n, k] -> int64[n], float32[n, classes]. What one score says of two classes differs between
    runtimes, and is refused."""
    labels = np.array(c.attr("classlabels_ints", ()), np.int64)
    if c.attr("classlabels_strings", ()) or labels.size != len(c.attr("intercepts", ())):
        raise c.refuse("labels that are strings, or one score for two classes")
    if labels.size < 2:
        raise c.refuse(f"{labels.size} classes")
    op, attrs = _post_transform(c)
    scores = _scores(c, labels.size)
    if c.wants(0):
        best = c("ArgMax", scores, axis=1, keepdims=0)
        c.result("Gather", c.array(labels), best)
    if c.wants(1):
        c.bind(1, c(op, scores, **attrs))


# --- support vectors ----------------------------------------------------------------------------


def _support_vectors(c: Composer) -> None:
    """x[n, k] -> kernel(x, support vectors)·coefficients + rho, float32[n, 1]; without support
    vectors x·coefficients + rho."""
    n_vectors, n_features = int(c.attr("n_supports", 0)), _n_features(c)
    if c.attr("one_class", 0) or c.attr("post_transform", "NONE") != "NONE":
        raise c.refuse("one class, or a post_transform")
    x = _number(c)
    if n_vectors:
        x = _kernel(c, x, _floats(c, "support_vectors", n_vectors, n_features))
    elif c.attr("kernel_type", "LINEAR") != "LINEAR":
        raise c.refuse("a kernel without support vectors")
    weights = _floats(c, "coefficients", n_vectors or n_features, 1)
    c.result("Add", c("MatMul", x, c.array(weights)), c.array(_floats(c, "rho", 1)))


def _kernel(c: Composer, x: str, vectors: Array) -> str:
    """x[n, k] and vectors [s, k] -> [n, s]; the parameters are gamma, coef0 and degree."""
    kind = c.attr("kernel_type", "LINEAR")
    if kind == "LINEAR":
        return c("MatMul", x, c.array(np.ascontiguousarray(vectors.T)))
    gamma, coef0, degree = map(float, _floats(c, "kernel_params", 3))
    if kind == "RBF":  # exp(-gamma·|x - v|²), of differences: x² - 2xv + v² would cancel
        apart = c("Sub", c("Unsqueeze", x, c.integers(1)), c.array(vectors))
        squares = c("ReduceSumSquare", apart, c.integers(2), keepdims=0)
        return c("Exp", c("Mul", squares, c.float(-gamma)))
    product = c("MatMul", x, c.array(np.ascontiguousarray(vectors.T)))
    scaled = c("Add", c("Mul", product, c.float(gamma)), c.float(coef0))
    if kind == "SIGMOID":
        return c("Tanh", scaled)
    if kind == "POLY":
        return c("Pow", scaled, c.float(degree))
    raise c.refuse(f"kernel_type {kind}")


COMPOSITIONS: dict[str, Composition] = {
    "ai.onnx.ml.Scaler": _scaler,
    "ai.onnx.ml.Normalizer": _normalizer,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.Imputer": _imputer,
    "ai.onnx.ml.ArrayFeatureExtractor": _extractor,
    "ai.onnx.ml.OneHotEncoder": _one_hot,
    "ai.onnx.ml.FeatureVectorizer": _vectorizer,
    "ai.onnx.ml.LinearRegressor": _regressor,
    "ai.onnx.ml.LinearClassifier": _classifier,
    "ai.onnx.ml.SVMRegressor": _support_vectors,
}
