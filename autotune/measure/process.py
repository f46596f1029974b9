"""⑦ The parent's side of a worker process: one that may crash, hang or be killed.

Requests and replies are pickled messages on a socket pair, one at a time. What the child prints
goes to an unnamed file, of which a crash report quotes the end. The child runs in a process group
of its own, so that Ctrl-C in the terminal reaches the session only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from autotune.errors import AutotuneError
from autotune.measure.child import Failed, Handler, Ready

# BLAS threads that spin for their next job would disturb what is timed after the oracle
_BOOT = """
import json, os, sys
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path[:] = json.loads(sys.argv[1])
from autotune.measure.child import main
main()
"""
_QUOTED_CHARS = 2000
_EXIT_WAIT_S = 5.0


class WorkerError(AutotuneError):
    """A worker process cannot be started, or failed in a way that is no candidate's fault."""


class ChildCrash(Exception):
    """The child ended while a request was open; the text says how."""


class ChildTimeout(Exception):
    """The child did not answer in time and has been killed."""


class Child:
    """A worker process, started when first used and again after each crash or time-out.

    `make` is a picklable callable that makes the request handler inside the child. Requests to a
    child that has died in the meantime go to a new one; `generation` counts the processes, so a
    caller knows when what it sent before is gone.
    """

    def __init__(self, make: Callable[[], Handler], start_timeout_s: float) -> None:
        self._make = make
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._lifeline = -1
        self._output: IO[bytes] | None = None
        self._is_ready = False
        self.generation = 0

    @property
    def pid(self) -> int | None:
        """Process id, or None when no process runs."""
        return self._process.pid if self._process else None

    @property
    def connection(self) -> Connection[Any, Any]:
        """To wait on; readable when a reply has come or the child has died."""
        assert self._connection is not None
        return self._connection

    def start(self) -> None:
        """Start the process without waiting for it; nothing happens when it runs already."""
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        here, there = Pipe()
        watched, self._lifeline = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        arguments = (json.dumps(sys.path), str(there.fileno()), str(watched), str(os.getpid()))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=(there.fileno(), watched),
            process_group=0,
        )
        there.close()
        os.close(watched)
        self._connection = here
        self.generation += 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `ready` will tell
            here.send(self._make)

    def ready(self) -> None:
        """Start if need be and wait until requests can be sent. Raises WorkerError."""
        self.start()
        if self._is_ready:
            return
        try:
            reply = self.receive(self._start_timeout_s)
        except (ChildCrash, ChildTimeout) as error:
            raise WorkerError(f"a worker process did not start: {error}") from error
        if not isinstance(reply, Ready):
            text = reply.text if isinstance(reply, Failed) else repr(reply)
            self.kill()
            raise WorkerError(f"a worker process cannot work here: {text}")
        self._is_ready = True

    def send(self, request: object) -> None:
        """Hand one request to a child that was `ready`; receive its reply before the next."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `receive` will tell
            self.connection.send(request)

    def receive(self, timeout_s: float) -> Any:
        """The reply to the open request. Raises ChildCrash or, after a kill, ChildTimeout."""
        try:
            if not self.connection.poll(timeout_s):
                self.kill()
                raise ChildTimeout(f"no answer within {timeout_s:g} s")
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise ChildCrash(self._obituary()) from None

    def request(self, request: object, timeout_s: float) -> Any:
        """Send to a child that was `ready`, and receive; an interrupted wait ends the child."""
        self.send(request)
        try:
            return self.receive(timeout_s)
        except BaseException:
            self.kill()  # a late reply must not be taken for that of the next request
            raise

    def kill(self) -> None:
        """End the process at once and give back what it held."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
            os.close(self._lifeline)
        if self._output is not None:
            self._output.close()
        self._process = self._connection = self._output = None
        self._is_ready = False

    def _obituary(self) -> str:
        """How the process ended and the last it said."""
        assert self._process is not None
        assert self._output is not None
        try:
            code = self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return "the process closed its connection"
        self._output.seek(0)
        said = self._output.read()[-_QUOTED_CHARS:].decode(errors="replace").strip()
        self.kill()
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return f"{how}\n{said}" if said else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
