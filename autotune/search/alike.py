"""⑥ Tasks that differ in extents alone: the schedule of one is the first candidate for the other.

    adapted(dag, known, …) ─► Candidate        the structure of `known`, with tiles that fit `dag`
    carried(dag, measured, …) ─► Candidate     of schedules that were measured at other extents, the
                                               one that is expected to be the fastest

A picture of another size, a longer sentence, another batch: the loop structure that was chosen for
one is nearly always chosen for the other, and tiles of the same extents. So one structure is looked
at instead of all. The cost model has the last word: what it expects to be less efficient than the
known schedule is at its own extents is not taken.

Where schedules were measured at a few extents, they are a rule for all: each of the best is carried
over as it is, what the cost model expects of it is corrected by what it misjudged where the
schedule was measured, the nearer extents counting more, and the lowest wins. So a length that was
not tuned costs no trial (after Sandwich, arXiv 2507.18454, which composes programs of any length
from micro-kernels that were tuned for a few).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, log2

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
_NEAR = 0.1
"""Distance within which extents count as near: one dimension that is 7 % longer."""
_MOST_KNOWN = 32
"""Schedules of one form that are kept, the latest ones."""


@dataclass(frozen=True, slots=True)
class Known:
    """A schedule that was chosen for a task of these numbers and so much work.

    `misjudged`: measured seconds over those that the cost model expected; 1 where none were
    measured.
    """

    extents: tuple[float, ...]
    n_flops: float
    n_bytes: float
    candidate: Candidate
    misjudged: float = 1.0

    def expected_s(self, dag: ComputeDAG) -> float:
        """Seconds of another task of this form at the same rate, by the cost model."""
        work = max(dag.flops / max(self.n_flops, 1.0), dag.n_bytes / max(self.n_bytes, 1.0))
        return (self.candidate.predicted_s or 0.0) * work


def known_of(dag: ComputeDAG, candidate: Candidate, latency_s: float | None = None) -> Known:
    """A schedule of `dag`, as others of its form may take it; `latency_s`: as measured."""
    misjudged = latency_s / candidate.predicted_s if latency_s and candidate.predicted_s else 1.0
    extents = form_of(dag).extents
    return Known(extents, float(dag.flops), float(dag.n_bytes), candidate, misjudged)


def adapted(
    dag: ComputeDAG, known: Known, target: Target, n_threads: int, max_error: float
) -> Candidate | None:
    """The known structure for `dag`; None where it is not as efficient, or has no program."""
    policy = bearable_policy(dag, target, n_threads, max_error, only=known.candidate.sketch)
    expected_s = known.expected_s(dag)
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


@dataclass(slots=True)
class _Carried:
    """A candidate, and what the cost model misjudged of it at other extents."""

    candidate: Candidate
    is_efficient: bool = False
    weights: float = 0.0
    log2_misjudged: float = 0.0

    def add(self, known: Known, dag: ComputeDAG, distance: float) -> None:
        """Take a measurement into account, at a distance as of `Skeleton.distance`."""
        weight = 1 / (_NEAR + distance)
        self.weights += weight
        self.log2_misjudged += weight * log2(known.misjudged)
        limit_s = LESS_EFFICIENT * known.expected_s(dag)
        self.is_efficient |= (self.candidate.predicted_s or inf) <= limit_s

    @property
    def expected_s(self) -> float:
        """Corrected seconds."""
        return (self.candidate.predicted_s or inf) * 2 ** (self.log2_misjudged / self.weights)


def carried(
    dag: ComputeDAG, measured: Sequence[Known], target: Target, n_threads: int, max_error: float
) -> Candidate | None:
    """Of schedules that were measured for tasks of its form, the one for `dag`; see the module.

    None where none has a program that is as efficient as it was at its own extents.
    """
    form = form_of(dag)
    policy = bearable_policy(dag, target, n_threads, max_error)
    recognisers = {name: Recogniser(sketch) for name, sketch in policy.sketches.items()}
    found: dict[str, _Carried] = {}
    for known in measured:
        recogniser = recognisers.get(known.candidate.sketch)
        row = recogniser.nearest(known.candidate.steps_json) if recogniser else None
        made = policy.at(known.candidate.sketch, row) if row is not None else None
        if made is not None:
            one = found.setdefault(made.steps_json, _Carried(made))
            one.add(known, dag, form.distance(known.extents))
    efficient = (one for one in found.values() if one.is_efficient)
    for one in sorted(efficient, key=lambda one: one.expected_s):
        with contextlib.suppress(ScheduleError):
            lower(dag, one.candidate.steps)
            return one.candidate
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
