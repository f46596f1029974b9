from __future__ import annotations

import os

import numpy as np
import pytest

from autotune.codegen.compile import assemble
from autotune.codegen.image.jit import Library
from autotune.codegen.memory import aligned
from autotune.errors import CodegenError
from autotune.measure.timing.driver import MAX_BUFFERS, Driver, TimedKernel
from autotune.measure.timing.executor import SharedBlock
from autotune.measure.timing.peak import MultiplyAddPeak, fma_peak, measure_peaks, stay_cached
from autotune.target import host_target

TARGET = host_target()
N_CORES = len(os.sched_getaffinity(0))
NOTHING = SharedBlock(aligned((0,), "uint8"))

# adds 1 to out[i] for every i of the range, and notes that it was called
COUNT = """
define void @count(ptr %out, ptr %calls, i64 %begin, i64 %end) {
entry:
  %old_calls = atomicrmw add ptr %calls, i64 1 seq_cst
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i64, ptr %out, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

; out[i] = in[extent - 1 - i]: needs what other threads have written before
define void @reverse(ptr %in, ptr %out, ptr %extent_at, i64 %begin, i64 %end) {
entry:
  %extent = load i64, ptr %extent_at
  %last = sub i64 %extent, 1
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %j = sub i64 %last, %i
  %from = getelementptr i64, ptr %in, i64 %j
  %v = load i64, ptr %from
  %to = getelementptr i64, ptr %out, i64 %i
  store i64 %v, ptr %to
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""

# follows a chain of indices from 0: bound by the latency of where the chain lies
CHASE = """
define void @chase(ptr %chain, ptr %last, i64 %begin, i64 %end) {
entry:
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %at = phi i64 [ 0, %entry ], [ %to, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %link = getelementptr i64, ptr %chain, i64 %at
  %to = load i64, ptr %link
  %next = add i64 %i, 1
  br label %head
done:
  store i64 %at, ptr %last
  ret void
}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return Library([assemble(COUNT, TARGET)])


@pytest.fixture(scope="module", params=[1, 2, 3])
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(TARGET, request.param)


@pytest.mark.parametrize("extent", [1, 2, 7, 1000])
def test_every_point_runs_once(driver: Driver, library: Library, extent: int) -> None:
    out, calls = aligned((extent,), "int64"), aligned((1,), "int64")
    launch = TimedKernel(library.address("count"), (out.ctypes.data, calls.ctypes.data), extent)
    plan = driver.plan([launch], [], NOTHING)
    assert driver.evaluate(plan) > 0
    assert (out == 1).all()
    assert 1 <= calls[0] <= min(extent, 3)


def test_kernels_are_separated_by_a_barrier(driver: Driver, library: Library) -> None:
    extent = 1000
    size = np.array([extent])
    a, b, calls = (aligned((n,), "int64") for n in (extent, extent, 1))
    count, reverse = library.address("count"), library.address("reverse")
    a[:] = np.arange(extent)
    there = TimedKernel(reverse, (a.ctypes.data, b.ctypes.data, size.ctypes.data), extent)
    back = TimedKernel(reverse, (b.ctypes.data, a.ctypes.data, size.ctypes.data), extent)
    bump = TimedKernel(count, (a.ctypes.data, calls.ctypes.data), extent)
    plan = driver.plan([bump, there, back] * 20, [], NOTHING)
    for n in range(1, 4):
        driver.evaluate(plan)
        np.testing.assert_array_equal(a, np.arange(extent) + 20 * n)


def test_sweep_visits_every_line_and_warm_reads_only(driver: Driver) -> None:
    sweep, inputs = aligned((64 * 16,), "float32"), aligned((1000,), "float32")
    plan = driver.plan([], [(inputs.ctypes.data, inputs.nbytes)], SharedBlock(sweep))
    driver.evaluate(plan)
    driver.evaluate(plan)
    lines = sweep.reshape(-1, 16)
    assert (lines[:, : min(16, TARGET.lanes)] == 2).all()
    assert (inputs == 0).all()


def test_too_many_buffers_are_refused(driver: Driver) -> None:
    with pytest.raises(CodegenError, match="65 buffers"):
        driver.plan([TimedKernel(0, (0,) * (MAX_BUFFERS + 1), 1)], [], NOTHING)


def test_missing_symbol_is_an_error(library: Library) -> None:
    with pytest.raises(CodegenError, match="'nowhere'"):
        library.address("nowhere")


def test_damaged_object_is_an_error() -> None:
    with pytest.raises(CodegenError, match="not an object file"):
        Library([b"\x7fELF nonsense"])


def test_a_library_knows_how_much_code_it_has() -> None:
    parts = [
        assemble(f"define i64 @f{n}(i64 %x) {{\n  %y = mul i64 %x, {n}\n  ret i64 %y\n}}", TARGET)
        for n in (3, 1_000_003)
    ]
    alone = [Library([part]).n_code_bytes for part in parts]
    assert 0 < alone[0] < alone[1] < 64
    assert Library(parts).n_code_bytes == sum(alone)


def test_objects_may_call_libm_and_each_other() -> None:
    inner = assemble(
        "declare float @erff(float)\n"
        "define void @inner(ptr %p) {\n  %x = load float, ptr %p\n"
        "  %y = call float @erff(float %x)\n  store float %y, ptr %p\n  ret void\n}",
        TARGET,
    )
    outer = assemble(
        "declare void @inner(ptr)\n"
        "define void @outer(ptr %p, i64 %begin, i64 %end) {\n"
        "  call void @inner(ptr %p)\n  ret void\n}",
        TARGET,
    )
    value = np.array([0.5], np.float32)
    Library([outer, inner]).function("outer", 1)(value.ctypes.data, 0, 1)
    assert value[0] == pytest.approx(0.5204999, rel=1e-6)


@pytest.mark.timing
@pytest.mark.skipif(N_CORES < 2, reason="needs two cores")
def test_peak_is_plausible() -> None:
    one = fma_peak(TARGET, 1)
    # even at 1 GHz with one FMA unit, and at 10 GHz with two
    assert 2 * TARGET.lanes < one < 40 * TARGET.lanes


@pytest.mark.timing
def test_operands_from_l1_hardly_slow_the_peak_down() -> None:
    driver = Driver(TARGET, 1)
    loops = [MultiplyAddPeak(TARGET, driver, fed=fed) for fed in (False, True)]
    rates = [[loop.flops_per_s(20_000) for loop in loops] for _ in range(20)]
    plain, fed = (max(column) for column in zip(*rates, strict=True))
    assert 0.6 * plain < fed < 1.2 * plain


@pytest.mark.timing
def test_bandwidths_are_plausible() -> None:
    peaks = measure_peaks(TARGET, N_CORES, evict=False)
    assert 1e9 < peaks.cold_bytes_per_s < peaks.warm_bytes_per_s < N_CORES * 2e12
    assert peaks.flops_per_s > N_CORES * 2e9 * TARGET.lanes
    assert peaks.l1_bytes == N_CORES * TARGET.l1_bytes


@pytest.mark.timing
def test_constants_from_slower_caches_take_longer() -> None:
    driver = Driver(TARGET, 1)
    library = Library([assemble(CHASE, TARGET)])
    n_lines = TARGET.l2_bytes // 4 // 64
    chain, last = aligned((n_lines, 8), "int64"), aligned((1,), "int64")
    order = np.random.default_rng(0).permutation(n_lines)  # that no prefetcher foresees
    chain[order, 0] = 8 * np.roll(order, -1)
    arguments, whole = (chain.ctypes.data, last.ctypes.data), [(chain.ctypes.data, chain.nbytes)]
    launch = TimedKernel(library.address("chase"), arguments, n_lines)
    sweep = aligned((8 * TARGET.l2_bytes,), "uint8")  # twice L2 leaves half of it on some CPUs
    plans = {
        "hot": driver.plan([launch], whole, NOTHING),
        "cold": driver.plan([launch], [], SharedBlock(sweep)),
        "near": driver.plan([launch], [], SharedBlock(sweep), near=whole),
        "code": driver.plan([launch], [], SharedBlock(sweep), code=whole),
        "evicted": driver.plan([launch], [], NOTHING, whole),
    }
    turns = [{name: driver.evaluate(p) for name, p in plans.items()} for _ in range(30)]
    median = {name: np.median([turn[name] for turn in turns[5:]]) for name in plans}
    away = min(median["cold"], median["evicted"], median["near"])
    assert away > max(median["hot"], median["code"]), median
    assert last[0] == 0


def test_near_spans_are_read_only(driver: Driver) -> None:
    near = np.arange(1000, dtype=np.float32)
    plan = driver.plan([], [], NOTHING, near=[(near.ctypes.data, near.nbytes)])
    driver.evaluate(plan)
    np.testing.assert_array_equal(near, np.arange(1000))


def test_small_data_stay_cached() -> None:
    assert stay_cached(TARGET, 1, TARGET.l2_bytes, 10**9)
