"""PTX: right numbers by running its threads here, accepted by ptxas, refused by CPUs."""

from __future__ import annotations

import ctypes
import shutil
import site
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from autotune import te
from autotune.api.te.schedule import Schedule
from autotune.api.te.task import Task
from autotune.dtypes import DTYPES
from autotune.errors import CodegenError, ScheduleError
from autotune.gpu.launches import launches
from autotune.gpu.ptx import GPU
from autotune.loopir.nodes import Alloc, Barrier, Body, For
from autotune.loopir.python_text import print_python
from autotune.schedule.steps import Bind, CacheRead, steps_from_json, steps_to_json
from autotune.target import host_target
from autotune.te.dag import Compute, ComputeDAG, Placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Call, Expr, Load, Tensor, add, cast
from autotune.te.intrinsics import INTRINSICS
from autotune.te.language import dag_of
from tests.loopir.interp import InvalidAccess, interpret
from tests.schedule.gpu_schedules import KINDS
from tests.schedule.gpu_threads import run_as_threads
from tests.schedule.running import Array, assert_close, random_inputs

SEEDS = range(12)


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_loops_and_machine_code_compute_what_is_defined(kind: str, seed: int) -> None:
    assert_runs_on_gpus(KINDS[kind](Random(seed)))


@pytest.mark.sampled(0)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_shapes_compute_what_is_defined(kind: str) -> None:
    for seed in range(100, 300):
        assert_runs_on_gpus(KINDS[kind](Random(seed)))


def assert_runs_on_gpus(s: Schedule) -> None:
    program, inputs = s.lower(verify=True).program, random_inputs(s.dag)
    expected = evaluate(s.dag, inputs)
    assert_close(interpret(program, inputs), expected, 1e-5)
    assert_close(run_as_threads(program, inputs), expected, 1e-5)


def test_the_python_text_runs() -> None:
    s = KINDS["conv"](Random(0))
    inputs, names = random_inputs(s.dag), dict[str, Any]()
    exec(print_python(s.lower().program), names)
    assert_close({"out": names["run"](*inputs.values())}, evaluate(s.dag, inputs), 1e-5)


def test_kernels_follow_one_another() -> None:
    x = te.placeholder((9, 5), "x")
    y = te.compute((9, 5), lambda i, j: x[i, j] * 2.0, "y")
    s = Schedule(dag_of([te.compute((5, 9), lambda i, j: y[j, i] + 1.0, "z")]), host_target())
    for name in ("y", "z"):
        s[name].bind("i", "blockIdx.x").bind("j", "threadIdx.x")
    assert [k.name for k, _ in launches(s.lower().program)] == ["k0_y", "k1_z"]
    assert_runs_on_gpus(s)


@pytest.mark.parametrize("n_dropped", [0, 1])
def test_a_barrier_that_is_missing_is_found(n_dropped: int) -> None:
    s = tiled(8, 4)
    program, seen = s.lower().program, [-1]

    def without(body: Body) -> Body:
        out: list[Any] = []
        for stmt in body:
            match stmt:
                case Barrier():
                    seen[0] += 1
                    out += [] if seen[0] == n_dropped else [stmt]
                case For() | Alloc():
                    out.append(replace(stmt, body=without(stmt.body)))
                case _:
                    out.append(stmt)
        return tuple(out)

    (kernel,) = program.kernels
    program = replace(program, kernels=(replace(kernel, body=without(kernel.body)),))
    with pytest.raises(InvalidAccess):
        interpret(program, random_inputs(s.dag))


# --- text ---------------------------------------------------------------------------------------


