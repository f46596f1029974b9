"""⑨ Events of a session, as data. The session yields these; `cli` renders them.

Latencies are seconds of one evaluation of a task; `totals` compares the network untuned with the
network as tuned so far. `docs/log-format.md` documents the JSON form.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from autotune.brief import brief
from autotune.codec import to_json
from autotune.measure.protocols import LeftOut
from autotune.measure.timing.noise import Noise
from autotune.records.record import InTurns
from autotune.result import MeasureResult
from autotune.tuner.budget import Budget, StopReason, TaskStop
from autotune.tuner.outlook import Outlook
from autotune.tuner.task import TuningTask
from autotune.tuner.totals import Totals


@brief
@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Progress of a task: `untuned_s` is the latency of its default program.

    `stop`: why it gets no more trials, where that is so from the beginning.
    """

    task: TuningTask
    n_trials: int
    untuned_s: float | None
    best_s: float | None
    stop: TaskStop | None = None


@brief
@dataclass(frozen=True, slots=True)
class SessionStarted:
    """Tuning begins, after `n_replayed` trials of the log were taken over.

    `outlook`: of the network untuned, where all of it is in the log. `in_turns`: what the network
    of an earlier session gained. `bound_s`: below which no program of the network can come.
    """

    run_id: str
    tasks: tuple[TaskProgress, ...]
    budget: Budget
    n_replayed: int
    elapsed_s: float
    totals: Totals
    outlook: Outlook | None = None
    in_turns: InTurns | None = None
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class DefaultsMeasured:
    """All default programs of the network are measured now."""

    outlook: Outlook


@dataclass(frozen=True, slots=True)
class CandidateBuilt:
    """So many of the `n_batch` candidates of a batch are built; nothing is measured meanwhile."""

    task: str
    n_done: int
    n_batch: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class TaskSelected:
    """The scheduler gives the next batch to a task, expecting to save `gain_s` per trial."""

    task: str
    gain_s: float


@brief
@dataclass(frozen=True, slots=True)
class BatchMeasured:
    """A batch is measured and in the log. `best_s` and `n_trials` are the task's, after it."""

    task: str
    results: tuple[MeasureResult, ...]
    best_s: float | None
    n_trials: int
    session_trials: int
    elapsed_s: float
    totals: Totals


@dataclass(frozen=True, slots=True)
class CandidateMeasured:
    """So many of the `n_batch` candidates of a batch are measured and in the log; 0 at first."""

    task: str
    n_done: int
    n_batch: int


@dataclass(frozen=True, slots=True)
class TaskImproved:
    """A task has a faster program; `before_s` is None for its first valid one."""

    task: str
    before_s: float | None
    best_s: float


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A task gets no more trials; their time goes to the others."""

    task: str
    best_s: float | None
    reason: TaskStop


@dataclass(frozen=True, slots=True)
class FinalistsMeasured:
    """After the search, the best few programs of a task and its default were measured again.

    They took turns. `best_s` is the latency of the winner, over all its measurements.
    """

    task: str
    best_s: float | None
    elapsed_s: float
    totals: Totals


@dataclass(frozen=True, slots=True)
class NetworkProgress:
    """Finalists are tried in the compiled network. `doing`: compiling (the network of that number),
    profiling (so many networks, kernel by kernel) or timing (one with so many changes)."""

    doing: str
    n: int


@dataclass(frozen=True, slots=True)
class NetworkTried:
    """The network with `n_changes` was timed in turns with that of what is fastest alone.

    `ratio`: seconds with over without them, with its interval; `is_kept`: whether they are chosen.
    """

    n_changes: int
    ratio: float
    low: float
    high: float
    is_kept: bool


@brief
@dataclass(frozen=True, slots=True)
class NetworkChosen:
    """Tasks for which something else was chosen in the network than alone, of `n_tried` changes;
    `ratio`: as above. None is tried where the time is too short."""

    n_tried: int
    changed: tuple[str, ...]
    ratio: float


@dataclass(frozen=True, slots=True)
class NoiseNoticed:
    """Co-tenants use the machine; told once in a session, of each device of a fleet."""

    noise: Noise


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """Names of the devices of a fleet that measure now; told at first and at every change."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceLeftOut:
    """A device of a fleet measures no more, since it does not answer as a sound one does."""

    device: str
    reason: str

    def __str__(self) -> str:
        return str(LeftOut(self.device, self.reason))


