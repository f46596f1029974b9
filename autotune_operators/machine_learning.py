"""Operators of ai.onnx.ml on numbers -> others of opset 22, for models of scikit-learn.

    Scaler(x)                    ->  (x - offset)·scale
    Normalizer(x)                ->  x / (max x, Σ|x| or √Σx²), rows of sum 0 as they are
    LinearRegressor(x)           ->  post_transform(x·coefficientsᵀ + intercepts)
    LinearClassifier(x)          ->  classlabels[argmax s], post_transform(s); s as above
    SVMRegressor(x)              ->  kernel(x, support vectors)·coefficients + rho
    SVMClassifier(x)             ->  classlabels[argmax of votes], scores of all pairs of classes
    ArrayFeatureExtractor(x, i)  ->  Gather(x, i) of the last axis

    LabelEncoder(x)              ->  values[place of the key that x is], or the default

All but a Scaler of float64 is computed in float32, as ONNX Runtime does. Strings are numbers before
(`graph.reader.numbered_texts`). Meanings: https://onnx.ai/onnx/operators/index.html#ai-onnx-ml
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array
from autotune.graph.rewriter import Rewrite, Rewriter
from autotune_operators.coupling import MOST_CLASSES, coupled
from autotune_operators.labels import classes_of

_POST_TRANSFORMS = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}


def _floats(rw: Rewriter, name: str, *shape: int) -> Array:
    """The attribute as float32 [*shape]; refused where it has another number of elements."""
    values = np.array(rw.attr(name, ()), np.float32)
    if values.size != abs(int(np.prod(shape))) and -1 not in shape:
        raise rw.refuse(f"'{name}' has {values.size} elements")
    return values.reshape(shape)


def _number(rw: Rewriter, n: int = 0) -> str:
    """Input `n` as float32; refused where it is not of numbers."""
    kind = rw.types.get(rw.input(n))
    if kind is None or kind.dtype in ("object", "string"):
        raise rw.refuse("the operand is not a tensor of numbers")
    return rw.input(n) if kind.dtype == "float32" else rw.cast(rw.input(n), "float32")


def _n_features(rw: Rewriter, n: int = 0) -> int:
    """Columns of the matrix that input `n` is."""
    if rw.rank(n) != 2:
        raise rw.refuse(f"an operand of {rw.rank(n)} dimensions")
    return rw.shape(n)[1]


# --- of features --------------------------------------------------------------------------------


def _scaler(rw: Rewriter) -> None:
    """x[…, k] -> float32[…, k]; an offset and a scale for each feature, or one for all.

    Numbers of float64 are moved in float64, because most of their digits may cancel.
    """
    x, dtype = _number(rw), "float32"
    if rw.types[rw.input(0)].dtype == "float64":
        x, dtype = rw.input(0), "float64"
    moved = rw("Sub", x, rw.array(_per_feature(rw, "offset").astype(dtype)))
    scaled = rw("Mul", moved, rw.array(_per_feature(rw, "scale").astype(dtype)))
    rw.result("Cast", scaled, to=DTYPES["float32"].onnx)


def _per_feature(rw: Rewriter, name: str, dtype: str = "float32") -> Array:
    values = np.array(rw.attr(name, ()), dtype)
    if values.size not in (1, rw.shape(0)[-1]):
        raise rw.refuse(f"'{name}' has {values.size} elements")
    return values


def _normalizer(rw: Rewriter) -> None:
    """x[n, k] -> float32[n, k], of each row."""
    _n_features(rw)
    x, axis = _number(rw), rw.integers(1)
    norm = rw.attr("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise rw.refuse(f"norm {norm}")
    reduction = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[norm]
    size = rw(reduction, x, axis)
    is_zero = rw("Equal", size, rw.scalar(0.0))
    rw.result("Div", x, rw("Where", is_zero, rw.scalar(1.0), size))


def _binarizer(rw: Rewriter) -> None:
    """1 where x > threshold, else 0; elements of the type of x."""
    is_more = rw("Greater", _number(rw), rw.scalar(float(rw.attr("threshold", 0.0))))
    rw.result("CastLike", is_more, rw.input(0))


def _imputer(rw: Rewriter) -> None:
    """Another value for each feature, or one for all, where x is the value that stands for none."""
    kind = rw.types.get(rw.input(0))
    if kind is None or kind.dtype not in ("float32", "int64"):
        raise rw.refuse("the operand is neither of float32 nor of int64")
    x, given = rw.input(0), "float" if kind.dtype == "float32" else "int64"
    absent = np.array(rw.attr(f"replaced_value_{given}", 0), kind.dtype)
    is_absent = rw("IsNaN", x) if np.isnan(absent) else rw("Equal", x, rw.array(absent))
    values = _per_feature(rw, f"imputed_value_{given}s", kind.dtype)
    rw.result("Where", is_absent, rw.array(values), x)


def _extractor(rw: Rewriter) -> None:
    """x[…, k], indices of n elements -> […, n]; of a vector [1, n]."""
    kind = rw.types.get(rw.input(0))
    if kind is None or kind.dtype in ("object", "string"):
        raise rw.refuse("the operand is not a tensor of numbers")
    indices = rw.reshaped(rw.input(1), int(np.prod(rw.shape(1))))
    x = rw.input(0) if rw.rank(0) > 1 else rw("Unsqueeze", rw.input(0), rw.integers(0))
    rw.result("Gather", x, indices, axis=-1)


def _one_hot(rw: Rewriter) -> None:
    """x[…] -> float32[…, n]: 1 at the place of the category that x is, 0 everywhere for others."""
    categories = np.array(rw.attr("cats_int64s", ()), np.int64)
    if not categories.size or not rw.attr("zeros", 1):
        raise rw.refuse("categories that are strings, or values without a category")
    _number(rw)
    x = rw("Unsqueeze", rw.cast(rw.input(0), "int64"), rw.integers(-1))
    rw.result("Cast", rw("Equal", x, rw.array(categories)), to=1)


def _listed(rw: Rewriter, name: str) -> Array | None:
    """What a LabelEncoder lists as keys or values, in the type of their attribute."""
    tensor = rw.attr(f"{name}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    kinds = {"int64s": np.int64, "floats": np.float32}
    return next((np.array(v, k) for n, k in kinds.items() if (v := rw.attr(f"{name}_{n}"))), None)


def _label_encoder(rw: Rewriter) -> None:
    """Of each element the value of the first key that it is; NaN is NaN where keys are a tensor.

    A list of floats with NaN means that since opset 4, and nothing before: it is refused.
    """
    keys, values = _listed(rw, "keys"), _listed(rw, "values")
    kind = rw.types.get(rw.input(0))
    if kind is None or keys is None or values is None or keys.size != values.size:
        raise rw.refuse("an encoding without keys, or with as many values")
    if kind.dtype != keys.dtype.name or values.dtype.kind not in "fi":
        raise rw.refuse(f"keys of {keys.dtype.name} for {kind.dtype}")
    if rw.attr("keys_floats") and np.isnan(keys).any():
        raise rw.refuse("a key that is NaN, which opsets differ about")
    default = rw.attr("default_tensor")
    if default is None:
        name, absent = ("float", -0.0) if values.dtype.kind == "f" else ("int64", -1)
        default = rw.attr(f"default_{name}", absent)
    table = np.append(values, np.asarray(default).astype(values.dtype).reshape(-1)[:1])
    place = _place_in_range if _is_range(keys) else _place_of_equal
    at, of_place = place(rw, keys)
    rw.result("Gather", rw.array(table[of_place]), at)


def _is_range(keys: Array) -> bool:
    """Whether most of the integers from the smallest to the largest key are keys."""
    return keys.dtype.kind == "i" and int(keys.max()) - int(keys.min()) < 4 * keys.size


def _place_in_range(rw: Rewriter, keys: Array) -> tuple[str, Array]:
    """Places in a table of all integers from the smallest to the largest key, and one for others;
    and which key each of its places is."""
    low, high = int(keys.min()), int(keys.max())
    n = high - low + 1
    found = np.full(n + 1, keys.size)
    for k in range(keys.size - 1, -1, -1):
        found[int(keys[k]) - low] = k
    x, dtype = rw.input(0), keys.dtype.name
    bounds = rw.scalar(low, dtype), rw.scalar(high, dtype)
    is_inside = rw("And", rw("GreaterOrEqual", x, bounds[0]), rw("LessOrEqual", x, bounds[1]))
    at = rw("Where", is_inside, rw("Sub", x, bounds[0]), rw.scalar(n, dtype))
    return rw.cast(at, "int64"), found


def _place_of_equal(rw: Rewriter, keys: Array) -> tuple[str, Array]:
    """Place of the first key that is equal, one behind the last where none is; and itself."""
    x = rw("Unsqueeze", rw.input(0), rw.integers(-1))
    is_key = rw("Equal", x, rw.array(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        is_key = rw("Or", is_key, rw("And", rw("IsNaN", x), rw.array(np.isnan(keys))))
    places = np.arange(keys.size, dtype=np.int64)
    each = rw("Where", is_key, rw.array(places), rw.scalar(keys.size, "int64"))
    return rw("ReduceMin", each, rw.integers(-1), keepdims=0), np.arange(keys.size + 1)


def _vectorizer(rw: Rewriter) -> None:
    """Matrices of one number of rows -> float32[n, Σk]."""
    n_columns = tuple(_n_features(rw, k) for k in range(len(rw.node.inputs)))
    if n_columns != tuple(rw.attr("inputdimensions", ())):
        raise rw.refuse("columns of another number than 'inputdimensions'")
    rw.result("Concat", *(_number(rw, k) for k in range(len(n_columns))), axis=1)


# --- linear models ------------------------------------------------------------------------------


def _scores(rw: Rewriter, n_targets: int) -> str:
    """x[n, k] -> x·coefficientsᵀ + intercepts, [n, n_targets]."""
    n_features = _n_features(rw)
    weights = _floats(rw, "coefficients", n_targets, n_features)
    product = rw("MatMul", _number(rw), rw.array(np.ascontiguousarray(weights.T)))
    if not rw.attr("intercepts", ()):
        return product
    return rw("Add", product, rw.array(_floats(rw, "intercepts", n_targets)))


def _post_transform(rw: Rewriter) -> tuple[str, dict[str, Any]]:
    """The operator that turns scores into results."""
    name = rw.attr("post_transform", "NONE")
    if name not in _POST_TRANSFORMS:
        raise rw.refuse(f"post_transform {name}")
    return _POST_TRANSFORMS[name], {"axis": -1} if name == "SOFTMAX" else {}


def _regressor(rw: Rewriter) -> None:
    """x[n, k] -> float32[n, targets]. A transformed single target is refused: ONNX Runtime leaves
    it as it is, against the standard."""
    op, attrs = _post_transform(rw)
    n_targets = int(rw.attr("targets", 1))
    if n_targets == 1 and op != "Identity":
        raise rw.refuse("post_transform of one target")
    rw.result(op, _scores(rw, n_targets), **attrs)


def _classifier(rw: Rewriter) -> None:
    """x[n, k] -> int64[n], float32[n, classes]. What one score says of two classes differs between
    runtimes, and is refused."""
    labels = np.array(rw.attr("classlabels_ints", ()), np.int64)
    if rw.attr("classlabels_strings", ()) or labels.size != len(rw.attr("intercepts", ())):
        raise rw.refuse("labels that are strings, or one score for two classes")
    if labels.size < 2:
        raise rw.refuse(f"{labels.size} classes")
    op, attrs = _post_transform(rw)
    scores = _scores(rw, labels.size)
    if rw.wants(0):
        best = rw("ArgMax", scores, axis=1, keepdims=0)
        rw.result("Gather", rw.array(labels), best)
    if rw.wants(1):
        rw.bind(1, rw(op, scores, **attrs))


# --- support vectors ----------------------------------------------------------------------------


def _support_vectors(rw: Rewriter) -> None:
    """x[n, k] -> kernel(x, support vectors)·coefficients + rho, float32[n, 1]; without support
    vectors x·coefficients + rho."""
    n_vectors, n_features = int(rw.attr("n_supports", 0)), _n_features(rw)
    if rw.attr("one_class", 0) or rw.attr("post_transform", "NONE") != "NONE":
        raise rw.refuse("one class, or a post_transform")
    x = _number(rw)
    if n_vectors:
        x = _kernel(rw, x, _floats(rw, "support_vectors", n_vectors, n_features))
    elif rw.attr("kernel_type", "LINEAR") != "LINEAR":
        raise rw.refuse("a kernel without support vectors")
    weights = _floats(rw, "coefficients", n_vectors or n_features, 1)
    rw.result("Add", rw("MatMul", x, rw.array(weights)), rw.array(_floats(rw, "rho", 1)))


def _voting(rw: Rewriter) -> None:
    """x[n, k] -> int64[n], float32[n, pairs of classes i < j]; of two classes float32[n, 2].

    A score above 0 is a vote for i, else for j; the first class of most votes is the label.
    """
    labels = classes_of(rw, "classlabels_ints")
    sizes = [int(n) for n in rw.attr("vectors_per_class", ())]
    n, n_features = labels.size, _n_features(rw)
    has_chances = bool(rw.attr("prob_a", ()))
    if rw.attr("post_transform", "NONE") != "NONE":
        raise rw.refuse("a post_transform")
    if has_chances and n > MOST_CLASSES:
        raise rw.refuse(f"probabilities of {n} classes")
    if n < 2 or len(sizes) != n or not sum(sizes):
        raise rw.refuse(f"{n} classes with support vectors of {len(sizes)}")
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    kernel = _kernel(rw, _number(rw), _floats(rw, "support_vectors", sum(sizes), n_features))
    given = _floats(rw, "coefficients", n - 1, sum(sizes))
    ends = np.cumsum(sizes)
    weights = np.zeros((sum(sizes), len(pairs)), np.float32)
    for p, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):
            rows = slice(ends[own] - sizes[own], ends[own])
            weights[rows, p] = given[other, rows]
    product = rw("MatMul", kernel, rw.array(weights))
    scores = rw("Add", product, rw.array(_floats(rw, "rho", len(pairs))))
    if rw.wants(0):
        wins = rw.cast(rw("Greater", scores, rw.scalar(0.0)), "float32")
        first, second = (np.eye(n, dtype=np.float32)[[pair[k] for pair in pairs]] for k in (0, 1))
        votes = rw("MatMul", wins, rw.array(first - second))
        votes = rw("Add", votes, rw.array(second.sum(0)))
        labels.emit(rw, rw("ArgMax", votes, axis=1, keepdims=0))
    if rw.wants(1) and has_chances:
        a, b = (rw.array(_floats(rw, name, len(pairs))) for name in ("prob_a", "prob_b"))
        rw.bind(1, coupled(rw, scores, a, b, n))
    elif rw.wants(1):
        rw.bind(1, rw("Concat", rw("Neg", scores), scores, axis=1) if n == 2 else scores)


def _kernel(rw: Rewriter, x: str, vectors: Array) -> str:
    """x[n, k] and vectors [s, k] -> [n, s]; the parameters are gamma, coef0 and degree."""
    kind = rw.attr("kernel_type", "LINEAR")
    if kind == "LINEAR":
        return rw("MatMul", x, rw.array(np.ascontiguousarray(vectors.T)))
    gamma, coef0, degree = map(float, _floats(rw, "kernel_params", 3))
    if kind == "RBF":  # exp(-gamma·|x - v|²), of differences: x² - 2xv + v² would cancel
        apart = rw("Sub", rw("Unsqueeze", x, rw.integers(1)), rw.array(vectors))
        squares = rw("ReduceSumSquare", apart, rw.integers(2), keepdims=0)
        return rw("Exp", rw("Mul", squares, rw.scalar(-gamma)))
    product = rw("MatMul", x, rw.array(np.ascontiguousarray(vectors.T)))
    scaled = rw("Add", rw("Mul", product, rw.scalar(gamma)), rw.scalar(coef0))
    if kind == "SIGMOID":
        return rw("Tanh", scaled)
    if kind == "POLY":
        return rw("Pow", scaled, rw.scalar(degree))
    raise rw.refuse(f"kernel_type {kind}")


COMPOSITIONS: dict[str, Rewrite] = {
    "ai.onnx.ml.Scaler": _scaler,
    "ai.onnx.ml.Normalizer": _normalizer,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.Imputer": _imputer,
    "ai.onnx.ml.ArrayFeatureExtractor": _extractor,
    "ai.onnx.ml.OneHotEncoder": _one_hot,
    "ai.onnx.ml.LabelEncoder": _label_encoder,
    "ai.onnx.ml.FeatureVectorizer": _vectorizer,
    "ai.onnx.ml.LinearRegressor": _regressor,
    "ai.onnx.ml.LinearClassifier": _classifier,
    "ai.onnx.ml.SVMRegressor": _support_vectors,
    "ai.onnx.ml.SVMClassifier": _voting,
}
