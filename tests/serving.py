"""Servers of examples/serving as processes, asked over HTTP.

with started("server.py", artifact) as server:
    status, body = server.ask("/infer", sample)
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "serving"
"""Its modules import each other by name, as in a process of theirs."""
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skips where one of these, which examples need, is not installed."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return pytest.mark.skipif(bool(missing), reason=f"without {', '.join(missing)}")


@dataclass
class Server:
    """A process that answers at a port. `timeout_s`: of a request."""

    process: subprocess.Popen[str]
    port: int
    timeout_s: float = 60.0

    def ask(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer; a body is posted."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        try:
            connection.request("GET" if body is None else "POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, path: str, data: Any) -> tuple[int, Any]:
        """Status and answer to JSON."""
        status, body = self.ask(path, json.dumps(data).encode())
        return status, json.loads(body) if body[:1] in b"[{" else body.decode()

    def metrics(self) -> dict[str, float]:
        """What /metrics says."""
        status, body = self.ask("/metrics")
        assert status == 200
        lines = [line.rsplit(" ", 1) for line in body.decode().splitlines()]
        return {name: float(value) for name, value in lines}


@contextmanager
def started(script: str, *arguments: object, timeout_s: float = 60.0) -> Iterator[Server]:
    """A server that answers, killed at the end. `timeout_s`: of its start, and of a request."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    path = os.environ.get("PYTHONPATH", "")
    command = [sys.executable, str(FOLDER / script), *map(str, arguments), "--port", str(port)]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{path}"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        made = Server(process, port, timeout_s)
        try:
            end_s = time.monotonic() + timeout_s
            while time.monotonic() < end_s and process.poll() is None:
                try:
                    assert made.ask("/healthz") == (200, b"ok\n")
                    break
                except OSError:
                    time.sleep(0.05)
            yield made
        finally:
            process.kill()
