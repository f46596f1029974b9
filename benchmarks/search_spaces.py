"""Recorded spaces: the candidates of a task that a log has measured and today's space still knows.

Nothing is measured here. A schedule that was measured several times counts once, with the repeats
of all its measurements, as `distill` sees it; of several schedules of one program the first counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.records import Log, MeasureRecord, ranked_records
from autotune.search.cost.analysis import analyse
from autotune.search.cost.features import features
from autotune.search.cost.ranker import Array
from autotune.search.policy import Candidate
from autotune.search.recognise import Recogniser
from autotune.search.sketch import generate_sketches
from autotune.search.space import Rows, Sketch
from autotune.target import Target
from autotune.tuner import TuningTask, spent


@dataclass(frozen=True, slots=True)
class Point:
    """A recorded candidate; `identity` is that of its program, `record` what was measured."""

    row: Rows
    identity: Rows
    candidate: Candidate
    record: MeasureRecord


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All that a policy may pick for one task.

    `x`: features, shape [n, n_features]; `latency_s`: shape [n], infinite for what failed.
    """

    task: TuningTask
    target: Target
    n_threads: int
    points: tuple[Point, ...]
    x: Array
    latency_s: Array

    @property
    def best_s(self) -> float:
        """Lowest latency that was recorded."""
        return float(self.latency_s.min())

    def of(self, sketch: str) -> list[int]:
        """Positions of the candidates of one structure."""
        return [i for i, p in enumerate(self.points) if p.candidate.sketch == sketch]


def spaces(log: Log, least: int, wanted: str = "") -> list[Space]:
    """The spaces of a log with at least so many candidates that ran.

    `wanted`: part of the label or beginning of the key of a task. Each record is judged by the
    limit on errors of the log's last run; those of another CPU or thread count are left out.
    """
    header, judged = log.header, log.within(log.max_error)
    machine = header.target.key, header.n_threads
    by_task: dict[str, list[MeasureRecord]] = {}
    for record in judged.records:
        if (record.target_key, record.n_threads) == machine and record.workload in log.workloads:
            by_task.setdefault(record.workload, []).append(record)
    found = []
    for key, records in by_task.items():
        label, dag = log.workloads[key].label, log.workloads[key].dag
        if (wanted.lower() in label.lower() or key.startswith(wanted)) and len(records) >= least:
            task = TuningTask(key, dag, 1, label)
            found.append(space(task, header.target, header.n_threads, records))
    return [s for s in found if int(np.isfinite(s.latency_s).sum()) >= least]


def pool(logs: Sequence[Log]) -> Log:
    """Logs of one CPU and thread count as one, under the header of the first."""
    judged = [log.within(log.max_error) for log in logs]
    return Log(
        headers=logs[0].headers,
        workloads={key: w for log in logs for key, w in log.workloads.items()},
        records=tuple(record for log in judged for record in log.records),
    )


def space(
    task: TuningTask, target: Target, n_threads: int, records: Sequence[MeasureRecord]
) -> Space:
    """What records of one task, target and thread count span."""
    points: list[Point] = []
    parts: list[Array] = []
    pooled = distinct(records)
    for sketch in generate_sketches(task.dag, target):
        matched = list(_matches(sketch, pooled))
        if not matched:
            continue
        rows = np.stack([row for row, _ in matched])
        found = analyse(task.dag, sketch, rows, target)
        first = np.unique(found.identity, axis=0, return_index=True)[1]
        keep = [int(i) for i in np.sort(first) if found.valid[i]]
        parts.append(features(found, sketch, rows, target, n_threads)[keep])
        for i in keep:
            record = matched[i][1]
            candidate = Candidate(record.steps, sketch.name)
            points.append(Point(rows[i], found.identity[i], candidate, record))
    latency_s = [p.record.result.latency_s or np.inf for p in points]
    x = np.concatenate(parts) if parts else np.zeros((0, 0))
    return Space(task, target, n_threads, tuple(points), x, np.array(latency_s))


def distinct(records: Sequence[MeasureRecord]) -> list[MeasureRecord]:
    """One record per schedule, in the order of the log: the pooled valid one, or a failure."""
    found = {r.steps_json: r for r in records if not r.result.ok}
    found |= {r.steps_json: r for ranked in ranked_records(records).values() for r in ranked}
    return sorted(found.values(), key=lambda r: r.sequence)


def _matches(
    sketch: Sketch, records: Sequence[MeasureRecord]
) -> Iterator[tuple[Rows, MeasureRecord]]:
    """Row and record of what was made from a sketch."""
    recogniser = Recogniser(sketch)
    for record in records:
        row = recogniser.row(record.steps_json) if record.sketch == sketch.name else None
        if row is not None:
            yield row, record


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where the time of a log went.

    `run` is wall clock, `build` a sum over candidates, several of which are built at a time.
    `search` and `model`, wall clock, are None where the log's ends do not tell them.
    """

    log: str
    trials: int
    elapsed: float
    build: float
    run: float
    search: float | None
    model: float | None

    @property
    def trials_per_s(self) -> float:
        """Measured candidates per second of wall clock, measuring the finalists included."""
        return self.trials / self.elapsed if self.elapsed else 0.0


def seconds(path: Path, log: Log) -> Seconds:
    """Time split of all runs of a log."""
    splits = [end.seconds for end in log.ends if end.seconds]
    told = len(splits) == len(log.headers)
    used = spent(log)
    return Seconds(
        log=path.stem,
        trials=used.trials,
        elapsed=used.elapsed_s,
        build=sum(r.result.build_s for r in log.records),
        run=sum(r.result.run_s for r in log.records),
        search=sum(s["search"] for s in splits) if told else None,
        model=sum(s["model"] for s in splits) if told else None,
    )
