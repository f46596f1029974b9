"""⑪ The background: one process of low priority that prepares networks for sessions.

    background().notify(programs)       # it has work; `programs.take(answer)` gets the results

It is started when there is work, takes the processor time that others leave (`nice` 10), and ends
when there has been none for a while, and with this process. It does one job at a time.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from functools import cache
from typing import Protocol

from autotune.measure.processes.process import Child, ChildCrash, ChildTimeout, Setup, WorkerError
from autotune.ort.failures import remembered
from autotune.ort.request import BackgroundJob, Failure, Found, answered

LOGGER = logging.getLogger("autotune")
_NICENESS = 10
"""A tenth of a core that others keep busy: enough to end, and all of a core that is idle."""
_SERVE = "autotune.ort.preparing:serve"
_START_TIMEOUT_S = 120.0
_JOB_TIMEOUT_S = 4 * 3600.0
"""A job that takes longer will not end."""
_IDLE_S = 5.0


class BackgroundWork(Protocol):
    """Source of jobs for the background."""

    def next_job(self) -> BackgroundJob | None:
        """The most urgent one; None where there is none."""

    def take(self, job: BackgroundJob, found: Found) -> None:
        """Called with the answer to a job."""

    def give_up(self, reason: str) -> None:
        """Called after an error of the other two."""


class Background:
    """A thread that waits for a process, and handles its answers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: list[weakref.ref[BackgroundWork]] = []
        self._thread: threading.Thread | None = None
        arguments = {"niceness": _NICENESS}
        setup = Setup(_SERVE, arguments, file_bytes=0)  # an artifact is as large as its model
        self._child = Child(setup, _START_TIMEOUT_S)

    def notify(self, worker: BackgroundWork) -> None:
        """Ask `worker` for jobs until it has none, soon; it may be forgotten meanwhile."""
        with self._condition:
            if not any(known() is worker for known in self._waiting):
                self._waiting.append(weakref.ref(worker))
            if self._thread is None:
                name = "autotune-background"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()
            self._condition.notify()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._waiting:
                    if not self._condition.wait(_IDLE_S) and not self._waiting:
                        self._child.kill()
                        self._condition.wait_for(lambda: bool(self._waiting))
                worker = self._waiting.pop(0)()
            if worker is not None:
                self._serve(worker)
            del worker  # it may be forgotten while this thread waits

    def _serve(self, worker: BackgroundWork) -> None:
        try:
            job = worker.next_job()
            if job is not None:
                worker.take(job, remembered(job, lambda: self._answer(job)))
                self.notify(worker)
        except Exception as error:  # one session's fault leaves it to ONNX Runtime, not the others
            failure = Failure.of(error)
            LOGGER.warning("nothing more is compiled for a session: %s", failure.line)
            LOGGER.debug("%s", failure.details)
            worker.give_up(failure.line)

    def _answer(self, job: BackgroundJob) -> Found:
        try:
            self._child.ready()
            return answered(self._child.request(job.message(), _JOB_TIMEOUT_S))
        except (ChildCrash, ChildTimeout, WorkerError) as error:
            text, details = _in_a_line(str(error)), str(error)
            return Failure(f"the process that compiles has failed: {text}", details=details)


def _in_a_line(text: str) -> str:
    """How a process ended, and the last that it said."""
    first, *others = [line.strip() for line in text.strip().splitlines()]
    first = first.removesuffix("Traceback (most recent call last):").rstrip(": ")
    return f"{first}: {others[-1]}" if others else first


def background() -> Background:
    """The one of this process; a forked child has another."""
    return _background_of(os.getpid())


@cache
def _background_of(pid: int) -> Background:
    return Background()
