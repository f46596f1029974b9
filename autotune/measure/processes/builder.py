"""⑦ A `Builder` on this machine: a pool of processes that talk over socket pairs.

Each process builds one candidate at a time and is replaced when it crashes or takes too long. The
DAG is sent once per process and task, then the steps alone. The child's side is `build_worker`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from threading import Event

from autotune.measure.build import Build
from autotune.measure.processes.build_worker import build_setup
from autotune.measure.processes.frames import ProtocolError
from autotune.measure.processes.messages import (
    BuildRequest,
    BuildResult,
    from_message,
    to_message,
)
from autotune.measure.processes.process import (
    Child,
    ChildCrash,
    ChildTimeout,
    WorkerError,
    said_by_worker,
)
from autotune.measure.protocols import Abandoned
from autotune.result import MeasureStatus
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_ATTENTION_S = 0.2
"""Interval at which `build` checks whether it is abandoned."""


@dataclass(slots=True)
class _Slot:
    """A builder, the tasks it knows, and its current work."""

    child: Child
    generation: int = 0
    tasks: frozenset[int] = frozenset()
    index: int = -1
    deadline_s: float = 0.0


class LocalBuilder:
    """`n` builder processes, started together and kept."""

    def __init__(
        self,
        build: Build,
        target: Target,
        n: int,
        timeout_s: float,
        start_timeout_s: float,
        data_bytes: int = 0,
    ) -> None:
        setup = build_setup(build, target, data_bytes)
        self._slots = [_Slot(Child(setup, start_timeout_s)) for _ in range(n)]
        self._timeout_s = timeout_s
        self._tasks: dict[ComputeDAG, int] = {}
        self._is_abandoned = Event()
        self.n_built = 0
        """Candidates that the last `build` has done."""

    @property
    def pids(self) -> list[int]:
        """Ids of the running builders."""
        return [s.child.pid for s in self._slots if s.child.pid is not None]

    def start(self) -> None:
        """Start all processes without waiting for them."""
        for slot in self._slots:
            slot.child.start()

    def close(self) -> None:
        """End all processes."""
        for slot in self._slots:
            slot.child.kill()

    def build(self, dag: ComputeDAG, candidates: Sequence[Steps]) -> list[BuildResult]:
        """Build all candidates side by side; results in their order. Raises Abandoned."""
        self.n_built = 0
        task = self._tasks.setdefault(dag, len(self._tasks))
        self.start()
        self._is_abandoned.clear()
        results: dict[int, BuildResult] = {}
        waiting = deque(enumerate(candidates))
        idle, busy = list(self._slots), list[_Slot]()
        try:
            while waiting or busy:
                while waiting and idle:
                    slot = idle.pop()
                    self._give(slot, task, dag, *waiting.popleft())
                    busy.append(slot)
                if self._is_abandoned.is_set():
                    raise Abandoned
                for slot in self._finished(busy):
                    results[slot.index] = self._take(slot)
                    self.n_built = len(results)
                    busy.remove(slot)
                    idle.append(slot)
        except BaseException:
            for slot in busy:
                slot.child.kill()  # its late reply would answer the next request
            raise
        return [results[n] for n in range(len(candidates))]

    def abandon(self) -> None:
        """End `build` in another thread, within a fraction of a second."""
        self._is_abandoned.set()

    def _give(self, slot: _Slot, task: int, dag: ComputeDAG, index: int, steps: Steps) -> None:
        slot.child.ready()
        if slot.generation != slot.child.generation:
            slot.generation, slot.tasks = slot.child.generation, frozenset()
        known = task in slot.tasks
        slot.tasks |= {task}
        slot.index, slot.deadline_s = index, time.monotonic() + self._timeout_s
        request = to_message(BuildRequest(task, None if known else dag, steps))
        slot.child.send(request, self._timeout_s)

    def _finished(self, busy: Sequence[_Slot]) -> list[_Slot]:
        """Builders with a reply, dead, or out of time; waits a moment for the first of them."""
        left_s = min(s.deadline_s for s in busy) - time.monotonic()
        patience_s = min(max(0.0, left_s), _ATTENTION_S)
        heard = wait([s.child.channel.fileno() for s in busy], patience_s)
        now_s = time.monotonic()
        return [s for s in busy if s.child.channel.fileno() in heard or s.deadline_s <= now_s]

    def _take(self, slot: _Slot) -> BuildResult:
        """The reply of a builder that has begun one, has died or has run out of time."""
        left_s = max(0.0, slot.deadline_s - time.monotonic())
        try:
            message = slot.child.receive(left_s)
            reply = from_message(message)
        except ChildTimeout:
            text = f"not built within {self._timeout_s:g} s"
            return BuildResult(MeasureStatus.BUILD_TIMEOUT, None, self._timeout_s, text)
        except ChildCrash as crash:
            return BuildResult(MeasureStatus.BUILD_ERROR, error=f"the builder ended: {crash}")
        except ProtocolError as error:
            if message.kind == "failed":
                said = said_by_worker("builder", message)
                raise said from said.__cause__
            slot.child.kill()
            return BuildResult(MeasureStatus.BUILD_ERROR, error=f"the builder sent {error}")
        if isinstance(reply, BuildResult):
            return reply
        raise WorkerError(f"builder: {reply!r}")