def test_text_and_steps() -> None:
    s = tiled(32, 16)
    text = s.source("ptx")
    assert text.startswith("// input a: 4096 bytes of float32\n")
    assert "// k0_c(a, b, c): grid (2, 2, 1), block (16, 16, 1),\n" in text
    assert "//   2048 bytes of shared memory\n" in text
    for word in (
        "bar.sync",
        "ld.shared",
        "st.shared",
        "fma.rn.f32",
        ".visible .entry k0_c(",
        "%ctaid.y",
    ):
        assert word in text
    assert Bind("c", "i.0", "blockIdx.y") in s.steps
    assert CacheRead("a", "c", "a.shared", scope="shared") in s.steps
    assert steps_from_json(steps_to_json(s.steps)) == s.steps
    names: dict[str, Any] = {}
    exec(s.python(), names)
    again = Schedule(s.dag, s.target)
    names["schedule"](again)
    assert again.steps == s.steps


def test_names_of_any_letters_are_symbols_of_ptx() -> None:
    x = te.placeholder(8, "α")
    s = Schedule(dag_of([te.compute(8, lambda i: x[i] * 2.0, "β")]), host_target())
    s["β"].bind("i", "threadIdx.x")
    assert ".visible .entry k0__(" in s.source("ptx")


def found_ptxas() -> str | None:
    found = (Path(d).glob("nvidia/*/bin/ptxas") for d in site.getsitepackages())
    return shutil.which("ptxas") or next((str(p) for d in found for p in d), None)


