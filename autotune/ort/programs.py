"""⑪ The compiled networks of a session, and for which calls there is one.

    programs.at(feed) ─► a compiled network in contest with ONNX Runtime, or None: that answers

One network is for all sizes of a model's open dimensions, up to mosts that grow with the calls
(`sizes`); where there is none, each shape has its own. Inputs that decide what is computed are
bound by their values. What is called for the first time is compiled and checked in the background,
then run once beside the session's own ONNX Runtime, and from then on answers if it gave the same
and is faster. What comes later is compiled from the second call on, what is called most first.
States of a network are in `entries`, its calls in `dispatch`; jobs and their answers are here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import AutotuneError, LogMismatch, UsageError
from autotune.ort.adopting import copied, disagreement, loaded, shapes_of
from autotune.ort.background import background
from autotune.ort.contest import Contest
from autotune.ort.dispatch import ALL_SIZES, UNKNOWN, Dispatch, Key
from autotune.ort.entries import AFTER, Arrays, Entry, SessionState, Shapes, ShapeState
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
from autotune.ort.sizes import AllSizes, OpenSizes
from autotune.ort.waits import told_if_long

if TYPE_CHECKING:
    from autotune.network.runtime.runtime import Model

LOGGER = logging.getLogger("autotune")

_READING, _NAMED, _CALLED, _ENDED = SessionState
_LEAST_CALLS = 2
"""Of a shape that is not the first one, before it is compiled."""
_MOST_FAMILIES = 2
"""Values of inputs that decide for each of which one network is for all sizes."""
_OUTSIDE = "nodes run in ONNX Runtime"
"""Note of `compile` on fallback nodes; lines with their reasons follow it."""
_CHANGED = "its file has changed since the session was made"


class Mode(StrEnum):
    """Time of compilation: while its session is made or called, beside it, or never."""

    WAIT = "wait"
    BACKGROUND = "background"
    NEVER = "never"


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
        self.n_compilations = 0
        self._theirs, self._is_loaded, self._when_idle = theirs, is_loaded, when_idle
        self._calls = Dispatch(shapes, request.constants)
        self._sizes: OpenSizes | None = None
        self._one_by_one: set[Key] = set()
        self.state = _READING
        self._entries: dict[Key, Entry] = {}
        self._jobs: dict[int, Key | None] = {}
        self._files: tuple[str, ...] = ()
        self._example: Arrays | None = None
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
        if self._calls.only is not None:
            return self._calls.only
        contest = self._calls.at(feed)
        return self._missed(feed) if contest is UNKNOWN else contest

    def models(self) -> list[Run]:
        """Compiled networks that answer."""
        return [known.run for known in self.entries() if known.run is not None and known.live]

    def entries(self) -> list[Entry]:
        """Entries of all networks, in the order in which they came."""
        with self._lock:
            return [replace(entry) for entry in self._entries.values()]

    @property
    def is_busy(self) -> bool:
        """Whether something is, or waits to be, compiled."""
        with self._lock:
            return bool(self._jobs) or self._chosen_job() is not None

    # Calls

    def _missed(self, feed: Feed) -> Contest | None:
        """A call that nothing is compiled for yet: ONNX Runtime says so if it is a wrong one."""
        if self.state is _ENDED or (self.state is _READING and self._example is not None):
            return None
        arrays: dict[str, Any] = {name: feed.get(name) for name in self._calls.inputs}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            return None
        # a call never waits for the background, whose lock a forked child would never get
        if not self._lock.acquire(blocking=self.setting.mode is Mode.WAIT):
            return None
        try:
            is_wanted = self._noted(self._calls.key(arrays), arrays)
        finally:
            self._lock.release()
        if is_wanted:
            self._work()
        contest = self._calls.at(arrays)
        return None if contest is UNKNOWN else contest

    def _noted(self, key: Key, arrays: Arrays) -> bool:
        """Count a call. Gives whether there is work for it."""
        if self.state is _READING:
            self._example = copied(arrays)
            return False
        entry, shapes = self._entry(key, arrays), self._calls.shapes(arrays)
        is_new = entry.sizes is not None and entry.sizes.note(arrays) and self.request.packs is None
        if entry.state is ShapeState.ONNXRUNTIME:
            self._calls.put(key, None)
            return False
        if entry.state is ShapeState.COMPILED and entry.takes(shapes) and not is_new:
            self._calls.put(key, entry.contest(shapes, self._is_held))
            return False
        entry.n_calls += 1
        is_wanted = is_new or self._is_wanted(entry, shapes)
        if entry.example is not None or not is_wanted:
            return False
        entry.example, entry.is_growing = copied(arrays), entry.state is ShapeState.COMPILED
        return True

    @property
    def _is_held(self) -> bool:
        return self.setting.mode is not Mode.WAIT

    def _entry(self, key: Key, arrays: Arrays) -> Entry:
        """That of the very shapes of a call, else of all sizes, else a new one."""
        if key in self._entries:
            return self._entries[key]
        shapes, values = self._calls.shapes(arrays), self._calls.values(arrays)
        at = self._calls.family(key)
        entry = self._entries.get(at)
        if entry is None and self._sizes is not None and at not in self._one_by_one:
            n_families = sum(entry.sizes is not None for entry in self._entries.values())
            if n_families < _MOST_FAMILIES:
                entry = Entry(shapes, values, AllSizes(self._sizes))
        if entry is not None and entry.sizes is not None and entry.sizes.may_take(shapes):
            return self._entries.setdefault(at, entry)
        return self._entries.setdefault(key, Entry(shapes, values))

    def _is_wanted(self, entry: Entry, shapes: Shapes) -> bool:
        """Whether inputs of these shapes are of use: to compile for them, or to compare results."""
        if entry.state is ShapeState.LOADED:
            return entry.takes(shapes)
        is_first = entry is next(iter(self._entries.values())) and entry.run is None
        is_worth_it = is_first or not self._is_held or entry.n_calls >= _LEAST_CALLS
        return entry.state in (ShapeState.WAITING, ShapeState.COMPILED) and is_worth_it

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
        if self.state is not _ENDED and not self._is_loaded(self._files):
            self.give_up(_CHANGED)
        with self._lock:
            chosen = self._chosen_job()
            if chosen is None:
                return None
            key, job = chosen
            self._jobs[id(job)] = key
            entry = self._entries.get(key) if key is not None else None
            if entry is not None:
                entry.begin()
            return job

    def _chosen_job(self) -> tuple[Key | None, BackgroundJob] | None:
        if self.state is _ENDED or self._jobs:
            return None
        store = self.setting.store_bytes
        if self.state is _READING:
            return None, BackgroundJob(FACTS, self.request)
        if self.state is _NAMED:
            return None, BackgroundJob(ARTIFACT, self.request, store)
        if self._calls.is_static and not self._entries:
            self._entries[()] = Entry(self._calls.fixed)
        waiting = [key for key, entry in self._entries.items() if self._is_ready(entry)]
        if not waiting:
            return None
        key = max(waiting, key=lambda key: self._entries[key].n_calls)
        return key, BackgroundJob(ARTIFACT, self._entries[key].request(self.request), store)

    def _is_ready(self, entry: Entry) -> bool:
        is_waiting = entry.state is ShapeState.WAITING or entry.is_growing
        return is_waiting and (self._calls.is_static or entry.example is not None)

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
            self._calls.decide(facts.deciding)
            log = Path(facts.log) if facts.log else None
            self.request = replace(
                self.request, log=log, threads=facts.threads, n_running=facts.n_running
            )
            self._files, self._sizes = facts.files, facts.sizes
            is_named = bool(self.request.dims) or facts.is_named
            self._to(_NAMED if is_named else _CALLED)
            if log is not None:
                LOGGER.info("compiled from %s", log)
            if self._example is not None:
                self._begin(self._example, 1)
                self._example = None
        if not self._is_loaded(facts.files):
            self.give_up(_CHANGED)

    def _begin(self, example: Arrays, n_calls: int) -> None:
        """Have a network compiled for a call."""
        entry = self._entry(self._calls.key(example), example)
        entry.example, entry.n_calls = example, n_calls

    def _take_failure(self, key: Key | None, failure: Failure) -> None:
        if key is not None and self._entries[key].sizes is not None:
            self._take_refusal(key, failure)
        else:
            self._leave(key, failure.line)

    def _take_refusal(self, key: Key, failure: Failure) -> None:
        """What a network for all sizes does not take, or all where there is none, is a shape."""
        with self._lock:
            entry = self._entries[key]
            if failure.is_of_sizes and entry.sizes is not None and entry.sizes.hold():
                entry.wait()
                return
            LOGGER.info("%s: sizes are compiled one by one: %s", self.request.name, failure.line)
            example, entry.example, entry.is_growing = entry.example, None, False
            if entry.sizes is not None and entry.run is not None:
                entry.sizes.is_final = True
            else:
                del self._entries[key]
                self._one_by_one.add(key)
            if example is not None:
                self._begin(example, entry.n_calls)

    def _take_artifact(self, key: Key | None, found: PreparedNetwork) -> None:
        if key is None:
            self._to(_CALLED)
        self.notes = self.notes or found.notes
        if not found.is_compiled:
            return self._leave(key, "nothing of it is compiled")
        if not self._is_loaded(self._files):
            return self.give_up(_CHANGED)
        try:
            network = loaded(found, self.request.n_running, self.setting.room.memory)
        except AutotuneError as error:
            return self._leave(key, error.message)
        with self._lock:
            self.n_compilations += 1
            for model in network.variants:
                entry = self._entry_of(key, model)
                self._forget(entry)
                entry.load(model, network.n_bytes // len(network.variants))
                example = entry.example
                if example is not None and not entry.takes(self._calls.shapes(example)):
                    entry.example = None
        self._warn()

    def _entry_of(self, key: Key | None, model: Model) -> Entry:
        """The entry of a network that was asked for, or one of those that were named before."""
        if key is not None:
            return self._entries[key]
        shapes, sizes = shapes_of(model), None
        at: Key = tuple(shapes[name] for name in self._calls.open)
        if model.artifact.lengths:
            at, sizes = (ALL_SIZES,), AllSizes(self._sizes or OpenSizes({}, {}), is_final=True)
        return self._entries.setdefault(at, Entry(shapes, sizes=sizes))

    # Outcomes

    def _compare_loaded(self) -> None:
        """Adopt a loaded network that agrees with ONNX Runtime, once there are inputs for it."""
        with self._lock:
            waiting = [
                (key, entry, entry.example)
                for key, entry in self._entries.items()
                if entry.state is ShapeState.LOADED and entry.example is not None
            ]
        for key, entry, example in waiting:
            assert entry.run is not None
            problem = disagreement(entry.run, self._theirs, example, entry.rows)
            if problem:
                self._refuse(key, problem)
            else:
                self._adopt(key, entry, example)

    def _adopt(self, key: Key, entry: Entry, example: Arrays) -> None:
        with self._lock:
            entry.adopt()
            contest = entry.contest(self._calls.shapes(example), self._is_held)
            self._calls.put(self._calls.key(example), contest)
            if self._calls.is_static:
                self._calls.only = contest
            self._make_room(key)

    def _make_room(self, newest: Key) -> None:
        """Let the least recently used networks go, where there are too many or too large ones.

        A call leaves no other trace than the count of its contest: what has been called since the
        last look counts as used now, more often called later.
        """
        self._n_adopted += 1
        compiled = [(at, entry) for at, entry in self._entries.items() if entry.live]
        for at, entry in compiled:
            left = sum(contest.left for contest in entry.live)
            if at == newest or left != entry.left:
                entry.used, entry.left = (self._n_adopted, abs(left - entry.left)), left
        compiled.sort(key=lambda pair: (pair[0] == newest, pair[1].used))
        n_leaving = self.setting.room.leaving([entry.n_bytes for _, entry in compiled])
        for at, entry in compiled[:n_leaving]:
            del self._entries[at]
            self._forget(entry)

    def lose(self, contest: Contest) -> None:
        """Let ONNX Runtime answer calls at which it has been faster again and again."""
        with self._lock:
            self._calls.lose(contest)
            for key, entry in list(self._entries.items()):
                lost = [kind for kind, known in entry.contests.items() if known is contest]
                if not lost:
                    continue
                entry.contests |= dict.fromkeys(lost)
                if not entry.live:
                    self._refuse(key, f"compiled it takes {contest.ratio or 0.0:.2f} x the time")

    def _forget(self, entry: Entry) -> None:
        """Dispatch the calls of a network anew."""
        self._calls.forget(entry.live)
        entry.contests = {}

    def _leave(self, key: Key | None, reason: str) -> None:
        if key is None:
            self.give_up(reason)
        else:
            self._refuse(key, reason)

    def _refuse(self, key: Key, reason: str) -> None:
        """ONNX Runtime answers calls of this network."""
        LOGGER.info("%s: ONNX Runtime answers: %s", self.request.name, reason)
        with self._lock:
            entry = self._entries[key]
            self._forget(entry)
            entry.refuse(reason)
        if self._calls.is_static:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """ONNX Runtime answers all calls that nothing was compiled for."""
        LOGGER.info("%s: ONNX Runtime answers: %s", self.request.name, reason)
        with self._lock:
            self.reason = reason
            self._to(_ENDED)
        if not self.models():
            self._when_idle()

    def _to(self, state: SessionState) -> None:
        """Go on; what has ended stays so, whatever a job that was under way has found."""
        self.state = state if state in AFTER[self.state] else self.state

    def _warn(self) -> None:
        """Say once which nodes are not compiled."""
        outside = [text.strip() for text in self.notes if _OUTSIDE in text or text[:1] == " "]
        if outside and not self._is_warned:
            self._is_warned = True
            LOGGER.warning("%s: %s", self.request.name, " ".join(outside))
