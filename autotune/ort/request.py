"""⑪ Request of a session to compile, its answer, and the transport of both to another process.

    Job(FACTS, request) ─► Facts        Job(ARTIFACT, request) ─► Prepared        either ─► Failure

Nothing is imported here that reads models: a session that ONNX Runtime answers needs none of it.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from autotune.api.request import CompileRequest, Dims, Shapes
from autotune.cache import ARTIFACT_BYTES
from autotune.codec import from_json
from autotune.errors import AutotuneError, LogMismatch, NotCompilable, UsageError
from autotune.measure.processes.frames import Message
from autotune.ort.room import MOST_SHAPES, Room
from autotune.ort.sizes import AllSizes, OpenSizes
from autotune.pages import SHARED

FACTS, ARTIFACT, FAILED = "facts", "artifact", "failed"
"""Kinds of messages: requests are answered by their own kind, or by the last."""

Feed: TypeAlias = Mapping[str, Any]
"""Inputs of an inference, by name."""
Run: TypeAlias = Callable[..., dict[str, Any]]
"""Outputs by name of an inference on a feed, written into arrays by name where given (`out`)."""

MOST_BYTES = ARTIFACT_BYTES
"""Of the artifacts of all models together; the least recently used go first."""


@dataclass(frozen=True)
class SessionRequest(CompileRequest):
    """Request to compile a model for this CPU.

    `model`: a file, or the bytes of one. `name`: how messages call it. `threads`: 0 for those of
    the log. `n_running`: threads that it runs on; `preparing.with_log` knows them. `mosts`: for all
    sizes up to these, and to assumed ones of other dimensions (`graph.reader.mosts`), in the place
    of `shapes` and `dims`. `held`: sizes that dimensions are fixed to that cannot be of any.
    `packs`: whether one network for all sizes is over the tokens of rows (`ragged`); None: where
    calls have padding and outputs are of rows alone, which then are those of the file.
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
    mosts: Mapping[str, int] | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    packs: bool | None = False

    def without_log(self) -> SessionRequest:
        """The same where the log does not fit."""
        return replace(self, log=None, threads=self.n_running)

    def without_state(self) -> SessionRequest:
        """The same for calls that are no steps of a state: of any shapes."""
        return replace(self, capacity=None, state=None, dims={}, log=None)

    def is_packed(self, sizes: AllSizes | None) -> bool:
        """Whether a network for all sizes is to be over tokens."""
        if self.packs is None and sizes is not None:
            return sizes.is_padded and sizes.known.has_rows
        return bool(self.packs)


