"""⑪ What a session asks to be compiled, what it is told, and how both go to another process.

    Job(FACTS, request) ─► Facts        Job(ARTIFACT, request) ─► Prepared        either ─► Failure

Nothing is imported here that reads models: a session that ONNX Runtime answers needs none of it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from autotune.api.request import CompileRequest, Dims, Shapes
from autotune.measure.frames import Message

FACTS, ARTIFACT, FAILED = "facts", "artifact", "failed"
"""Kinds of messages: requests are answered by their own kind, or by the last."""

Feed: TypeAlias = Mapping[str, Any]
"""Inputs of an inference, by name."""
Run: TypeAlias = Callable[..., dict[str, Any]]
"""Outputs by name of an inference on a feed, written into arrays by name where given (`out`)."""

MOST_BYTES = 8 << 30
"""Of the artifacts of all models together; the least recently used go first."""


@dataclass(frozen=True)
class SessionRequest(CompileRequest):
    """What to compile for this CPU.

    `model`: a file, or the bytes of one. `name`: how messages call it. `threads`: 0 for those of
    the log. `n_running`: threads that it runs on; `preparing.with_log` knows them.
    """

    model: Path | bytes
    log: Path | None = None
    _: KW_ONLY
    name: str = "model"
    threads: int = 0
    shapes: Shapes = field(default_factory=dict)
    dims: Dims = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    operators: tuple[Path, ...] = ()
    n_running: int = 0

    def without_log(self) -> SessionRequest:
        """The same where the log does not fit."""
        return replace(self, log=None, threads=self.n_running)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model before any shape comes.

    `deciding`: inputs that are bound by their values. `files`: all that the model was read from.
    `log`, `threads`: what it is compiled with. `n_running`: threads that it runs on.
    `is_named`: whether the log names shapes.
    """

    deciding: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    log: str | None = None
    threads: int = 1
    n_running: int = 1
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class PreparedNetwork:
    """A compiled network in a file. `is_kept`: it is the cache's, else whoever loads it removes it.

    `notes`: what `compile` told. `is_compiled`: whether any of it is; else all is ONNX Runtime's.
    `paddings`: of the dimensions that were asked for, as JSON.
    """

    path: str
    is_kept: bool
    notes: tuple[str, ...] = ()
    is_compiled: bool = True
    paddings: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A request for the process beside a session: see `prepare`.

    `padded`: dimensions of which calls may have less than the shapes of the request.
    """

    kind: str
    request: SessionRequest
    store_bytes: int | None = None
    padded: tuple[str, ...] = ()

    def message(self) -> Message:
        """As it is sent: what a session sends to its own process may be pickled."""
        return Message(self.kind, {}, [pickle.dumps(self)])


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer to a job. `is_unpadded`: padding might change what is computed."""

    text: str
    hint: str = ""
    is_unpadded: bool = False


def answered(reply: Message) -> Facts | PreparedNetwork | Failure:
    """The answer in a reply of `serve`."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in reply.fields.items()}
    kinds: dict[str, Any] = {FACTS: Facts, ARTIFACT: PreparedNetwork}
    found: Facts | PreparedNetwork | Failure = kinds.get(reply.kind, Failure)(**fields)
    return found
