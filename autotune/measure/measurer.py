"""⑦ Measure candidates: build them side by side, then check and time them in turns.

    with measurer_of(LocalDevice(target, n_threads), options) as measurer:
        results = measurer.measure(dag, [steps, …])      # one status each, nothing is raised

Nothing is built while a program runs on the same machine. Processes start with the first use and
are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from autotune.measure.build import Build, build_program
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.messages import BuildResult, Time
from autotune.measure.processes.process import WorkerError
from autotune.measure.protocols import Builder, Built, Device, LeftOut, Runner
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG

Result = TypeVar("Result")

_TOLD_EVERY_S = 0.25


def measurer_of(device: Device, options: MeasureOptions, build: Build = build_program) -> Measurer:
    """A measurer with the builder and the runner of `device`."""
    return Measurer(device.builder(options, build), device.runner(options))


class Measurer:
    """Builds candidates with `builder`, then checks and times them with `runner`.

    A context manager: leaving it ends all processes. For one thread of the session at a time.
    """

    n_slots = 1
    devices: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def __init__(self, builder: Builder, runner: Runner) -> None:
        self._builder, self._runner = builder, runner
        # builder processes end with the thread that started them, so one thread starts all
        self._thread: ThreadPoolExecutor | None = None
        self.waited_s = 0.0
        """Seconds in which everything was built and `meanwhile` was not done."""
        self.built_s = 0.0
        """Seconds in which candidates were built."""

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a later measurement starts new ones."""
        if self._thread is not None:
            self._builder.abandon()
            self._thread.shutdown()
            self._thread = None
        self._builder.close()
        self._runner.close()

    @property
    def pids(self) -> list[int]:
        """Ids of the running builders and, last, of the run worker."""
        return self._builder.pids + self._runner.pids

    def first_done(self, batches: Sequence[Iterable[Any]], waits: bool = True) -> int | None:
        """The first: it is measured when it is iterated."""
        return 0

    def measure(
        self, dag: ComputeDAG, candidates: Sequence[Steps], best_s: float | None = None
    ) -> list[MeasureResult]:
        """One result per candidate, in order: see `stream`."""
        found = self.stream(dag, candidates, best_s)
        return [result for result in found if not isinstance(result, Built)]

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterator[MeasureResult | Built]:
        """One result per candidate, in order, each as soon as it is there; before, how many of them
        are built, now and then, and when all are.

        Those that fit memory together are timed in turns. `best_s`: the best latency known so far
        for this task; what is slower by more than the noise gets few repeats. `meanwhile` is called
        while the builders work; nothing runs before it returns. Raises WorkerError when no worker
        can be started or the task itself cannot be prepared.
        """
        self._runner.start()
        built = yield from self._build(dag, candidates, meanwhile)
        yield from self._runner.run(dag, built, Time(best_s))

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        """Time finalists against each other, A B A B …: `rounds` repeats each, in turns."""
        built = _end_of(self._build(dag, candidates))
        return list(self._runner.run(dag, built, Time(rounds=rounds)))

    def _build(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        meanwhile: Callable[[], None] | None = None,
    ) -> Generator[Built, None, list[BuildResult]]:
        """Results of the builders; in a thread of its own, so that `meanwhile` has this one."""
        self._thread = self._thread or ThreadPoolExecutor(1)
        begun_s, n_told = perf_counter(), 0
        try:
            building = self._thread.submit(self._timed_build, dag, candidates)
        except RuntimeError as error:  # a limit of threads
            raise WorkerError(f"builders cannot be asked: {error}", "raise `ulimit -u`") from error
        try:
            if meanwhile is not None:
                meanwhile()
            ready_s = perf_counter()
            while not wait([building], _TOLD_EVERY_S).done:
                if self._builder.n_built > n_told:
                    n_told = self._builder.n_built
                    yield Built(n_told)
            built, done_s = building.result()
        except BaseException:
            self._builder.abandon()
            raise
        self.waited_s += max(0.0, ready_s - done_s)
        self.built_s += done_s - begun_s
        if n_told < len(candidates):
            yield Built(len(candidates))
        return built

    def _timed_build(
        self, dag: ComputeDAG, candidates: Sequence[Steps]
    ) -> tuple[list[BuildResult], float]:
        """Build results, and the time of their completion."""
        built = self._builder.build(dag, candidates)
        return built, perf_counter()


def _end_of(steps: Generator[object, None, Result]) -> Result:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Result = end.value
            return found
