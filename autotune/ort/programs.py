"""⑪ The compiled networks of a session, and for which calls there is one.

    programs.at(feed) ─► a compiled network in contest with ONNX Runtime, or None: that answers

A call is told by the shapes of its inputs, and by the values of those that decide what is computed.
What is seen for the first time is compiled and checked in the background, then run once beside
the session's own ONNX Runtime, and from then on answers if it gave the same and is faster. Of
further shapes those come first that are called most, from the second call on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.codec import from_json
from autotune.errors import AutotuneError, LogMismatch, UsageError
from autotune.ort.background import background
from autotune.ort.buckets import Extents, extents_of, padded, rounded_up, shapes_at
from autotune.ort.contest import Contest
from autotune.ort.failures import remembered
from autotune.ort.request import (
    ARTIFACT,
    FACTS,
    BackgroundJob,
    Facts,
    Failure,
    Feed,
    Found,
    PreparedNetwork,
    Run,
    SessionRequest,
)
from autotune.ort.room import Room
from autotune.ort.waits import told_if_long

if TYPE_CHECKING:
    from autotune.api.compile.padding import Padding
    from autotune.network.runtime.runtime import Model

LOGGER = logging.getLogger("autotune")

Key: TypeAlias = tuple[Any, ...]
"""Shapes of the open inputs, then the bytes of those that decide."""

_LEAST_CALLS = 2
"""Of a shape that is not the first one, before it is compiled."""
_MOST_KEYS = 4096
"""Shapes that are told apart without looking for their bucket."""
_MOST_APART = 2e-2
"""Of the largest value: networks that differ more from ONNX Runtime's are rejected."""
_OUTSIDE = "nodes run in ONNX Runtime"
"""Note of `compile` on fallback nodes; lines with their reasons follow it."""
_CHANGED = "its file has changed since the session was made"
_UNKNOWN: Any = object()


class Mode(StrEnum):
    """Time of compilation: while its session is made or called, beside it, or never."""

    WAIT = "wait"
    BACKGROUND = "background"
    NEVER = "never"


class ShapeState(StrEnum):
    """Of the calls of one shape."""

    WAITING = "waiting"
    COMPILING = "compiling"
    LOADED = "loaded"
    COMPILED = "compiled"
    ONNXRUNTIME = "onnxruntime"


@dataclass(slots=True)
class Entry:
    """Calls of one shape. `values`: of the inputs that decide.

    `n_bytes`: of memory, of what is compiled. `used`: how many networks had been adopted when it
    was last seen to have been called, and how often until then; `left`: its contest's at that time.
    `extents`: of a bucket, which computes calls of smaller ones as well, by dimension; None of a
    shape that is compiled as it came.
    """

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    state: ShapeState = ShapeState.WAITING
    n_calls: int = 0
    reason: str = ""
    example: Mapping[str, NDArray[Any]] | None = None
    run: Run | None = None
    contest: Contest | None = None
    extents: Extents | None = None
    n_bytes: int = 0
    used: tuple[int, int] = (0, 0)
    left: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a session's compilation. `store_bytes`: of the cache, None for none."""

    mode: Mode
    store_bytes: int | None
    room: Room


