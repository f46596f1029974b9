"""① Operators whose results are known when the model is read, and random ones, which never are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.operators.definition import Folding, Operator
from autotune.graph.rewriter import Rewriter


def _shape(rw: Rewriter) -> list[Array] | None:
    kind = rw.types.get(rw.node.inputs[0])
    if kind is None or min(kind.shape, default=0) < 0:
        return None
    part = slice(rw.attr("start"), rw.attr("end"))
    return [np.array(kind.shape[part], np.int64)]


def _size(rw: Rewriter) -> list[Array] | None:
    kind = rw.types.get(rw.node.inputs[0])
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
