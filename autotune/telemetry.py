"""Floor 0: packages that send telemetry when they are imported, imported without it.

    imported("onnxruntime") ─► the package; nothing is sent, nothing is written into the home

Wheels of ONNX Runtime from 1.29 on keep a number for the device in the user's cache, write
`$TMPDIR/.ses` through whatever link is there, and send events; OpenVINO's package sends one when it
is imported, through `openvino_telemetry`, and keeps a number in the home. Both decide while they
are imported, so whatever of autotune imports them does it here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_OF_ONNXRUNTIME = "ORT_DISABLE_TELEMETRY"
_OF_OPENVINO = "openvino_telemetry"
_LOCK = threading.RLock()


def imported(name: str) -> ModuleType:
    """The module `name`. Raises ImportError.

    A package that the program has imported before stays as it is, and so does what the user has
    told ONNX Runtime in the environment.
    """
    with _LOCK:
        if name.partition(".")[0] in sys.modules:
            return import_module(name)
        os.environ.setdefault(_OF_ONNXRUNTIME, "1")
        with _without(_OF_OPENVINO):
            return import_module(name)


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Importing `name` fails, unless it has been imported: as where it is not installed."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
