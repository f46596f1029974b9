"""A task `y = 2·x` and builders whose programs do what the name of the only step says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator

from autotune.codegen.compile import assemble
from autotune.codegen.image.jit import Library
from autotune.errors import CodegenError, ScheduleError
from autotune.loopir.nodes import Buffer, Kernel, Program
from autotune.measure.build import BuiltProgram
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.run_worker import RunHandler
from autotune.schedule.steps import ComputeInline, Steps
from autotune.strides import dense
from autotune.target import Target, host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Tensor, f32, mul

N = 1000
QUICK = MeasureOptions(
    n_builders=2, flush_bytes=1 << 16, run_timeout_s=1.0, build_timeout_s=1.0, repeat_wall_s=0.05
)
TARGET = host_target()


def pinned_handler() -> Iterator[RunHandler]:
    """A run worker's handler in this process, for a fixture."""
    cores = os.sched_getaffinity(0)
    yield RunHandler(TARGET, 1, QUICK)
    os.sched_setaffinity(0, cores)  # the handler pins the thread that made it


def double_dag(n: int = N) -> ComputeDAG:
    i = Axis("i", n)
    x = placeholder("x", (n,))
    return ComputeDAG((x, compute("y", (i,), mul(x.tensor[i.var], f32(2.0)))), ("y",))


def does(what: str) -> Steps:
    return (ComputeInline(what),)


def build(dag: ComputeDAG, steps: Steps, target: Target) -> BuiltProgram:
    (step,) = steps
    assert isinstance(step, ComputeInline)
    what = step.stage
    if what in BUILD_FAILURES:
        BUILD_FAILURES[what]()
    extra = (_workspace(1 << 50),) if what == "exhaust_memory" else ()
    return BuiltProgram(assemble(PROGRAMS.get(what, COPY), target), _program(dag, extra))


def _program(dag: ComputeDAG, extra: tuple[Buffer, ...]) -> Program:
    x, y = dag["x"].tensor, dag["y"].tensor
    buffers = (Buffer(x, "input", (1,)), Buffer(y, "output", (1,)), *extra)
    return Program(buffers, (), (Kernel("double", x.size, "t", ("x", "y"), ()),))


def _workspace(n: int) -> Buffer:
    return Buffer(Tensor("w", (n,)), "workspace", dense((n,)))


def _fail(error: Exception) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


def _print_and_abort() -> None:
    os.write(2, b"LLVM ERROR: cannot select\n")
    os.abort()


def _hang_natively() -> None:
    library = Library([assemble(KERNEL.format(body=ENDLESS), TARGET)])
    library.function("double", 2)(0, 0, 0, 1)


def _write_to_all() -> None:
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, b"\x80\x04\x95 no frame, and more than the length of one")
    time.sleep(3600)


BUILD_FAILURES: dict[str, Callable[[], object]] = {
    "build_exit": lambda: os._exit(0),
    "build_stop": lambda: os.kill(0, signal.SIGSTOP),
    "build_killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "build_garbage": _write_to_all,
    "build_closes": lambda: os.closerange(0, 256),
    "bad_schedule": _fail(ScheduleError("no stage 'c'")),
    "bad_code": _fail(CodegenError("too many registers")),
    "bug": _fail(ZeroDivisionError("deep inside")),
    "build_abort": _print_and_abort,
    "build_segfault": lambda: ctypes.string_at(0),
    "build_sleep": lambda: time.sleep(3600),
    "build_hang": _hang_natively,
}

KERNEL = """
define void @double(ptr %x, ptr %y, i64 %begin, i64 %end) {{
entry:
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %back ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
{body}
  br label %back
back:
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}"""

# one element: base[i] = factor · x[i]
ELEMENT = """
  %from = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %from
  %twice = fmul float %v, {factor}
  %to = getelementptr float, ptr {base}, i64 %i
  store float %twice, ptr %to"""

ENDLESS = """
  %here = alloca i8
  br label %ever
ever:
  %seen = load volatile i8, ptr %here
  br label %ever
never:"""

# only elements up to the last but one
SKIP_LAST = """
  %is_last = icmp eq i64 %i, 999
  br i1 %is_last, label %back, label %store
store:"""


def _kernel(factor: str = "2.0", base: str = "%y", before: str = "") -> str:
    body = before + ELEMENT.format(factor=factor, base=base)
    return KERNEL.format(body=body)


PLAIN = {"factor": "2.0", "base": "%y"}
COPY = _kernel()
PROGRAMS = {
    "good": COPY,
    "crash": _kernel(base="null"),
    "unknown_symbol": "declare void @nowhere()\n"
    + KERNEL.format(body="  call void @nowhere()" + ELEMENT.format(**PLAIN)),
    "wrong_later": "@calls = internal global float 0.0\n"
    + KERNEL.format(
        body="  %n = load float, ptr @calls\n  %m = fadd float %n, 1.0\n"
        "  store float %m, ptr @calls\n  %late = fcmp ogt float %m, 1000.0\n"
        "  %f = select i1 %late, float 3.0, float 2.0" + ELEMENT.format(**PLAIN | {"factor": "%f"})
    ),
    "crash_later": "@calls = internal global i64 0\n"
    + KERNEL.format(
        body="  %n = load i64, ptr @calls\n  %m = add i64 %n, 1\n"
        "  store i64 %m, ptr @calls\n  %late = icmp ugt i64 %m, 1000\n"
        "  %where = select i1 %late, ptr null, ptr %y"
        + ELEMENT.format(**PLAIN | {"base": "%where"})
    ),
    "hang": KERNEL.format(body=ENDLESS),
    "wrong": _kernel(factor="3.0"),
    "off_by_a_little": _kernel(factor="0x4000010000000000"),
    "inaccurate": _kernel(factor="0x4000004000000000"),  # 2·(1 + 6e-5)
    "too_far": KERNEL.format(
        body=ELEMENT.format(**PLAIN)
        + """
  %past = getelementptr float, ptr %y, i64 1000
  store float 7.0, ptr %past"""
    ),
    "too_early": KERNEL.format(
        body=ELEMENT.format(**PLAIN)
        + """
  %ahead = getelementptr float, ptr %x, i64 -1
  store float 7.0, ptr %ahead"""
    ),
    "changes_input": KERNEL.format(body=ELEMENT.format(**PLAIN) + "\n  store float 7.0, ptr %x"),
    "forgets_last": _kernel(before=SKIP_LAST),
    "reads_past_end": KERNEL.format(
        body=ELEMENT.format(**PLAIN).replace(
            "%v = load float, ptr %from",
            "%after = getelementptr float, ptr %from, i64 1\n"
            "  %v0 = load float, ptr %from\n  %v1 = load float, ptr %after\n"
            "  %none = fsub float %v1, %v1\n  %v = fadd float %v0, %none",
        )
    ),
}
