"""② What the products of a computation are made of: the name of a precision for people.

s = sum(cast(float32, x[m, k]) * cast(float32, w[k, n]), k), x and w bfloat16  ->  "bf16"
"""

from __future__ import annotations

from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import dtype_of
from autotune.te.products import products_of

_PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "uint8": "int8", "int8": "int8"}


def precision_of(dag: ComputeDAG) -> str:
    """One of "f32", "bf16", "f16" or "int8".

    The first narrow one where several sums differ; "f32" where a factor is wide or nothing is
    multiplied.
    """
    found = (_narrow_factors(op) for op in dag.computes)
    return next((name for name in found if name), "f32")


def _narrow_factors(op: Compute) -> str:
    names = {_PRECISIONS.get(dtype_of(e), "") for pair in products_of(op) for e in pair}
    return names.pop() if len(names) == 1 else ""
