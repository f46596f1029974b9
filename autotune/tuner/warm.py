"""⑨ Warm start: train the ranker on earlier logs of this CPU before the first batch.

There is no file of a trained model that could become stale: the ranker is trained on the recorded
measurements with the present features. The best schedules of an equal task are measured again
first; a recorded latency is never reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autotune.errors import LogMismatch
from autotune.records.distill import ranked_records
from autotune.records.record import Log, MeasureRecord
from autotune.schedule.steps import Steps
from autotune.search.cost.analysis import analyse
from autotune.search.cost.ranker import Array, Ranker
from autotune.search.cost.sketch_facts import SketchFacts
from autotune.search.policy import Candidate
from autotune.search.recognise import Recogniser
from autotune.search.sketch import generate_sketches
from autotune.search.space import Rows, Sketch
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_N_FIRST = 4


def usable_records(log: Log, target: Target, n_threads: int) -> list[MeasureRecord]:
    """The valid measurements of a log for this target and thread count, of tasks that it holds."""
    return [
        r
        for r in log.records
        if r.result.latency_s
        and (r.target_key, r.n_threads) == (target.key, n_threads)
        and r.workload in log.workloads
    ]


def teach(
    ranker: Ranker,
    dag: ComputeDAG,
    records: Sequence[MeasureRecord],
    target: Target,
    weight: float = 1.0,
) -> int:
    """Give the ranker all measurements of a task on `target`; how many today's space knows.

    `weight`: see `Ranker.teach`.
    """
    n = 0
    for x, latency_s in _samples(dag, records, target):
        ranker.teach(f"{dag.key} {target.key}", x, latency_s, weight)
        n += len(latency_s)
    return n


def first_candidates(records: Sequence[MeasureRecord]) -> list[Candidate]:
    """The best few schedules of one task, whether the present space knows them or not."""
    best = [r for ranked in ranked_records(records).values() for r in ranked]
    readable = ((_steps(r), r.sketch) for r in best)
    return [Candidate(s, sketch) for s, sketch in readable if s is not None][:_N_FIRST]


def _samples(
    dag: ComputeDAG, records: Sequence[MeasureRecord], target: Target
) -> Iterator[tuple[Array, Array]]:
    """Features and latencies, one sketch at a time."""
    for sketch in generate_sketches(dag, target):
        rows, times = _rows(sketch, [r for r in records if r.sketch == sketch.name])
        if len(rows):
            valid = analyse(dag, sketch, rows, target).valid
            _, x = SketchFacts(dag, sketch, target, records[0].n_threads).features(rows)
            yield x[valid], times[valid]


def _rows(sketch: Sketch, records: Sequence[MeasureRecord]) -> tuple[Rows, Array]:
    """Rows of a sketch that were measured, and their latencies in seconds."""
    found: list[tuple[Rows, float]] = []
    recogniser = Recogniser(sketch)
    for record in records:
        row, latency_s = recogniser.row(record.steps_json), record.result.latency_s
        if record.final or record.result.is_slow:
            continue
        if row is not None and latency_s is not None:
            found.append((row, latency_s))
    rows = [row for row, _ in found]
    times = np.array([latency_s for _, latency_s in found])
    return np.stack(rows) if rows else np.zeros((0, len(sketch.parameters)), np.int64), times


def _steps(record: MeasureRecord) -> Steps | None:
    """The schedule of a record, unless it has a step that this version does not know."""
    try:
        return record.steps
    except LogMismatch:
        return None
