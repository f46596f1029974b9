"""A server of a language model for a long time: clients that ask, leave, die and send nonsense.

    python -m tests.fuzz.served --seconds 1800

Every text that a client gets whole is what a session alone gives. At the end nothing runs, and the
server has no more memory than it had after a tenth of the time. Exit code 1 where one is not so.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from tests.api.test_api_llm_server import CAPACITY, SERVER, compiled, expected, tokenized
from tests.serving import Server, started

_LEAST_GROWTH = 1.1
"""Of the resident memory: what malloc keeps for itself."""
_TIMEOUT_S = 900.0
"""Of a request: a machine with other work may stop both sides for minutes."""


class Clients:
    """Threads that ask one server; what went wrong is in `wrong`."""

    def __init__(self, server: Server, wanted: dict[str, str], end_s: float) -> None:
        self.server, self.wanted, self.end_s = server, wanted, end_s
        self.counts, self.wrong = Counter[str](), list[str]()

    def run(self, seed: int) -> None:
        """One client after the other until the end."""
        rng = random.Random(seed)
        kinds = (self.whole, self.whole, self.stream, self.leaves, self.nonsense)
        while time.monotonic() < self.end_s:
            kind = rng.choice(kinds)
            try:
                kind(rng)
            except OSError as error:
                self.wrong.append(f"{kind.__name__}: {error}")
            self.counts[kind.__name__] += 1

    def body(self, rng: random.Random, **more: Any) -> dict[str, Any]:
        prompt = rng.choice(list(self.wanted))
        return {"model": "tiny", "prompt": prompt, "max_tokens": 40, "temperature": 0, **more}

    def whole(self, rng: random.Random) -> None:
        """A text in one piece."""
        body = self.body(rng)
        status, answer = self.server.post("/v1/completions", body)
        if status == 200:
            self._compare(body["prompt"], answer["choices"][0]["text"])
        elif status != 429:
            self.wrong.append(f"{status}: {answer}")

    def stream(self, rng: random.Random) -> None:
        """A text in many."""
        body = self.body(rng, stream=True)
        status, data = self.server.ask("/v1/completions", json.dumps(body).encode())
        if status != 200:
            return
        lines = [line[6:] for line in data.decode().split("\n\n") if line.startswith("data: {")]
        self._compare(
            body["prompt"], "".join(json.loads(line)["choices"][0]["text"] for line in lines)
        )

    def leaves(self, rng: random.Random) -> None:
        """A client that dies at any time."""
        data = json.dumps(self.body(rng, stream=rng.random() < 0.5, max_tokens=CAPACITY)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        sent = f"{head}Content-Type: application/json\r\n\r\n".encode() + data
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall(sent[: rng.randrange(len(sent))] if rng.random() < 0.3 else sent)
            time.sleep(rng.random() * 0.05)

    def nonsense(self, rng: random.Random) -> None:
        """What is no request."""
        data = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
        status, _ = self.server.ask("/v1/chat/completions", data)
        if status not in (400, 413):
            self.wrong.append(f"nonsense got {status}")

    def _compare(self, prompt: str, text: str) -> None:
        if text != self.wanted[prompt]:
            self.wrong.append(f"{prompt!r}: {text!r} in the place of {self.wanted[prompt]!r}")


@click.command()
@click.option("--seconds", default=1800.0)
@click.option("--clients", default=8)
def main(seconds: float, clients: int) -> None:
    """Ask a server, print what was asked and what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="served-"))
    artifact, words = compiled(folder), tokenized(folder)
    shared = "what all of these texts begin with, and longer than blocks of prefixes: " * 2
    prompts = [f"{shared[: 6 * n]}{n} texts"[: 3 + 6 * n] for n in range(24)]
    wanted = {prompt: expected(artifact, words, prompt, 40) for prompt in prompts}
    told = ("--tokenizer", words, "--sessions", 3, "--waiting", 2, "--prefix-mib", 1)
    with started(SERVER, artifact, *told, timeout_s=_TIMEOUT_S) as server:
        asked = Clients(server, wanted, time.monotonic() + seconds)
        threads = [threading.Thread(target=asked.run, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 10)
        before = _resident(server)
        for thread in threads:
            thread.join()
        time.sleep(5)
        after, metrics = _resident(server), server.metrics()
    print(f"{dict(asked.counts)}, {before >> 20} MiB, later {after >> 20} MiB, {metrics}")
    running = metrics["requests_running"] + metrics["requests_waiting"]
    if running or after > _LEAST_GROWTH * before:
        asked.wrong.append("something is left")
    print("\n".join(asked.wrong[:20]) or "nothing is wrong")
    sys.exit(bool(asked.wrong))


def _resident(server: Server) -> int:
    """Bytes of the process that are in memory."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
