"""⑪ ONNX Runtime's session, which dispatches calls to compiled networks that are right and faster.

    accelerated(onnxruntime) ─► the class InferenceSession, a subclass of onnxruntime's own

Until something is compiled, and for all that is not, the session *is* ONNX Runtime's: its inputs,
outputs, errors, options and bindings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from autotune.calls import PublicNames
from autotune.errors import UsageError
from autotune.files import stamp
from autotune.machine import told_threads
from autotune.ort.bound import array_of, bound, dtype_of, value_of
from autotune.ort.callbacks import Callback, CallbackThreads
from autotune.ort.contest import OURS, THEIRS, Contest
from autotune.ort.names import OverAny, class_over
from autotune.ort.programs import Mode, Programs, Setting
from autotune.ort.request import Run, SessionArguments
from autotune.ort.status import SessionStatus, status_of

T = TypeVar("T")

_LISTED = (list, tuple, int, float)
_TENSOR = "tensor("
_OF_THE_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")
"""Providers of a package for CPUs; programs name both. The second has no operators of ONNX."""
_SIMPLE_OPTIONS = (
    "intra_op_num_threads", "inter_op_num_threads", "graph_optimization_level", "execution_mode",
    "log_severity_level", "log_verbosity_level", "enable_cpu_mem_arena", "enable_mem_pattern",
)  # fmt: skip
"""Options that a pickled session keeps."""


@dataclass(frozen=True)
class AcceleratedArguments(SessionArguments):
    """`compile`: "background" (ONNX Runtime answers until a compiled network is ready, is right and
    is faster), "wait" (compile when the session is made, or when a shape comes for the first time)
    or "never".
    """

    _: KW_ONLY
    compile: str = Mode.BACKGROUND


_KEYWORDS = {field.name for field in fields(AcceleratedArguments)}


def accelerated(package: Any) -> type:
    """The session class over a package `onnxruntime`."""
    return class_over(AcceleratedSession, package, "InferenceSession")


class AcceleratedSession(PublicNames, OverAny):  # type: ignore[misc]
    """A model ready to run: ONNX Runtime's session, and compiled networks in its place.

    See `AcceleratedArguments`; `fallback=False`, `operators` or `capacity`: the session that
    does without ONNX Runtime.

    Safe to use in several threads; it can be pickled (the path, or the bytes, not what was
    compiled).
    """

    def __new__(
        cls, *args: Any, fallback: bool = True, operators: Sequence[Any] = (), **named: Any
    ) -> Any:
        """Of the class itself, or of the session that does without ONNX Runtime."""
        if fallback and not operators and named.get("capacity") is None:
            return super().__new__(cls)
        from autotune.ort.session import InferenceSession as Alone

        named.pop("compile", None)  # it compiles when it is needed
        return Alone(*args, fallback=fallback, operators=operators, **named)

    def __init__(self, *args: Any, **named: Any) -> None:
        others = {name: named.pop(name) for name in named.keys() - _KEYWORDS}
        asked = AcceleratedArguments(*args, **named)
        room = asked.room()
        setting = Setting(_mode(asked.compile), asked.store_bytes, room)
        path_or_bytes: Any = asked.path_or_bytes
        if isinstance(path_or_bytes, bytearray | memoryview):
            path_or_bytes = bytes(path_or_bytes)
        options = asked.sess_options
        if asked.threads:
            options = self.package.SessionOptions() if options is None else options
            options.intra_op_num_threads = asked.threads
        self._saved = replace(asked, path_or_bytes=path_or_bytes, sess_options=options)
        threads = asked.threads or (options.intra_op_num_threads if options is not None else 0)
        if not threads:
            told_threads()  # its errors are raised here
        loaded = _Loaded(path_or_bytes)
        theirs = (path_or_bytes, options, asked.providers, asked.provider_options)
        super().__init__(*theirs, disabled_optimizers=asked.disabled_optimizers, **others)
        constants = (asked.constants or {}).items()
        self._fixed = {name: np.asarray(value) for name, value in constants}
        self._names = [output.name for output in self._outputs_meta]
        request = asked.request(loaded.model, threads, dict(asked.dims or {}), self._fixed)
        self._programs = Programs(
            request,
            setting,
            {meta.name: meta.shape for meta in self._inputs_meta},
            self._theirs,
            loaded.is_unchanged,
            self._is_onnxruntime_alone,
        )
        self._callbacks = CallbackThreads()
        reason = _outside(self, options)
        if reason:
            self._programs.give_up(reason)
        else:
            self._programs.start()

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Sequence[Any]:
        """Outputs in the order of `output_names`, or all; see ONNX Runtime's."""
        contest = self._programs.at(input_feed) if run_options is None else None
        if contest is None:
            if run_options is None and not self._programs.reason:
                arrays = self._as_arrays(input_feed)
                if arrays is not None:
                    return self.run(output_names, arrays)
            return self._run_theirs(output_names, input_feed, run_options)
        run = self._run_ours, self._run_theirs
        return self._answer(contest, *run, output_names, input_feed)

    def run_async(
        self,
        output_names: Any,
        input_feed: Any,
        callback: Callback,
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """`run` in another thread, which ends with `callback(outputs, user_data, error)`."""
        if run_options is not None or self._programs.at(input_feed) is None:
            feed = {**self._fixed, **input_feed}
            super().run_async(output_names, feed, callback, user_data, run_options)
            return
        run = partial(self.run, output_names, input_feed)
        self._callbacks.start(run, callback, user_data)

    def run_with_ort_values(
        self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
    ) -> Sequence[Any]:
        """`run` of values; see ONNX Runtime's."""
        feed = {name: array_of(value) for name, value in input_dict_ort_values.items()}
        if run_options is not None or self._programs.at(feed) is None:
            answer: Sequence[Any] = super().run_with_ort_values(
                output_names, input_dict_ort_values, run_options
            )
            return answer
        return [value_of(self.package, array) for array in self.run(output_names, feed)]

    def io_binding(self) -> Any:
        """An empty binding for `run_with_iobinding`."""
        return bound(self.package)(self)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """One inference on bound arrays; see ONNX Runtime's."""
        contest = None
        if run_options is None and getattr(iobinding, "is_plain", False):
            contest = self._programs.at(iobinding.inputs)
        if contest is None:
            self._bind_theirs(iobinding, run_options)
            return
        self._answer(contest, self._bind_ours, self._bind_theirs, iobinding)

    def _as_arrays(self, feed: Mapping[str, Any]) -> dict[str, Any] | None:
        """A feed with arrays in the place of lists and numbers; None where there are none."""
        listed = {name: value for name, value in feed.items() if type(value) in _LISTED}
        if not listed:
            return None
        types = {meta.name: dtype_of(meta.type) for meta in self._inputs_meta}
        try:
            found = {n: np.asarray(v, types[n]) for n, v in listed.items() if types[n]}
        except (KeyError, TypeError, ValueError, OverflowError):
            return None  # ONNX Runtime names the fault
        return {**feed, **found} if len(found) == len(listed) else None

    def _run_ours(self, contest: Contest, output_names: Any, feed: Any) -> list[Any]:
        found = contest.run(feed)
        return [found[name] for name in output_names or self._names]

    def _run_theirs(self, output_names: Any, feed: Any, run_options: Any = None) -> list[Any]:
        if self._fixed:
            feed = {**self._fixed, **feed}
        answer: list[Any] = super().run(output_names, feed, run_options)
        return answer

    def _bind_ours(self, contest: Contest, iobinding: Any) -> None:
        iobinding.take(contest.run(iobinding.inputs, iobinding.memory() or None))

    def _bind_theirs(self, iobinding: Any, run_options: Any = None) -> None:
        if getattr(iobinding, "results", None) is not None:
            iobinding.results = None
        super().run_with_iobinding(iobinding, run_options)

    def _answer(
        self, contest: Contest, ours: Callable[..., T], theirs: Callable[..., T], *asked: Any
    ) -> T:
        """A call, timed for the contest in its turns. ONNX Runtime names the faults of a call."""
        contest.left -= 1
        is_turn = contest.left < 0
        side = contest.turn() if is_turn else OURS if contest.is_ours else THEIRS
        start_s = time.perf_counter()
        try:
            answer = ours(contest, *asked) if side == OURS else theirs(*asked)
        except (UsageError, KeyError):
            return theirs(*asked)
        if is_turn:
            contest.add(side, time.perf_counter() - start_s)
            if contest.is_lost:
                self._programs.lose(contest)
        return answer

    def models(self) -> tuple[Run, ...]:
        """Compiled networks that answer: one for every combination of shapes."""
        return tuple(self._programs.models())

    def autotune_status(self) -> SessionStatus:
        """Compiled networks, and the reasons for calls without one."""
        return status_of(self._programs)

    def __repr__(self) -> str:
        return f"InferenceSession({self.autotune_status().line})"

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._saved.sess_options
        simple = None
        if options is not None:
            simple = {name: getattr(options, name) for name in _SIMPLE_OPTIONS}
        return _restored, (replace(self._saved, sess_options=None), simple)

    def _theirs(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        answers = super().run(self._names, {**self._fixed, **feed})
        return dict(zip(self._names, answers, strict=True))

    def _is_onnxruntime_alone(self) -> None:
        """Nothing will be compiled: from now on calls go straight to ONNX Runtime."""
        if not self._fixed and type(self).run is AcceleratedSession.run:
            self.__dict__["run"] = super().run


class _Loaded:
    """The model as it was when a session began to load it."""

    def __init__(self, path_or_bytes: Any) -> None:
        is_path = isinstance(path_or_bytes, str | os.PathLike)
        self.model = Path(path_or_bytes).absolute() if is_path else path_or_bytes
        self._time_ns = time.time_ns()
        self._first = stamp(self.model) if is_path else None

    def is_unchanged(self, files: Sequence[str]) -> bool:
        """Whether the files of the model are those that the session has loaded."""
        if self._first is not None and stamp(self.model) != self._first:
            return False
        found = [stamp(Path(name)) for name in files]
        return all(known is not None and known[-1] <= self._time_ns for known in found)


def _mode(name: str) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        names = ", ".join(f"'{mode}'" for mode in Mode)
        raise UsageError(f"compile is {name!r}", f"give one of {names}") from None


def _outside(session: Any, options: Any) -> str:
    """Reason why nothing of a session is ever compiled; empty where it may be."""
    if getattr(options, "replaces_model", False):
        return "its options replace weights or operators of the model"
    if options is not None and options.enable_profiling:
        return "it is profiled by ONNX Runtime"
    kinds = [meta.type for meta in session._inputs_meta]
    other = next((kind for kind in kinds if not kind.startswith(_TENSOR)), None)
    if other is not None:
        return f"it takes a {other}"
    others = [name for name in session.get_providers() if name not in _OF_THE_CPU]
    return f"it runs on {others[0]}" if others else ""


def _restored(asked: AcceleratedArguments, simple: Any) -> Any:
    from autotune.network.runtime.onnx_session import require_onnxruntime

    package = require_onnxruntime("a session of ONNX Runtime")
    options = None
    if simple is not None:
        options = package.SessionOptions()
        for name, value in simple.items():
            setattr(options, name, value)
    return accelerated(package)(**vars(replace(asked, sess_options=options)))
