"""⑦ The parent's side of a worker process, which may crash, hang or be killed.

Requests and replies are messages on a socket pair, one at a time (`frames.py`). A reply has to be
complete within its time-out, whatever the child does to the socket. The output of the child goes to
an unnamed file of limited size; a crash report quotes its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from autotune.errors import AutotuneError
from autotune.measure.processes.frames import (
    Channel,
    Closed,
    Late,
    Message,
    ProtocolError,
)

# idle BLAS threads spin, which would disturb the timing that follows the oracle
_BOOT = """
import json, os, sys
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path[:] = json.loads(sys.argv[1])
from autotune.measure.processes.supervisor import main
main()
"""
_QUOTED_BYTES = 2000
_EXIT_WAIT_S = 2.0
_SUPERVISOR_WAIT_S = 10.0
_MAX_STARTS = 3
_SETUP_BYTES = 1 << 20
REPLY_BYTES = 64 << 20
"""Largest reply without arrays: machine code, texts, times."""
OUTPUT_BYTES = 64 << 20
"""Largest file that a faulty program may write; the output of a child goes to a file."""


class WorkerError(AutotuneError):
    """A worker process cannot be started, or failed for a reason that is not a candidate."""


def said_by_worker(what: str, message: Message) -> WorkerError:
    """The error with the last line of a worker's traceback, all of which is the cause."""
    text = str(message.fields.get("text", message.kind)).strip()
    before, _, hint = text.partition("\nhint: ")
    error = WorkerError(f"{what}: {(before.splitlines() or [message.kind])[-1]}", hint)
    error.__cause__ = RuntimeError(text)
    return error


class ChildCrash(Exception):
    """The child ended while a request was open, or sent no reply; the text says how."""


class ChildTimeout(Exception):
    """The child did not answer in time and has been killed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Setup of a child process: `handler` names a `MakeHandler` as `module:function`.

    `data_bytes`: memory that the child may take; 0: the machine's. `file_bytes`: the largest file
    that it may write; 0: as this process.
    """

    handler: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    blobs: Sequence[Any] = ()
    data_bytes: int = 0
    file_bytes: int = OUTPUT_BYTES


class Child:
    """A worker process, started when first used and again after each crash or time-out.

    Requests to a child that has died in the meantime go to a new one; `generation` counts the
    processes, so a caller knows when the state that it sent before is gone.
    """

    def __init__(self, setup: Setup, start_timeout_s: float) -> None:
        self._setup = setup
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lifeline = -1
        self._output: IO[bytes] | None = None
        self._group = 0
        self._number = 0
        self._is_ready = False
        self.generation = 0

    @property
    def pid(self) -> int | None:
        """Process id (the supervisor's), or None when no process runs."""
        return self._process.pid if self._process else None

    @property
    def channel(self) -> Channel:
        """To wait on; readable when a reply begins or the child has died."""
        assert self._channel is not None
        return self._channel

    def start(self) -> None:
        """Start the process without waiting for it; nothing happens when it runs already."""
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        here, there = socket.socketpair()
        watched, self._lifeline = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        self._channel = Channel(here)
        limits = (self._setup.data_bytes, self._setup.file_bytes)
        numbers = (there.fileno(), watched, os.getpid(), *limits)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(there.fileno(), watched),
                process_group=0,
            )
        finally:
            there.close()
            os.close(watched)
        self.generation += 1
        fields = {"handler": self._setup.handler, "arguments": self._setup.arguments}
        self.send(Message("setup", fields, self._setup.blobs), self._start_timeout_s)

    def ready(self) -> None:
        """Start if need be, again if it is killed meanwhile, and wait until requests can be sent.

        Raises WorkerError.
        """
        for n_left in reversed(range(_MAX_STARTS)):
            self.start()
            if self._is_ready:
                return
            try:
                reply = self.receive(self._start_timeout_s, _SETUP_BYTES)
            except (ChildCrash, ChildTimeout) as error:
                if n_left and isinstance(error, ChildCrash):
                    continue
                raise WorkerError(f"a worker process did not start: {error}") from error
            self._take_ready(reply)

    def _take_ready(self, reply: Message) -> None:
        group = reply.fields.get("pid")
        if reply.kind != "ready" or not isinstance(group, int):
            self.kill()
            raise said_by_worker("a worker process cannot work here", reply)
        self._group, self._is_ready = group, True

    def send(self, request: Message, timeout_s: float) -> None:
        """Hand one request to a child that was `ready`; receive its reply before the next."""
        self._number += 1
        message = Message(request.kind, request.fields, request.blobs, self._number)
        with contextlib.suppress(Closed, Late):  # `receive` raises for it
            self.channel.send(message, timeout_s)

    def receive(self, timeout_s: float, limit_bytes: int = REPLY_BYTES) -> Message:
        """The whole reply to the open request. Raises ChildCrash or, after a kill, ChildTimeout."""
        try:
            reply = self.channel.receive(timeout_s, limit_bytes)
        except Late:
            self.kill()
            raise ChildTimeout("no answer in time") from None
        except Closed:
            raise ChildCrash(self._how_it_ended()) from None
        except ProtocolError as error:
            self.kill()
            raise ChildCrash(f"what the process sent is no reply: {error}") from None
        if reply.number != self._number:
            self.kill()
            raise ChildCrash("what the process sent is no reply to this request")
        return reply

    def request(
        self, request: Message, timeout_s: float, limit_bytes: int = REPLY_BYTES
    ) -> Message:
        """Send to a child that was `ready`, and receive; an interrupted wait ends the child."""
        end_s = time.monotonic() + timeout_s
        self.send(request, timeout_s)
        try:
            return self.receive(max(0.0, end_s - time.monotonic()), limit_bytes)
        except ChildTimeout:
            raise ChildTimeout(f"no answer within {timeout_s:g} s") from None
        except BaseException:
            self.kill()  # its late reply must not answer the next request
            raise

    def kill(self) -> None:
        """End the process and all its descendants, and free its resources."""
        if self._channel is not None:
            self._channel.close()
            os.close(self._lifeline)  # the supervisor ends its descendants, then itself
        if self._process is not None:
            self._wait_for_end(self._process)
        if self._output is not None:
            self._output.close()
        self._process = self._channel = self._output = None
        self._is_ready, self._group = False, 0

    def _wait_for_end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGCONT)  # it may have been stopped
        try:
            process.wait(_SUPERVISOR_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._group and process.returncode == -signal.SIGKILL:  # it may have left descendants
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def _how_it_ended(self) -> str:
        """Exit code or signal of the process, and the end of its output."""
        assert self._process is not None
        assert self._output is not None
        try:
            code = self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "the process closed its connection"
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _QUOTED_BYTES))
        said = self._output.read().decode(errors="replace").strip()
        self.kill()
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return f"{how}\n{said}" if said else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
