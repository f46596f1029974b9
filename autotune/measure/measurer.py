"""⑦ Measure candidates: build them side by side, then run them in turns in an isolated process.

    with Measurer(target, n_threads, options) as measurer:
        results = measurer.measure(dag, [steps, …])      # one status each, nothing is raised

Nothing is built while something runs. The processes start with the first use and stay; those that
crash, hang or are killed are replaced, and the candidate that was theirs gets a status.

Neighbours and clocks make a machine slower for tenths of a second, which is all the time that one
candidate gets. Candidates of a batch take turns, so that they all have the same luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any

from autotune.measure.builder import BuilderPool, BuildResult
from autotune.measure.child import Failed
from autotune.measure.options import MeasureOptions
from autotune.measure.process import Child, ChildCrash, ChildTimeout, WorkerError
from autotune.measure.program import Build, build_program
from autotune.measure.result import MeasureResult, MeasureStatus
from autotune.measure.worker import Hold, Outputs, Prepare, Prepared, RunHandler, Time
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_HELD_BYTES = 1 << 29
"""Programs that are timed together need no more memory than this; one alone may."""


class Measurer:
    """Builds, checks and times candidates on `n_threads` threads of this machine.

    A context manager: leaving it ends all processes. For one thread of the session at a time.
    """

    def __init__(
        self,
        target: Target,
        n_threads: int = 1,
        options: MeasureOptions | None = None,
        build: Build = build_program,
    ) -> None:
        self._options = options or MeasureOptions()
        n = self._options.n_builders or target.n_cores
        start_s = self._options.start_timeout_s
        self._builders = BuilderPool(build, target, n, self._options.build_timeout_s, start_s)
        self._worker = Child(partial(RunHandler, target, n_threads, self._options), start_s)
        self._generation = 0
        self._prepared: set[int] = set()
        self._tasks: dict[ComputeDAG, int] = {}
        self._expected: dict[int, Outputs] = {}
        self._thread: ThreadPoolExecutor | None = None  # the builders die with their thread
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
            self._builders.abandon()
            self._thread.shutdown()
            self._thread = None
        self._builders.close()
        self._worker.kill()

    @property
    def pids(self) -> list[int]:
        """Ids of the running builders and, last, of the run worker."""
        return self._builders.pids + ([self._worker.pid] if self._worker.pid else [])

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
        self._worker.start()
        for group in _groups(self._build(dag, candidates, meanwhile)):
            results = self._measure(dag, group, Time(best_s))
            best_s = min(filter(None, [best_s, *(r.latency_s for r in results)]), default=None)
            yield from results

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        """Time finalists against each other, A B A B …: `rounds` repeats each, in turns."""
        built = self._build(dag, candidates)
        return [r for g in _groups(built) for r in self._measure(dag, g, Time(rounds=rounds))]

    def _task(self, dag: ComputeDAG) -> int:
        return self._tasks.setdefault(dag, len(self._tasks))

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
            self._builders.abandon()
            raise
        self.waited_s += max(0.0, ready_s - done_s)
        return built

    def _timed_build(
        self, dag: ComputeDAG, candidates: Sequence[Steps]
    ) -> tuple[list[BuildResult], float]:
        """What was built, and when it was done."""
        built = self._builders.build(self._task(dag), dag, candidates)
        return built, perf_counter()

    def _measure(
        self, dag: ComputeDAG, group: Sequence[BuildResult], time: Time
    ) -> list[MeasureResult]:
        """Check and time a group in turns; if they cannot be timed together, one by one."""
        start_s = perf_counter()
        failed = self._hold(dag, group)
        rest = [b for n, b in enumerate(group) if n not in failed]
        reply = self._ask(time, self._options.run_timeout_s * len(rest)) if rest else []
        if isinstance(reply, list):
            timed = reply
        elif len(rest) == 1:
            timed = [reply]
        else:
            timed = [r for b in rest for r in self._measure(dag, [b], time)]
        each_s = (perf_counter() - start_s) / len(group)
        found = iter(timed)
        results = [failed[n] if n in failed else next(found) for n in range(len(group))]
        return [
            replace(r, build_s=b.build_s, run_s=each_s if b.program else 0.0)
            for r, b in zip(results, group, strict=True)
        ]

    def _hold(self, dag: ComputeDAG, group: Sequence[BuildResult]) -> dict[int, MeasureResult]:
        """What fails, by position; the worker holds all the others in the end.

        Who crashes or hangs takes the worker with it, so the others are loaded once more.
        """
        failed = {n: b.failure() for n, b in enumerate(group) if b.program is None}
        lost = True
        while lost:
            lost, first = False, True
            for n, built in enumerate(group):
                if n in failed or built.program is None:
                    continue
                self._prepare(dag)
                request = Hold(self._task(dag), built.program, first)
                result: MeasureResult = self._ask(request, self._options.run_timeout_s)
                first = False
                if result.status is not MeasureStatus.OK:
                    failed[n] = result
                if result.status in (MeasureStatus.RUN_CRASH, MeasureStatus.RUN_TIMEOUT):
                    lost = True
                    break
        return failed

    def _ask(self, request: Hold | Time, timeout_s: float) -> Any:
        """The worker's reply, or one result that says how it ended."""
        try:
            reply = self._worker.request(request, timeout_s)
        except ChildCrash as crash:
            return MeasureResult(MeasureStatus.RUN_CRASH, error=str(crash))
        except ChildTimeout as timeout:
            return MeasureResult(MeasureStatus.RUN_TIMEOUT, error=str(timeout))
        if isinstance(reply, Failed):
            raise WorkerError(f"run worker: {reply.text}")
        return reply

    def _prepare(self, dag: ComputeDAG) -> None:
        """Make sure that the worker has inputs and oracle of this task."""
        task = self._task(dag)
        self._worker.ready()
        if self._generation != self._worker.generation:
            self._generation, self._prepared = self._worker.generation, set()
        if task in self._prepared:
            return
        request = Prepare(task, dag, self._expected.get(task))
        try:
            reply = self._worker.request(request, self._options.prepare_timeout_s)
        except (ChildCrash, ChildTimeout) as error:
            raise WorkerError(f"cannot make the oracle of task {dag.key}: {error}") from error
        if not isinstance(reply, Prepared):
            text = reply.text if isinstance(reply, Failed) else repr(reply)
            raise WorkerError(f"cannot make the oracle of task {dag.key}: {text}")
        self._expected[task], self._prepared = reply.expected, set(reply.held)


def _groups(built: Sequence[BuildResult]) -> Iterator[list[BuildResult]]:
    """What is timed together, in order."""
    group: list[BuildResult] = []
    held_bytes = 0
    for each in built:
        n_bytes = sum(b.n_bytes for b in each.program.program.buffers) if each.program else 0
        if group and held_bytes + n_bytes > _HELD_BYTES:
            yield group
            group, held_bytes = [], 0
        group.append(each)
        held_bytes += n_bytes
    if group:
        yield group
