"""① Operators of ai.onnx.ml on numbers -> products, comparisons and gathers.

    Scaler(x)           ->  (x - offset) · scale
    Normalizer(x)       ->  x / Σ|x|, x / sqrt(Σx²) or x / max(x), by rows
    LinearRegressor(x)  ->  x · coefficientsᵀ + intercepts
    SVMRegressor(x)     ->  kernel(x, support vectors) · coefficients + rho
    OneHotEncoder(x)    ->  x = every category

Strings, and lists of maps, have no composition. Meanings: ONNX operator reference, ai.onnx.ml.
"""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.reader.composer import Composer, Composition

_TINY = 1e-30
"""Rows of zeros are divided by this."""


def _dtype(c: Composer) -> str:
    c.shape(0)
    return c.types[c.input(0)].dtype


def _columns(c: Composer) -> int:
    """Columns of the first input, which has to be a matrix."""
    shape = c.shape(0)
    if len(shape) != 2:
        raise c.refuse(f"its input of shape {shape} is no matrix")
    return shape[1]


def _floats(c: Composer, name: str) -> Array:
    return np.array(c.attr(name, ()), np.float32)


def _float_rows(c: Composer) -> str:
    """The first input in float32."""
    return c.input(0) if _dtype(c) == "float32" else c.cast(c.input(0), "float32")


def _matrix(c: Composer, name: str, rows: int, columns: int) -> Array:
    """An attribute of `rows` · `columns` floats as a matrix."""
    values = _floats(c, name)
    if rows < 1 or values.size != rows * columns:
        raise c.refuse(f"{values.size} {name} for {rows} rows of {columns}")
    return values.reshape(rows, columns)


def _per_column(c: Composer, name: str, values: Array) -> str:
    """One value for all columns, or one for each."""
    if values.size not in (1, _columns(c)):
        raise c.refuse(f"{values.size} {name} for {_columns(c)} columns")
    return c.array(values)


def _scaler(c: Composer) -> None:
    """(x - offset) · scale, of all columns or of each; in float64 where x may need it."""
    dtype = "float32" if _dtype(c) == "float32" else "float64"
    values = (_floats(c, name).astype(dtype) for name in ("offset", "scale"))
    offset, scale = (_per_column(c, "offsets or scales", v) for v in values)
    scaled = c("Mul", c("Sub", c.cast(c.input(0), dtype), offset), scale)
    c.result("Identity", c.cast(scaled, "float32"))


def _normalizer(c: Composer) -> None:
    """Rows divided by a norm; a row of zeros stays."""
    _columns(c)
    x, axis, norm = _float_rows(c), c.integers(1), c.attr("norm", "MAX")
    if norm == "MAX":
        size = c("ReduceMax", x, axis)
        is_zero = c("Equal", size, c.float(0.0))
        c.result("Div", x, c("Where", is_zero, c.float(1.0), size))
    elif norm in ("L1", "L2"):
        c.result("Div", x, c("Max", c(f"Reduce{norm}", x, axis), c.float(_TINY)))
    else:
        raise c.refuse(f"norm {norm}")


def _binarizer(c: Composer) -> None:
    """1 where x is greater than the threshold, otherwise 0."""
    dtype = _dtype(c)
    threshold = c.cast(c.float(c.attr("threshold", 0.0)), "float64")
    greater = c("Greater", c.cast(c.input(0), "float64"), threshold)
    c.result("Identity", c.cast(greater, dtype))


def _imputer(c: Composer) -> None:
    """Values that are missing, or NaN, replaced by those of the columns."""
    dtype = _dtype(c)
    kind = "float" if dtype.startswith("float") else "int64"
    imputed = np.array(c.attr(f"imputed_value_{kind}s", ()), dtype)
    missing = np.array(c.attr(f"replaced_value_{kind}", 0), dtype)
    filling = _per_column(c, f"imputed_value_{kind}s", imputed)
    x = c.input(0)
    found = c("IsNaN", x) if np.isnan(missing) else c("Equal", x, c.array(missing))
    c.result("Where", found, filling, x)


def _linear_regressor(c: Composer) -> None:
    """[n, k] -> [n, targets]."""
    c.result("Identity", _after(c, _linear_scores(c, c.attr("targets", 1))))


def _linear_scores(c: Composer, n_rows: int) -> str:
    weights = _matrix(c, "coefficients", n_rows, _columns(c))
    scores = c("MatMul", _float_rows(c), c.array(np.ascontiguousarray(weights.T)))
    intercepts = _floats(c, "intercepts")
    if intercepts.size not in (0, n_rows):
        raise c.refuse(f"{intercepts.size} intercepts for {n_rows} results")
    return c("Add", scores, c.array(intercepts)) if intercepts.size else scores


