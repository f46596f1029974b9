"""Run the command line in forks of a process that has imported it: importing takes most of a call.

A call has arguments, a directory, an environment and pipes of its own, starts with nothing but
imports done, and ends as an interpreter does; `test_cli_forking.py` compares it with `python -m`.
What forks share, a test must not depend on: the seed of hashes, and which modules are imported.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 300
_REQUEST_BYTES = 1 << 20
_MAIN = ROOT / "autotune" / "__main__.py"
_LEFT_OUT = ("autotune.ort", "autotune.dynamo", "autotune.measure.fleet")
"""Modules that start threads, or import what is not installed."""
_LIBRARIES = ("lightgbm", "onnx")  # not onnxruntime, which starts threads when it is imported


@dataclass(frozen=True)
class Outcome:
    """What a process left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


UNCOMPARED = {f"AUTOTUNE_{command}_COMPARE": "0" for command in ("TUNE", "RESUME")}
"""Sessions end without timing the compiled network, which takes seconds; few tests are about it."""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AUTOTUNE")}
    return kept | UNCOMPARED | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def in_process(*arguments: object, cwd: Path | None = None, **env: str) -> Outcome:
    """Run `autotune` in a process that starts from nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment() | env,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


class ForkServer:
    """A process that has imported the command line, and forks for every call. One at a time."""

    def __init__(self) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(there.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # what streams are when Python starts decides how it writes
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
            pass_fds=[there.fileno()],
        )
        there.close()

    def close(self) -> None:
        self._socket.close()
        self._process.communicate()

    def run(
        self,
        *arguments: object,
        cwd: Path | None = None,
        cpus: Collection[int] = (),
        **env: str,
    ) -> Outcome:
        """Run `autotune` in a fork; in a process of its own where Python itself reads `env`.

        `cpus` are those that it may use, all by default.
        """
        if any(name.startswith(("PYTHON", "LC_", "LANG")) for name in env):
            return in_process(*arguments, cwd=cwd, **env)
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": environment() | env,
            "cpus": sorted(cpus) or sorted(os.sched_getaffinity(0)),
        }
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        theirs = [nothing, their_out, their_err]
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for number in theirs:
            os.close(number)
        pid = int(self._socket.recv(64))
        late = threading.Timer(TIMEOUT_S, os.kill, (pid, SIGKILL))
        late.start()
        texts = {}
        readers = [
            threading.Thread(target=lambda n=n: texts.update({n: _read(n)})) for n in (out, err)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        code = int(self._socket.recv(64))
        if late.finished.is_set():
            raise subprocess.TimeoutExpired(request["arguments"], TIMEOUT_S, texts[out], texts[err])
        late.cancel()
        return Outcome(code, texts[out], texts[err])


def _read(number: int) -> str:
    with open(number, encoding=sys.stdout.encoding) as stream:
        return stream.read()


def _serve(connection: socket.socket) -> None:
    """Fork for every request; returns in the fork, which then is the process of the call."""
    while True:
        message, numbers, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if not message:
            sys.exit()
        pid = os.fork()
        if not pid:
            connection.close()
            return _become(json.loads(message), numbers)
        for number in numbers:
            os.close(number)
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], numbers: list[int]) -> None:
    for standard, number in enumerate(numbers):
        os.dup2(number, standard)
        os.close(number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.sched_setaffinity(0, request["cpus"])
    sys.argv = [str(_MAIN), *request["arguments"]]
    sys.path[0] = request["cwd"]


def _import_everything() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)
    import autotune

    for found in pkgutil.walk_packages(autotune.__path__, "autotune."):
        if not found.name.startswith(_LEFT_OUT) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)


if __name__ == "__main__":
    _import_everything()
    from autotune.cli.start import main

    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
