"""⑦ The child's side of a worker process: a supervisor, and a worker that answers requests.

`process.py` starts both. The *supervisor* runs nothing but this file. The *worker*,
its child, imports the rest and may crash, hang or start processes of its own. When the worker or
the session has ended, for any reason, the supervisor kills all descendants of the worker and exits
with the status of the worker. Both ignore interrupts from the terminal: the session handles them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from autotune.measure.processes.frames import Channel, Closed, Message, ProtocolError

Handler: TypeAlias = Callable[[Message], Message]
"""Answers one request; an exception becomes a `failed` reply."""
MakeHandler: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], Handler]
"""Makes a handler of the arguments and blobs of the `setup` message."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_S = 5.0
_POLL_S = 0.02


def main() -> None:
    """Entry point: `argv` holds sys.path, two file descriptors, the session's pid, two limits."""
    channel, lifeline, session, n_data_bytes, n_file_bytes = (int(a) for a in sys.argv[2:7])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        _become_worker(supervisor, n_data_bytes, n_file_bytes)
        serve(Channel(socket.socket(fileno=channel)))
        os._exit(0)  # no clean-up: a faulty program may have damaged the interpreter
    os.close(channel)
    _supervise(worker, lifeline, session)


def serve(channel: Channel) -> None:
    """First message: which function makes the handler; all others: its requests."""
    with contextlib.suppress(Closed):  # the session closed its end
        handler = _answer(channel, _handler)
        while callable(handler):
            _answer(channel, handler)


def _answer(channel: Channel, handle: Callable[[Message], Any]) -> Any:
    """Take one message and reply to it; the result of `handle`, None where it failed."""
    request = channel.receive()
    try:
        made = handle(request)
    except Exception:
        reply, made = Message("failed", {"text": traceback.format_exc()}), None
    else:
        reply = made if isinstance(made, Message) else Message("ready", {"pid": os.getpid()})
    try:
        channel.send(Message(reply.kind, reply.fields, reply.blobs, request.number))
    except ValueError as error:  # a number that JSON does not have
        channel.send(Message("failed", {"text": str(error)}, (), request.number))
    return made


def _handler(setup: Message) -> Handler:
    if setup.kind != "setup":
        raise ProtocolError("the first message is no setup")
    module, _, name = setup.fields["handler"].partition(":")
    make: MakeHandler = getattr(import_module(module), name)
    return make(setup.fields["arguments"], setup.blobs)


def _become_worker(supervisor: int, n_data_bytes: int, n_file_bytes: int) -> None:
    os.setpgid(0, 0)  # signals of a program to its group spare the supervisor
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before prctl took effect
        os._exit(1)
    _limit(resource.RLIMIT_CORE, 0)
    if n_file_bytes:
        _limit(resource.RLIMIT_FSIZE, n_file_bytes)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _limit(
        resource.RLIMIT_DATA, n_data_bytes or total
    )  # so that an allocation fails before the OOM killer acts


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard < 0 else min(value, hard), hard))


def _supervise(worker: int, lifeline: int, session: int) -> NoReturn:
    """Wait until the worker or the session has ended; then end all descendants and exit."""
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for kind in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(kind, lambda *_: None)
    # the signal comes when the thread that started us ends; the loop below checks the session
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    waiting = select.poll()
    waiting.register(wake, select.POLLIN)
    waiting.register(lifeline, select.POLLIN)
    status = None
    while status is None and os.getppid() == session:
        done, found = os.waitpid(worker, os.WNOHANG)
        status = found if done else None
        if status is None and any(fd == lifeline for fd, _ in waiting.poll()):
            break  # readable means closed: nothing is ever written
        _drain(wake)
    _kill_descendants(worker, status is None)
    _exit_like(status)


def _drain(wake: int) -> None:
    os.set_blocking(wake, False)
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 4096)


def _kill_descendants(worker: int, is_running: bool) -> None:
    """End the worker and its descendants; orphans become children of the supervisor."""
    end_s = time.monotonic() + _KILL_S
    while time.monotonic() < end_s:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        if is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                is_running = False
        except ChildProcessError:
            return
        time.sleep(_POLL_S)


def _children(proc: Path = Path("/proc")) -> list[int]:
    mine, found = str(os.getpid()), []
    for entry in os.listdir(proc):
        if entry.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                if (proc / entry / "stat").read_text().rpartition(")")[2].split()[1] == mine:
                    found.append(int(entry))
    return found


def _exit_like(status: int | None) -> NoReturn:
    """End with the signal or exit code of the worker."""
    if status is not None and os.WIFSIGNALED(status):
        _limit(resource.RLIMIT_CORE, 0)
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(1 if status is None else os.waitstatus_to_exitcode(status) & 0xFF)
