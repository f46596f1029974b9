"""⑪ Default schedules: the program of each task without a record.

Drafts(plan's settings).of(dags) ─► candidates

In this order: of schedules that were measured for tasks which differ in extents alone the one that
is expected to be fastest; what the store knows of the very task; the structure that was measured or
chosen for a task which differs in extents alone, where it is as efficient (`search.alike`); the
best that the cost model finds in all structures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias

from autotune.cache import FileStore
from autotune.errors import AutotuneError
from autotune.measure.processes.parallel_map import OnProgress, parallel_map
from autotune.records import Log, MeasureRecord, ranked_records
from autotune.search.alike import Chosen, Known, adapted, carried, known_of
from autotune.search.cost.analytic import estimate_s
from autotune.search.defaults import candidate_key, decode, default_candidate, encode
from autotune.search.policy import Candidate
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.form import Skeleton, form_of

_MOST_ALIKE = 2
"""Schedules of other extents that are tried before all structures are."""
_MOST_NEIGHBOURS, _MOST_CARRIED = 3, 6
"""Tasks of other extents, and measured schedules of each, that are carried over."""
_NEARLY = 1.2
"""Seconds over the best of a task, within which its measured schedules are carried over."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate: as it was measured at other extents, with the structure of one of other extents,
    or of all that there are.
    """

    candidate: Candidate
    is_carried: bool = False
    is_adapted: bool = False


_Item: TypeAlias = tuple[ComputeDAG, tuple[Known, ...], tuple[Known, ...]]
"""A task, what was measured of tasks of its form, and what was chosen for some."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Chooser of default schedules; without a `store`, by the cost model alone.

    `log`: whose best schedules are tried for other extents than theirs.
    """

    target: Target
    n_threads: int
    max_error: float
    store: FileStore | None = None
    log: Log | None = None

    def of(self, dags: Sequence[ComputeDAG], tell: OnProgress) -> list[Candidate]:
        """One candidate per task. Raises NoValidSchedule for a task that has none."""
        return [draft.candidate for draft in self.drafts(dags, tell)]

    def drafts(self, dags: Sequence[ComputeDAG], tell: OnProgress) -> list[Draft]:
        """`of`, with the origins of the candidates."""
        forms = [form_of(dag) for dag in dags]
        measured = self._measured(forms)
        found: list[Draft | None] = [
            None if form.text in measured else self._kept(dag)
            for dag, form in zip(dags, forms, strict=True)
        ]
        missing = [n for n, draft in enumerate(found) if draft is None]
        items: list[_Item] = []
        for n in missing:
            near = _nearest(forms[n], measured.get(forms[n].text, ()))
            alike = (*(some[0] for some in near), *self._chosen_before(forms[n]))
            items.append((dags[n], tuple(chain(*near)), alike[:_MOST_ALIKE]))

        def tell_all(n_done: int, n_all: int) -> None:
            tell(len(dags) - n_all + n_done, len(dags))

        draft = partial(
            _draft, target=self.target, n_threads=self.n_threads, max_error=self.max_error
        )
        for n, made in zip(missing, parallel_map(draft, items, tell_all), strict=True):
            found[n] = made
            self._keep(dags[n], forms[n], made)
        return [one for one in found if one is not None]

    @property
    def _chosen(self) -> Chosen | None:
        if self.store is None:
            return None
        return Chosen(self.store, self.target, self.n_threads, self.max_error)

    def _key(self, dag: ComputeDAG) -> str:
        return candidate_key(dag, self.target, self.n_threads, self.max_error)

    def _kept(self, dag: ComputeDAG) -> Draft | None:
        content = self.store.get(self._key(dag)) if self.store else None
        if content is not None:
            with suppress(ValueError):  # of a format that this is not
                return Draft(decode(content))
        return None

    def _chosen_before(self, form: Skeleton) -> list[Known]:
        return self._chosen.of(form) if self._chosen else []

    def _keep(self, dag: ComputeDAG, form: Skeleton, draft: Draft) -> None:
        if self.store is None or self._chosen is None or draft.is_carried:
            return
        self._chosen.add(form, known_of(dag, draft.candidate))
        if not draft.is_adapted:
            self.store.put(self._key(dag), encode(draft.candidate))

    def _measured(self, forms: Sequence[Skeleton]) -> Mapping[str, list[list[Known]]]:
        """The best schedules of each task of the log of these forms, by form."""
        if self.log is None:
            return {}
        wanted = {form.text for form in forms}
        found: dict[str, list[list[Known]]] = {}
        machine = self.target.key, self.n_threads
        for (key, *where), records in ranked_records(self.log.records).items():
            dag = self.log.workloads[key].dag if key in self.log.workloads else None
            if dag is None or tuple(where) != machine or (text := form_of(dag).text) not in wanted:
                continue
            if known := [k for r in _nearly_best(records) for k in self._of_record(dag, r)]:
                found.setdefault(text, []).append(known)
        return found

    def _of_record(self, dag: ComputeDAG, record: MeasureRecord) -> list[Known]:
        with suppress(AutotuneError):  # steps of another version
            steps = record.steps
            expected_s = estimate_s(dag, steps, self.target, self.n_threads)
            candidate = Candidate(steps, record.sketch, expected_s)
            return [known_of(dag, candidate, record.result.latency_s)]
        return []


def _nearly_best(records: Sequence[MeasureRecord]) -> Sequence[MeasureRecord]:
    limit_s = _NEARLY * (records[0].result.latency_s or 0.0)
    return [r for r in records[:_MOST_CARRIED] if (r.result.latency_s or 0.0) <= limit_s]


def _nearest(form: Skeleton, tasks: Iterable[list[Known]]) -> list[list[Known]]:
    """Of measured tasks those whose extents are nearest."""
    return sorted(tasks, key=lambda known: form.distance(known[0].extents))[:_MOST_NEIGHBOURS]


def _draft(item: _Item, target: Target, n_threads: int, max_error: float) -> Draft:
    dag, measured, alike = item
    settings = target, n_threads, max_error
    if measured and (found := carried(dag, measured, *settings)) is not None:
        return Draft(found, is_carried=True)
    extents = form_of(dag).extents
    for known in alike:
        if known.extents == extents:
            return Draft(known.candidate, is_adapted=True)
        found = adapted(dag, known, *settings)
        if found is not None:
            return Draft(found, is_adapted=True)
    return Draft(default_candidate(dag, *settings))
