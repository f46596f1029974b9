"""⑩ The child's side of `apart`: sessions of ONNX Runtime by number, and calls of functions.

    load  model, a setting ─► a number, and the ports        run  a number, arrays ─► arrays
    call  a function of this package, its arguments ─► JSON

Requests may be pickled, for the session sends them; replies are JSON and plain bytes, for a model
may have done anything to this process. What an exception says is the reply to its request.
"""

from __future__ import annotations

import pickle
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from autotune.errors import AutotuneError
from autotune.measure.processes.frames import Message
from autotune.measure.processes.supervisor import Handler
from autotune.network.runtime.onnxruntime_package import onnxruntime_package
from autotune.network.runtime.ort_sessions import SessionSetting, ort_session, run_session
from autotune.network.runtime.plain_values import packed, unpacked

VALUES, REFUSED, FAILED = "values", "refused", "failed"


def serve(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """The handler of a process; `arguments` and `blobs` are empty."""
    with suppress(ImportError):  # it takes a while, during which nothing is asked yet
        onnxruntime_package()
    return _Server().answer


class _Server:
    def __init__(self) -> None:
        self._sessions: dict[int, Any] = {}
        self._number = 0

    def answer(self, request: Message) -> Message:
        """The reply to a request."""
        for number in request.fields.get("dropped", ()):
            self._sessions.pop(number, None)
        try:
            return _ANSWERS[request.kind](self, request)
        except AutotuneError as error:
            told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
            return Message(REFUSED, told)
        except Exception as error:  # ONNX Runtime's are of many classes
            return Message(FAILED, {"text": str(error) or type(error).__name__})

    def load(self, request: Message) -> Message:
        """Make a session of a file or of bytes."""
        setting = SessionSetting(**request.fields["setting"])
        if setting.saved:  # which is larger than what this process may write otherwise
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        model = bytes(request.blobs[0]) if request.blobs else request.fields["path"]
        session = ort_session(onnxruntime_package(), model, setting)
        self._number += 1
        self._sessions[self._number] = session
        ports = session.get_inputs(), session.get_outputs()
        inputs, outputs = ([[p.name, p.type, p.shape] for p in side] for side in ports)
        return Message(VALUES, {"session": self._number, "inputs": inputs, "outputs": outputs})

    def run(self, request: Message) -> Message:
        """One inference."""
        fields = request.fields
        arrays = unpacked(fields["values"], request.blobs[0])
        given = dict(zip(fields["inputs"], arrays, strict=True))
        session = self._sessions[fields["session"]]
        found = run_session(onnxruntime_package(), session, fields["outputs"], given)
        told, blob = packed(found)
        return Message(VALUES, {"values": told}, [blob])

    def call(self, request: Message) -> Message:
        """A function with its arguments."""
        function, arguments = pickle.loads(request.blobs[0])
        return Message(VALUES, {"value": function(*arguments)})


_ANSWERS = {"load": _Server.load, "run": _Server.run, "call": _Server.call}
