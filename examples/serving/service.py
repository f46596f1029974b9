"""What all servers here share: bodies of a limited size, back-pressure, metrics, a stop.

    service = Service("name", batcher, most_bytes=1 << 20)
    service.post("/infer", handler)  # of the bytes of a body
    service.app

/healthz says whether the server is there, /metrics what it has done, as Prometheus reads it. Where
too much waits, a request is refused at once. SIGTERM ends a server: what has begun is answered, new
connections are refused.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from waiting import Batcher, Overloaded

import autotune

_BOUNDS_S = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, float("inf"))

Handler = Callable[[bytes], Awaitable[Response]]


@dataclass(frozen=True)
class Refused(Exception):
    """A request that gets no result: a status of HTTP, and one line that says why."""

    status: int
    text: str


Wording = Callable[[Refused], Response]
"""How a refusal is written."""

OVERLOADED = Refused(503, "too many requests are waiting")


def as_text(refused: Refused) -> Response:
    """The line alone."""
    return Response(f"{refused.text}\n", refused.status, media_type="text/plain")


class Service:
    """Routes over a batcher, and what they count."""

    def __init__(self, name: str, batcher: Batcher[Any, Any], most_bytes: int) -> None:
        self.app = FastAPI(title=name)
        self.batcher, self.most_bytes = batcher, most_bytes
        self.codes: Counter[int] = Counter()
        self.slots: Counter[float] = Counter()
        self.total_s = 0.0
        self.app.add_api_route("/metrics", self.metrics)
        for path in ("/healthz", "/health"):
            self.app.add_api_route(path, self.healthz)

    def post(self, path: str, handler: Handler, wording: Wording = as_text) -> None:
        """A route: `handler` answers bodies, or raises Refused."""

        async def route(request: Request) -> Response:
            start = time.perf_counter()
            response = await self._answer(request, handler, wording)
            taken_s = time.perf_counter() - start
            self.codes[response.status_code] += 1
            self.slots[next(bound for bound in _BOUNDS_S if taken_s <= bound)] += 1
            self.total_s += taken_s
            return response

        self.app.add_api_route(path, route, methods=["POST"])

    async def _answer(self, request: Request, handler: Handler, wording: Wording) -> Response:
        try:
            return await handler(await self._body(request))
        except Refused as refused:
            return wording(refused)
        except Overloaded:
            response = wording(OVERLOADED)
            response.headers["Retry-After"] = "1"
            return response

    async def _body(self, request: Request) -> bytes:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self.most_bytes:
                raise Refused(413, f"a body has at most {self.most_bytes} bytes")
        return bytes(data)

    async def metrics(self) -> Response:
        """Counters and a histogram, as Prometheus reads them."""
        batcher, n = self.batcher, 0
        lines = [f'requests_total{{code="{code}"}} {self.codes[code]}' for code in self.codes]
        lines += [f'batches_total{{size="{n}"}} {k}' for n, k in sorted(batcher.counts.items())]
        lines.append(f"requests_waiting {len(batcher.waiting)}")
        lines.append(f"batches_running {len(batcher.running)}")
        for bound in _BOUNDS_S:
            n += self.slots[bound]
            text = "+Inf" if bound == _BOUNDS_S[-1] else f"{bound:g}"
            lines.append(f'request_seconds_bucket{{le="{text}"}} {n}')
        lines += [f"request_seconds_sum {self.total_s:.6f}", f"request_seconds_count {n}"]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def healthz(self) -> Response:
        """That the server is there."""
        return Response("ok\n", media_type="text/plain")


def model_of(variable: str = "MODEL") -> autotune.Model:
    """The artifact that an environment variable names, on THREADS threads."""
    threads = os.environ.get("THREADS")
    return autotune.load(os.environ[variable], int(threads) if threads else None)


def serve(app: str, parser: argparse.ArgumentParser) -> None:
    """Run the application factory `app`, `module:function`, in the processes that are asked for.

    Arguments of the parser become environment variables, which all processes read. What is wrong
    with them is one line, before anything listens.
    """
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int)
    given = vars(parser.parse_args())
    where = {name: given.pop(name) for name in ("host", "port", "workers")}
    for name, value in given.items():
        if value is not None:
            text = value.absolute() if isinstance(value, Path) else value
            os.environ[name.upper()] = str(text)
    try:
        made = _made(app)
    except (autotune.AutotuneError, OSError, ValueError) as error:
        hint = f"\nhint: {error.hint}" if isinstance(error, autotune.AutotuneError) else ""
        parser.exit(2, f"error: {error}{hint}\n")
    if where["workers"] == 1:
        uvicorn.run(made, log_level="warning", **where)
    else:  # each process makes its own
        folder = str(Path(__file__).parent)
        uvicorn.run(app, factory=True, app_dir=folder, log_level="warning", **where)


def _made(app: str) -> Any:
    """What a factory makes."""
    module, name = app.split(":")
    return getattr(importlib.import_module(module), name)()
