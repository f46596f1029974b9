"""A server of a compiled model over HTTP: concurrent requests in micro-batches.

    pip install 'autotune-compiler[examples]'
    autotune compile model.onnx --dim batch=1,2,4,8 -o model.atn
    python examples/serving/server.py model.atn [--port 8000] [--workers 1] [--threads 2]
    curl --data-binary @x.npy -o y.npy localhost:8000/infer

A request is an `.npy` file with one sample, and so is its answer. What else it does: `service`.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
from batches import Batches
from fastapi import FastAPI, Response
from service import Refused, Service, model_of, serve

_HEAD_BYTES = 1024
"""What an `.npy` file has beside its numbers, at most."""


def app() -> FastAPI:
    """The application, over the artifact that the environment names: MODEL, and THREADS."""
    model = model_of()
    batches = Batches(model)
    shape, dtype = batches.sample.shape[1:], batches.sample.numpy_dtype

    async def infer(body: bytes) -> Response:
        try:
            sample: Any = np.load(io.BytesIO(body), allow_pickle=False)
        except (ValueError, EOFError, OSError):
            raise Refused(400, "the body is no .npy file") from None
        if getattr(sample, "shape", None) != shape or sample.dtype != dtype:
            raise Refused(400, f"a sample is {dtype}{list(shape)}")
        out = io.BytesIO()
        np.save(out, await batches.infer(sample))
        return Response(out.getvalue(), media_type="application/octet-stream")

    most_bytes = _HEAD_BYTES + dtype.itemsize * int(np.prod(shape))
    service = Service(model.artifact.name, batches, most_bytes)
    service.post("/infer", infer)
    return service.app


def main() -> None:
    """Serve an artifact."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    serve("server:app", parser)


if __name__ == "__main__":
    main()
