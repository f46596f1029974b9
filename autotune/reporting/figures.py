"""⑧ From a log to the figures of its search: plain records that pages and notebooks show.

figures_of(read_log(path), name) ─► SearchFigures ─► JSON, or `document` ─► HTML, Markdown

Everything is of one machine and number of threads: those of the log's first run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from autotune.brief import brief
from autotune.codec import BAD, AnyFloat
from autotune.errors import AutotuneError, LogMismatch
from autotune.measure.timing.peak import Peaks
from autotune.records import End, Header, InTurns, Log, MeasureRecord, ranked_records
from autotune.records.distill import chosen_of
from autotune.reporting.choices import ChoiceFigures, choices_of
from autotune.result import MeasureStatus
from autotune.schedule.replay import replay
from autotune.search.cost.analytic import estimate_s
from autotune.te.at_numbers import usual
from autotune.te.dag import ComputeDAG, shape_text
from autotune.tuner import (
    TuningTask,
    binding,
    call_times,
    fastest_network,
    logged_tasks,
    networks_of,
    spent,
    totals,
    traffic,
)
from autotune.tuner.ledger import Ledger
from autotune.units import counted, gflops

_MOST_POINTS = 80
"""Places at which the latency of the network is computed: each costs all records of a task."""
_MOST_PREDICTED = 120
_MOST_NOISE = 400


@brief
@dataclass(frozen=True, slots=True)
class Progress:
    """The network after `n_trials`: seconds of an inference if it was compiled from these.

    A task that has not been measured by then counts with its default program.
    """

    n_trials: int
    elapsed_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class TaskProgressPoint:
    """A task after `n_trials` of its own: the lowest latency so far."""

    n_trials: int
    elapsed_s: float
    best_s: float


@brief
@dataclass(frozen=True, slots=True)
class TaskFigures:
    """A task: seconds of one call by its default and by its best program, and what bounds them.

    `binds`: the part of the machine that `bound_s` comes from, where the log has the peaks.
    `estimate_s`: of the best program, by the analytical cost model. `noise`: relative standard
    error of `tuned_s`. `replaces`: ids of the tasks that this one may replace. `structure`: name
    of the sketch of the best program, `loops` its loops, `choices` those of it that mattered.
    """

    id: int
    key: str
    label: str
    shapes: str
    weight: float
    flops: int
    n_bytes: int
    untuned_s: float | None
    tuned_s: float | None
    estimate_s: AnyFloat | None
    bound_s: float | None
    binds: str
    noise: float
    n_trials: int
    n_failed: int
    stop: str
    structure: str
    loops: str
    replaces: tuple[int, ...]
    progress: tuple[TaskProgressPoint, ...]
    choices: tuple[ChoiceFigures, ...] = ()

    @property
    def gflops(self) -> float | None:
        """Rate of the best program in 1e9 FLOP per second."""
        return gflops(self.flops, self.tuned_s)

    @property
    def share_of_bound(self) -> float | None:
        """Bound over latency: 1 where nothing is left to gain."""
        return self.bound_s / self.tuned_s if self.bound_s and self.tuned_s else None

    @property
    def ratio(self) -> float | None:
        """Speed-up over the default program."""
        return self.untuned_s / self.tuned_s if self.untuned_s and self.tuned_s else None


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Seconds of an inference in all calls of a task, or of a chain of tasks: before and after."""

    tasks: tuple[int, ...]
    label: str
    untuned_s: float | None
    tuned_s: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured candidate of a task, and what the analytical cost model expects of it."""

    task: int
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class FailureKind:
    """Candidates that failed with `status`: how many, of which tasks, and one message."""

    status: str
    n: int
    tasks: tuple[int, ...]
    example: str


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """Relative standard error of the median of one measurement, and when it was made."""

    elapsed_s: float
    noise: float


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """A node of the model's file, and the tasks that compute it."""

    name: str
    operator: str
    tasks: tuple[int, ...]


