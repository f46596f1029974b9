"""⑦ Measure candidates: build them side by side, then check and time them in turns.

    with measurer_of(LocalDevice(target, n_threads), options) as measurer:
        results = measurer.measure(dag, [steps, …])      # one status each, nothing is raised

Nothing is built while a program runs on the same machine. Processes start with the first use and
are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from types import TracebackType

from autotune.measure.build import Build, build_program
from autotune.measure.messages import BuildResult, Time
from autotune.measure.options import MeasureOptions
from autotune.measure.protocols import Builder, Device, LeftOut, Runner
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG


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

    def first_done(
        self, batches: Sequence[Iterable[MeasureResult]], waits: bool = True
    ) -> int | None:
        """The first: it is measured when it is iterated."""
        return 0

    def measure(
        self, dag: ComputeDAG, candidates: Sequence[Steps], best_s: float | None = None
    ) -> list[MeasureResult]:
        """One result per candidate, in order: see `stream`."""
        return list(self.stream(dag, candidates, best_s))

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterator[MeasureResult]:
        """One result per candidate, in order, each as soon as it is there.

        Those that fit memory together are timed in turns. `best_s`: the best latency known so far
        for this task; what is slower by more than the noise gets few repeats. `meanwhile` is called
        while the builders work; nothing runs before it returns. Raises WorkerError when no worker
        can be started or the task itself cannot be prepared.
        """
        self._runner.start()
        built = self._build(dag, candidates, meanwhile)
        yield from self._runner.run(dag, built, Time(best_s))

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        """Time finalists against each other, A B A B …: `rounds` repeats each, in turns."""
        built = self._build(dag, candidates)
        return list(self._runner.run(dag, built, Time(rounds=rounds)))

    def _build(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[BuildResult]:
        """Results of the builders; in a thread of its own, so that `meanwhile` has this one."""
        self._thread = self._thread or ThreadPoolExecutor(1)
        building = self._thread.submit(self._timed_build, dag, candidates)
        try:
            if meanwhile is not None:
                meanwhile()
            ready_s = perf_counter()
            built, done_s = building.result()
        except BaseException:
            self._builder.abandon()
            raise
        self.waited_s += max(0.0, ready_s - done_s)
        return built

    def _timed_build(
        self, dag: ComputeDAG, candidates: Sequence[Steps]
    ) -> tuple[list[BuildResult], float]:
        """Build results, and the time of their completion."""
        built = self._builder.build(dag, candidates)
        return built, perf_counter()
