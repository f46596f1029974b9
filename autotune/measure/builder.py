"""⑦ Build candidates in a pool of processes: (DAG, steps) → machine code, or a status.

Each builder works on one candidate at a time and is replaced when it crashes or takes too long.
The DAG travels once per builder and task, then the steps alone.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import wait
from threading import Event
from typing import Any

from autotune.errors import AutotuneError, ScheduleError
from autotune.measure.build import Build
from autotune.measure.frames import Message, ProtocolError
from autotune.measure.messages import (
    BuildRequest,
    BuildResult,
    reply_from,
    request_from,
    to_message,
)
from autotune.measure.process import Child, ChildCrash, ChildTimeout, Setup, WorkerError
from autotune.measure.supervisor import Handler
from autotune.result import MeasureStatus
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_ATTENTION_S = 0.2
_BUILDS_PER_COLLECTION = 4
"""Looking for cyclic garbage as often as Python does takes a sixth of the time of our own code."""


class Abandoned(Exception):
    """The results of a build are not wanted any more."""


class BuildHandler:
    """Runs in the builder process."""

    def __init__(self, build: Build, target: Target) -> None:
        self._build = build
        self._target = target
        self._dags: dict[int, ComputeDAG] = {}
        self._n_built = 0
        gc.freeze()
        gc.disable()

    def __call__(self, request: BuildRequest) -> BuildResult:
        """Build one candidate; every exception becomes a status."""
        if request.dag is not None:
            self._dags[request.task] = request.dag
        start_s = time.perf_counter()
        program, status, error = None, MeasureStatus.OK, ""
        try:
            program = self._build(self._dags[request.task], request.steps, self._target)
        except ScheduleError as problem:
            status, error = MeasureStatus.SCHEDULE_ERROR, problem.message
        except AutotuneError as problem:
            status, error = MeasureStatus.BUILD_ERROR, problem.message
        except Exception:
            status, error = MeasureStatus.BUILD_ERROR, traceback.format_exc()
        self._n_built += 1
        if self._n_built % _BUILDS_PER_COLLECTION == 0:
            gc.collect()
        return BuildResult(status, program, time.perf_counter() - start_s, error)


def serve_builds(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """The handler of a builder process, of the arguments that `_setup` gives."""
    module, _, name = arguments["build"].partition(":")
    build = partial(getattr(import_module(module), name), **arguments["options"])
    handler = BuildHandler(build, Target.from_json(arguments["target"]))

    def handle(message: Message) -> Message:
        request = request_from(message)
        assert isinstance(request, BuildRequest)
        return to_message(handler(request))

    return handle


def _setup(build: Build, target: Target, data_bytes: int) -> Setup:
    """`build` by name: a function of a module, or a `partial` of one with named arguments."""
    function, options = build, {}
    if isinstance(build, partial):
        function, options = build.func, build.keywords
    name = f"{function.__module__}:{function.__qualname__}"
    arguments = {"build": name, "options": options, "target": target.to_json()}
    return Setup("autotune.measure.builder:serve_builds", arguments, data_bytes=data_bytes)


@dataclass(slots=True)
class _Slot:
    """A builder, the tasks it knows, and what it is working on."""

    child: Child
    generation: int = 0
    tasks: frozenset[int] = frozenset()
    index: int = -1
    deadline_s: float = 0.0


class BuilderPool:
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
        setup = _setup(build, target, data_bytes)
        self._slots = [_Slot(Child(setup, start_timeout_s)) for _ in range(n)]
        self._timeout_s = timeout_s
        self._is_abandoned = Event()

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

    def build(self, task: int, dag: ComputeDAG, candidates: Sequence[Steps]) -> list[BuildResult]:
        """Build all candidates side by side; results in their order. Raises Abandoned."""
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
                    busy.remove(slot)
                    idle.append(slot)
        except BaseException:
            for slot in busy:
                slot.child.kill()  # its late reply would answer the next request
            raise
        return [results[n] for n in range(len(candidates))]

    def abandon(self) -> None:
        """End what `build` is doing in another thread, within a fraction of a second."""
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
            reply = reply_from(message)
        except ChildTimeout:
            text = f"not built within {self._timeout_s:g} s"
            return BuildResult(MeasureStatus.BUILD_TIMEOUT, None, self._timeout_s, text)
        except ChildCrash as crash:
            return BuildResult(MeasureStatus.BUILD_ERROR, error=f"the builder ended: {crash}")
        except ProtocolError as error:
            if message.kind == "failed":
                raise WorkerError(f"builder: {message.fields.get('text')}") from None
            slot.child.kill()
            return BuildResult(MeasureStatus.BUILD_ERROR, error=f"the builder sent {error}")
        if isinstance(reply, BuildResult):
            return reply
        raise WorkerError(f"builder: {reply!r}")
