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
from time import perf_counter
from types import TracebackType

from autotune.measure import run_worker
from autotune.measure.build import Build, build_program
from autotune.measure.builder import BuilderPool
from autotune.measure.frames import ProtocolError
from autotune.measure.messages import (
    BuildResult,
    Hold,
    Outputs,
    Prepare,
    Prepared,
    Reply,
    RunRequest,
    Time,
    reply_from,
    to_message,
)
from autotune.measure.options import MeasureOptions
from autotune.measure.process import REPLY_BYTES, Child, ChildCrash, ChildTimeout, WorkerError
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps
from autotune.target import Target, usable_cores
from autotune.te.dag import ComputeDAG

_HELD_BYTES = 1 << 29
"""Programs that are timed together need no more memory than this; one alone may."""
_MAX_PREPARES = 3
_MAX_ELEMENT_BYTES = 8


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
        n = self._options.n_builders or usable_cores()
        start_s, build_s = self._options.start_timeout_s, self._options.build_timeout_s
        most = self._options.builder_bytes
        self._builders = BuilderPool(build, target, n, build_s, start_s, most)
        self._worker = Child(run_worker.setup(target, n_threads, self._options), start_s)
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
        for group in self._groups(self._build(dag, candidates, meanwhile)):
            results = self._measure(dag, group, Time(best_s))
            best_s = min(filter(None, [best_s, *(r.latency_s for r in results)]), default=None)
            yield from results

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        """Time finalists against each other, A B A B …: `rounds` repeats each, in turns."""
        built = self._build(dag, candidates)
        time = Time(rounds=rounds)
        return [r for group in self._groups(built) for r in self._measure(dag, group, time)]

    def _groups(self, built: Sequence[BuildResult]) -> Iterator[list[BuildResult]]:
        return _groups(built, run_worker.share(_HELD_BYTES, self._options.worker_bytes))

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
        reply = self._ask(time, len(rest)) if rest else []
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
                result = self._ask(request, 1)
                assert isinstance(result, MeasureResult)
                first = False
                if result.status is not MeasureStatus.OK:
                    failed[n] = result
                if result.status in (MeasureStatus.RUN_CRASH, MeasureStatus.RUN_TIMEOUT):
                    lost = True
                    break
        return failed

    def _ask(self, request: Hold | Time, n: int) -> list[MeasureResult] | MeasureResult:
        """The worker's `n` results, or one that says for all of them how it ended."""
        timeout_s = self._options.run_timeout_s * n
        try:
            reply = self._request(request, timeout_s)
        except ChildCrash as crash:
            return MeasureResult(MeasureStatus.RUN_CRASH, error=str(crash))
        except ChildTimeout as timeout:
            return MeasureResult(MeasureStatus.RUN_TIMEOUT, error=str(timeout))
        is_right = isinstance(reply, MeasureResult) or (
            isinstance(request, Time) and isinstance(reply, list) and len(reply) == n
        )
        if is_right:
            return reply  # type: ignore[return-value]
        self._worker.kill()
        text = "what the process sent is no reply to this request"
        return MeasureResult(MeasureStatus.RUN_CRASH, error=text)

    def _request(self, request: RunRequest, timeout_s: float, more_bytes: int = 0) -> Reply:
        """The worker's reply; one that it cannot have meant is its crash."""
        limit = REPLY_BYTES + more_bytes
        message = self._worker.request(to_message(request), timeout_s, limit)
        if message.kind == "failed":
            text = str(message.fields.get("text"))
            if isinstance(request, Prepare):
                raise WorkerError(f"cannot make the oracle of task {request.dag.key}: {text}")
            return MeasureResult(MeasureStatus.RUN_ERROR, error=text)
        try:
            return reply_from(message)
        except ProtocolError as error:
            self._worker.kill()
            raise ChildCrash(f"what the process sent is no reply: {error}") from None

    def _prepare(self, dag: ComputeDAG) -> None:
        """Make sure that the worker has inputs and oracle of this task."""
        for n_left in reversed(range(_MAX_PREPARES)):
            try:
                self._prepare_once(dag)
            except (ChildCrash, ChildTimeout) as error:
                if n_left and isinstance(error, ChildCrash):
                    continue
                text = f"cannot make the oracle of task {dag.key}: {error}"
                raise WorkerError(text) from error
            return

    def _prepare_once(self, dag: ComputeDAG) -> None:
        task = self._task(dag)
        self._worker.ready()
        if self._generation != self._worker.generation:
            self._generation, self._prepared = self._worker.generation, set()
        if task in self._prepared:
            return
        request = Prepare(task, dag, self._expected.get(task))
        most = sum(dag[name].tensor.size for name in dag.outputs) * _MAX_ELEMENT_BYTES
        reply = self._request(request, self._options.prepare_timeout_s, most)
        if not isinstance(reply, Prepared) or reply.expected.keys() != set(dag.outputs):
            self._worker.kill()
            raise ChildCrash("what the process sent is no oracle")
        self._expected[task], self._prepared = reply.expected, set(reply.held)


def _groups(built: Sequence[BuildResult], most_bytes: int) -> Iterator[list[BuildResult]]:
    """What is timed together, in order: no more than fits `most_bytes`, or one."""
    group: list[BuildResult] = []
    held_bytes = 0
    for each in built:
        n_bytes = sum(b.n_bytes for b in each.program.program.buffers) if each.program else 0
        if group and held_bytes + n_bytes > most_bytes:
            yield group
            group, held_bytes = [], 0
        group.append(each)
        held_bytes += n_bytes
    if group:
        yield group
