"""⑪ Default schedules: the program of each task without a record.

Drafts(plan's settings).of(dags) ─► candidates

In this order: of schedules that were measured for tasks which differ in extents alone the one that
is expected to be fastest; what the store knows of the very task; the structure that was measured or
chosen for a task which differs in extents alone, where it is as efficient (`search.alike`); the
best that the cost model finds, in all structures for the first task of a form, and for the others
of the network in those that are the best of the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from autotune.cache import FileStore, key_of
from autotune.codec import coded
from autotune.errors import AutotuneError
from autotune.measure.processes.cached_map import cached_map
from autotune.measure.processes.parallel_map import OnProgress, parallel_map
from autotune.records import Log, MeasureRecord, ranked_records
from autotune.search.alike import Chosen, Known, adapted, carried, known_of
from autotune.search.cost.analytic import estimate_s
from autotune.search.defaults import (
    Lead,
    candidate_key,
    decode,
    default_choice,
    encode,
)
from autotune.search.policy import Candidate
from autotune.search.sketch import generate_sketches
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.form import Skeleton, form_of, sums_of

_MOST_ALIKE = 2
"""Schedules of other extents that are tried before all structures are."""
_MOST_NEIGHBOURS, _MOST_CARRIED = 3, 6
"""Tasks of other extents, and measured schedules of each, that are carried over."""
_NEARLY = 1.2
"""Seconds over the best of a task, within which its measured schedules are carried over."""


_LEADS = coded(tuple[Lead, ...])


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate: as it was measured at other extents, with the structure of one of other extents,
    or of all that there are; then these are the best `structures`.
    """

    candidate: Candidate
    is_carried: bool = False
    is_adapted: bool = False
    structures: tuple[Lead, ...] = ()


