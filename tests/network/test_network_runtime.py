from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.codegen.image import jit
from autotune.errors import MissingDependency, UsageError
from autotune.network import load
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.table import ARENA, CONSTANTS
from autotune.network.compile.entry import Launch, Pointer
from autotune.network.runtime.runtime import Model
from tests.network.hand_made import N, artifact, reversing


def vector(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(0, 99, (2, N // 2)).astype(np.float32)


FORMER = Path(__file__).parents[1] / "assets" / "artifact-v2.atn"
"""`reversing(5, 2)` for AVX2, whose entry calls libgomp."""


def expected(x: NDArray[np.float32], n_kernels: int) -> NDArray[np.float32]:
    flat = x.reshape(-1)
    return (flat[::-1] if n_kernels % 2 else flat) + np.float32(n_kernels)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("n_kernels", [1, 2, 25])
def test_every_number_of_threads_gives_the_same_answer(n_threads: int, n_kernels: int) -> None:
    model = Model(reversing(n_kernels), n_threads)
    for seed in range(3):
        x = vector(seed)
        assert np.array_equal(model.run({"x": x})["y"], expected(x, n_kernels))


def test_more_threads_than_elements() -> None:
    assert N < 100
    model = Model(reversing(1), 100)
    assert np.array_equal(model.run({"x": vector()})["y"], expected(vector(), 1))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_kernel_that_cannot_be_divided_runs_once(n_threads: int) -> None:
    model = Model(reversing(2, bump=True), n_threads)
    want = expected(vector(), 2)
    want[0] += 1
    assert np.array_equal(model.run({"x": vector()})["y"], want)


def test_the_order_of_kernels_holds_over_many_inferences() -> None:
    model = Model(reversing(60), 2)
    for seed in range(100):
        x = vector(seed)
        assert np.array_equal(model.run({"x": x})["y"], expected(x, 60))


def test_outputs_are_fresh_and_inputs_untouched() -> None:
    model = Model(reversing(3))
    x = vector()
    x.flags.writeable = False
    first = model.run({"x": x})["y"]
    kept = first.copy()
    second = model.run({"x": vector(1)})["y"]
    assert not np.shares_memory(first, second)
    assert np.array_equal(first, kept)
    assert np.array_equal(x, vector())


def test_inputs_need_not_be_contiguous() -> None:
    wide = np.zeros((2, N), np.float32)
    wide[:, ::2] = vector()
    assert np.array_equal(Model(reversing(2)).run({"x": wide[:, ::2]})["y"], expected(vector(), 2))


def test_windows_of_the_arena_are_copied_in_and_out() -> None:
    # x lies in the arena with a row stride of N, y is every second element of what is written there
    spread = ((2, N // 2), (N, 1))
    x = Endpoint("x", (2, N // 2), "float32", ARENA, 8, spread)
    y = Endpoint("y", (N // 2,), "float32", ARENA, 4096, ((N // 2,), (2,)))
    step = Pointer(CONSTANTS, 0)
    launch = Launch("reverse", N, (Pointer(ARENA, 8), step, Pointer(ARENA, 4096)))
    model = Model(artifact([launch], [x], [y], arena_bytes=8192))
    row = np.zeros(N, np.float32)
    row[: N // 2] = vector()[0]
    assert np.array_equal(model.run({"x": vector()})["y"], (row[::-1] + 1)[::2])


def test_concurrent_callers_do_not_mix() -> None:
    model = Model(reversing(9), 2)
    ready = threading.Barrier(4)

    def work(seed: int) -> bool:
        ready.wait()
        x = vector(seed)
        want = expected(x, 9)
        return all(np.array_equal(model.run({"x": x})["y"], want) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_profile_times_every_kernel(n_threads: int) -> None:
    model = Model(reversing(5), n_threads)
    times = model.profile({"x": vector()})
    assert [t.kernel.symbol for t in times] == ["reverse"] * 5
    assert all(0 <= t.time_s < 1 for t in times)
    assert sum(t.time_s for t in times) > 0


def test_threads_default_to_what_was_tuned_but_not_more_than_cores() -> None:
    assert Model(reversing(1, n_threads=1)).n_threads == 1
    assert Model(reversing(1, n_threads=10_000)).n_threads < 10_000
    assert Model(reversing(1, n_threads=1), 3).n_threads == 3
    with pytest.raises(UsageError, match="0 threads"):
        Model(reversing(1), 0)


@pytest.mark.parametrize(
    ("inputs", "message", "hint"),
    [
        ({}, "'x' is missing", "every input"),
        ({"z": vector()}, "'z'", "'x'"),
        ({"x": vector(), "z": vector()}, "'z'", "'x'"),
        ({"x": vector().astype(np.float64)}, "float64, expected float32", "astype"),
        ({"x": vector().reshape(-1)}, r"\(96,\), expected \(2, 48\)", "`shapes`"),
        ({"x": [1, 2]}, "list", "asarray"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, object], message: str, hint: str) -> None:
    model = Model(reversing(1))
    with pytest.raises(UsageError, match=message) as caught:
        model.run(inputs)  # type: ignore[arg-type]
    assert hint in caught.value.hint


def in_halves(dtype: str, n_kernels: int = 1) -> Model:
    made = reversing(n_kernels)
    ends = {"inputs": made.inputs, "outputs": made.outputs}
    stated = {kind: tuple(replace(e, dtype=dtype) for e in some) for kind, some in ends.items()}
    return Model(replace(made, **stated))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_converted_at_the_edge(dtype: type) -> None:
    model = in_halves(np.dtype(dtype).name)
    x = (vector() / 7).astype(dtype)
    y = model.run({"x": x})["y"]
    assert y.dtype == dtype
    wanted = expected(x.astype(np.float32), 1).astype(dtype)  # computed in float32, rounded once
    assert np.array_equal(y, wanted)
    turned = np.asfortranarray(x)
    assert np.array_equal(model.run({"x": turned})["y"], wanted)


def test_a_half_that_overflows_is_infinite() -> None:
    x = np.full((2, N // 2), 65504, np.float16)
    x[0, 0] = -65504
    x[0, 1] = np.nan
    model = in_halves("float16", 17)  # + 17 is beyond the largest half, + 1 is not
    y = model.run({"x": x})["y"]
    assert np.isposinf(y[:-2]).all()
    assert np.isnan(y[-2])
    assert y[-1] == np.float16(-65504 + 17)
    assert np.isfinite(in_halves("float16").run({"x": x})["y"][:-2]).all()


def test_windows_in_half_precision() -> None:
    spread = ((2, N // 2), (N, 1))
    x = Endpoint("x", (2, N // 2), "float16", ARENA, 8, spread)
    y = Endpoint("y", (N // 2,), "float16", ARENA, 4096, ((N // 2,), (2,)))
    launch = Launch("reverse", N, (Pointer(ARENA, 8), Pointer(CONSTANTS, 0), Pointer(ARENA, 4096)))
    model = Model(artifact([launch], [x], [y], arena_bytes=8192))
    row = np.zeros(N, np.float16)
    row[: N // 2] = vector()[0]
    found = model.run({"x": vector().astype(np.float16)})["y"]
    assert found.dtype == np.float16
    assert np.array_equal(found, (row[::-1] + np.float16(1))[::2])


@pytest.mark.parametrize(
    ("dtype", "given", "hint"),
    [
        ("float16", np.float32, "astype('float16')"),
        ("float32", np.float16, "astype('float32')"),
        ("bfloat16", np.float16, "astype(ml_dtypes.bfloat16)"),
    ],
)
def test_an_array_of_another_precision_is_refused(dtype: str, given: type, hint: str) -> None:
    with pytest.raises(UsageError, match=f"expected {dtype}") as caught:
        in_halves(dtype).run({"x": vector().astype(given)})
    assert hint in caught.value.hint


def test_a_missing_libgomp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str | None) -> ctypes.CDLL:
        if name == "libgomp.so.1":
            raise OSError(f"{name}: cannot open shared object file")
        return libm

    libm, functions = ctypes.CDLL("libm.so.6"), (jit.address_of, jit._opened)
    for function in functions:
        function.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(MissingDependency, match=r"libgomp\.so\.1") as caught:
        load(FORMER)
    for function in functions:
        function.cache_clear()
    assert "libgomp1" in caught.value.hint


@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_artifact_from_before_the_team_runs(n_threads: int) -> None:
    model = load(FORMER, n_threads)
    assert np.array_equal(model.run({"x": vector()})["y"], expected(vector(), 5))
    assert len(model.profile({"x": vector()})) == 5


def test_load_gives_a_model_that_describes_itself(tmp_path: object) -> None:
    path = f"{tmp_path}/r.atn"
    reversing(3).save(path)
    model = load(path, threads=2)
    assert [(e.name, e.shape, e.dtype) for e in model.input_info] == [("x", (2, 48), "float32")]
    assert [(e.name, e.shape, e.dtype) for e in model.output_info] == [("y", (96,), "float32")]
    assert np.array_equal(model.run({"x": vector()})["y"], expected(vector(), 3))
