"""⑪ `run_async`: calls whose answers are given to a function, as sessions of ONNX Runtime do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from autotune.machine import read_limits

Callback = Callable[[Sequence[Any], Any, str], object]


class CallbackThreads:
    """As many threads as run all the time, started when they are needed; others in a forked child.

    The interpreter ends after the last answer.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def start(self, run: Callable[[], Sequence[Any]], callback: Callback, user_data: Any) -> None:
        """Call `run` soon, then `callback(outputs, user_data, error)`."""
        pool = self._pool
        if pool is None or self._process != os.getpid():
            pool = ThreadPoolExecutor(read_limits().n_busy, "run_async")
            self._pool, self._process = pool, os.getpid()
        pool.submit(_answer, run, callback, user_data)


def _answer(run: Callable[[], Sequence[Any]], callback: Callback, user_data: Any) -> None:
    found: Sequence[Any] = []
    told = ""
    try:
        found = run()
    except Exception as error:  # of any kind: the thread has no caller to raise it to
        told = str(error) or type(error).__name__
    try:
        callback(found, user_data, told)
    except BaseException as error:
        where = "Exception ignored in InferenceSession.run_async callback"
        lost = SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg=where,
            object=callback,
        )
        sys.unraisablehook(lost)
