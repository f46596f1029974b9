"""① Operators whose results are known when the model is read, and random ones, which never are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.graph.ir import Array, Editor, Node
from autotune.graph.operators.definition import Folding, Operator


def _shape(editor: Editor, node: Node) -> list[Array] | None:
    kind = editor.types.get(node.inputs[0])
    if kind is None or min(kind.shape, default=0) < 0:
        return None
    part = slice(node.attrs.get("start"), node.attrs.get("end"))
    return [np.array(kind.shape[part], np.int64)]


def _size(editor: Editor, node: Node) -> list[Array] | None:
    kind = editor.types.get(node.inputs[0])
    if kind is None or min(kind.shape, default=0) < 0:
        return None
    return [np.array(np.prod(kind.shape, dtype=np.int64))]


RANDOM = (
    *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
)
"""Generators of random numbers."""

OPERATORS: Mapping[str, Operator] = {
    "Shape": Operator(folding=Folding.REQUIRED, fold=_shape),
    "Size": Operator(folding=Folding.REQUIRED, fold=_size),
    **{op: Operator(folding=Folding.REQUIRED) for op in ("Constant", "ConstantOfShape", "Range")},
    **{op: Operator(folding=Folding.DRAWN) for op in RANDOM},
}
