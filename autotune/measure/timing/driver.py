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

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.codegen.compile import assemble
from autotune.errors import CodegenError
from autotune.measure.timing.driver_ir import driver_ir
from autotune.measure.timing.executor import Executor, SharedBlock, ThisProcess
from autotune.pages import CACHE_LINE
from autotune.target import Target

MAX_BUFFERS = 64
"""Pointer arguments that a kernel may take here."""

_WORD = 8
_CPU_SET_BYTES = 128
_CLOCK_MONOTONIC, _CLOCK_THREAD_CPUTIME = 1, 3
_N_EMPTY = 64


_PLAN_WORDS, _KERNEL_WORDS, _SPAN_WORDS = 16, 4, 2
"""Words of the records that `driver_ir` reads."""
_ELAPSED = 8
"""The word of a plan that an evaluation writes: nanoseconds."""


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """One kernel: its code, its buffers' addresses, and the range to divide among the threads."""

    code: int
    buffers: tuple[int, ...]
    extent: int


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """One evaluation, as the machine code reads it; keeps alive the memory that it names."""

    block: SharedBlock
    keep: tuple[Any, ...]


class Driver:
    """Evaluates plans on `n_threads` threads of an executor: of this process where none is given.

    One per process that computes; not thread-safe.
    """

    def __init__(self, target: Target, n_threads: int, executor: Executor | None = None) -> None:
        self.n_threads = n_threads
        self.executor: Executor = executor or ThisProcess(target, n_threads)
        flushes = target.isa.line_flushes
        feature = next((name for name in flushes if self.executor.has(name)), "")
        text = driver_ir(target, MAX_BUFFERS, flushes.get(feature, ""))
        self._code = self.executor.load([assemble(text, target, feature and f",+{feature}")])
        self._barrier = self.executor.block(4 * 8 * CACHE_LINE)
        self._overhead_ns = 0.0
        empty = self.plan([], [], self.executor.block(0))
        self._overhead_ns = statistics.median(self.evaluate(empty) * 1e9 for _ in range(_N_EMPTY))

    @property
    def overhead_s(self) -> float:
        """Time that an empty evaluation takes; `evaluate` has subtracted it."""
        return self._overhead_ns * 1e-9

    def plan(
        self,
        launches: Sequence[TimedKernel],
        warm: Sequence[tuple[int, int]],
        sweep: SharedBlock,
        cold: Sequence[tuple[int, int]] = (),
        near: Sequence[tuple[int, int]] = (),
        code: Sequence[tuple[int, int]] = (),
    ) -> EvaluationPlan:
        """Lay out one evaluation of `launches`.

        Spans are addresses and bytes. `warm` ones are read into the caches of a core before, `near`
        ones into the shared cache; `cold` ones come from memory; `code` is read whole by every
        thread. All other bytes are where the last evaluation of any plan left them. `sweep`: the
        memory that flushes caches, divided evenly among threads. Raises CodegenError for a kernel
        with more than `MAX_BUFFERS` buffers.
        """
        n_tables = len(launches)
        spans = [*warm, *cold, *near, *code]
        n_words = _KERNEL_WORDS * n_tables + sum(len(x.buffers) for x in launches)
        n_words += _SPAN_WORDS * (len(spans) + 1 + n_tables)
        block = self.executor.block(_WORD * (_PLAN_WORDS + n_words))
        records = _Words(block, _PLAN_WORDS)
        tables = [records.add(x.buffers) for x in launches]
        rows = [self._row(x, at) for x, at in zip(launches, tables, strict=True)]
        kernels = records.add([word for row in rows for word in row])
        sizes = [_WORD * len(x.buffers) for x in launches]
        own = [*code, (kernels, _WORD * _KERNEL_WORDS * n_tables), *zip(tables, sizes, strict=True)]
        places = [records.add(_lines(parts)) for parts in (warm, cold, near, own)]
        block.array.view(np.int64)[:_PLAN_WORDS] = (
            self.n_threads,
            _CLOCK_MONOTONIC if self.n_threads > 1 else _CLOCK_THREAD_CPUTIME,
            n_tables,
            kernels,
            len(warm),
            places[0],
            sweep.address,
            sweep.n_bytes // CACHE_LINE,
            0,
            self._barrier.address,
            len(cold),
            places[1],
            len(near),
            places[2],
            len(own),
            places[3],
        )
        block.push()
        return EvaluationPlan(block, (sweep,))

    def evaluate(self, plan: EvaluationPlan) -> float:
        """Run `plan` once; seconds between the stamps. Raises CodegenError without its threads."""
        block, at = plan.block, _WORD * _ELAPSED
        self.executor.call(self._code.address("evaluate"), block.address)
        block.pull(at, at + _WORD)
        elapsed_ns = int(block.array.view(np.int64)[_ELAPSED])
        return max(elapsed_ns - self._overhead_ns, 1.0) * 1e-9

    def pin(self, cores: Sequence[int]) -> None:
        """Bind thread t to the t-th of `cores`, starting over when there are fewer."""
        block = self.executor.block(self.n_threads * _CPU_SET_BYTES)
        masks = block.array.reshape(self.n_threads, _CPU_SET_BYTES)
        for thread in range(self.n_threads):
            core = cores[thread % len(cores)]
            masks[thread, core // 8] = 1 << core % 8
        block.push()
        self.executor.call(self._code.address("pin"), block.address)

    def _row(self, launch: TimedKernel, table: int) -> tuple[int, ...]:
        n = len(launch.buffers)
        if n > MAX_BUFFERS:
            raise CodegenError(f"a kernel takes {n} buffers, at most {MAX_BUFFERS} can be measured")
        return self._code.address(f"thunk{n}"), launch.code, table, launch.extent


class _Words:
    """Words of a block from number `at` on, one list after the other."""

    def __init__(self, block: SharedBlock, at: int) -> None:
        self._block, self._at = block, at

    def add(self, words: Sequence[int]) -> int:
        """Address of the list."""
        begin, self._at = self._at, self._at + len(words)
        self._block.array.view(np.int64)[begin : self._at] = words
        return self._block.address + _WORD * begin


def _lines(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Addresses and numbers of cache lines."""
    return [word for at, size in spans for word in (at, _n_lines(at, size))]


def _n_lines(address: int, n_bytes: int) -> int:
    """Cache lines from that of the first byte to that of the last."""
    return -(-(address % CACHE_LINE + n_bytes) // CACHE_LINE)
