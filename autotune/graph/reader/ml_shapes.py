"""① Shape inference of operators of ai.onnx.ml, which ONNX and ONNX Runtime lack.

    Scaler(x float[n, k])                      ->  float[n, k]
    TreeEnsembleRegressor(x float[n, k])       ->  float[n, n_targets]
    TreeEnsembleClassifier(x float[n, k])      ->  labels [n], scores float[n, n_classes]

Only those that are told by the shape of the first input; others have no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.graph.ir import Node, TensorType

Rule = Callable[[Node, TensorType], tuple[TensorType, ...]]


def ml_types(node: Node, operand: TensorType | None) -> tuple[TensorType, ...]:
    """Types of the results of `node`, whose first input is `operand`; none where unknown."""
    rule = _RULES.get(node.op)
    return () if rule is None or operand is None else rule(node, operand)


def _same(node: Node, x: TensorType) -> tuple[TensorType, ...]:
    return (TensorType(x.shape),)


def _features_of_tensor(node: Node, x: TensorType) -> tuple[TensorType, ...]:
    return (x,)


def _targets(count: str) -> Rule:
    def types(node: Node, x: TensorType) -> tuple[TensorType, ...]:
        n_targets = int(node.attrs.get(count, 1))
        return (TensorType((x.shape[0], n_targets)),) if len(x.shape) == 2 else ()

    return types


def _classes(node: Node, x: TensorType) -> tuple[TensorType, ...]:
    """Of one score for two classes runtimes make two, so scores of few classes are left out."""
    strings = node.attrs.get("classlabels_strings", ())
    labels = strings or node.attrs.get("classlabels_int64s", ())
    if len(x.shape) != 2 or len(labels) < 3:
        return ()
    dtype = "object" if strings else "int64"
    return TensorType((x.shape[0],), dtype), TensorType((x.shape[0], len(labels)))


_RULES: Mapping[str, Rule] = {
    "ai.onnx.ml.Scaler": _same,
    "ai.onnx.ml.Normalizer": _same,
    "ai.onnx.ml.Binarizer": _features_of_tensor,
    "ai.onnx.ml.Imputer": _features_of_tensor,
    "ai.onnx.ml.TreeEnsembleRegressor": _targets("n_targets"),
    "ai.onnx.ml.LinearRegressor": _targets("targets"),
    "ai.onnx.ml.TreeEnsembleClassifier": _classes,
}
