"""⑪ Earlier logs and a store become a trained ranker and candidates to measure first.

of the very task       its best schedules
of a task of its form  their structure, with tiles that fit
of any other           what the cost model misjudged; of other CPUs where none is of this one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from autotune.api.request import Note
from autotune.errors import AutotuneError
from autotune.records import Header, Log, MeasureRecord, read_log
from autotune.records.store import EntryName, RecordStore, form_digest, joined, store_to_read
from autotune.search.alike import adapted, known_of
from autotune.search.cost.analytic import estimate_s
from autotune.search.cost.ranker import OTHER_CPU, OTHER_TASK, Ranker
from autotune.search.policy import Candidate
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.form import Skeleton, form_of
from autotune.tuner.warm import first_candidates, teach, usable_records
from autotune.units import counted

_MOST_TASKS = 192
"""Tasks of a store that the ranker learns from: a second or two."""
_MOST_ALIKE = 3
"""Schedules of tasks of the same form that are measured first."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Numbers of measurements and tasks learnt from, and candidates to measure first, by task.

    `n_alike`: tasks whose first candidates are those of tasks of their form. `cpus`: other CPUs
    whose measurements were learnt from.
    """

    n_records: int = 0
    n_tasks: int = 0
    first: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    n_alike: int = 0
    cpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        alike = f", {self.n_alike} of the form of some" if self.n_alike else ""
        others = f" (on {', '.join(self.cpus)})" if self.cpus else ""
        known = f"{counted(self.n_records, 'measurement')} of {counted(self.n_tasks, 'task')}"
        n_here = len(self.first) - self.n_alike
        return f"warm start: {known}{others}, {n_here} of these tasks in this model{alike}"


@dataclass(slots=True)
class _Learnt:
    """Measurements by task and CPU, and the computations of the tasks."""

    records: dict[tuple[str, str], list[MeasureRecord]] = field(default_factory=dict)
    dags: dict[tuple[str, str], ComputeDAG] = field(default_factory=dict)

    def add(self, log: Log, target: Target, records: Iterable[MeasureRecord]) -> None:
        """Records of one log on one CPU; those with other names than before are left out."""
        for record in records:
            slot, dag = (record.workload, target.key), log.workloads[record.workload].dag
            if self.dags.setdefault(slot, dag) == dag:
                self.records.setdefault(slot, []).append(record)


def warm_start(
    paths: Iterable[str],
    header: Header,
    max_error: float,
    seen: Log,
    ranker: Ranker,
    note: Note,
    store: str = "",
) -> WarmStart:
    """Train `ranker` on the logs at `paths` and on the store; what runs of `seen` measured is left
    to its replay.

    Logs that are gone, or of another CPU or thread count, are left out, and that is said; so is a
    store that cannot be read.
    """
    runs = {h.run_id for h in seen.headers}
    learnt, targets = _Learnt(), {header.target.key: header.target}
    for path, log in _read(paths, note):
        found = usable_records(log.within(max_error), header.target, header.n_threads)
        if not found:
            note(
                f"{path}: nothing of this CPU with {counted(header.n_threads, 'thread')}; not used"
            )
        learnt.add(log, header.target, (r for r in found if r.run_id not in runs))
    dags = {key: seen.workloads[key].dag for key, _ in header.tasks}
    alike: dict[str, list[Candidate]] = {}
    for log, target in _stored(store, dags, header, note):
        targets[target.key] = target
        judged = log.within(max_error)
        found = usable_records(judged, target, judged.records[0].n_threads)
        learnt.add(judged, target, (r for r in found if r.run_id not in runs))
    n_learnt = {
        slot: teach(
            ranker, learnt.dags[slot], records, targets[slot[1]], _weight(slot, header, dags)
        )
        for slot, records in learnt.records.items()
    }
    ranker.train()
    ours = {
        key: (learnt.dags[key, cpu], records)
        for (key, cpu), records in learnt.records.items()
        if cpu == header.target.key
    }
    first = {
        key: first_candidates(ours[key][1])
        for key, dag in dags.items()
        if key in ours and ours[key][0] == dag
    }
    if store:
        alike = _alike({k: d for k, d in dags.items() if k not in first}, ours, header, max_error)
    others = (targets[cpu].cpu for _, cpu in n_learnt if cpu != header.target.key)
    return WarmStart(
        sum(n_learnt.values()),
        sum(n > 0 for n in n_learnt.values()),
        {**first, **alike},
        len(alike),
        tuple(dict.fromkeys(others)),
    )


def _weight(slot: tuple[str, str], header: Header, dags: Mapping[str, ComputeDAG]) -> float:
    """How much the ranker heeds measurements of a task on a CPU."""
    key, cpu = slot
    if cpu != header.target.key:
        return OTHER_CPU
    return 1.0 if key in dags else OTHER_TASK


def _alike(
    dags: Mapping[str, ComputeDAG],
    known: Mapping[str, tuple[ComputeDAG, Sequence[MeasureRecord]]],
    header: Header,
    max_error: float,
) -> dict[str, list[Candidate]]:
    """Candidates of tasks whose form others have: the best schedules of the nearest, adapted."""
    by_form: dict[str, list[tuple[Skeleton, str]]] = {}
    for key, (dag, _) in known.items():
        by_form.setdefault(form_of(dag).text, []).append((form_of(dag), key))
    found: dict[str, list[Candidate]] = {}
    for key, dag in dags.items():
        form = form_of(dag)
        near = sorted(by_form.get(form.text, ()), key=lambda n: form.distance(n[0].extents))
        made = (_adapted(dag, known[other], header, max_error) for _, other in near[:_MOST_ALIKE])
        candidates = {c.steps_json: c for c in made if c is not None}
        if candidates:
            found[key] = list(candidates.values())
    return found


def _adapted(
    dag: ComputeDAG,
    known: tuple[ComputeDAG, Sequence[MeasureRecord]],
    header: Header,
    max_error: float,
) -> Candidate | None:
    """The best schedule of a task of the same form for `dag`; None where it does not fit."""
    other, records = known
    target, n_threads = header.target, header.n_threads
    for best in islice(first_candidates(records), 1):
        try:
            expected_s = estimate_s(other, best.steps, target, n_threads)
            candidate = Candidate(best.steps, best.sketch, expected_s)
            return adapted(dag, known_of(other, candidate), target, n_threads, max_error)
        except AutotuneError:  # of a space that this version does not have
            continue
    return None


def _stored(
    store: str, dags: Mapping[str, ComputeDAG], header: Header, note: Note
) -> Iterator[tuple[Log, Target]]:
    """What a store has of tasks that are the same, of the same form, or of any; on this CPU, or on
    others where nothing is of this one.
    """
    try:
        found = store_to_read(store) if store else None
        entries = found.read(set(_chosen(found, dags, header)).__contains__) if found else None
    except AutotuneError as error:
        note(f"no warm start: {error.message}")
        return
    if entries is None:
        return
    if entries.damaged:
        damaged = counted(len(entries.damaged), "entry")
        note(f"{damaged} of {store} damaged: see autotune store verify")
    by_task: dict[tuple[str, str], list[Log]] = {}
    for name, log in entries.logs.items():
        by_task.setdefault((name.group.target_key, name.group.task), []).append(log)
    for logs in by_task.values():
        log = joined(logs)
        yield log, log.header.target


def _chosen(
    store: RecordStore, dags: Mapping[str, ComputeDAG], header: Header
) -> Iterator[EntryName]:
    """Entries that are worth reading, those that tell most first."""
    forms = {form_digest(form_of(dag).text) for dag in dags.values()}
    names = store.names()
    here = [n for n in names if n.group.target_key == header.target.key]
    usable = [n for n in here if n.group.n_threads == header.n_threads] or here or names

    def order(name: EntryName) -> tuple[bool, bool, bool, str]:
        of = name.group
        return of.task not in dags, of.form not in forms, of.n_threads != header.n_threads, of.task

    tasks: set[str] = set()
    for name in sorted(usable, key=order):
        tasks.add(name.group.task)
        if len(tasks) > _MOST_TASKS:
            return
        yield name


def _read(paths: Iterable[str], note: Note) -> Iterator[tuple[str, Log]]:
    for path in paths:
        try:
            yield path, read_log(Path(path))
        except AutotuneError as error:
            note(f"no warm start: {error.message}")
