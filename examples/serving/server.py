"""A server of a compiled model over HTTP: concurrent requests in micro-batches.

    pip install 'autotune-compiler[examples]'
    autotune compile model.onnx --dim batch=1,2,4,8 -o model.atn
    python examples/serving/server.py model.atn [--port 8000] [--workers 1] [--threads 2]
    curl --data-binary @x.npy -o y.npy localhost:8000/infer

A request is an `.npy` file with one sample, and so is its answer. /healthz says whether the server
is there, /metrics what it has done, as Prometheus reads it. SIGTERM ends it: what has begun is
answered, new connections are refused.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from batches import Batches
from fastapi import FastAPI, Request, Response

import autotune

_HEAD_BYTES = 1024
"""What an `.npy` file has beside its numbers, at most."""
_BOUNDS_S = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, float("inf"))


class Service:
    """The routes of a model, and what they count."""

    def __init__(self, model: autotune.Model) -> None:
        self.batches = Batches(model)
        self.shape, self.dtype = self.batches.sample.shape[1:], self.batches.sample.numpy_dtype
        self.most_bytes = _HEAD_BYTES + self.dtype.itemsize * int(np.prod(self.shape))
        self.codes: Counter[int] = Counter()
        self.slots: Counter[float] = Counter()
        self.total_s = 0.0

    async def infer(self, request: Request) -> Response:
        """The output for the sample in the body."""
        start = time.perf_counter()
        response = await self._answer(request)
        taken_s = time.perf_counter() - start
        self.codes[response.status_code] += 1
        self.slots[next(bound for bound in _BOUNDS_S if taken_s <= bound)] += 1
        self.total_s += taken_s
        return response

    async def _answer(self, request: Request) -> Response:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self.most_bytes:
                return Response(f"a sample has at most {self.most_bytes} bytes\n", 413)
        try:
            sample: Any = np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError):
            return Response("the body is no .npy file\n", 400)
        if getattr(sample, "shape", None) != self.shape or sample.dtype != self.dtype:
            return Response(f"a sample is {self.dtype}{list(self.shape)}\n", 400)
        out = io.BytesIO()
        np.save(out, await self.batches.infer(sample))
        return Response(out.getvalue(), media_type="application/octet-stream")

    async def metrics(self) -> Response:
        """Counters and a histogram, as Prometheus reads them."""
        batches, n = self.batches, 0
        lines = [f'requests_total{{code="{code}"}} {self.codes[code]}' for code in self.codes]
        lines += [
            f'batches_total{{size="{size}"}} {batches.counts[size]}' for size in batches.sizes
        ]
        lines.append(f"requests_waiting {len(batches.waiting)}")
        lines.append(f"batches_running {len(batches.running)}")
        for bound in _BOUNDS_S:
            n += self.slots[bound]
            text = "+Inf" if bound == _BOUNDS_S[-1] else f"{bound:g}"
            lines.append(f'request_seconds_bucket{{le="{text}"}} {n}')
        lines += [f"request_seconds_sum {self.total_s:.6f}", f"request_seconds_count {n}"]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def healthz(self) -> Response:
        """That the server is there."""
        return Response("ok\n", media_type="text/plain")


def app() -> FastAPI:
    """The application, over the artifact that the environment names: MODEL, and THREADS."""
    threads = os.environ.get("THREADS")
    model = autotune.load(os.environ["MODEL"], int(threads) if threads else None)
    service, made = Service(model), FastAPI(title=model.artifact.name)
    made.add_api_route("/infer", service.infer, methods=["POST"])
    made.add_api_route("/metrics", service.metrics)
    made.add_api_route("/healthz", service.healthz)
    return made


def main() -> None:
    """Serve an artifact."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    os.environ["MODEL"] = str(given.model.absolute())
    if given.threads:
        os.environ["THREADS"] = str(given.threads)
    where: dict[str, Any] = {"host": given.host, "port": given.port, "workers": given.workers}
    folder = str(Path(__file__).parent)
    uvicorn.run("server:app", factory=True, app_dir=folder, log_level="warning", **where)


if __name__ == "__main__":
    main()
