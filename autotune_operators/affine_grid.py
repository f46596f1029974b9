"""AffineGrid: the coordinates of a grid under an affine map.

    AffineGrid(theta, size)  ->  Reshape(MatMul(places, Transpose(theta)))      places[d·h·w, n + 1]

The function body of the standard drops a batch of one and calls Range with tensors that are not
scalars, so this follows its text instead. Formulas: ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.rewriter import Rewrite, Rewriter


def _affine_grid(rw: Rewriter) -> None:
    """theta (n, k, k + 1) -> (n, …size…, k)."""
    size, kind = rw.value(1), rw.types.get(rw.input(0))
    if size is None or kind is None or -1 in kind.shape:
        raise rw.refuse("its size is computed at run time")
    batch, _, *space = size.reshape(-1).tolist()
    n_axes = len(space)
    if n_axes not in (2, 3) or min(size) < 1 or kind.shape != (batch, n_axes, n_axes + 1):
        raise rw.refuse(f"theta {kind.shape} for a grid of {size.tolist()}")
    places = _places(space, bool(rw.attr("align_corners", 0))).astype(kind.dtype)
    moved = rw("MatMul", rw.array(places), rw("Transpose", rw.input(0), perm=(0, 2, 1)))
    rw.result("Reshape", moved, rw.integers(batch, *space, n_axes))


def _places(space: Sequence[int], align_corners: bool) -> Array:
    """x, y (, z) in [-1, 1] and 1 for every point of a grid; x belongs to the last dimension."""
    sides = [_side(n, align_corners) for n in space]
    at = np.meshgrid(*sides, indexing="ij")
    return np.stack([*(a.reshape(-1) for a in reversed(at)), np.ones(at[0].size)], axis=-1)


def _side(n: int, align_corners: bool) -> Array:
    """Coordinates along a dimension, from end to end or at pixel centres."""
    if align_corners:
        return -1 + np.arange(n) * (2 / (n - 1) if n > 1 else 0.0)
    side: Array = (2 * np.arange(n) + 1) / n - 1
    return side


COMPOSITIONS: dict[str, Rewrite] = {"AffineGrid": _affine_grid}