class Programs:
    """See the module. `shapes`: of all inputs, with what is open as None or a name.

    `theirs`: an inference by ONNX Runtime, of all outputs by name. `is_loaded`: whether files of
    the model still are what the session has loaded. `when_idle`: called once it is known that ONNX
    Runtime answers everything.
    """

    def __init__(
        self,
        request: SessionRequest,
        setting: Setting,
        shapes: Mapping[str, Sequence[Any]],
        theirs: Callable[[Feed], Mapping[str, Any]],
        is_loaded: Callable[[Sequence[str]], bool],
        when_idle: Callable[[], None],
    ) -> None:
        self.request, self.setting = request, setting
        self.notes: tuple[str, ...] = ()
        self.reason = ""
        self._theirs, self._is_loaded, self._when_idle = theirs, is_loaded, when_idle
        self._inputs = tuple(name for name in shapes if name not in request.constants)
        self._open = tuple(n for n in self._inputs if _is_open(shapes[n]))
        self._fixed = {n: tuple(shapes[n]) for n in self._inputs if n not in self._open}
        self._deciding: tuple[str, ...] = ()
        self._dimensions = {name: shapes[name] for name in self._inputs}
        self._is_rounded = bool(self._open)
        self._is_known = False
        self._named = bool(request.dims)
        self._only: Contest | None = None
        self._runs: dict[Key, Contest | None] = {}
        self._entries: dict[Key, Entry] = {}
        self._jobs: dict[int, Key | None] = {}
        self._files: tuple[str, ...] = ()
        self._example: Mapping[str, NDArray[Any]] | None = None
        self._lock = threading.RLock()
        self._is_warned = False
        self._n_adopted = 0

    def start(self) -> None:
        """Begin: now where a session waits, beside it where it does not."""
        if self.setting.mode is Mode.NEVER:
            self.give_up("compile='never'")
        else:
            self._work()

    def at(self, feed: Feed) -> Contest | None:
        """Dispatch of a call; None for ONNX Runtime."""
        if self._only is not None:
            return self._only
        try:
            run = self._runs.get(self._key(feed), _UNKNOWN)
        except (KeyError, AttributeError, TypeError):
            return None
        return self._missed(feed) if run is _UNKNOWN else run

    def models(self) -> list[Run]:
        """Compiled networks that answer."""
        return [known.contest.run for known in self.entries() if known.contest is not None]

    def entries(self) -> list[Entry]:
        """Entries of all shapes, in the order in which they came."""
        with self._lock:
            return [replace(entry) for entry in self._entries.values()]

    @property
    def is_busy(self) -> bool:
        """Whether something is, or waits to be, compiled."""
        with self._lock:
            return bool(self._jobs) or self._chosen_job() is not None

    # Calls

    def _key(self, feed: Feed) -> Key:
        shapes = [feed[name].shape for name in self._open]
        if self._deciding:
            shapes += [np.asarray(feed[name]).tobytes() for name in self._deciding]
        return tuple(shapes)

    def _missed(self, feed: Feed) -> Contest | None:
        """A call that nothing is compiled for yet: ONNX Runtime says so if it is a wrong one."""
        if self.reason or (not self._is_known and self._example is not None):
            return None
        arrays: dict[str, Any] = {name: feed.get(name) for name in self._inputs}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            return None
        # a call never waits for the background, whose lock a forked child would never get
        if not self._lock.acquire(blocking=self.setting.mode is Mode.WAIT):
            return None
        try:
            is_wanted = self._noted(self._key(arrays), arrays)
        finally:
            self._lock.release()
        if is_wanted:
            self._work()
        return self._runs.get(self._key(arrays))

    def _noted(self, key: Key, arrays: Mapping[str, NDArray[Any]]) -> bool:
        """Count a call. Gives whether there is work for it."""
        if not self._is_known:
            self._example = _copied(arrays)
            return False
        entry = self._entry(key, arrays)
        if entry.contest is not None or entry.state is ShapeState.ONNXRUNTIME:
            if len(self._runs) < _MOST_KEYS:
                self._runs[key] = entry.contest
            return False
        entry.n_calls += 1
        if entry.example is not None or not self._is_wanted(entry):
            return False
        entry.example = _copied(arrays)
        return True

    def _extents(self, arrays: Mapping[str, NDArray[Any]]) -> Extents | None:
        shapes = {n: a.shape for n, a in arrays.items() if n not in self._deciding}
        return extents_of(shapes, self._dimensions)

    def _entry(self, key: Key, arrays: Mapping[str, NDArray[Any]]) -> Entry:
        """That of a shape; from the second one on of its bucket, where there may be some."""
        if key in self._entries:
            return self._entries[key]
        shapes: Any = {n: a.shape for n, a in arrays.items() if n not in self._deciding}
        extents = None
        if self._is_rounded and self._entries:
            extents = self._extents(arrays)
            if extents is None:
                self._is_rounded = False
            else:
                extents = rounded_up(extents)
                shapes = shapes_at(self._dimensions, list(shapes), extents)
                at = tuple(shapes[name] for name in self._open)
                key = (*at, *key[len(self._open) :])
        if key not in self._entries:
            values = {name: arrays[name].copy() for name in self._deciding}
            self._entries[key] = Entry(shapes, values, extents=extents)
        entry = self._entries[key]
        if entry.extents is None and extents is not None:  # it has only computed its own shape
            entry.extents, entry.state, entry.contest = extents, ShapeState.WAITING, None
        return entry

    def _is_wanted(self, entry: Entry) -> bool:
        """Whether inputs of this shape are of use: to compile it, or to compare results."""
        if entry.state is ShapeState.LOADED:
            return True
        is_worth_it = (
            entry is next(iter(self._entries.values()))
            or self.setting.mode is Mode.WAIT
            or entry.n_calls >= _LEAST_CALLS
        )
        return entry.state is ShapeState.WAITING and is_worth_it

    # Work

    def _work(self) -> None:
        if self.setting.mode is Mode.BACKGROUND:
            background().notify(self)
            return
        with self._lock:
            while (job := self.next_job()) is not None:
                self.take(job, remembered(job, partial(self._answered_here, job)))

    def _answered_here(self, job: BackgroundJob) -> Found:
        """Raises UsageError and LogMismatch for an impossible request of the caller."""
        try:
            with told_if_long(self.request.name):
                from autotune.ort.preparing import answer  # which imports the compiler

                return answer(job)
        except Exception as error:  # of any kind: ONNX Runtime answers
            is_asked_for = self._jobs[id(job)] is None
            if is_asked_for and isinstance(error, UsageError | LogMismatch):
                raise
            return Failure.of(error)

    def next_job(self) -> BackgroundJob | None:
        """The most urgent job, which counts as begun; a loaded network is compared first."""
        self._compare_loaded()
        if not self.reason and not self._is_loaded(self._files):
            self.give_up(_CHANGED)
        with self._lock:
            chosen = self._chosen_job()
            if chosen is None:
                return None
            key, job = chosen
            self._jobs[id(job)] = key
            if key is not None and key in self._entries:
                self._entries[key].state = ShapeState.COMPILING
            return job

    def _chosen_job(self) -> tuple[Key | None, BackgroundJob] | None:
        if self.reason or self._jobs:
            return None
        store = self.setting.store_bytes
        if not self._is_known:
            return None, BackgroundJob(FACTS, self.request)
        if self._named:
            return None, BackgroundJob(ARTIFACT, self.request, store)
        if not self._open and not self._deciding and not self._entries:
            self._entries[()] = Entry(self._fixed)
        waiting = [
            (entry.n_calls, key) for key, entry in self._entries.items() if self._is_ready(entry)
        ]
        if not waiting:
            return None
        _, key = max(waiting, key=lambda pair: pair[0])
        entry = self._entries[key]
        request = replace(
            self.request,
            shapes=entry.shapes,
            dims={},
            constants={**self.request.constants, **entry.values},
            check_inputs=self._fitting_example(entry) or None,
        )
        return key, BackgroundJob(ARTIFACT, request, store, tuple(entry.extents or ()))

    def _fitting_example(self, entry: Entry) -> dict[str, NDArray[Any]]:
        """Inputs to check a network of this shape on, if there are."""
        example = {n: a for n, a in (entry.example or {}).items() if n not in entry.values}
        is_whole = all(array.shape == entry.shapes[name] for name, array in example.items())
        return example if is_whole else {}

    def _is_ready(self, entry: Entry) -> bool:
        is_static = not self._open and not self._deciding
        return entry.state is ShapeState.WAITING and (is_static or entry.example is not None)

    def take(self, job: BackgroundJob, found: Found) -> None:
        """The answer to a job."""
        key = self._jobs[id(job)]
        try:
            if isinstance(found, Facts):
                self._take_facts(found)
            elif isinstance(found, Failure):
                self._take_failure(key, found)
            else:
                self._take_artifact(key, found)
        finally:
            with self._lock:
                del self._jobs[id(job)]
        self._compare_loaded()

    def _take_facts(self, facts: Facts) -> None:
        with self._lock:
            self._deciding = tuple(n for n in self._inputs if n in facts.deciding)
            self._open = tuple(n for n in self._open if n not in self._deciding)
            log = Path(facts.log) if facts.log else None
            self.request = replace(
                self.request, log=log, threads=facts.threads, n_running=facts.n_running
            )
            self._files = facts.files
            self._named = self._named or facts.is_named
            self._is_known = True
            if log is not None:
                LOGGER.info("compiled from %s", log)
            if self._example is not None:
                entry = self._entry(self._key(self._example), self._example)
                entry.example, entry.n_calls = self._example, 1
                self._example = None
        if not self._is_loaded(facts.files):
            self.give_up(_CHANGED)

    def _take_failure(self, key: Key | None, failure: Failure) -> None:
        text = failure.line
        if key is None:
            self.give_up(text)
        elif failure.is_unpadded:
            self._compile_as_they_come(text)
        else:
            self._refuse(key, text)

    def _compile_as_they_come(self, reason: str) -> None:
        """Every shape is one of its own: padding might change results."""
        LOGGER.info("%s: shapes are not rounded up: %s", self.request.name, reason)
        with self._lock:
            self._is_rounded = False
            for key, bucket in list(self._entries.items()):
                if bucket.extents is None:
                    continue
                del self._entries[key]
                if bucket.example is not None:
                    entry = self._entry(self._key(bucket.example), bucket.example)
                    entry.example, entry.n_calls = bucket.example, bucket.n_calls

    def _take_artifact(self, key: Key | None, found: PreparedNetwork) -> None:
        self._named = self._named and key is not None
        self.notes = self.notes or found.notes
        if not found.is_compiled:
            return self._leave(key, "nothing of it is compiled")
        if not self._is_loaded(self._files):
            return self.give_up(_CHANGED)
        try:
            loaded = _loaded(found, self.request.n_running, self.setting.room.memory)
        except AutotuneError as error:
            return self._leave(key, error.message)
        with self._lock:
            for model in loaded.variants:
                at = key if key is not None else self._key_of(model)
                entry = self._entries.setdefault(at, Entry(_shapes_of(model)))
                entry.run = _with_names(model) if entry.values else model.run
                if entry.extents is not None:
                    paddings = _paddings(found)
                    entry.run = padded(entry.run, paddings, entry.extents)
                entry.n_bytes = loaded.n_bytes // len(loaded.variants)
                entry.state = ShapeState.LOADED
        self._warn()

    def _key_of(self, model: Model) -> Key:
        shapes = _shapes_of(model)
        return tuple(shapes[name] for name in self._open)

    # Outcomes

    def _compare_loaded(self) -> None:
        """Adopt a loaded network that agrees with ONNX Runtime, once there are inputs for it."""
        with self._lock:
            loaded = [
                (key, entry)
                for key, entry in self._entries.items()
                if entry.state is ShapeState.LOADED and entry.example is not None
            ]
        for key, entry in loaded:
            assert entry.run is not None
            assert entry.example is not None
            problem = _disagreement(entry.run, self._theirs, entry.example)
            if problem:
                self._refuse(key, problem)
            else:
                self._adopt(key, entry)

    def _adopt(self, key: Key, entry: Entry) -> None:
        with self._lock:
            entry.state, entry.example = ShapeState.COMPILED, None
            assert entry.run is not None
            entry.contest = Contest(entry.run, self.setting.mode is not Mode.WAIT)
            self._runs[key] = entry.contest
            if not self._open and not self._deciding:
                self._only = entry.contest
            self._make_room(key)

    def _make_room(self, newest: Key) -> None:
        """Let the least recently used networks go, where there are too many or too large ones.

        A call leaves no other trace than the count of its contest: what has been called since the
        last look counts as used now, more often called later.
        """
        self._n_adopted += 1
        compiled: list[tuple[Key, Entry]] = []
        for at, entry in self._entries.items():
            if entry.contest is None:
                continue
            compiled.append((at, entry))
            left = entry.contest.left
            if at == newest or left != entry.left:
                entry.used, entry.left = (self._n_adopted, abs(left - entry.left)), left
        compiled.sort(key=lambda pair: (pair[0] == newest, pair[1].used))
        n_leaving = self.setting.room.leaving([entry.n_bytes for _, entry in compiled])
        for at, entry in compiled[:n_leaving]:
            del self._entries[at]
            self._forget(entry.contest)

    def lose(self, contest: Contest) -> None:
        """Let ONNX Runtime answer calls at which it has been faster again and again."""
        self._only = None
        key = next((at for at, known in self._entries.items() if known.contest is contest), None)
        if key is not None:
            self._refuse(key, f"compiled it takes {contest.ratio or 0.0:.2f} x the time")

    def _forget(self, contest: Contest | None) -> None:
        """Dispatch the calls of a contest anew: a bucket has many."""
        for at in [at for at, known in self._runs.items() if known is contest]:
            del self._runs[at]

    def _leave(self, key: Key | None, reason: str) -> None:
        if key is None:
            self.give_up(reason)
            return
        self._refuse(key, reason)

    def _refuse(self, key: Key, reason: str) -> None:
        """ONNX Runtime answers calls of this shape."""
        LOGGER.info("%s: ONNX Runtime answers: %s", self.request.name, reason)
        with self._lock:
            entry = self._entries[key]
            if entry.contest is not None:
                self._forget(entry.contest)
            entry.state, entry.reason = ShapeState.ONNXRUNTIME, reason
            entry.example = entry.run = entry.contest = None
            self._runs[key] = None
        if not self._open and not self._deciding:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """ONNX Runtime answers all calls that nothing was compiled for."""
        LOGGER.info("%s: ONNX Runtime answers: %s", self.request.name, reason)
        with self._lock:
            self.reason = reason
            self._is_known = True
            is_idle = not self.models()
        if is_idle:
            self._when_idle()

    def _warn(self) -> None:
        """Say once which nodes are not compiled."""
        outside = [text.strip() for text in self.notes if _OUTSIDE in text or text[:1] == " "]
        if outside and not self._is_warned:
            self._is_warned = True
            LOGGER.warning("%s: %s", self.request.name, " ".join(outside))


