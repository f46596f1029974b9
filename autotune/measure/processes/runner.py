"""⑦ A `Runner` on this machine: one isolated process that checks and times programs.

Co-tenants and clock changes slow a machine for tenths of a second, which is all the time that one
candidate takes. So the candidates of a batch are loaded together, as many as memory holds, and
their repeats alternate: a disturbance slows all of them. A process that crashes, hangs or is killed
is replaced, and the candidate that it ran gets a status. The child's side is `run_worker`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from autotune.measure.options import MeasureOptions
from autotune.measure.processes import run_worker
from autotune.measure.processes.frames import ProtocolError
from autotune.measure.processes.messages import (
    BuildResult,
    Hold,
    Item,
    Outputs,
    Prepare,
    Prepared,
    RunRequest,
    Time,
    from_message,
    to_message,
)
from autotune.measure.processes.process import (
    REPLY_BYTES,
    Child,
    ChildCrash,
    ChildTimeout,
    Setup,
    WorkerError,
    said_by_worker,
)
from autotune.result import MeasureResult, MeasureStatus
from autotune.te.dag import ComputeDAG

_HELD_BYTES = 1 << 29
"""Programs that are timed together need no more memory than this; one alone may."""
_MAX_PREPARES = 3
_MAX_ELEMENT_BYTES = 8


class LocalRunner:
    """Checks and times programs in a worker process of this machine: see `run_worker.setup`."""

    n_slots = 1
    devices: Sequence[str] = ()

    def __init__(self, setup: Setup, options: MeasureOptions) -> None:
        self._options = options
        self._worker = Child(setup, options.start_timeout_s)
        self._generation = 0
        self._prepared: set[int] = set()
        self._tasks: dict[ComputeDAG, int] = {}
        self._expected: dict[int, Outputs] = {}

    @property
    def pids(self) -> list[int]:
        """Id of the worker, while it runs."""
        return [self._worker.pid] if self._worker.pid else []

    def start(self) -> None:
        """Start the process without waiting for it."""
        self._worker.start()

    def close(self) -> None:
        """End the process; a later run starts a new one."""
        self._worker.kill()

    def run(
        self, dag: ComputeDAG, built: Sequence[BuildResult], time: Time
    ) -> Iterator[MeasureResult]:
        """One result per element of `built`, in order, group by group; see `Runner.run`."""
        best_s = time.best_s
        most_bytes = run_worker.share(_HELD_BYTES, self._options.worker_bytes)
        for group in _groups(built, most_bytes):
            results = self._measure(dag, group, replace(time, best_s=best_s))
            if time.rounds is None:
                latencies = (r.latency_s for r in results)
                best_s = min(filter(None, [best_s, *latencies]), default=None)
            yield from results

    def _task(self, dag: ComputeDAG) -> int:
        return self._tasks.setdefault(dag, len(self._tasks))

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
        """Failures by position; the worker holds all the others in the end.

        A crash or a hang ends the worker, so the others are loaded once more.
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

    def _request(self, request: RunRequest, timeout_s: float, more_bytes: int = 0) -> Item:
        """The worker's reply; one that it cannot have meant is its crash."""
        limit = REPLY_BYTES + more_bytes
        message = self._worker.request(to_message(request), timeout_s, limit)
        if message.kind == "failed":
            if isinstance(request, Prepare):
                raise said_by_worker(f"cannot make the oracle of task {request.dag.key}", message)
            return MeasureResult(MeasureStatus.RUN_ERROR, error=str(message.fields.get("text")))
        try:
            return from_message(message)
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
    """Groups that are timed together, in order: no more than fits `most_bytes`, or one."""
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
