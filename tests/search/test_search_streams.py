"""Constants that a call reads once are left to the hardware's prefetching."""

from __future__ import annotations

import pytest

from autotune.schedule.steps import Prefetch
from autotune.search.defaults import default_candidate
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, mul
from tests.targets import AVX512


def product(n_rows: int) -> ComputeDAG:
    m, n, k = Axis("m", n_rows), Axis("n", 4096), Axis("k", 4096)
    x, w = placeholder("x", (n_rows, 4096)), placeholder("w", (4096, 4096), constant=True)
    body = mul(x.tensor[m.var, k.var], w.tensor[k.var, n.var])
    return ComputeDAG((x, w, compute("y", (m, n), Reduce("sum", body, (k,)))), ("y",))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_weights_of_one_row_are_prefetched_a_few_lines_ahead(n_threads: int) -> None:
    steps = default_candidate(product(1), AVX512, n_threads).steps
    assert [s.distance for s in steps if isinstance(s, Prefetch) and s.tensor == "w"] == [512]
