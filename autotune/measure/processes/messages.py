"""⑦ Requests to builders and run workers and their replies, as records and as `Message`s.

| kind | fields | blobs | reply |
|---|---|---|---|
| `setup` | `handler` (`module:function`), `arguments` | any | `ready` or `failed` |
| `build` | `task`, `dag` (null: known), `steps` | | `built` |
| `prepare` | `task`, `dag`, `expected` (arrays, null: unknown) | the arrays | `prepared` |
| `hold` | `task`, `program`, `first` | machine code | `result` |
| `time` | `best_s`, `rounds` | | `results`, or `result` for all |
| `batch` | `dag`, `programs`, `time`, `options` | machine code of each | `results` |
| `ready` | `pid` | | |
| `failed` | `text` | | |
| `built` | `status`, `program` or null, `build_s`, `error` | machine code | |
| `prepared` | `expected` (arrays), `held` | the arrays | |
| `result` | `status`, `times_s`, `error`, `max_error`, `peaks` | | |
| `results` | `results`: a list of such fields | | |

DAGs and steps have the form that they have in logs. An array is `[name, dtype, shape]` and a blob.
Records have what JSON has of them, without blobs, by the hints of their fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.codec import Coded, Holds, from_json, to_json
from autotune.loopir.codec import program_from_json, program_to_json
from autotune.measure.build import BuiltProgram
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.frames import Message, ProtocolError
from autotune.result import ErrorText, MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps, steps_from_json, steps_to_json
from autotune.te.codec import DagField

Array = NDArray[Any]
Outputs: TypeAlias = dict[str, Array]


def _heads(arrays: Outputs) -> list[Any]:
    return [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]


def _without_data(heads: list[Any]) -> Outputs:
    """Arrays of the types and shapes of others."""
    return {name: np.broadcast_to(np.zeros((), dtype), shape) for name, dtype, shape in heads}


_Arrays: TypeAlias = Annotated[Outputs, Coded(_heads, _without_data)]
_Program: TypeAlias = Annotated[
    BuiltProgram,
    Coded(
        lambda built: program_to_json(built.program),
        lambda data: BuiltProgram(b"", program_from_json(data)),
    ),
]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One candidate; `dag` only when this builder has not seen task number `task` yet."""

    task: int
    dag: DagField | None
    steps: Annotated[Steps, Coded(steps_to_json, steps_from_json)]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Result of a builder, and its duration. `program` is None unless the status is OK."""

    status: MeasureStatus
    program: _Program | None = None
    build_s: float = 0.0
    error: ErrorText = ""

    def failure(self) -> MeasureResult:
        """The result of a candidate that was not built."""
        return MeasureResult(self.status, build_s=self.build_s, error=self.error)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make inputs of task number `task`; its oracle unless `expected` holds it already."""

    task: int
    dag: DagField
    expected: _Arrays | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Reply to Prepare: the oracle of the task, and the tasks whose inputs the worker now holds."""

    expected: _Arrays
    held: Annotated[frozenset[int], Coded(sorted, frozenset)]


@dataclass(frozen=True, slots=True)
class Hold:
    """Load and check one program of a prepared task, and keep it if it passes.

    `first`: whether to drop all programs that are held so far. Replied to with a MeasureResult
    without times.
    """

    task: int
    program: _Program
    first: bool


@dataclass(frozen=True, slots=True)
class Time:
    """Time the held programs in turns, and drop them. Replied to with a list of results, or
    with one for all of them where timing failed.

    `rounds`: how many repeats each gets; None: by its latency relative to `best_s` (`timing`).
    """

    best_s: float | None = None
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Programs of a task to be checked and timed in turns, with all that a runner has to know."""

    dag: DagField
    programs: tuple[_Program, ...]
    time: Time
    options: MeasureOptions


_OF_TIMES = (MeasureStatus.OK, MeasureStatus.INACCURATE)
_MOST_TIMES = 100_000
_Timed: TypeAlias = Annotated[
    MeasureResult, Holds(lambda result: all(result.times_s), "of times above zero")
]
_Finished: TypeAlias = Annotated[
    _Timed,
    Holds(
        lambda result: (result.status in _OF_TIMES) == (0 < len(result.times_s) <= _MOST_TIMES),
        "with times if and only if it ran",
    ),
    Holds(lambda result: not (result.max_error or 0.0) < 0, "with an error from zero on"),
]
_Built: TypeAlias = Annotated[
    BuildResult,
    Holds(
        lambda result: (result.status is MeasureStatus.OK) == (result.program is not None),
        "with a program if and only if it was built",
    ),
]


@dataclass(frozen=True, slots=True)
class _Results:
    """A list of results as a record."""

    results: tuple[_Finished, ...]


RunRequest: TypeAlias = Prepare | Hold | Time
Request: TypeAlias = BuildRequest | RunRequest | Batch
Reply: TypeAlias = BuildResult | Prepared | MeasureResult | list[MeasureResult]
Item: TypeAlias = Request | Reply


def to_message(item: Item) -> Message:
    """The message of a request or reply."""
    record = _Results(tuple(item)) if isinstance(item, list) else item
    return Message(_KINDS[type(record)], to_json(record), _blobs_of(record))


def from_message(message: Message) -> Item:
    """Inverse of `to_message`. Raises ProtocolError for a message of none of these kinds."""
    try:
        record = from_json(_RECORDS[message.kind], message.fields)
        return list(record.results) if isinstance(record, _Results) else _whole(record, message)
    except Exception as error:  # garbage may raise any of these in a reader
        what = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"no message of kind '{message.kind[:40]}': {what[:200]}") from error


def _blobs_of(item: Any) -> list[Any]:
    """The bytes that the JSON of a record does not have."""
    match item:
        case Prepare(expected=arrays) | Prepared(expected=arrays):
            whole = map(np.ascontiguousarray, (arrays or {}).values())
            return [array.reshape(-1).view(np.uint8) for array in whole]
        case Hold(program=built) | BuildResult(program=built):
            return [built.code] if built else []
        case Batch(programs=programs):
            return [built.code for built in programs]
    return []


def _whole(item: Any, message: Message) -> Any:
    """A record that was read of JSON, with the bytes of `message`."""
    match item:
        case Prepare(expected=dict(heads)) | Prepared(expected=heads):
            pairs = zip(heads.items(), message.blobs, strict=True)
            arrays = {n: np.frombuffer(b, a.dtype).reshape(a.shape) for (n, a), b in pairs}
            return replace(item, expected=arrays)
        case (
            Hold(program=BuiltProgram(program=head))
            | BuildResult(program=BuiltProgram(program=head))
        ):
            (code,) = message.blobs
            return replace(item, program=BuiltProgram(bytes(code), head))
        case Batch(programs=programs):
            coded = zip(programs, message.blobs, strict=True)
            whole = tuple(BuiltProgram(bytes(code), built.program) for built, code in coded)
            return replace(item, programs=whole)
    return item


_RECORDS: dict[str, Any] = {
    "build": BuildRequest,
    "prepare": Prepare,
    "hold": Hold,
    "time": Time,
    "batch": Batch,
    "built": _Built,
    "prepared": Prepared,
    "result": _Timed,
    "results": _Results,
}
_KINDS = {getattr(hint, "__origin__", hint): kind for kind, hint in _RECORDS.items()}