@pytest.mark.skipif(found_ptxas() is None, reason="ptxas (CUDA) is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_ptxas_accepts(kind: str, tmp_path: Path) -> None:
    for seed in SEEDS[:4]:
        assert_assembled(KINDS[kind](Random(seed)), tmp_path)


def assert_assembled(s: Schedule, folder: Path) -> None:
    path = folder / "kernel.ptx"
    path.write_text(s.source("ptx"))
    command = [found_ptxas() or "", f"-arch={GPU}", str(path), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- a GPU --------------------------------------------------------------------------------------


def cuda_driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


@pytest.mark.skipif(cuda_driver() is None, reason="no CUDA driver, or no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_computes_what_is_defined(kind: str) -> None:
    driver = cuda_driver()
    assert driver is not None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    try:
        for seed in SEEDS:
            s = KINDS[kind](Random(seed))
            inputs = random_inputs(s.dag)
            found = run_on_gpu(driver, s, inputs)
            assert_close(found, evaluate(s.dag, inputs), 1e-5)
    finally:
        driver.cuCtxDestroy_v2(context)


def run_on_gpu(driver: ctypes.CDLL, s: Schedule, inputs: Mapping[str, Array]) -> dict[str, Array]:
    def do(name: str, *arguments: Any) -> None:
        status = getattr(driver, name)(*arguments)
        assert status == 0, f"{name}: CUDA error {status}"

    program, module = s.lower().program, ctypes.c_void_p()
    do("cuModuleLoadData", ctypes.byref(module), s.source("ptx").encode())
    pointers: dict[str, ctypes.c_uint64] = {}
    for b in program.buffers:
        pointers[b.name] = ctypes.c_uint64()
        do("cuMemAlloc_v2", ctypes.byref(pointers[b.name]), ctypes.c_size_t(b.n_bytes))
        if b.name in inputs:
            data = np.ascontiguousarray(inputs[b.name])
            size = ctypes.c_size_t(data.nbytes)
            do("cuMemcpyHtoD_v2", pointers[b.name], ctypes.c_void_p(data.ctypes.data), size)
    for kernel, launch in launches(program):
        function = ctypes.c_void_p()
        do("cuModuleGetFunction", ctypes.byref(function), module, kernel.name.encode())
        given = (ctypes.c_void_p * len(kernel.buffers))(
            *(ctypes.addressof(pointers[n]) for n in kernel.buffers)
        )
        do("cuLaunchKernel", function, *launch.grid, *launch.block, 0, None, given, None)
    do("cuCtxSynchronize")
    out = {}
    for b in program.buffers:
        if b.role == "output":
            out[b.name] = np.empty(b.tensor.shape, b.tensor.dtype)
            where = ctypes.c_void_p(out[b.name].ctypes.data)
            do("cuMemcpyDtoH_v2", where, pointers[b.name], ctypes.c_size_t(out[b.name].nbytes))
        do("cuMemFree_v2", pointers[b.name])
    do("cuModuleUnload", module)
    return out


# --- refused ------------------------------------------------------------------------------------


def product(n: int = 64) -> Schedule:
    a, b, k = te.placeholder((n, n), "a"), te.placeholder((n, n), "b"), te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    return Schedule(dag_of([c]), host_target())


def tiled(n: int, tile: int, terms: int = 0) -> Schedule:
    s = product(n)
    names = s["c"].tile("i", "j", tile, tile)
    for loop, index in zip(
        names, ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"), strict=True
    ):
        s["c"].bind(loop, index)
    s["c"].split("k", terms or tile)
    for tensor in "ab":
        copy = s.cache_read(tensor, "c", scope="shared").compute_at("c", "k.0")
        for loop, axis in (("d0", "y"), ("d1", "x")):
            copy.bind(copy.split(loop, tile)[1], f"threadIdx.{axis}")
    return s


def unbound(s: Schedule) -> None:
    s["c"].split("i", 8)


def with_a_reduction(s: Schedule) -> None:
    s["c"].bind("k", "threadIdx.x")


def in_the_reduction(s: Schedule) -> None:
    s["c"].reorder("k", "i").bind("i", "threadIdx.x")


def twice(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.x").bind("j", "threadIdx.x")


def of_no_name(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.w")


def of_64_z(s: Schedule) -> None:
    s["c"].fuse("i", "j")
    s["c"].bind(s["c"].split("i+j", 128)[1], "threadIdx.z")


def many_threads(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.y").bind("j", "threadIdx.x")


def shared_of_none(s: Schedule) -> None:
    s["c"].bind("i", "blockIdx.x")
    s.cache_read("a", "c", scope="shared").compute_at("c", "i").bind("d1", "threadIdx.x")


def shared_by_each(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.x")
    s.cache_read("a", "c", scope="shared").compute_at("c", "j")


def shared_of_no_block(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.x")
    s.cache_read("a", "c", scope="shared").bind("d0", "threadIdx.x")


def local(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.x")
    s.cache_read("a", "c").compute_at("c", "j").bind("d1", "threadIdx.y")


def of_blocks(s: Schedule) -> None:
    s.cache_read("a", "c", scope="shared").bind("d0", "blockIdx.x")


def uneven(s: Schedule) -> None:
    i0, i1 = s["c"].split("i", 8)
    s["c"].bind(i0, "blockIdx.x").bind(i1, "threadIdx.x")
    s.cache_read("a", "c", scope="shared").compute_at("c", "j").bind("d1", "threadIdx.x")


def cut_before(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.x").split("i", 8)


def parallel(s: Schedule) -> None:
    s["c"].parallel("i").bind("j", "threadIdx.x")


def unrolled(s: Schedule) -> None:
    s["c"].bind("i", "threadIdx.x").unroll("i")


REFUSED: list[tuple[Callable[[Schedule], None], str, str]] = [
    (unbound, "k0_c: no loop is bound", "bind"),
    (with_a_reduction, "loop k of c is one of its reduction", "each thread adds up its own"),
    (in_the_reduction, "threadIdx.x is bound inside of the reduction", "reorder"),
    (twice, "threadIdx.x is bound to loop i already", "loops of c"),
    (of_no_name, "no index 'threadIdx.w' of a launch", "blockIdx.x, "),
    (of_64_z, "threadIdx.z has 128 values, at most 64", "split the loop"),
    (many_threads, "a block of 4096 threads is more than 1024", "blockIdx"),
    (shared_of_none, "a.shared is shared, and no loop of c is bound to threads", "bind"),
    (shared_by_each, "a.shared is shared, and no loop of a.shared is bound to threads", "bind"),
    (shared_of_no_block, "a.shared is shared by the threads of no block", "compute_at"),
    (local, "a.copy is computed by each thread for itself", "shared"),
    (of_blocks, "a.shared is shared by one block", "threadIdx"),
    (uneven, "some threads of a block do not come to a barrier", "as many iterations"),
    (cut_before, "split loop i of c before binding it", "loops of c"),
    (parallel, "c has bound loops and parallel loops", ""),
    (unrolled, "loop i of c is bound", "loops of c"),
]


@pytest.mark.parametrize(("steps", "message", "hint"), REFUSED)
def test_what_no_gpu_has_is_refused(
    steps: Callable[[Schedule], None], message: str, hint: str
) -> None:
    s = product()

    def text() -> str:
        steps(s)
        return s.source("ptx")

    with pytest.raises(ScheduleError) as error:
        text()
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert hint in error.value.hint


def test_more_shared_memory_than_a_block_has_is_refused() -> None:
    s = tiled(256, 32, 256)
    with pytest.raises(ScheduleError, match="bytes of shared memory are more than 49152") as e:
        s.source("ptx")
    assert "split the reduction" in e.value.hint


def test_a_cpu_refuses_bound_loops_in_one_line() -> None:
    s = tiled(32, 16)
    task = Task(s.dag, threads=1)
    for build in (lambda: task.build(s.steps), lambda: s.source("asm"), lambda: s.source("llvm")):
        with pytest.raises(ScheduleError, match=r"loop c.i.0 is bound to blockIdx.y of a GPU") as e:
            build()
        assert "ptx" in e.value.hint


def test_more_local_memory_than_a_thread_has_is_refused() -> None:
    x = te.placeholder((512, 512), "x")
    y = te.compute((512, 512), lambda i, j: x[i, j] + 1.0, "y")
    s = Schedule(dag_of([te.compute((512, 512), lambda i, j: y[j, i], "z")]), host_target())
    outer, inner = s["z"].split("i", 511)
    s["z"].bind(inner, "blockIdx.x").reorder(outer, inner)
    s["y"].compute_at("z", outer)
    with pytest.raises(ScheduleError, match="local bytes of a thread are more than 524288"):
        s.source("ptx")


def test_a_copy_for_the_stage_of_a_thread_is_for_all_threads_of_the_block() -> None:
    s = product()
    s["c"].cache_write("c.sum")
    names = s["c"].tile("i", "j", 8, 8)
    s["c"].bind(names[2], "threadIdx.y").bind(names[3], "threadIdx.x")
    s["c.sum"].compute_at("c", names[3]).split("k", 4)
    copy = s.cache_read("a", "c.sum", scope="shared").compute_at("c.sum", "k.0")
    assert [it.extent for it in copy.stage.iters] == [8, 4]


@pytest.mark.parametrize(("function", "dtype"), [("sin", "float32"), ("exp", "float64")])
def test_functions_of_the_c_library_are_refused(function: str, dtype: str) -> None:
    x, i = Tensor("x", (8,), dtype), Axis("i", 8)
    y = Compute(Tensor("y", (8,), dtype), (i,), Call(function, (Load(x, (i.var,)),)))
    s = Schedule(ComputeDAG((Placeholder(x), y), ("y",)), host_target())
    s["y"].bind("i", "threadIdx.x")
    with pytest.raises(CodegenError, match=f"{function}.* of the C library is needed"):
        s.source("ptx")


@pytest.mark.skipif(found_ptxas() is None, reason="ptxas (CUDA) is not installed")
@pytest.mark.parametrize("dtype", DTYPES)
def test_ptxas_accepts_every_cast_and_function(dtype: str, tmp_path: Path) -> None:
    x, i = Tensor("x", (8,), dtype), Axis("i", 8)
    value: Expr = Load(x, (i.var,))
    wide = cast("float32", value)
    names = [f.name for f in INTRINSICS.values() if f.takes == "floats"]
    terms = [Call(name, (wide,)) for name in names if name not in ("sin", "cos", "tan")]
    terms += [cast("float32", cast(other, value)) for other in DTYPES]
    y = Compute(Tensor("y", (8,), dtype), (i,), cast(dtype, reduce(add, terms, wide)))
    s = Schedule(ComputeDAG((Placeholder(x), y), ("y",)), host_target())
    s["y"].bind("i", "threadIdx.x")
    assert_assembled(s, tmp_path)
