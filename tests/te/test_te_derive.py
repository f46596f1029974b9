"""Weights that are computed from others at compile time, some rows at once."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.dtypes import DTYPES
from autotune.te import evaluate as evaluation
from autotune.te.dag import compute, placeholder
from autotune.te.evaluate import derive
from autotune.te.expr import Axis, Load, add, cast, sub


@pytest.mark.parametrize("shape", [(1, 5), (7, 1), (40, 3, 2), (3, 50)])
def test_weights_do_not_depend_on_the_rows_that_are_computed_at_once(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the arithmetic of NumPy; one tensor is read in its order, one in the other."""
    axes = tuple(Axis(f"d{n}", e) for n, e in enumerate(shape))
    w = placeholder("w", shape, constant=True)
    t = placeholder("t", shape[::-1], constant=True)
    x = Load(w.tensor, tuple(a.var for a in axes))
    y = Load(t.tensor, tuple(a.var for a in reversed(axes)))
    rest = sub(x, cast("float32", cast("bfloat16", x)))
    op = compute("part", axes, cast("bfloat16", add(rest, y)))
    rng = np.random.default_rng(len(shape))
    a = rng.standard_normal(shape).astype(np.float32)
    b = rng.standard_normal(shape[::-1]).astype(np.float32)
    bf16 = DTYPES["bfloat16"].numpy
    wide = a.astype(np.float64) - a.astype(bf16).astype(np.float64) + b.transpose()
    for block in (1, 7, 64, 1 << 15):
        monkeypatch.setattr(evaluation, "_BLOCK", block)
        found = derive([op], {"w": a, "t": b})["part"]
        assert found.dtype == bf16
        np.testing.assert_array_equal(found.view(np.uint16), wide.astype(bf16).view(np.uint16))
