"""What a computation may be rewritten into before loops are chosen."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from autotune.loopir.lower import lower
from autotune.schedule.steps import Parts
from autotune.search.defaults import default_steps
from autotune.search.rules.algorithms import MANY_TERMS, TOO_MANY_TERMS, algorithms
from autotune.search.sketch import generate_sketches
from autotune.te.collapse import collapse
from autotune.te.dag import ComputeDAG
from tests.schedule.running import run_compiled
from tests.schedule.small_dags import channel_sums, conv, gemm, row_means
from tests.targets import AVX2


def cuts(dag: ComputeDAG) -> list[int]:
    """Into how many parts each of the algorithms cuts a reduction; 0: into none."""
    found = [[s.factor for s in p.steps if isinstance(s, Parts)] for p in algorithms(dag, AVX2)]
    return [prod(factors) if factors else 0 for factors in found]


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((32, 32, 20), [0]),  # too few terms
        ((64, 64, 20), [0, 64]),
        ((64, 64, 1025), [0]),  # enough results to run side by side
        ((62, 64, 20), [0, 62]),
        ((4096, 1, 20), [0, 64]),
        ((512, 32, 20), [128]),  # too many to be added up in a row
        ((1, 16384, 20), [0]),  # nothing to cut: the first axis has one element
    ],
)
def test_long_reductions_with_few_results_run_in_parts(
    shape: tuple[int, int, int], parts: list[int]
) -> None:
    assert cuts(channel_sums(*shape)) == parts


def test_what_is_added_up_in_lanes_is_cut_into_rows_or_not_at_all() -> None:
    rows = MANY_TERMS // 64
    assert cuts(row_means(4, rows, 64)) == [0, 32]
    assert cuts(row_means(64, rows, 64)) == [0]
    assert cuts(row_means(4, 1, TOO_MANY_TERMS)) == [0]


def test_products_are_not_cut() -> None:
    assert cuts(gemm(4, 16, 2 * TOO_MANY_TERMS)) == [0]


def test_contiguous_terms_fill_vectors_whoever_reads_the_sum() -> None:
    assert [s.name for s in generate_sketches(row_means(40, 3, 64), AVX2)] == ["lanes"]


@pytest.mark.parametrize("ic", [8, 16, 32, 40])
def test_weights_of_a_single_channel_do_not_keep_terms_from_filling_vectors(ic: int) -> None:
    to_one, to_two = (collapse(conv(5, 20, ic, oc)) for oc in (1, 2))
    assert [s.name for s in generate_sketches(to_one, AVX2)] == ["lanes"]
    assert "lanes" not in [s.name for s in generate_sketches(to_two, AVX2)]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_sum_of_many_terms_rounds_little(n_threads: int) -> None:
    """Errors are those of some thousand terms, not of 2¹⁸."""
    dag = channel_sums(512, 512, 8)
    x = np.random.default_rng(0).uniform(0.9, 1.1, (512, 512, 8)).astype(np.float32)
    exact = x.sum((0, 1), dtype=np.float64)
    in_order = np.add.accumulate(x.reshape(-1, 8), axis=0, dtype=np.float32)[-1]
    program = lower(dag, default_steps(dag, AVX2, n_threads))
    found = run_compiled(program, {"x": x}, AVX2)["total"]
    assert np.abs(found / exact - 1).max() < np.abs(in_order / exact - 1).max() / 10
