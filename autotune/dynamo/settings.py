"""⑪ Options of the backend, by the names that `autotune.compile` has.

torch.compile(model, backend="autotune", options={"threads": 2, "precision": "auto"})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from autotune.api.bindings import arrays_of
from autotune.api.request import Dims
from autotune.cache import FileStore, artifact_store
from autotune.errors import UsageError
from autotune.ort.preparing import with_log
from autotune.ort.request import SessionArguments, SessionRequest
from autotune.ort.room import Room

OPTIONS = (
    *("threads", "log", "dims", "precision", "max_error", "operators"),
    *("cache", "cache_bytes", "most_shapes", "most_bytes", "memory"),
)
"""See `SessionArguments`. `threads`: by default those of the log, else PyTorch's."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one call of `torch.compile`. `room`: of the networks of a graph in memory."""

    asked: SessionArguments
    room: Room

    @staticmethod
    def of(mode: str | None, options: Mapping[str, Any] | None) -> Settings:
        """Raises UsageError for another mode than the default, and for unknown options."""
        if mode not in (None, "default"):
            raise UsageError(f"there is no mode '{mode}'", "leave `mode` out")
        given = dict(options or {})
        for name in given:
            if name not in OPTIONS:
                raise UsageError(
                    f"there is no option '{name}'", f"the options are {', '.join(OPTIONS)}"
                )
        asked = SessionArguments(b"", **given)
        return Settings(asked, asked.room())

    @property
    def store(self) -> FileStore | None:
        """Of artifacts; None for none."""
        n_bytes = self.asked.store_bytes
        return None if n_bytes is None else artifact_store(n_bytes)

    @property
    def dims(self) -> Dims:
        """Extents of dimensions by name."""
        return self.asked.dims or {}

    def request(self, model: Any, dims: Dims) -> SessionRequest:
        """The request to compile a graph: PyTorch, not ONNX Runtime, runs the rest and checks."""
        threads = self.asked.threads or (0 if self.asked.log else torch.get_num_threads())
        request = self.asked.request(model, threads, dims, arrays_of(self.asked.constants))
        whole = replace(request, name="graph", fallback=False, check=False)
        return with_log(whole)