@brief
@dataclass(frozen=True, slots=True)
class SessionFinished:
    """The end. `seconds` is where the time went: search, measure, model, build, run.

    `build` and `run` are sums over candidates (several are built at a time); the rest is wall clock
    of this run. Of `measure`, `building` is when candidates were built. `invalid`: tasks whose
    candidates all failed, `untried`: those that the budget did not reach. `failures`: how often
    each status other than ok came up. `stops`: why each task gets no more trials, by key.
    `n_remeasured`: tasks whose finalists were measured again.
    """

    reason: StopReason
    n_trials: int
    elapsed_s: float
    totals: Totals
    invalid: tuple[str, ...]
    untried: tuple[str, ...]
    failures: dict[str, int]
    seconds: dict[str, float]
    stops: dict[str, TaskStop]
    n_remeasured: int = 0

    @property
    def is_broken_off(self) -> bool:
        """Whether the run was stopped, or has tasks without a valid program."""
        return bool(self.invalid) or self.reason is StopReason.INTERRUPTED


@dataclass(frozen=True, slots=True)
class NetworkTimed:
    """After the end, the network was compiled and timed in turns with the untuned one."""

    in_turns: InTurns


@dataclass(frozen=True, slots=True)
class OfTarget:
    """An event of one of several runs at a time: that over the CPU with the key `target`."""

    target: str
    event: Event


Event: TypeAlias = (
    SessionStarted
    | DefaultsMeasured
    | TaskSelected
    | CandidateBuilt
    | CandidateMeasured
    | BatchMeasured
    | TaskImproved
    | TaskFinished
    | FinalistsMeasured
    | NetworkProgress
    | NetworkTried
    | NetworkChosen
    | NoiseNoticed
    | DevicesChanged
    | DeviceLeftOut
    | SessionFinished
    | NetworkTimed
    | OfTarget
)


def of_target(event: Event) -> tuple[str, Event]:
    """The key of the CPU that an event is of, "" where there is one alone, and the event."""
    return (event.target, event.event) if isinstance(event, OfTarget) else ("", event)


def event_to_json(event: Event) -> dict[str, Any]:
    """Named fields and `"event": "batch_measured"`; tasks by key, results by status and latency.

    An event of one of several CPUs has the field `target` besides.
    """
    if isinstance(event, OfTarget):
        return event_to_json(event.event) | {"target": event.target}
    return {"event": event_name(type(event))} | {
        f.name: _plain(getattr(event, f.name)) for f in fields(event)
    }


def event_name(kind: type) -> str:
    """`batch_measured`: of an event in JSON."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _plain(value: Any) -> Any:
    match value:
        case TaskProgress(task=task):
            return {
                "key": task.key,
                "weight": round(task.weight, 6) if task.weight % 1 else int(task.weight),
                "label": task.label,
                "flops": task.flops,
                "bound_s": task.bound_s,
                "n_trials": value.n_trials,
                "untuned_s": value.untuned_s,
                "best_s": value.best_s,
                "stop": value.stop,
            }
        case MeasureResult(status=status, error=error):
            found = {"status": status.value, "latency_s": value.latency_s, "error": error}
            return found | ({"device": value.device} if value.device else {})
        case Totals():
            return asdict(value)
        case InTurns():
            return to_json(value)
        case Outlook():
            return asdict(value) | {"left": value.left}
        case Noise():
            return value.to_json()
        case Budget(trials=trials, time_s=time_s):
            return {"trials": trials, "time_s": time_s}
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return value
