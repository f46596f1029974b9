"""⑦ Requests to builders and run workers and their replies, as records and as `Message`s.

| kind | fields | blobs | reply |
|---|---|---|---|
| `setup` | `handler` (`module:function`), `arguments` | any | `ready` or `failed` |
| `build` | `task`, `dag` (null: known), `steps` | | `built` |
| `prepare` | `task`, `dag`, `expected` (arrays, null: unknown) | the arrays | `prepared` |
| `hold` | `task`, `program`, `first` | machine code | `result` |
| `time` | `best_s`, `rounds` | | `results`, or `result` for all |
| `ready` | `pid` | | |
| `failed` | `text` | | |
| `built` | `status`, `program` or null, `build_s`, `error` | machine code | |
| `prepared` | `expected` (arrays), `held` | the arrays | |
| `result` | `status`, `times_s`, `error`, `max_error`, `peaks` | | |
| `results` | `results`: a list of such fields | | |

DAGs and steps have the form that they have in logs. An array is `[name, dtype, shape]` and a blob.
`request_from`, `reply_from` raise ProtocolError for a message that is none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.codec import Coded, from_json, to_json
from autotune.loopir.codec import program_from_json, program_to_json
from autotune.measure.build import BuiltProgram
from autotune.measure.frames import Message, ProtocolError, plain
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps, steps_from_json, steps_to_json
from autotune.te.codec import DagField, dag_from_json, dag_to_json
from autotune.te.dag import ComputeDAG

Array = NDArray[Any]
Outputs: TypeAlias = dict[str, Array]
T = TypeVar("T")

_MAX_TEXT = 100_000
"""Longer texts of errors are cut off."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One candidate; `dag` only when this builder has not seen task number `task` yet."""

    task: int
    dag: DagField | None
    steps: Annotated[Steps, Coded(steps_to_json, steps_from_json)]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a builder made, and how long it took. `program` is None unless the status is OK."""

    status: MeasureStatus
    program: BuiltProgram | None = None
    build_s: float = 0.0
    error: str = ""

    def failure(self) -> MeasureResult:
        """The result of a candidate that was not built."""
        return MeasureResult(self.status, build_s=self.build_s, error=self.error)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make inputs of task number `task`; its oracle unless `expected` holds it already."""

    task: int
    dag: ComputeDAG
    expected: Outputs | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Reply to Prepare: the oracle of the task, and the tasks whose inputs the worker now holds."""

    expected: Outputs
    held: frozenset[int]


@dataclass(frozen=True, slots=True)
class Hold:
    """Load and check one program of a prepared task, and keep it if it passes.

    `first`: whether to drop all programs that are held so far. Replied to with a MeasureResult
    without times.
    """

    task: int
    built: BuiltProgram
    first: bool


@dataclass(frozen=True, slots=True)
class Time:
    """Time the held programs in turns, and drop them. Replied to with a list of results, or
    with one for all of them where timing failed.

    `rounds`: how many repeats each gets; None: by its latency relative to `best_s` (`timing`).
    """

    best_s: float | None = None
    rounds: int | None = None


RunRequest: TypeAlias = Prepare | Hold | Time
Request: TypeAlias = BuildRequest | RunRequest
Reply: TypeAlias = BuildResult | Prepared | MeasureResult | list[MeasureResult]


def to_message(item: Request | Reply) -> Message:
    """The message of a request or reply."""
    match item:
        case BuildRequest():
            return Message("build", to_json(item))
        case Prepare(task=task, dag=dag, expected=expected):
            arrays, blobs = _arrays_to_json(expected or {})
            listed = None if expected is None else arrays
            fields = {"task": task, "dag": dag_to_json(dag), "expected": listed}
            return Message("prepare", fields, blobs)
        case Hold(task=task, built=built, first=first):
            program = program_to_json(built.program)
            return Message("hold", {"task": task, "program": program, "first": first}, [built.code])
        case Time():
            return Message("time", to_json(item))
        case BuildResult():
            return _built_to_message(item)
        case Prepared(expected=outputs, held=held):
            arrays, blobs = _arrays_to_json(outputs)
            return Message("prepared", {"expected": arrays, "held": sorted(held)}, blobs)
        case MeasureResult():
            return Message("result", _result_to_json(item))
        case list():
            return Message("results", {"results": [_result_to_json(r) for r in item]})


def request_from(message: Message) -> Request:
    """Inverse of `to_message` for requests."""
    return _decoded(_REQUESTS, message)


def reply_from(message: Message) -> Reply:
    """Inverse of `to_message` for replies."""
    return _decoded(_REPLIES, message)


def _decoded(readers: Mapping[str, Callable[[Message], T]], message: Message) -> T:
    try:
        return readers[message.kind](message)
    except Exception as error:  # garbage may raise any of these in a reader
        what = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"no message of kind '{message.kind[:40]}': {what[:200]}") from error


def _built_to_message(item: BuildResult) -> Message:
    program = None if item.program is None else program_to_json(item.program.program)
    fields = {
        "status": item.status.value,
        "program": program,
        "build_s": item.build_s,
        "error": item.error[-_MAX_TEXT:],
    }
    return Message("built", fields, [item.program.code] if item.program else [])


def _built_from(message: Message) -> BuildResult:
    data = message.fields
    program = None if data["program"] is None else _program_from(message)
    status = MeasureStatus(data["status"])
    if (status is MeasureStatus.OK) != (program is not None):
        raise ValueError("a program if and only if it was built")
    return BuildResult(status, program, float(data["build_s"]), _text(data["error"]))


def _program_from(message: Message) -> BuiltProgram:
    (code,) = message.blobs
    return BuiltProgram(bytes(code), program_from_json(message.fields["program"]))


def _prepare_from(message: Message) -> Prepare:
    data = message.fields
    listed = data["expected"]
    expected = None if listed is None else _arrays_from(listed, message.blobs)
    return Prepare(data["task"], dag_from_json(data["dag"]), expected)


def _prepared_from(message: Message) -> Prepared:
    held = frozenset(int(task) for task in message.fields["held"])
    return Prepared(_arrays_from(message.fields["expected"], message.blobs), held)


def _hold_from(message: Message) -> Hold:
    data = message.fields
    return Hold(data["task"], _program_from(message), bool(data["first"]))


def _results_from(message: Message) -> list[MeasureResult]:
    return [_result_from(data) for data in message.fields["results"]]


def _result_to_json(result: MeasureResult) -> dict[str, Any]:
    error = None if result.max_error is None else plain(result.max_error)
    return to_json(result) | {"error": result.error[-_MAX_TEXT:], "max_error": error}


def _result_from(data: Mapping[str, Any]) -> MeasureResult:
    error = data["max_error"]
    result = from_json(MeasureResult, {**data, "max_error": None})
    if not all(result.times_s):
        raise ValueError("times are above zero")
    return replace(
        result,
        error=_text(result.error),
        max_error=None if error is None else float(error),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text, not {type(value).__name__}")
    return value[-_MAX_TEXT:]


def _arrays_to_json(arrays: Mapping[str, Array]) -> tuple[list[list[Any]], list[Any]]:
    whole = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    listed = [[name, a.dtype.str, list(arrays[name].shape)] for name, a in whole.items()]
    return listed, [a.reshape(-1).view(np.uint8) for a in whole.values()]


def _arrays_from(listed: Sequence[Any], blobs: Sequence[Any]) -> Outputs:
    return {
        str(name): np.frombuffer(blob, np.dtype(str(dtype))).reshape(tuple(shape))
        for (name, dtype, shape), blob in zip(listed, blobs, strict=True)
    }


_REQUESTS: dict[str, Callable[[Message], Request]] = {
    "build": lambda message: from_json(BuildRequest, message.fields),
    "prepare": _prepare_from,
    "hold": _hold_from,
    "time": lambda message: from_json(Time, message.fields),
}
_REPLIES: dict[str, Callable[[Message], Reply]] = {
    "built": _built_from,
    "prepared": _prepared_from,
    "result": lambda message: _result_from(message.fields),
    "results": _results_from,
}
