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

from autotune.measure.process import Child, ChildCrash, ChildTimeout, Setup, WorkerError
from autotune.ort.request import BackgroundJob, Facts, Failure, PreparedNetwork, answered

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

    def take(self, job: BackgroundJob, found: Facts | PreparedNetwork | Failure) -> None:
        """Called with the answer to a job."""


class Background:
    """A thread that waits for a process, and handles its answers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: list[weakref.ref[BackgroundWork]] = []
        self._thread: threading.Thread | None = None
        self._child = Child(Setup(_SERVE, {"niceness": _NICENESS}), _START_TIMEOUT_S)

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
            try:
                job = worker.next_job() if worker is not None else None
                if worker is not None and job is not None:
                    worker.take(job, self._answer(job))
                    self.notify(worker)
            except Exception:  # one session's fault leaves it as it is, and the others theirs
                LOGGER.exception("nothing more is compiled for a session")
            del worker  # it may be forgotten while this thread waits

    def _answer(self, job: BackgroundJob) -> Facts | PreparedNetwork | Failure:
        try:
            self._child.ready()
            return answered(self._child.request(job.message(), _JOB_TIMEOUT_S))
        except (ChildCrash, ChildTimeout, WorkerError) as error:
            last = str(error).strip().splitlines()[-1]
            return Failure(f"the process that compiles has failed: {last}")


def background() -> Background:
    """The one of this process; a forked child has another."""
    return _background_of(os.getpid())


@cache
def _background_of(pid: int) -> Background:
    return Background()
