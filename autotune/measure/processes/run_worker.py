"""⑦ The child's side of a runner: one isolated process that loads, checks and times programs.

A program is checked first: outputs and workspace hold NaN, guard zones surround all buffers, and
the outputs of one evaluation on all threads are compared with the oracle. Only a program that
passes is timed, in turns with others of its task. Its outputs are compared once more after timing,
which finds data races that show in few evaluations.
"""

from __future__ import annotations

import os
import statistics
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.codec import from_json, to_json
from autotune.codegen.pack import pack
from autotune.errors import AutotuneError, UsageError
from autotune.loopir.nodes import Program
from autotune.measure.build import BuiltProgram
from autotune.measure.far.program import ProgramEnded, ProgramExecutor, connect
from autotune.measure.options import MeasureOptions
from autotune.measure.oracle import ReferenceValues, Verdict, check, reference
from autotune.measure.processes.frames import Message
from autotune.measure.processes.messages import (
    Hold,
    Prepare,
    Prepared,
    Reply,
    RunRequest,
    Time,
    from_message,
    to_message,
)
from autotune.measure.processes.process import Setup
from autotune.measure.processes.supervisor import Handler
from autotune.measure.timing.arena import Arena
from autotune.measure.timing.driver import Driver, EvaluationPlan, TimedKernel
from autotune.measure.timing.executor import Executors, SharedBlock, ThisProcess
from autotune.measure.timing.peak import MultiplyAddPeak, full_pace
from autotune.measure.timing.timing import in_rounds, repeat_in_turns
from autotune.result import AtNumbers, MeasureResult, MeasureStatus
from autotune.target import Target
from autotune.te.at_numbers import NO_NUMBERS, Numbers, numbers_of, usual_numbers

Array = NDArray[Any]

_CACHED_BYTES = 1 << 30
"""References of tasks are kept up to this size; the last one always."""

_MOST_WAIT_S, _WAITS = 2.0, 5
"""For all threads to run at full pace, and how many of these a time-out of a candidate has."""
_PEAK_TURNS = 20_000
"""About 0.3 ms: as long as a kernel, and longer than most interrupts."""


