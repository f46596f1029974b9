"""⑦ The run worker: one isolated process that loads, checks and times programs.

The check comes first: outputs and workspace hold NaN, buffers are fenced, and the output of one
evaluation on all threads is compared with the oracle. Only a program that passes is timed. After
timing its output must still be right: what a race spoils now and then shows there.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.jit import Library
from autotune.codegen.memory import aligned
from autotune.codegen.pack import pack
from autotune.errors import AutotuneError, UsageError
from autotune.loopir.nodes import Program
from autotune.measure.arena import Arena
from autotune.measure.driver import Driver, Launch, Plan
from autotune.measure.options import MeasureOptions
from autotune.measure.oracle import Reference, Verdict, check, reference
from autotune.measure.peak import FmaPeak
from autotune.measure.program import BuiltProgram
from autotune.measure.result import MeasureResult, MeasureStatus
from autotune.measure.timing import repeat
from autotune.target import Target
from autotune.te.dag import ComputeDAG

Array = NDArray[Any]
Outputs: TypeAlias = dict[str, Array]

_CACHED_BYTES = 1 << 30
"""References of tasks are kept up to this size; the last one always."""

_PEAK_TURNS = 20_000
"""About 0.3 ms: as long as a kernel, and longer than most interruptions."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make inputs of task number `task`; its oracle unless `expected` holds it already."""

    task: int
    dag: ComputeDAG
    expected: Outputs | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Reply to Prepare: the oracle of the task, and the tasks whose inputs the worker now holds."""

    expected: Outputs
    held: frozenset[int]


@dataclass(frozen=True, slots=True)
class Run:
    """Check and time one program of a prepared task. Replied to with a MeasureResult."""

    task: int
    built: BuiltProgram
    best_s: float | None


@dataclass(frozen=True, slots=True)
class RunInterleaved:
    """Check all programs, then time them in turns: A B A B … Replied to with a list of results."""

    task: int
    built: tuple[BuiltProgram, ...]
    rounds: int


Request: TypeAlias = Prepare | Run | RunInterleaved


class RunHandler:
    """Runs in the worker process."""

    def __init__(self, target: Target, n_threads: int, options: MeasureOptions) -> None:
        self._options = options
        self._driver = Driver(target, n_threads)
        self._driver.pin(_cores(options)[:n_threads])
        per_thread = 2 * target.l2_bytes if options.flush_bytes is None else options.flush_bytes
        self._sweep = aligned((per_thread * n_threads,), "uint8")
        self._sweep.fill(0)  # touch the pages now
        self._references: dict[int, Reference] = {}
        self._fma_peak = FmaPeak(target, self._driver) if options.beside_peak else None

    def __call__(self, request: Request) -> object:
        """Prepare a task or measure programs of one that is."""
        match request:
            case Prepare():
                return self._prepare(request)
            case Run():
                return self._guarded(partial(self._run, request))
            case RunInterleaved():
                return self._interleaved(request.task, request.built, request.rounds)

    def _prepare(self, request: Prepare) -> Prepared:
        options = self._options
        made = reference(request.dag, options.seed, options.relative_tolerance, request.expected)
        while self._references and self._cached_bytes() > _CACHED_BYTES:
            del self._references[next(iter(self._references))]
        self._references[request.task] = made
        return Prepared(dict(made.expected), frozenset(self._references))

    def _cached_bytes(self) -> int:
        return sum(r.n_bytes for r in self._references.values())

    def _run(self, request: Run) -> MeasureResult:
        ref = self._references[request.task]
        loaded = self._load(request.built, ref)
        first_s = loaded.evaluate()
        verdict = loaded.verdict()
        if verdict.problem:
            return _wrong(verdict)
        times = repeat(loaded.evaluate, first_s, self._options, request.best_s)
        again = loaded.verdict()
        if again.problem:
            return _wrong(again, "in a later evaluation: ")
        worst = max(verdict.max_error, again.max_error)
        return MeasureResult(MeasureStatus.OK, times, max_error=worst).within(
            self._options.max_error
        )

    def _load(self, built: BuiltProgram, ref: Reference) -> Loaded:
        return Loaded(built, ref, self._driver, self._sweep, self._options.evict)

    def _interleaved(
        self, task: int, built: Sequence[BuiltProgram], rounds: int
    ) -> list[MeasureResult]:
        loaded: dict[int, Loaded] = {}

        def load(n: int) -> MeasureResult:
            program = self._load(built[n], self._references[task])
            program.evaluate()
            verdict = program.verdict()
            if verdict.problem:
                return _wrong(verdict)
            loaded[n] = program
            result = MeasureResult(MeasureStatus.OK, max_error=verdict.max_error)
            return result.within(self._options.max_error)

        results = [self._guarded(partial(load, n)) for n in range(len(built))]
        turns = [
            {n: (p.evaluate(), self._peak()) for n, p in loaded.items()} for _ in range(rounds)
        ]
        for n in loaded:
            times, peaks = zip(*(turn[n] for turn in turns), strict=True)
            results[n] = replace(results[n], times_s=times, peaks=peaks if all(peaks) else ())
        return results

    def _peak(self) -> float:
        """The FMA peak of this moment in flops per second; 0 where nobody asked for it."""
        return self._fma_peak.flops_per_s(_PEAK_TURNS) if self._fma_peak else 0.0

    def _guarded(self, run: Callable[[], MeasureResult]) -> MeasureResult:
        try:
            return run()
        except AutotuneError as error:
            return MeasureResult(MeasureStatus.RUN_ERROR, error=error.message)
        except MemoryError:
            text = f"out of memory\n{traceback.format_exc()}"
            return MeasureResult(MeasureStatus.RUN_ERROR, error=text)
        except Exception:
            return MeasureResult(MeasureStatus.RUN_ERROR, error=traceback.format_exc())


class Loaded:
    """A program in memory: code, buffers, packed constants, and the plan to evaluate it."""

    def __init__(
        self, built: BuiltProgram, ref: Reference, driver: Driver, sweep: Array, evict: bool
    ) -> None:
        program = built.program
        self._program = program
        self._ref = ref
        self._driver = driver
        self._library = Library([built.code])
        buffers = [b for b in program.buffers if b.role != "local"]
        self._arena = Arena(buffers, program.shared)
        _fill(self._arena, program, ref)
        self._plan = self._make_plan(sweep, evict)

    def evaluate(self) -> float:
        """Seconds of one evaluation, weights cold and inputs warm."""
        for operand in self._program.shared[:1]:
            self._arena.view(operand)[...] = self._ref.values[operand]
        return self._driver.evaluate(self._plan)

    def verdict(self) -> Verdict:
        """Whether the last evaluation wrote the right numbers, and nothing else."""
        worst = 0.0
        for name in self._ref.expected:
            verdict = check(name, self._arena.view(name), self._ref)
            worst = max(worst, verdict.max_error)
            if verdict.problem:
                return Verdict(worst, self._arena.damage() or verdict.problem)
        return Verdict(worst, self._arena.damage() or self._changed_input())

    def _changed_input(self) -> str:
        program = self._program
        for name in (b.name for b in program.buffers if b.role == "input"):
            intact = np.array_equal(self._arena.view(name), self._ref.values[name])
            if name not in program.shared and not intact:
                return f"the program has changed its input {name}"
        return ""

    def _make_plan(self, sweep: Array, evict: bool) -> Plan:
        arena, program = self._arena, self._program
        launches = [
            Launch(
                self._library.address(k.name), tuple(arena.address(b) for b in k.buffers), k.extent
            )
            for k in program.kernels
        ]

        def spans(*roles: str) -> list[tuple[int, int]]:
            mine = [b for b in program.buffers if b.role in roles and b.name not in result]
            return [(arena.address(b.name), b.n_bytes) for b in mine]

        result = program.shared[1:]  # lies where an input does
        if evict:
            near, cold = spans("output", "workspace"), spans("constant")
        else:
            near, cold = spans("output", "workspace", "constant"), []
        return self._driver.plan(launches, spans("input"), sweep, cold, near)


def _cores(options: MeasureOptions) -> tuple[int, ...]:
    """Where to run; raises UsageError for a core that this process may not use."""
    allowed = os.sched_getaffinity(0)
    unknown = set(options.cores) - allowed
    if unknown:
        raise UsageError(f"cannot run on core {min(unknown)}", f"use some of {sorted(allowed)}")
    return options.cores or tuple(sorted(allowed))


def _fill(arena: Arena, program: Program, ref: Reference) -> None:
    """Write inputs and constants, packing those that the program wants packed."""
    packings = {p.packed.name: p for p in program.packs}
    values = ref.constants(program.derived)
    for buffer in program.buffers:
        packing = packings.get(buffer.name)
        if packing is not None:
            pack(packing, values[packing.source.name], arena.view(buffer.name))
        elif buffer.role in ("input", "constant"):
            arena.view(buffer.name)[...] = values[buffer.name]


def _wrong(verdict: Verdict, when: str = "") -> MeasureResult:
    return MeasureResult(
        MeasureStatus.WRONG_ANSWER, error=when + verdict.problem, max_error=verdict.max_error
    )