@dataclass(frozen=True)
class SessionArguments:
    """Arguments of a session, by the names that ONNX Runtime's has, and further ones.

    `path_or_bytes`: an ONNX file or its contents. `log`: as for `autotune.compile`; without it, a
    log beside the model is used if it fits (`model-best.jsonl`, `model.jsonl`). `threads`: instead
    of `intra_op_num_threads`; 0 or None: as in the log, else as many as are usable. `dims`,
    `constants`, `precision`, `max_error`, `operators`, `fallback`: as for `compile`. `cache`: keep
    what is compiled in the user's cache folder, up to `cache_bytes` for all models. `most_shapes`,
    `most_bytes`: how many combinations of shapes stay compiled, beside those that were named
    before, and how large they are together (None: a fourth of the memory that this process may
    use); the least recently used ones leave, the newest stays. `memory`: of constants, see
    `autotune.load`. `capacity`, `state`: of a decoder whose caches stay in place, see
    `autotune.compile`. `ragged`: batches of rows are computed without their padding, see
    `autotune.compile`; None: where calls have padding and outputs are of rows alone. Outputs with
    a number for each token have other ones at places that the mask leaves out.
    """

    path_or_bytes: str | bytes | os.PathLike[str]
    sess_options: Any = None
    providers: Sequence[Any] | None = None
    provider_options: Sequence[Any] | None = None
    _: KW_ONLY
    log: str | Path | None = None
    threads: int | None = None
    dims: Dims | None = None
    constants: Mapping[str, Any] | None = None
    precision: str | None = None
    max_error: float | None = None
    operators: Sequence[str | Path] = ()
    fallback: bool = True
    cache: bool = True
    cache_bytes: int = MOST_BYTES
    most_shapes: int = MOST_SHAPES
    most_bytes: int | None = None
    memory: str = SHARED
    capacity: int | None = None
    state: Mapping[str, str] | None = None
    ragged: bool | None = None
    disabled_optimizers: Any = None

    def room(self) -> Room:
        """Of the networks in memory. Raises UsageError for none, there or in the cache."""
        room = Room.of(self.most_shapes, self.most_bytes, self.memory)
        if self.cache_bytes < 0:
            raise UsageError("the cache has no room", "cache_bytes is 0 or more")
        return room

    @property
    def store_bytes(self) -> int | None:
        """Of the cache, None for none."""
        return self.cache_bytes if self.cache else None

    def request(
        self, model: Path | bytes, threads: int, dims: Dims, constants: Mapping[str, Any]
    ) -> SessionRequest:
        """The request to compile `model`."""
        return SessionRequest(
            model,
            Path(self.log).absolute() if self.log else None,
            name=model.stem if isinstance(model, Path) else "model",
            threads=threads,
            dims=dims,
            constants=constants,
            precision=self.precision,
            max_error=self.max_error,
            operators=tuple(Path(path).absolute() for path in self.operators),
            fallback=self.fallback,
            capacity=self.capacity,
            state=self.state,
            scores="all",
            packs=self.ragged,
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a model before any shape comes.

    `deciding`: inputs that are bound by their values. `files`: all that the model was read from.
    `log`, `threads`: of its compilation. `n_running`: threads that it runs on.
    `is_named`: whether the log names shapes. `sizes`: open dimensions, where one network may be for
    all of them.
    """

    deciding: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    log: str | None = None
    threads: int = 1
    n_running: int = 1
    is_named: bool = False
    sizes: OpenSizes | None = None


@dataclass(frozen=True, slots=True)
class PreparedNetwork:
    """A compiled network in a file. `is_kept`: it is the cache's, else its loader removes it.

    `notes`: of `compile`. `is_compiled`: whether any of it is; else all is ONNX Runtime's.
    """

    path: str
    is_kept: bool
    notes: tuple[str, ...] = ()
    is_compiled: bool = True


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A request for the process beside a session: see `prepare`."""

    kind: str
    request: SessionRequest
    store_bytes: int | None = None

    def message(self) -> Message:
        """As it is sent: messages of a session to its own process may be pickled."""
        model = self.request.model
        if isinstance(model, Path):
            return Message(self.kind, {}, [pickle.dumps(self)])
        rest = replace(self, request=replace(self.request, model=b""))
        return Message(self.kind, {}, [pickle.dumps(rest), model])

    @staticmethod
    def of(message: Message) -> BackgroundJob:
        """Inverse of `message`."""
        job: BackgroundJob = pickle.loads(message.blobs[0])
        if len(message.blobs) == 1:
            return job
        return replace(job, request=replace(job.request, model=bytes(message.blobs[1])))


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason for no answer to a job, in one line. `is_of_sizes`: no network is for all sizes.

    `is_kept`: whether it comes again whenever the job is done; `is_former`: it was so in a process
    before. `details`: a traceback.
    """

    text: str
    hint: str = ""
    is_of_sizes: bool = False
    is_kept: bool = True
    is_former: bool = False
    details: str = ""

    @staticmethod
    def of(error: Exception) -> Failure:
        """Failure of a job that ended with an error."""
        if isinstance(error, AutotuneError):
            is_kept = not isinstance(error, UsageError | LogMismatch)  # they come at once
            is_of_sizes = isinstance(error, SizesRefused)
            return Failure(error.message, error.hint, is_of_sizes, is_kept)
        details = "".join(traceback.format_exception(error))
        if isinstance(error, MemoryError):
            return Failure("there is not enough memory to compile it", details=details)
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return Failure(text, details=details)

    @property
    def line(self) -> str:
        """The text and the hint."""
        return f"{self.text} ({self.hint})" if self.hint else self.text


class SizesRefused(NotCompilable):
    """A network of a model is for single sizes only."""


Found: TypeAlias = Facts | PreparedNetwork | Failure
"""The answer to a job."""


def answered(reply: Message) -> Found:
    """The answer in a reply of `serve`."""
    kinds: dict[str, Any] = {FACTS: Facts, ARTIFACT: PreparedNetwork}
    found: Found = from_json(kinds.get(reply.kind, Failure), reply.fields)
    return found
