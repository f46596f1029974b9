"""⑪ Default schedules: the program of each task without a record.

Drafts(plan's settings).of(dags) ─► candidates

In this order: of schedules that were measured for tasks which differ in extents alone the one that
is expected to be fastest; what the store knows of the very task; the structure that was measured or
chosen for a task which differs in extents alone, where it is as efficient (`search.alike`); of such
a task of this very model the best of the few structures that were best there; the best that the
cost model finds in all structures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

from autotune.cache import FileStore
from autotune.errors import AutotuneError
from autotune.measure.parallel_map import OnProgress, parallel_map
from autotune.records import Log, MeasureRecord, ranked_records
from autotune.search.alike import Chosen, Known, adapted, carried, chosen_alike, known_of
from autotune.search.cost.analytic import estimate_s
from autotune.search.defaults import candidate_key, decode, default_choice, encode
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
_Choice: TypeAlias = tuple[Known, Sequence[Candidate]]
"""A schedule that was chosen just now, and the structures that were best beside it."""
_Settings: TypeAlias = tuple[Target, int, float]
"""Target, number of threads, and the largest error of an algorithm."""


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
            None if form.text in measured else self._kept(dag, form)
            for dag, form in zip(dags, forms, strict=True)
        ]
        missing = [n for n, draft in enumerate(found) if draft is None]
        items: dict[int, _Item] = {}
        for n in missing:
            near = _nearest(forms[n], measured.get(forms[n].text, ()))
            alike = (*(some[0] for some in near), *self._chosen_before(forms[n]))
            items[n] = dags[n], tuple(chain(*near)), alike[:_MOST_ALIKE]
        groups: dict[str, list[int]] = {}
        for n in missing:
            of = forms[n].text if self.store else str(n)
            groups.setdefault(of, []).append(n)
        ordered = sorted(groups.values(), key=len, reverse=True)  # what takes long begins first

        def tell_all(n_done: int, n_all: int) -> None:
            tell(len(dags) - len(missing) * (n_all - n_done) // n_all, len(dags))

        settings = self.target, self.n_threads, self.max_error
        draft = partial(_drafts_of_form, settings=settings)
        made = parallel_map(draft, [[items[n] for n in group] for group in ordered], tell_all)
        for n, one in sorted(zip(chain(*ordered), chain(*made), strict=True), key=itemgetter(0)):
            found[n] = one
            self._keep(dags[n], forms[n], one)
        return [one for one in found if one is not None]

    @property
    def _chosen(self) -> Chosen | None:
        if self.store is None:
            return None
        return Chosen(self.store, self.target, self.n_threads, self.max_error)

    def _key(self, dag: ComputeDAG) -> str:
        return candidate_key(dag, self.target, self.n_threads, self.max_error)

    def _kept(self, dag: ComputeDAG, form: Skeleton) -> Draft | None:
        content = self.store.get(self._key(dag)) if self.store else None
        if content is not None:
            with suppress(ValueError):  # of a format that this is not
                return Draft(decode(content))
        same = (k for k in self._chosen_before(form) if k.extents == form.extents)
        return next((Draft(known.candidate, is_adapted=True) for known in same), None)

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


def _drafts_of_form(items: Sequence[_Item], settings: _Settings) -> list[Draft]:
    """Drafts of tasks of one form: what was found for the first ones helps the next."""
    chosen: list[_Choice] = []
    return [_draft(item, chosen, settings) for item in items]


def _draft(item: _Item, chosen: list[_Choice], settings: _Settings) -> Draft:
    """`chosen`: what was found by all structures for other tasks of this form; is added to."""
    dag, measured, alike = item
    if measured and (found := carried(dag, measured, *settings)) is not None:
        return Draft(found, is_carried=True)
    for known in alike:
        found = adapted(dag, known, *settings)
        if found is not None:
            return Draft(found, is_adapted=True)
    form = form_of(dag)
    made: list[Candidate] | None = None
    if chosen:
        nearest, structures = min(chosen, key=lambda one: form.distance(one[0].extents))
        made = chosen_alike(dag, nearest, structures, *settings)
    is_adapted = made is not None
    made = made or default_choice(dag, *settings)
    chosen.append((known_of(dag, made[0]), made))
    return Draft(made[0], is_adapted=is_adapted)