@brief
@dataclass(frozen=True, slots=True)
class SearchFigures:
    """A search as its log tells it.

    `in_turns`: the compiled network beside the untuned one, where the last run has timed them.
    `untuned_s`, `tuned_s`: latency of the calls that are known both ways, `share` of the FLOPs of
    an inference. `seconds`: where the time of all runs went. `disturbances`: `noise` of the ends of
    runs where there was any. `peaks`: as the log has them, {} where it has none. `stopped`: why
    the last run ended; "" where it was killed or goes on. `nodes`: in the order of the file, those
    that tasks compute; () where the log does not say.
    """

    model: str
    log: str
    cpu: str
    n_threads: int
    created: str
    versions: dict[str, str]
    n_runs: int
    stopped: str
    n_trials: int
    elapsed_s: float
    seconds: dict[str, float]
    untuned_s: float
    tuned_s: float
    share: float
    peaks: dict[str, Any]
    disturbances: tuple[dict[str, Any], ...]
    progress: tuple[Progress, ...]
    tasks: tuple[TaskFigures, ...]
    calls: tuple[CallFigures, ...]
    predictions: tuple[Prediction, ...]
    failures: tuple[FailureKind, ...]
    noise: tuple[NoisePoint, ...]
    notes: tuple[str, ...]
    in_turns: InTurns | None = None
    nodes: tuple[NodeFigures, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Speed-up over the default programs; None where nothing can be compared."""
        return self.untuned_s / self.tuned_s if self.untuned_s and self.tuned_s else None


def figures_of(log: Log, name: str) -> SearchFigures:
    """The figures of a log that is called `name`; its records are judged by its own limit.

    Raises LogMismatch for a log without a header, or without a computation.
    """
    if not log.headers:
        raise LogMismatch(f"{name} has no header: its first line is lost", "tune the model again")
    search = _Search(log.within(log.max_error))
    if not search.tasks:
        raise LogMismatch(f"{name} lacks the computations of its tasks", "tune the model again")
    return search.figures(name)


class _Search:
    """The records of one machine in a log, by task."""

    def __init__(self, log: Log) -> None:
        self.log, header = log, log.header
        self.runs = [h for h in log.headers if _machine(h) == _machine(header)]
        runs = {run.run_id for run in self.runs}
        self.ends = [end for end in log.ends if end.run_id in runs]
        bounds_s = {key: s for end in self.ends for key, s in end.bounds_s.items() if s > 0}
        self.stops = {key: value for end in self.ends for key, value in end.stops.items()}
        self.tasks = logged_tasks(log, bounds_s)
        known = {task.key for task in self.tasks}
        machine = _machine(header)
        self.ours = [
            r for r in log.records if (r.target_key, r.n_threads) == machine and r.workload in known
        ]
        self.peaks = _peaks(self.ends, header)
        self.ids = {key: n for n, (key, _) in enumerate(header.tasks)}
        self.by_task: dict[str, list[MeasureRecord]] = {task.key: [] for task in self.tasks}
        for record in self.ours:
            self.by_task[record.workload].append(record)
        self.ledger = Ledger()
        self.ledger.add(self.ours, live=False)
        self.times = {task.key: self.ledger.times(task.key) for task in self.tasks}
        self.network = fastest_network(self._networks(), self.times)
        self.call_times = tuple(call_times(self.network, self.times))

    def figures(self, name: str) -> SearchFigures:
        log, header, found = self.log, self.log.header, totals(self.network, self.times)
        last = self.runs[-1].run_id
        seconds: Counter[str] = Counter()
        for end in self.ends:
            seconds.update(end.seconds)
        return SearchFigures(
            model=PurePath(header.model_path).name or "a computation",
            log=name,
            cpu=header.target.cpu,
            n_threads=header.n_threads,
            created=header.created,
            versions=header.versions,
            n_runs=len(self.runs),
            stopped=next((end.reason for end in self.ends if end.run_id == last), ""),
            n_trials=self.ledger.n_trials,
            elapsed_s=spent(log).elapsed_s,
            seconds=dict(seconds),
            untuned_s=found.untuned_s,
            tuned_s=found.tuned_s,
            share=found.share,
            peaks=self.peaks.to_json() if self.peaks else {},
            disturbances=tuple(end.noise for end in self.ends if end.noise),
            progress=tuple(self._progress()),
            tasks=tuple(map(self._task, self.tasks)),
            calls=tuple(self._calls()),
            predictions=tuple(self._predictions()),
            failures=tuple(self._failures()),
            noise=_noise(self.ours),
            notes=tuple(self._notes()),
            in_turns=log.in_turns(*_machine(header)),
            nodes=tuple(self._nodes()),
        )

    def _networks(self) -> list[list[TuningTask]]:
        known = {task.key for task in self.tasks}
        header = self.log.header
        whole = all(known >= dict(network.tasks).keys() for network in header.networks)
        return (networks_of(header, self.tasks) if whole else []) or [self.tasks]

    def _task(self, task: TuningTask) -> TaskFigures:
        records, times = self.by_task[task.key], self.times[task.key]
        trials = [r for r in records if not r.final]
        best = next((chosen_of(ranked) for ranked in ranked_records(records).values()), None)
        return TaskFigures(
            id=self.ids[task.key],
            key=task.key,
            label=task.label,
            shapes=shape_text(task.dag),
            weight=task.weight,
            flops=task.flops,
            n_bytes=traffic(usual(task.dag)).all_bytes,
            untuned_s=times.untuned_s,
            tuned_s=times.tuned_s,
            estimate_s=self._estimate(task.dag, best),
            bound_s=task.bound_s,
            binds=self._binds(task),
            noise=best.result.noise if best else 0.0,
            n_trials=len(trials),
            n_failed=sum(not r.result.ok for r in trials),
            stop=self.stops.get(task.key, ""),
            structure=best.sketch if best else "",
            loops=_loops(task.dag, best),
            replaces=tuple(self.ids[part] for part in task.parts),
            progress=tuple(_task_progress(trials)),
            choices=_choices(best, trials),
        )

    def _nodes(self) -> Iterator[NodeFigures]:
        known = {task.key for task in self.tasks}
        for name, operator, keys in self.log.header.nodes:
            if tasks := tuple(self.ids[key] for key in keys if key in known):
                yield NodeFigures(name, operator, tasks)

    def _binds(self, task: TuningTask) -> str:
        if self.peaks is None or not task.bound_s:
            return ""
        return binding(task.dag, task.bound_s, self.peaks).value

    def _estimate(self, dag: ComputeDAG, record: MeasureRecord | None) -> float | None:
        if record is None:
            return None
        if record.default_estimate_s is not None:
            return record.default_estimate_s
        header = self.log.header
        with contextlib.suppress(AutotuneError, *BAD):  # steps of another version
            return estimate_s(dag, record.steps, header.target, header.n_threads)
        return None

    def _calls(self) -> Iterator[CallFigures]:
        labels = {task.key: task.label for task in self.tasks}
        for call in self.call_times:
            yield CallFigures(
                tuple(self.ids[key] for key in call.tasks),
                " → ".join(labels[key] for key in call.tasks),
                None if call.untuned_s is None else call.weight * call.untuned_s,
                None if call.tuned_s is None else call.weight * call.tuned_s,
            )

    def _progress(self) -> Iterator[Progress]:
        """Of at most so many places; nothing where no task was measured twice."""
        if all(len(records) < 2 for records in self.by_task.values()):
            return
        ledger, done = Ledger(), 0
        elapsed_s = 0.0
        for end in (0, *_places(len(self.ours), _MOST_POINTS)):
            new = self.ours[done:end]
            ledger.add(new, live=False)
            elapsed_s = max([elapsed_s, *(r.elapsed_s for r in new)])
            latency_s = self._latency_s(ledger)
            if latency_s:
                yield Progress(ledger.n_trials, elapsed_s, latency_s)
            done = end

    def _latency_s(self, ledger: Ledger) -> float:
        """Of the calls known both ways, with what `ledger` has measured so far."""
        times = {key: ledger.times(key) for key in self.times}
        now = call_times(self.network, times)
        return sum(
            call.weight * (call.untuned_s if before.tuned_s is None else before.tuned_s)
            for call, before in zip(self.call_times, now, strict=True)
            if call.untuned_s is not None and call.tuned_s is not None
        )

    def _predictions(self) -> Iterator[Prediction]:
        dags = {task.key: task.dag for task in self.tasks}
        valid = [r for r in self.ours if r.result.ok and not r.final]
        for record in _sample(valid, _MOST_PREDICTED):
            predicted_s = self._estimate(dags[record.workload], record)
            measured_s = record.result.latency_s
            if predicted_s and measured_s and predicted_s < float("inf"):
                yield Prediction(self.ids[record.workload], predicted_s, measured_s)

    def _failures(self) -> Iterator[FailureKind]:
        failed: dict[MeasureStatus, list[MeasureRecord]] = {}
        for record in self.ours:
            if not record.result.ok:
                failed.setdefault(record.result.status, []).append(record)
        for status, records in sorted(failed.items(), key=lambda item: -len(item[1])):
            tasks = sorted({self.ids[r.workload] for r in records})
            yield FailureKind(status.value, len(records), tuple(tasks), records[0].result.last_line)

    def _notes(self) -> Iterator[str]:
        log = self.log
        if log.torn:
            yield "the last line of the log is cut off: its run was killed, or goes on"
        if log.n_skipped:
            yield f"{counted(log.n_skipped, 'line')} of the log skipped: foreign or corrupt"
        if n_others := len(log.records) - len(self.ours):
            threads = counted(log.header.n_threads, "thread")
            yield (
                f"{counted(n_others, 'record')} of other CPUs, thread counts or models left out: "
                f"this is about {threads} of {log.header.target.cpu}"
            )
        if lost := len(log.header.tasks) - len(self.tasks):
            yield f"the log lacks the computation of {lost} of its tasks"
        if not self.ends:
            yield "the log has no end of a run, which tells bounds and reasons to stop"
        elif self.peaks is None:
            yield "the log has no peaks of the machine: an older version wrote it"
        if log.header.random_weights:
            yield "the weights of the model were random"


def _machine(header: Header) -> tuple[str, int]:
    return header.target.key, header.n_threads


def _peaks(ends: Sequence[End], header: Header) -> Peaks | None:
    for end in reversed(ends):
        with contextlib.suppress(*BAD):
            return Peaks.from_json(end.peaks, header.target.isa)
    return None


def _loops(dag: ComputeDAG, best: MeasureRecord | None) -> str:
    with contextlib.suppress(AutotuneError, *BAD):
        return str(replay(dag, best.steps)) if best else ""
    return ""


def _choices(
    best: MeasureRecord | None, trials: Sequence[MeasureRecord]
) -> tuple[ChoiceFigures, ...]:
    with contextlib.suppress(AutotuneError, *BAD):  # steps of another version
        return choices_of(best, trials)
    return ()


def _task_progress(trials: Sequence[MeasureRecord]) -> Iterator[TaskProgressPoint]:
    """Every improvement, and the last trial."""
    infinite = float("inf")
    best = list(accumulate((r.result.latency_s or infinite for r in trials), min))
    for n, (record, best_s) in enumerate(zip(trials, best, strict=True)):
        is_last = n == len(trials) - 1
        if best_s < infinite and (is_last or n == 0 or best_s < best[n - 1]):
            yield TaskProgressPoint(n + 1, record.elapsed_s, best_s)


def _noise(records: Iterable[MeasureRecord]) -> tuple[NoisePoint, ...]:
    valid = [r for r in records if r.result.ok and len(r.result.times_s) > 1]
    return tuple(NoisePoint(r.elapsed_s, r.result.noise) for r in _sample(valid, _MOST_NOISE))


def _sample(records: Sequence[MeasureRecord], most: int) -> list[MeasureRecord]:
    """At most so many records, evenly over all."""
    return [records[end - 1] for end in _places(len(records), most)]


def _places(n: int, most: int) -> list[int]:
    """Up to `most` numbers from 1 to `n`, evenly, `n` among them."""
    n_places = min(n, most)
    return [n * (k + 1) // n_places for k in range(n_places)]
