"""⑪ Earlier logs become a trained ranker and candidates to measure first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.api.request import Note
from autotune.errors import AutotuneError
from autotune.records import Header, Log, MeasureRecord, read_log
from autotune.search.cost.ranker import Ranker
from autotune.search.policy import Candidate
from autotune.te.dag import ComputeDAG
from autotune.tuner.warm import first_candidates, teach, usable_records


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Numbers of measurements and tasks learnt from, and candidates to measure first, by task."""

    n_records: int = 0
    n_tasks: int = 0
    first: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"warm start: {self.n_records} measurements of {self.n_tasks} tasks, "
            f"{len(self.first)} of them tasks of this model"
        )


def warm_start(
    paths: Iterable[str], header: Header, max_error: float, seen: Log, ranker: Ranker, note: Note
) -> WarmStart:
    """Train `ranker` on the logs at `paths`; what runs of `seen` measured is left to its replay.

    Logs that are gone, or of another CPU or thread count, are left out, and that is said.
    """
    runs = {h.run_id for h in seen.headers}
    records: dict[str, list[MeasureRecord]] = {}
    dags: dict[str, ComputeDAG] = {}
    for path, log in _read(paths, note):
        found = usable_records(log.within(max_error), header.target, header.n_threads)
        if not found:
            note(f"{path}: nothing of this CPU with {header.n_threads} threads; not used")
        dags |= {key: workload.dag for key, workload in log.workloads.items()}
        for record in found:
            if record.run_id not in runs:
                records.setdefault(record.workload, []).append(record)
    n_learnt = {key: teach(ranker, dags[key], r, header.target) for key, r in records.items()}
    ranker.train()
    first = {key: first_candidates(records[key]) for key, _ in header.tasks if key in records}
    return WarmStart(sum(n_learnt.values()), sum(n > 0 for n in n_learnt.values()), first)


def _read(paths: Iterable[str], note: Note) -> Iterator[tuple[str, Log]]:
    for path in paths:
        try:
            yield path, read_log(Path(path))
        except AutotuneError as error:
            note(f"no warm start: {error.message}")
