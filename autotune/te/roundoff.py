"""② What a computation rounds its values to."""

from __future__ import annotations

from autotune.dtypes import DTYPES
from autotune.te.dag import ComputeDAG
from autotune.te.expr import Cast, walk


def roundoff(dag: ComputeDAG) -> float:
    """Spacing from 1 on of the narrowest floats that something is rounded to; 0 for float32."""
    casts = (e.dtype for op in dag.computes for e in walk(op.body) if isinstance(e, Cast))
    records = [DTYPES[name] for name in (*casts, *(op.tensor.dtype for op in dag.computes))]
    return max((d.eps for d in records if d.is_narrow and d.is_float), default=0.0)
