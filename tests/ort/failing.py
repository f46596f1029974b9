"""Processes beside a session that fail: see `test_ort_failures`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.measure.processes.frames import Message
from autotune.measure.processes.supervisor import Handler
from autotune.ort import preparing
from autotune.ort.request import ARTIFACT, BackgroundJob, Found


def serve(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """As `preparing.serve`, until an artifact is asked for. How it fails is the model's name."""
    handle = preparing.serve(arguments, blobs)
    answer = preparing.answer

    def failing(job: BackgroundJob) -> Found:
        if job.kind != ARTIFACT:
            return answer(job)
        sys.stderr.write("about to fail\n")
        sys.stderr.flush()
        if job.request.name == "exits":
            os._exit(3)
        if job.request.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if job.request.name == "memory":
            return bytearray(1 << 46)  # type: ignore[return-value]
        raise ValueError("first line\nsecond line")

    def handler(message: Message) -> Message:
        preparing.answer = failing
        return handle(message)

    return handler
