"""⑥ Tasks that differ in extents alone: the schedule of one is the first candidate for the other.

    adapted(dag, known, …) ─► Candidate        the structure of `known`, with tiles that fit `dag`

A picture of another size, a longer sentence, another batch: the loop structure that was chosen for
one is nearly always chosen for the other, and tiles of the same extents. So one structure is looked
at instead of all. The cost model has the last word: what it expects to be less efficient than the
known schedule is at its own extents is not taken.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from itertools import islice
from math import inf

from autotune.cache import FileStore, key_of, package_key
from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.search.defaults import bearable_policy, decode, encode
from autotune.search.policy import Candidate
from autotune.search.recognise import Recogniser
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.form import Skeleton, form_of

LESS_EFFICIENT = 1.05
"""Most seconds per operation or byte, over those that are expected of the known schedule."""
_MOST_TRIED = 16
_MOST_KNOWN = 32
"""Schedules of one form that are kept, the latest ones."""


@dataclass(frozen=True, slots=True)
class Known:
    """A schedule that was chosen for a task of these numbers and so much work."""

    extents: tuple[float, ...]
    n_flops: float
    n_bytes: float
    candidate: Candidate


def known_of(dag: ComputeDAG, candidate: Candidate) -> Known:
    """A schedule of `dag`, as others of its form may take it."""
    return Known(form_of(dag).extents, float(dag.flops), float(dag.n_bytes), candidate)


def adapted(
    dag: ComputeDAG, known: Known, target: Target, n_threads: int, max_error: float
) -> Candidate | None:
    """The known structure for `dag`; None where it is not as efficient, or has no program."""
    policy = bearable_policy(dag, target, n_threads, max_error, only=known.candidate.sketch)
    expected_s = (known.candidate.predicted_s or 0.0) * max(
        dag.flops / max(known.n_flops, 1.0), dag.n_bytes / max(known.n_bytes, 1.0)
    )
    for sketch in policy.sketches.values():
        row = Recogniser(sketch).nearest(known.candidate.steps_json)
        if row is None:
            return None
        for found in islice(policy.near(sketch.name, row), _MOST_TRIED):
            if (found.predicted_s or inf) > LESS_EFFICIENT * expected_s:
                return None
            with contextlib.suppress(ScheduleError):
                lower(dag, found.steps)
                return found
    return None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Schedules that were chosen, by the forms of their tasks, in a store.

    What is kept under one key grows: two processes that write it at once may lose what one of them
    has added, which costs a search.
    """

    store: FileStore
    target: Target
    n_threads: int
    max_error: float

    def of(self, form: Skeleton) -> list[Known]:
        """Schedules of tasks of this form, the nearest first."""
        content = self.store.get(self._key(form))
        found: list[Known] = []
        with contextlib.suppress(ValueError, TypeError):
            for extents, n_flops, n_bytes, text in json.loads(content or "[]"):
                found.append(Known(tuple(extents), n_flops, n_bytes, decode(text.encode())))
        return sorted(found, key=lambda known: form.distance(known.extents))

    def add(self, form: Skeleton, new: Known) -> None:
        """Keep one more schedule."""
        others = [known for known in self.of(form) if known.extents != new.extents]
        kept = [new, *others[: _MOST_KNOWN - 1]]
        rows = [
            [list(known.extents), known.n_flops, known.n_bytes, encode(known.candidate).decode()]
            for known in kept
        ]
        self.store.put(self._key(form), json.dumps(rows).encode())

    def _key(self, form: Skeleton) -> str:
        target = json.dumps(self.target.to_json())
        of = target, str(self.n_threads), repr(self.max_error)
        return key_of("alike", package_key(), *of, form.text)
