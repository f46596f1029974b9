"""⑩ Models that others wrote, in a process that may die of them.

    session = apart().session("model.onnx", SessionSetting(n_threads=2))
    session.run(None, {"x": array}) ─► values, as a session of ONNX Runtime gives them
    apart().call(function, *arguments) ─► what else loads such models

One process serves all callers of this one, one request at a time. It starts with the first, ends
when nothing holds it any more, and is started again where it has died: that request fails, with a
reason, and sessions load their models again.
"""

from __future__ import annotations

import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune import errors
from autotune.errors import AutotuneError
from autotune.measure.processes.frames import MAX_BYTES, Message
from autotune.measure.processes.process import Child, ChildCrash, ChildTimeout, Setup, WorkerError
from autotune.network.runtime.apart_server import FAILED, REFUSED
from autotune.network.runtime.onnxruntime_package import is_installed, onnxruntime_package
from autotune.network.runtime.ort_sessions import SessionSetting
from autotune.network.runtime.plain_values import packed, unpacked

_SERVE = "autotune.network.runtime.apart_server:serve"
_START_TIMEOUT_S = 120.0
_TIMEOUT_S = 24 * 3600.0
"""An inference of a large model may take as long as it does."""


class Died(Exception):
    """The process has ended while it did what was asked, or cannot be had; the text says how."""


class Failed(Exception):
    """What an exception said in the process, of ONNX Runtime's or of Python's."""


@dataclass(frozen=True, slots=True)
class SessionPort:
    """An input or output, by ONNX Runtime's names for types and shapes."""

    name: str
    type: str
    shape: list[Any]


class ApartProcess:
    """The process; see the module."""

    def __init__(self) -> None:
        self._child = Child(Setup(_SERVE), _START_TIMEOUT_S)
        self._lock = threading.RLock()
        self._dropped: deque[tuple[int, int]] = deque()
        weakref.finalize(self, _end, self._child, os.getpid()).atexit = False

    def start(self) -> None:
        """Let it start, without waiting for it; where it cannot, requests tell."""
        with self._lock, suppress(OSError):
            self._child.start()

    def session(self, model: str | bytes, setting: SessionSetting) -> ApartSession:
        """A session of ONNX Runtime. Raises Failed and Died."""
        return ApartSession(self, model, setting)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)`, which gives JSON. Raises Failed, Died and errors of ours.

        Paths are absolute there: the process has the working folder that it was started in.
        """
        here = [a.absolute() if isinstance(a, Path) else a for a in arguments]
        request = Message("call", {}, [pickle.dumps((function, here))])
        return self.ask(request).fields["value"]

    @contextmanager
    def held(self) -> Iterator[int]:
        """For several requests in a row, with the process running; gives its generation.

        Raises Died.
        """
        with self._lock:
            try:
                self._child.ready()
            except (WorkerError, OSError) as error:
                raise Died(f"its process does not start: {error}") from error
            yield self._child.generation

    def ask(self, request: Message) -> Message:
        """The reply to a request. Raises Failed, Died and errors of ours."""
        with self.held() as generation:
            fields = {**request.fields, "dropped": self._taken(generation)}
            request = Message(request.kind, fields, request.blobs)
            try:
                reply = self._child.request(request, _TIMEOUT_S, MAX_BYTES)
            except (ChildCrash, ChildTimeout) as error:
                raise Died(f"its process has ended: {error}") from error
        if reply.kind == REFUSED:
            raise _error_of(reply.fields)
        if reply.kind == FAILED:
            raise Failed(reply.fields["text"])
        return reply

    def drop(self, generation: int, number: int) -> None:
        """Free a session with the next request: a finalizer may run anywhere, and asks nothing."""
        self._dropped.append((generation, number))

    def _taken(self, generation: int) -> list[int]:
        """Sessions of this process that nothing holds any more."""
        known = [self._dropped.popleft() for _ in range(len(self._dropped))]
        return [number for of, number in known if of == generation]


class ApartSession:
    """A session over there, with the methods of ONNX Runtime's that are needed here."""

    def __init__(self, process: ApartProcess, model: str | bytes, setting: SessionSetting) -> None:
        self._process, self._model, self._setting = process, model, setting
        with process.held() as generation:
            self._load(generation)

    def _load(self, generation: int) -> None:
        fields: dict[str, Any] = {"setting": asdict(self._setting)}
        if isinstance(self._model, bytes):
            request = Message("load", fields, [self._model])
        else:
            request = Message("load", fields | {"path": os.path.abspath(self._model)})
        found = self._process.ask(request).fields
        self._inputs = [SessionPort(*port) for port in found["inputs"]]
        self._outputs = [SessionPort(*port) for port in found["outputs"]]
        self._number, self._generation = found["session"], generation
        weakref.finalize(self, self._process.drop, generation, self._number).atexit = False

    def get_inputs(self) -> list[SessionPort]:
        """The inputs in order."""
        return self._inputs

    def get_outputs(self) -> list[SessionPort]:
        """The outputs in order."""
        return self._outputs

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs `names`, or all, in order. Raises Failed and Died."""
        told, blob = packed(inputs.values())
        fields = {"inputs": [*inputs], "values": told, "outputs": names and [*names]}
        with self._process.held() as generation:
            if generation != self._generation:
                self._load(generation)
            reply = self._process.ask(Message("run", fields | {"session": self._number}, [blob]))
        return unpacked(reply.fields["values"], reply.blobs[0])


def apart() -> ApartProcess:
    """The process of this one, while something holds it; a forked child has another."""
    with _MAKING:
        found = _LIVE.get(os.getpid())
        if found is None:
            found = _LIVE[os.getpid()] = ApartProcess()
        return found


def has_onnxruntime() -> bool:
    """Whether ONNX Runtime is there, and can be imported."""
    try:
        return is_installed() and bool(apart().call(_is_imported))
    except Died:
        return False


def _is_imported() -> bool:
    try:
        onnxruntime_package()
    except ImportError:
        return False
    return True


_LIVE: weakref.WeakValueDictionary[int, ApartProcess] = weakref.WeakValueDictionary()
_MAKING = threading.Lock()


def _end(child: Child, pid: int) -> None:
    if os.getpid() == pid:  # a fork has a copy of what is not its own
        child.kill()


def _error_of(fields: Mapping[str, Any]) -> AutotuneError:
    """An error of ours as it was raised there."""
    kind = getattr(errors, fields["kind"], AutotuneError)
    found: AutotuneError = kind(fields["message"], fields["hint"])
    return found