def _after(c: Composer, scores: str) -> str:
    """Scores after attribute `post_transform`."""
    match c.attr("post_transform", "NONE"):
        case "NONE":
            return scores
        case "LOGISTIC":
            return c("Sigmoid", scores)
        case "SOFTMAX":
            return c("Softmax", scores, axis=1)
        case other:
            raise c.refuse(f"post_transform {other}")


def _linear_classifier(c: Composer) -> None:
    """[n, k] -> labels [n] of the greatest scores, scores [n, classes]."""
    labels = np.array(c.attr("classlabels_ints", ()), np.int64)
    if labels.size < 2:
        raise c.refuse("its labels are strings, or fewer than two")
    scores = _linear_scores(c, labels.size)
    best = c("ArgMax", scores, axis=1, keepdims=0)
    c.bind(0, c("Gather", c.array(labels), best, axis=0))
    c.bind(1, _after(c, scores))


def _svm_regressor(c: Composer) -> None:
    """[n, k] -> [n, 1]: as a sum over support vectors, or linear where there are none."""
    n_supports, k = c.attr("n_supports", 0), _columns(c)
    rho = _floats(c, "rho")
    if rho.size != 1 or c.attr("post_transform", "NONE") != "NONE" or c.attr("one_class", 0):
        raise c.refuse("it is of one class, has a post_transform or several rho")
    x = _float_rows(c)
    if n_supports:
        vectors = _matrix(c, "support_vectors", n_supports, k)
        x, k = _kernel(c, x, vectors), n_supports
    elif c.attr("kernel_type", "LINEAR") != "LINEAR":
        raise c.refuse("its kernel has no support vectors")
    weights = c.array(_matrix(c, "coefficients", 1, k).reshape(k, 1))
    c.result("Add", c("MatMul", x, weights), c.array(rho))


def _kernel(c: Composer, x: str, vectors: Array) -> str:
    """[n, k] and support vectors [s, k] -> [n, s]; parameters: gamma, coef0, degree."""
    kind, given = c.attr("kernel_type", "LINEAR"), _floats(c, "kernel_params")
    if kind != "LINEAR" and given.size != 3:
        raise c.refuse(f"{given.size} kernel_params instead of 3")
    gamma, coef0, degree = map(float, given if given.size == 3 else (0.0, 0.0, 0.0))
    if kind == "RBF":  # of differences: squares that are taken apart cancel
        apart = c("Sub", c("Unsqueeze", x, c.integers(1)), c.array(vectors))
        squares = c("ReduceSumSquare", apart, c.integers(2), keepdims=0)
        return c("Exp", c("Mul", squares, c.float(-gamma)))
    product = c("MatMul", x, c.array(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    scaled = c("Add", c("Mul", product, c.float(gamma)), c.float(coef0))
    if kind == "SIGMOID":
        return c("Tanh", scaled)
    if kind == "POLY":
        return c("Pow", scaled, c.float(degree))
    raise c.refuse(f"kernel_type {kind}")


def _extractor(c: Composer) -> None:
    """Columns of the last dimension; of a vector they are a row."""
    shape = c.shape(0)
    x = c.input(0) if len(shape) > 1 else c.reshaped(c.input(0), 1, *shape)
    c.result("Gather", x, c.reshaped(c.input(1), -1), axis=-1)


def _one_hot(c: Composer) -> None:
    """A last dimension of categories; what is none of them is zero throughout."""
    categories = np.array(c.attr("cats_int64s", ()), np.int64)
    if not categories.size or not c.attr("zeros", 1):
        raise c.refuse("its categories are strings, or others have to fail")
    whole = c.cast(c.input(0), "int64")
    column = c("Unsqueeze", whole, c.integers(len(c.shape(0))))
    c.result("Identity", c.cast(c("Equal", column, c.array(categories)), "float32"))


def _vectorizer(c: Composer) -> None:
    """Matrices beside each other in float32."""
    given = tuple(c.attr("inputdimensions", ()))
    shapes = [c.shape(n) for n in range(len(c.node.inputs))]
    if any(len(s) != 2 for s in shapes) or given != tuple(s[1] for s in shapes if len(s) == 2):
        raise c.refuse(f"inputs of shapes {shapes} for inputdimensions {given}")
    c.result("Concat", *(c.cast(n, "float32") for n in c.node.inputs), axis=1)


COMPOSITIONS: dict[str, Composition] = {
    "ai.onnx.ml.ArrayFeatureExtractor": _extractor,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.FeatureVectorizer": _vectorizer,
    "ai.onnx.ml.Imputer": _imputer,
    "ai.onnx.ml.LinearClassifier": _linear_classifier,
    "ai.onnx.ml.LinearRegressor": _linear_regressor,
    "ai.onnx.ml.Normalizer": _normalizer,
    "ai.onnx.ml.OneHotEncoder": _one_hot,
    "ai.onnx.ml.Scaler": _scaler,
    "ai.onnx.ml.SVMRegressor": _svm_regressor,
}