def serve_runs(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """The handler of a run worker, of the arguments that `setup` gives."""
    target, n_threads = Target.from_json(arguments["target"]), arguments["n_threads"]
    executors: Executors = partial(ThisProcess, target)
    if blobs:
        executors = partial(ProgramExecutor, connect(arguments["command"], bytes(blobs[0])), target)
    options = from_json(MeasureOptions, arguments["options"])
    handler = RunHandler(target, n_threads, options, executors)

    def handle(message: Message) -> Message:
        request = from_message(message)
        assert isinstance(request, Prepare | Hold | Time)
        return to_message(handler(request))

    return handle


@dataclass(frozen=True, slots=True)
class FarSide:
    """A command that starts the measuring program, and that program: see `program.connect`."""

    command: str
    program: bytes = field(repr=False)


def setup(
    target: Target, n_threads: int, options: MeasureOptions, far: FarSide | None = None
) -> Setup:
    """What starts a run worker; `far`: where programs run, this process by default."""
    arguments = {
        "target": target.to_json(),
        "n_threads": n_threads,
        "options": to_json(options),
        "command": far and far.command,
    }
    blobs = (far.program,) if far else ()
    return Setup(
        "autotune.measure.processes.run_worker:serve_runs", arguments, blobs, options.worker_bytes
    )


class RunHandler:
    """Runs in the worker process."""

    def __init__(
        self,
        target: Target,
        n_threads: int,
        options: MeasureOptions,
        executors: Executors | None = None,
    ) -> None:
        self._options = options
        executors = executors or partial(ThisProcess, target)
        self._driver = Driver(target, n_threads, executors(n_threads))
        self._driver.pin(_cores(options, self._driver.executor.cpus)[:n_threads])
        per_thread = 2 * target.l2_bytes if options.flush_bytes is None else options.flush_bytes
        self._sweep = self._driver.executor.block(per_thread * n_threads)
        self._sweep.array.fill(0)  # map the pages now
        self._references: dict[int, ReferenceValues] = {}
        self._held: list[_Held] = []
        beside = options.beside_peak
        self._fma_peak = MultiplyAddPeak(target, self._driver, fed=True) if beside else None
        alone = Driver(target, 1, executors(1)) if n_threads > 1 else None
        most_s = min(_MOST_WAIT_S, options.run_timeout_s / _WAITS)
        self._pace = full_pace(self._driver, target, alone, most_s)

    def __call__(self, request: RunRequest) -> Reply:
        """Prepare a task or measure programs of one that is."""
        match request:
            case Prepare():
                return self._prepare(request)
            case Hold():
                self._held = [] if request.first else self._held
                return self._guarded(partial(self._hold, request))
            case Time():
                held, self._held = self._held, []
                return self._guarded(partial(self._time, held, request))

    def _prepare(self, request: Prepare) -> Prepared:
        options = self._options
        made = reference(request.dag, options.seed, options.relative_tolerance, request.expected)
        most = share(_CACHED_BYTES, options.worker_bytes)
        while self._references and self._cached_bytes() > most:
            del self._references[next(iter(self._references))]
        self._references[request.task] = made
        return Prepared(dict(made.expected), frozenset(self._references))

    def _cached_bytes(self) -> int:
        return sum(r.n_bytes for r in self._references.values())

    def _hold(self, request: Hold) -> MeasureResult:
        ref = self._references[request.task]
        loaded = Loaded(request.program, ref, self._driver, self._sweep, self._options.evict)
        first_s = loaded.evaluate()
        verdict = loaded.verdict()
        if verdict.problem:
            return _wrong(verdict)
        self._held.append(_Held(loaded, first_s, verdict))
        return MeasureResult(MeasureStatus.OK, max_error=verdict.max_error)

    def _time(self, held: Sequence[_Held], request: Time) -> list[MeasureResult]:
        """Results of what is held; rounds in which threads were slow are timed again."""
        programs = [h.loaded.evaluate_usual for h in held]
        self._pace.begin()

        def counts() -> bool:
            holds = self._pace.holds()
            for h in held:
                h.loaded.settle(holds)
            return holds

        if request.rounds is None:
            first_s = [h.first_s for h in held]
            best_s = request.best_s
            times = repeat_in_turns(programs, first_s, self._options, best_s, counts=counts)
            return [self._result(h, t) for h, t in zip(held, times, strict=True)]
        beside = [partial(self._beside_peak, program) for program in programs]
        found = in_rounds(beside, request.rounds, counts)
        pairs = [tuple(zip(*each, strict=True)) for each in found]
        return [self._result(h, *pair) for h, pair in zip(held, pairs, strict=True)]

    def _beside_peak(self, program: Callable[[], float]) -> tuple[float, float | None]:
        """Seconds of an evaluation, and the peak right after it where that is asked for."""
        time_s = program()
        return time_s, self._fma_peak.flops_per_s(_PEAK_TURNS) if self._fma_peak else None

    def _result(
        self, held: _Held, times: tuple[float, ...], peaks: Sequence[float | None] = ()
    ) -> MeasureResult:
        at = held.loaded.at_numbers()
        again = held.loaded.verdict()
        if again.problem:
            return _wrong(again, "in a later evaluation: ")
        worst = max(held.verdict.max_error, again.max_error)
        result = MeasureResult(
            MeasureStatus.OK,
            times,
            max_error=worst,
            peaks=tuple(peak for peak in peaks if peak is not None),
            at=at,
            pace=self._pace.share,
        )
        return result.within(self._options.max_error)

    def _guarded(self, run: Callable[[], Reply]) -> Reply:
        try:
            return run()
        except ProgramEnded as error:  # as if the code had run in this process
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
            os._exit(1)
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
        self,
        built: BuiltProgram,
        ref: ReferenceValues,
        driver: Driver,
        sweep: SharedBlock,
        evict: bool,
    ) -> None:
        program = built.program
        self._program = program
        self._ref = ref
        self._driver = driver
        self._code = driver.executor.load([built.code])
        buffers = [b for b in program.buffers if b.role != "local"]
        self._arena = Arena(buffers, program.shared, driver.executor.block)
        _fill(self._arena, program, ref)
        self._arena.push()
        self._plan = self._make_plan(sweep, evict)
        inputs = {b.name for b in buffers if b.role == "input"}
        self._numbers = [name for name in numbers_of(ref.dag) if name in inputs]
        self._points = usual_numbers(ref.dag) if self._numbers else ()
        self._times: list[list[float]] = [[] for _ in self._points]
        self._now: list[list[float]] = []

    def evaluate_usual(self) -> float:
        """Seconds of an evaluation; their geometric mean where usual numbers get one each."""
        if not self._points:
            return self.evaluate()
        each = [self.evaluate(numbers) for numbers in self._points]
        self._now.append(each)
        return statistics.geometric_mean(each)

    def settle(self, counts: bool) -> None:
        """Whether the evaluations at usual numbers since the last call count."""
        for each in self._now if counts else ():
            for times, time_s in zip(self._times, each, strict=True):
                times.append(time_s)
        self._now.clear()

    def at_numbers(self) -> tuple[AtNumbers, ...]:
        """Medians at usual numbers; outputs are then those that were checked once more."""
        if not self._points:
            return ()
        self.evaluate()
        pairs = zip(self._points, self._times, strict=True)
        return tuple(AtNumbers(dict(p), statistics.median(times)) for p, times in pairs)

    def evaluate(self, numbers: Numbers = NO_NUMBERS) -> float:
        """Seconds of one evaluation, weights cold and inputs warm.

        `numbers`: in place of those that outputs are known for.
        """
        for name in self._numbers:
            self._arena.view(name)[...] = numbers.get(name, self._ref.values[name])
            self._arena.push(name)
        for operand in self._program.shared[:1]:
            self._arena.view(operand)[...] = self._ref.values[operand]
            self._arena.push(operand)
        return self._driver.evaluate(self._plan)

    def verdict(self) -> Verdict:
        """Whether the last evaluation wrote the right numbers, and only to its outputs."""
        worst = 0.0
        self._arena.pull()
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

    def _make_plan(self, sweep: SharedBlock, evict: bool) -> EvaluationPlan:
        arena, program = self._arena, self._program
        launches = [
            TimedKernel(
                self._code.address(k.name), tuple(arena.address(b) for b in k.buffers), k.extent
            )
            for k in program.kernels
        ]

        def spans(*roles: str) -> list[tuple[int, int]]:
            mine = [b for b in program.buffers if b.role in roles and b.name not in result]
            return [(arena.address(b.name), b.n_bytes) for b in mine]

        result = program.shared[1:]  # it aliases an input
        if evict:
            near, cold = spans("output", "workspace"), spans("constant")
        else:
            near, cold = spans("output", "workspace", "constant"), []
        code = [(min(x.code for x in launches), self._code.n_code_bytes)]
        return self._driver.plan(launches, spans("input"), sweep, cold, near, code)


@dataclass(frozen=True, slots=True)
class _Held:
    """A program that passed its check, and the seconds of the evaluation that was checked."""

    loaded: Loaded
    first_s: float
    verdict: Verdict


def share(n_bytes: int, of_bytes: int) -> int:
    """`n_bytes`, or a quarter of the machine's (0: enough) where that is less."""
    return min(n_bytes, of_bytes // 4) if of_bytes else n_bytes


def _cores(options: MeasureOptions, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """Cores to run on; raises UsageError for a core that programs may not use."""
    unknown = set(options.cores) - set(allowed)
    if unknown:
        raise UsageError(f"cannot run on core {min(unknown)}", f"use some of {sorted(allowed)}")
    return options.cores or allowed


def _fill(arena: Arena, program: Program, ref: ReferenceValues) -> None:
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