@dataclass(frozen=True, slots=True)
class _Item:
    """A task, what was measured of tasks of its form, what was chosen for some, and the structures
    to look at: none for all.
    """

    dag: ComputeDAG
    measured: tuple[Known, ...] = ()
    alike: tuple[Known, ...] = ()
    among: tuple[Lead, ...] = ()

    def after(self, first: Draft | None) -> _Item:
        """The same with the structures of another task."""
        return self if first is None else replace(self, among=first.structures)


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
        follows, keys = self._follows(dags, forms)
        measured = self._measured(forms)
        found: dict[int, Draft] = {}
        for n, form in enumerate(forms):
            kept = None if form.text in measured else self._kept(keys[n])
            found |= {} if kept is None else {n: kept}
        n_before = len(found)

        def tell_all(n_done: int, n_all: int) -> None:
            tell(n_before + n_done, len(dags))

        missing = [n for n in range(len(dags)) if n not in found]
        items = {n: self._item(dags[n], forms[n], measured) for n in missing}
        while missing:
            todo = [n for n in missing if follows[n] == n or follows[n] in found]
            missing = [n for n in missing if n not in todo]
            n_before = len(found)
            chosen = [items[n].after(found.get(follows[n])) for n in todo]
            for n, one in zip(todo, parallel_map(self._draft, chosen, tell_all), strict=True):
                found[n] = one
                self._keep(dags[n], keys[n], forms[n], one)
        return [found[n] for n in range(len(dags))]

    def untuned(self, dag: ComputeDAG, dags: Sequence[ComputeDAG]) -> Candidate:
        """The default of one of the tasks of a network of which nothing is known."""
        forms = [form_of(one) for one in dags]
        follows, keys = self._follows(dags, forms)

        def sought(n: int) -> Draft:
            kept = self._kept(keys[n])
            if kept is None:
                first = None if follows[n] == n else sought(follows[n])
                kept = self._draft(_Item(dags[n]).after(first))
                self._keep_searched(keys[n], kept)
            return kept

        return sought(next(n for n, one in enumerate(dags) if one.key == dag.key)).candidate

    @property
    def _draft(self) -> Callable[[_Item], Draft]:
        return partial(
            _draft, target=self.target, n_threads=self.n_threads, max_error=self.max_error
        )

    def _item(
        self, dag: ComputeDAG, form: Skeleton, measured: Mapping[str, list[list[Known]]]
    ) -> _Item:
        near = _nearest(form, measured.get(form.text, ()))
        alike = (*(some[0] for some in near), *self._chosen_before(form))[:_MOST_ALIKE]
        return _Item(dag, tuple(chain(*near)), alike)

    @property
    def _chosen(self) -> Chosen | None:
        if self.store is None:
            return None
        return Chosen(self.store, self.target, self.n_threads, self.max_error)

    def _follows(
        self, dags: Sequence[ComputeDAG], forms: Sequence[Skeleton]
    ) -> tuple[list[int], list[str]]:
        """For each task the one whose structures it looks at, or itself; and digests of all that
        the candidates depend on.

        Of tasks with the same structures: that of its form which `_leaders` names; for this one,
        the same among those with its sums, whatever is done with these.
        """
        own = [candidate_key(d, self.target, self.n_threads, self.max_error) for d in dags]
        of_one, keys = partial(_structures, target=self.target), [key_of("names", k) for k in own]
        names = cached_map(of_one, dags, keys, self.store, str.encode, bytes.decode)
        firsts = _leaders(dags, [f.text + n for f, n in zip(forms, names, strict=True)])
        heads = sorted(set(firsts))
        sums = [sums_of(dags[n]) + names[n] for n in heads]
        chiefs = dict(zip(heads, _leaders([dags[n] for n in heads], sums), strict=True))
        follows = [heads[chiefs[n]] if first == n else first for n, first in enumerate(firsts)]
        return follows, _keys(own, follows)

    def _kept(self, key: str) -> Draft | None:
        content = self.store.get(key) if self.store else None
        if self.store is None or content is None:
            return None
        with suppress(ValueError):  # of a format that this is not
            structures = json.loads(self.store.get(key_of("structures", key)) or b"[]")
            return Draft(decode(content), structures=_LEADS.read(structures))
        return None

    def _chosen_before(self, form: Skeleton) -> list[Known]:
        return self._chosen.of(form) if self._chosen else []

    def _keep(self, dag: ComputeDAG, key: str, form: Skeleton, draft: Draft) -> None:
        if self.store is None or self._chosen is None or draft.is_carried:
            return
        self._chosen.add(form, known_of(dag, draft.candidate))
        if not draft.is_adapted:
            self._keep_searched(key, draft)

    def _keep_searched(self, key: str, draft: Draft) -> None:
        if self.store is not None:
            structures = json.dumps(_LEADS.write(draft.structures)).encode()
            self.store.put(key_of("structures", key), structures)
            self.store.put(key, encode(draft.candidate))

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


def _keys(own: Sequence[str], follows: Sequence[int]) -> list[str]:
    """Digests of all that the candidates depend on; `own`: of the tasks alone."""

    def key(n: int) -> str:
        return own[n] if follows[n] == n else key_of("follower", own[n], key(follows[n]))

    return [key(n) for n in range(len(own))]


def _leaders(dags: Sequence[ComputeDAG], texts: Sequence[str]) -> list[int]:
    """For each task the one of its text with the median of operations, which may be itself."""
    alike: dict[str, list[int]] = {}
    for n, text in enumerate(texts):
        alike.setdefault(text, []).append(n)
    middle = {
        text: sorted(those, key=lambda n: (dags[n].flops, dags[n].key))[len(those) // 2]
        for text, those in alike.items()
    }
    return [middle[text] for text in texts]


def _structures(dag: ComputeDAG, target: Target) -> str:
    """The names of all structures of a task."""
    return " ".join(sketch.name for sketch in generate_sketches(dag, target))


def _draft(item: _Item, target: Target, n_threads: int, max_error: float) -> Draft:
    dag, measured, alike = item.dag, item.measured, item.alike
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
    choice = default_choice(dag, *settings, item.among)
    return Draft(choice.candidate, structures=choice.structures)
