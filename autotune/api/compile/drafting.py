"""⑪ Default schedules: the program of each task without a record.

Drafts(plan's settings).of(dags) ─► candidates

In this order: what the store knows of the very task; the structure that was measured or chosen for
a task which differs in extents alone, where it is as efficient (`search.alike`); the best that the
cost model finds in all structures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from autotune.cache import FileStore
from autotune.errors import AutotuneError, LogMismatch
from autotune.measure.parallel_map import OnProgress, parallel_map
from autotune.records import Log, MeasureRecord, best_for
from autotune.search.alike import Chosen, Known, adapted, known_of
from autotune.search.cost.analytic import estimate_s
from autotune.search.defaults import candidate_key, decode, default_candidate, encode
from autotune.search.policy import Candidate
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.form import Skeleton, form_of

_MOST_ALIKE = 2
"""Schedules of other extents that are tried before all structures are."""


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
        kept = [self._kept(dag) for dag in dags]
        missing = [n for n, candidate in enumerate(kept) if candidate is None]
        forms = [form_of(dags[n]) for n in missing]
        measured = self._measured(forms)
        items: list[tuple[ComputeDAG, tuple[Known, ...]]] = []
        for n, form in zip(missing, forms, strict=True):
            alike = (*measured.get(form.text, ()), *self._chosen_before(form))
            items.append((dags[n], alike[:_MOST_ALIKE]))

        def tell_all(n_done: int, n_all: int) -> None:
            tell(len(dags) - n_all + n_done, len(dags))

        draft = partial(
            _draft, target=self.target, n_threads=self.n_threads, max_error=self.max_error
        )
        found = parallel_map(draft, items, tell_all)
        for n, form, (candidate, is_adapted) in zip(missing, forms, found, strict=True):
            kept[n] = candidate
            self._keep(dags[n], form, candidate, is_adapted)
        return [candidate for candidate in kept if candidate is not None]

    @property
    def _chosen(self) -> Chosen | None:
        if self.store is None:
            return None
        return Chosen(self.store, self.target, self.n_threads, self.max_error)

    def _key(self, dag: ComputeDAG) -> str:
        return candidate_key(dag, self.target, self.n_threads, self.max_error)

    def _kept(self, dag: ComputeDAG) -> Candidate | None:
        content = self.store.get(self._key(dag)) if self.store else None
        if content is not None:
            with suppress(ValueError):  # of a format that this is not
                return decode(content)
        return None

    def _chosen_before(self, form: Skeleton) -> list[Known]:
        return self._chosen.of(form) if self._chosen else []

    def _keep(
        self, dag: ComputeDAG, form: Skeleton, candidate: Candidate, is_adapted: bool
    ) -> None:
        if self.store is None or self._chosen is None:
            return
        self._chosen.add(form, known_of(dag, candidate))
        if not is_adapted:
            self.store.put(self._key(dag), encode(candidate))

    def _measured(self, forms: Sequence[Skeleton]) -> Mapping[str, list[Known]]:
        """The best schedules of the log for tasks of these forms, by form, the nearest first."""
        if self.log is None:
            return {}
        wanted = {form.text: form for form in forms}
        found: dict[str, list[Known]] = {}
        with suppress(LogMismatch):  # none of this CPU
            for key, record in best_for(self.log, self.target.key, self.n_threads).items():
                dag = self.log.workloads[key].dag if key in self.log.workloads else None
                if dag is not None and (text := form_of(dag).text) in wanted:
                    found.setdefault(text, []).extend(self._of_record(dag, record))
        for text, known in found.items():
            known.sort(key=lambda k: wanted[text].distance(k.extents))
        return found

    def _of_record(self, dag: ComputeDAG, record: MeasureRecord) -> list[Known]:
        with suppress(AutotuneError):  # steps of another version
            steps = record.steps
            expected_s = estimate_s(dag, steps, self.target, self.n_threads)
            return [known_of(dag, Candidate(steps, record.sketch, expected_s))]
        return []


def _draft(
    item: tuple[ComputeDAG, tuple[Known, ...]], target: Target, n_threads: int, max_error: float
) -> tuple[Candidate, bool]:
    """A candidate, and whether it has the structure of one that was known."""
    dag, alike = item
    extents = form_of(dag).extents
    for known in alike:
        if known.extents == extents:
            return known.candidate, True
        found = adapted(dag, known, target, n_threads, max_error)
        if found is not None:
            return found, True
    return default_candidate(dag, target, n_threads, max_error), False
