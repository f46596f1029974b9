"""ONNX operators of rare use, each a composition of others.

    Det(x)  ->  elimination with pivots, a few operators for each row

The first package of operators: `OPERATORS` is what any package offers by the entry point group
`autotune.operators`. It comes with `autotune`, which asks it for operators that it does not know.
"""

from __future__ import annotations

from autotune.graph.operators.user_operators import Composition
from autotune_operators import (
    affine_grid,
    deformed_convolution,
    determinants,
    flex_attention,
    fourier,
    machine_learning,
    term_counts,
    training,
    trees,
)

_MODULES = (
    *(affine_grid, deformed_convolution, determinants, flex_attention, fourier),
    *(machine_learning, term_counts, training, trees),
)

OPERATORS = {
    name: Composition(rewrite)
    for module in _MODULES
    for name, rewrite in module.COMPOSITIONS.items()
}
"""By operator name, with its domain in front where that is not the standard one."""
