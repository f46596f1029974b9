"""① GroupNormalization from the three nodes as which exporters write it."""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import float_array
from autotune.graph.rewriter import Rewriter, Rule


def _group_norm(rw: Rewriter) -> None:
    """Reshape(InstanceNormalization(Reshape(x))) -> GroupNormalization(x)

    Where the inner Reshape makes (n, g, …) of x (n, c, …), and the outer one restores the shape of
    x, scale and bias are constant, and intermediates have no other consumer. x then stays channels
    last, without Transposes around the Reshapes.
    """
    norm = rw.private(rw.input(0), "InstanceNormalization")
    split = rw.private(norm.inputs[0], "Reshape") if norm is not None else None
    if norm is None or split is None:
        return
    shape = rw.types[split.inputs[0]].shape
    n, n_groups, *_ = rw.types[split.output].shape
    params = [rw.constants.get(name) for name in norm.inputs[1:]]
    fits = len(shape) > 2 and shape[0] == n and shape[1] % n_groups == 0
    if not fits or rw.type.shape != shape or any(p is None for p in params):
        return
    repeated = (np.repeat(p, shape[1] // n_groups) for p in params if p is not None)
    names = (rw.array(float_array(value)) for value in repeated)
    rw.like(norm, split.inputs[0], *names, op="GroupNormalization", num_groups=n_groups)


GROUP_NORM = Rule("group-norm", _group_norm, {"Reshape"})
