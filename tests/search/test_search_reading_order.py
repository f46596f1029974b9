"""Rows that agree in the holes of the reading order pack alike, and alternatives differ in it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from autotune.errors import ScheduleError
from autotune.network.compile.sharing import forms
from autotune.search.cost.analysis import analyse
from autotune.search.defaults import default_alternatives
from autotune.search.reading_order import order_holes
from autotune.search.sketch import generate_sketches
from autotune.te.dag import ComputeDAG
from tests.schedule.small_dags import conv, gemm
from tests.targets import AVX2

TARGET = AVX2


@pytest.mark.parametrize("dag", [gemm(64, 48, 32), conv(9, 9, 8, 24)], ids=["gemm", "conv"])
def test_equal_orders_are_packed_alike(dag: ComputeDAG) -> None:
    rng = np.random.default_rng(0)
    n_compared = 0
    for sketch in generate_sketches(dag, TARGET)[:6]:
        columns = order_holes(dag, sketch)
        first, second = sketch.sample(200, rng), sketch.sample(200, rng)
        second[:, columns] = first[:, columns]  # all other holes differ at random
        valid = (
            analyse(dag, sketch, first, TARGET).valid & analyse(dag, sketch, second, TARGET).valid
        )
        for a, b in [*zip(first[valid], second[valid], strict=True)][:4]:
            with suppress(ScheduleError):  # limits that only lowering knows
                assert forms(dag, sketch.bind(a)) == forms(dag, sketch.bind(b))
                n_compared += (a != b).any()
    assert n_compared >= 4


@pytest.mark.slow
def test_alternatives_read_the_weights_in_several_orders() -> None:
    dag = gemm(64, 768, 96)
    found = default_alternatives(dag, TARGET, 1, 1e-4, 96, 1.03)
    orders = {tuple(sorted(forms(dag, c.steps).items())) for c in found}
    assert len(orders) >= 3  # one where tiles and prefetching alone differ
