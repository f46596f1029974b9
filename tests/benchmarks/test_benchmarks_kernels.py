"""Which tasks are GEMMs and convolutions, and how the kernels found are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from autotune.graph.network import Network
from autotune.measure.timing.peak import Peaks
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG
from benchmarks.kernels import (
    MOST_TIMES,
    Row,
    gemm,
    in_calm,
    is_compute_bound,
    is_product,
    kernels_table,
    shares,
    unrest,
)
from benchmarks.models import model_file, read

ROW = Row(
    model="resnet50",
    task="Conv 1x1",
    gflops=75.0,
    peak_gflops=100.0,
    median_us=200.0,
    fastest_us=160.0,
    trials=128,
    seconds=30.0,
    sketch="pixels>channels",
    winograd=False,
    share=0.75,
    fastest_share=0.9375,
)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return read(model_file("bvlc_alexnet", tmp_path_factory.mktemp("models")))


@pytest.mark.slow
def test_gemms_and_convolutions_are_products(network: Network) -> None:
    labels = {network.labels[key] for key, dag in network.tasks.items() if is_product(dag)}
    assert labels
    assert all("Conv" in label or "MatMul" in label or "Gemm" in label for label in labels)
    rest = {network.labels[key] for key in network.tasks} - labels
    assert any("Pool" in label for label in rest)
    assert any("Softmax" in label for label in rest)
    assert any("LRN" in label for label in rest)


def test_a_gemm_does_two_operations_per_element() -> None:
    assert gemm(2, 3, 5).flops == 60
    assert is_product(gemm(2, 3, 5))


def test_the_roofline_tells_what_arithmetic_bounds() -> None:
    peaks = Peaks(flops_per_s=2e11, warm_bytes_per_s=1e11, cold_bytes_per_s=2e10, l1_bytes=0)
    assert is_compute_bound(gemm(512, 512, 512), peaks)
    assert not is_compute_bound(gemm(1, 512, 512), peaks)
    assert not is_compute_bound(gemm(512, 512, 2), peaks)


def test_shares_are_of_the_peak_of_the_same_moment() -> None:
    """A moment in which the clock was lower is no worse for the kernel than for the peak."""
    result = MeasureResult(MeasureStatus.OK, times_s=(1.0, 2.0, 1.0), peaks=(120.0, 60.0, 125.0))
    assert shares(90.0, result) == (pytest.approx(0.75), pytest.approx(0.72))


class Restless:
    """Measures one program again and again; `slow`: how many of 20 repeats a neighbour doubles."""

    def __init__(self, *slow: int) -> None:
        self.slow = iter(slow)

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        n = next(self.slow)
        return [MeasureResult(MeasureStatus.OK, times_s=(1.0,) * (20 - n) + (2.0,) * n)]


def test_disturbed_measurements_are_repeated() -> None:
    found = in_calm(Restless(15, 12, 3, 0), gemm(8, 8, 8), [()])
    assert [r.latency_s for r in found] == [1.0]
    assert found[0].times_s.count(2.0) == 3  # calm, and the first that was


def test_the_calmest_counts_where_none_is_calm() -> None:
    found = in_calm(Restless(*[15] * MOST_TIMES), gemm(8, 8, 8), [()])
    assert found[0].latency_s == 2.0  # not the fastest repeat


def test_failed_programs_are_the_least_calm() -> None:
    failed = MeasureResult(MeasureStatus.RUN_CRASH)
    assert unrest([failed]) > unrest([MeasureResult(MeasureStatus.OK, times_s=(1.0, 9.0))])


def test_the_table_of_kernels(golden: Callable[[str, str], None]) -> None:
    fast = replace(
        ROW, task="Conv 3x3", gflops=110.0, peak_gflops=101.0, winograd=True, share=1.089
    )
    cold = replace(ROW, task="Conv 5x5", share=0.9, l3_share=0.96)
    golden("benchmarks/kernels.md", kernels_table([ROW, fast, cold]) + "\n")