def _is_open(shape: Sequence[Any]) -> bool:
    """Whether extents are not known, or the rank: ONNX Runtime says () for unknown ones too."""
    return not shape or not all(isinstance(n, int) for n in shape)


def _shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    return {end.name: end.shape for end in model.input_info}


def _copied(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.array(array) for name, array in arrays.items()}


def _with_names(model: Model) -> Run:
    """Inferences of a model that has fewer inputs than the session's."""
    names = [end.name for end in model.input_info]

    def run(feed: Feed, out: Any = None) -> dict[str, NDArray[Any]]:
        return model.run({name: feed[name] for name in names}, out)

    return run


def _paddings(found: PreparedNetwork) -> list[Padding]:
    from autotune.api.compile.padding import Padding

    return [from_json(Padding, fields) for fields in found.paddings]


def _loaded(found: PreparedNetwork, threads: int, memory: str) -> Model:
    from autotune.network.runtime.loading import model_of, read_artifact

    try:
        return model_of(read_artifact(found.path, memory), threads)
    finally:
        if not found.is_kept:
            os.unlink(found.path)


def _disagreement(ours: Run, theirs: Callable[[Feed], Mapping[str, Any]], feed: Feed) -> str:
    """Difference of a compiled network from ONNX Runtime, as text; empty for none."""
    from autotune.network.check.differences import max_error

    try:
        found, expected = ours(feed), theirs(feed)
    except Exception as error:  # of either, whatever it is: the other answers
        return f"{type(error).__name__}: {error}"
    for name, wanted in expected.items():
        have, want = np.asarray(found[name]), np.asarray(wanted)
        if have.shape != want.shape or have.dtype != want.dtype:
            return f"output '{name}' is {have.dtype}{have.shape}, not {want.dtype}{want.shape}"
        if max_error(have, want) > _MOST_APART:
            return f"output '{name}' differs from ONNX Runtime's"
    return ""
