"""⑦ Run and time kernels from machine code: no Python between two time stamps.

    evaluate(plan, t):  every thread t of n                  (LLVM IR in `driver_ir`)
        flushes its part of the cold spans from all caches -- these are in memory now
        reads its part of the near spans
        sweeps its part of a buffer: flushes its caches    -- the near are in the shared cache
        reads its part of the warm spans                   -- in its own caches
        reads all code and tables of addresses             -- as in a network that runs again
        barrier, time stamp
        for every kernel: runs [extent·t/n, extent·(t+1)/n), barrier
        time stamp

The sweep computes with the widest vectors, so that a core which powers them down when idle has
powered them up. With one thread there is no barrier, and the clock is the CPU time
of the thread, which excludes time slices of other processes. With more threads it is the wall
clock, since waiting is part of the cost. The duration of an empty plan (of the clock itself) is
subtracted, so one cold call of a few microseconds can be measured without rotating copies.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from autotune.codegen.compile import assemble
from autotune.codegen.gang import gang
from autotune.codegen.jit import Library
from autotune.errors import CodegenError
from autotune.measure.driver_ir import driver_ir
from autotune.pages import CACHE_LINE
from autotune.target import Target

Array = NDArray[Any]

MAX_BUFFERS = 64
"""Pointer arguments that a kernel may take here."""

_CPU_SET_BYTES = 128
_CLOCK_MONOTONIC, _CLOCK_THREAD_CPUTIME = 1, 3
_N_EMPTY = 64


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("thunk", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("extent", ctypes.c_int64),
    )


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("n_lines", ctypes.c_int64))


class _Plan(ctypes.Structure):
    _fields_ = (
        ("n_threads", ctypes.c_int64),
        ("clock", ctypes.c_int64),
        ("n_kernels", ctypes.c_int64),
        ("kernels", ctypes.c_void_p),
        ("n_warm", ctypes.c_int64),
        ("warm", ctypes.c_void_p),
        ("sweep", ctypes.c_void_p),
        ("sweep_lines", ctypes.c_int64),
        ("elapsed_ns", ctypes.c_int64),
        ("barrier", ctypes.c_void_p),
        ("n_cold", ctypes.c_int64),
        ("cold", ctypes.c_void_p),
        ("n_near", ctypes.c_int64),
        ("near", ctypes.c_void_p),
        ("n_own", ctypes.c_int64),
        ("own", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """One kernel: its code, its buffers' addresses, and the range to divide among the threads."""

    code: int
    buffers: tuple[int, ...]
    extent: int


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """One evaluation, as the machine code reads it; keeps its targets alive."""

    record: Any
    keep: tuple[Any, ...]


class Driver:
    """Evaluates plans on `n_threads` threads. One per process; not thread-safe."""

    def __init__(self, target: Target, n_threads: int) -> None:
        self.n_threads = n_threads
        flushes = target.isa.line_flushes
        feature = next(f for f in flushes if llvm.get_host_cpu_features().get(f))
        text = driver_ir(target, MAX_BUFFERS, flushes[feature])
        self._library = Library([assemble(text, target, f",+{feature}")])
        self._gang = gang(target, n_threads)
        self._barrier = np.zeros(4 * CACHE_LINE, np.uint64)
        self._overhead_ns = 0.0
        empty = self.plan([], [], np.zeros(0, np.uint8))
        self._overhead_ns = statistics.median(self.evaluate(empty) * 1e9 for _ in range(_N_EMPTY))

    @property
    def overhead_s(self) -> float:
        """Time that an empty evaluation takes; `evaluate` has subtracted it."""
        return self._overhead_ns * 1e-9

    def plan(
        self,
        launches: Sequence[TimedKernel],
        warm: Sequence[tuple[int, int]],
        sweep: Array,
        cold: Sequence[tuple[int, int]] = (),
        near: Sequence[tuple[int, int]] = (),
        code: Sequence[tuple[int, int]] = (),
    ) -> EvaluationPlan:
        """Lay out one evaluation of `launches`.

        Spans are addresses and bytes. `warm` ones are read into the caches of a core before, `near`
        ones into the shared cache; `cold` ones come from memory; `code` is read whole by every
        thread. All other bytes are where the last evaluation of any plan left them. `sweep`: the
        memory that flushes caches, divided evenly among threads, of any dtype, aligned to a cache
        line. Raises CodegenError for a kernel with more than `MAX_BUFFERS` buffers.
        """
        tables = [(ctypes.c_void_p * len(x.buffers))(*x.buffers) for x in launches]
        rows = [self._row(x, t) for x, t in zip(launches, tables, strict=True)]
        kernels = (_Kernel * len(rows))(*rows)
        own = [*code, _extent(kernels), *map(_extent, tables)]
        spans = _spans(warm), _spans(cold), _spans(near), _spans(own)
        record = _Plan(
            n_threads=self.n_threads,
            clock=_CLOCK_MONOTONIC if self.n_threads > 1 else _CLOCK_THREAD_CPUTIME,
            n_kernels=len(rows),
            kernels=ctypes.addressof(kernels),
            n_warm=len(warm),
            warm=ctypes.addressof(spans[0]),
            sweep=sweep.ctypes.data,
            sweep_lines=sweep.nbytes // CACHE_LINE,
            barrier=self._barrier.ctypes.data,
            n_cold=len(cold),
            cold=ctypes.addressof(spans[1]),
            n_near=len(near),
            near=ctypes.addressof(spans[2]),
            n_own=len(own),
            own=ctypes.addressof(spans[3]),
        )
        return EvaluationPlan(record, (tables, kernels, spans, sweep))

    def evaluate(self, plan: EvaluationPlan) -> float:
        """Run `plan` once; seconds between the stamps. Raises CodegenError without its threads."""
        self._gang.call(self._library.address("evaluate"), ctypes.addressof(plan.record))
        return max(int(plan.record.elapsed_ns) - self._overhead_ns, 1.0) * 1e-9

    def pin(self, cores: Sequence[int]) -> None:
        """Bind thread t to the t-th of `cores`, starting over when there are fewer."""
        masks = np.zeros((self.n_threads, _CPU_SET_BYTES), np.uint8)
        for thread in range(self.n_threads):
            core = cores[thread % len(cores)]
            masks[thread, core // 8] = 1 << core % 8
        self._gang.call(self._library.address("pin"), masks.ctypes.data)

    def _row(self, launch: TimedKernel, table: Any) -> _Kernel:
        n = len(launch.buffers)
        if n > MAX_BUFFERS:
            raise CodegenError(f"a kernel takes {n} buffers, at most {MAX_BUFFERS} can be measured")
        thunk = self._library.address(f"thunk{n}")
        return _Kernel(thunk, launch.code, ctypes.addressof(table), launch.extent)


def _spans(parts: Sequence[tuple[int, int]]) -> Any:
    return (_Span * len(parts))(*(_Span(at, _n_lines(at, size)) for at, size in parts))


def _n_lines(address: int, n_bytes: int) -> int:
    """Cache lines from that of the first byte to that of the last."""
    return -(-(address % CACHE_LINE + n_bytes) // CACHE_LINE)


def _extent(array: Any) -> tuple[int, int]:
    return ctypes.addressof(array), ctypes.sizeof(array)
