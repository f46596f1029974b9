"""⑥ Default schedules: chosen by the analytical cost model alone, for tasks without a record."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from autotune.cache import key_of, package_key
from autotune.errors import LogMismatch, NoValidSchedule, ScheduleError
from autotune.loopir.lower import lower
from autotune.schedule.steps import Steps, steps_from_json, steps_to_json
from autotune.search.cost.ranker import Ranker
from autotune.search.policy import Candidate, Pool, SketchPolicy, algorithm_error
from autotune.search.space import ARITHMETIC, Rows, Sketch
from autotune.target import Target
from autotune.te.codec import dag_to_json
from autotune.te.dag import ComputeDAG

_WIDTHS, _CHILDREN = (4, 2, 1, 1), 12
"""Structures that evolve in each generation, and children of each parent. All structures in the
first generation and up to six in six more, with six children, find programs of five networks that
the cost model likes 0.1 to 0.3 % more, in 1.8 times the CPU time: half of the time of a population
does not depend on the number of its rows."""
N_STRUCTURES, _WIDTHS_AMONG = 3, (1, 1)
"""Structures that a task takes from another, beside those of other arithmetic, and how many of them
evolve (decisions 0199 and 0210)."""
_LEADING = 64
"""Rows of such a structure that the search of another task begins with."""
_WIDE = (64, 12, 12, 8, 8, 8)
"""The same where alternatives of any structure are asked for."""
_MOST = 64
"""Candidates that are lowered before a task counts as one without a schedule."""


def default_steps(
    dag: ComputeDAG, target: Target, n_threads: int, max_error: float = math.inf
) -> Steps:
    """The schedule that the analytical cost model likes best; no measurement.

    Its error is not measured: where errors of an algorithm exceed `max_error`, sums are direct.
    Raises NoValidSchedule when no sketch of the task has a valid row.
    """
    return default_candidate(dag, target, n_threads, max_error).steps


def default_candidate(
    dag: ComputeDAG, target: Target, n_threads: int, max_error: float = math.inf
) -> Candidate:
    """`default_steps` with the name of its structure and the estimate of the cost model."""
    return default_choice(dag, target, n_threads, max_error).candidate


@dataclass(frozen=True, slots=True)
class Lead:
    """A structure of a task that the cost model likes, and its best rows there.

    `values`: those of `holes`, of one row after the other.
    """

    sketch: str
    holes: tuple[str, ...] = ()
    values: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(sketch: Sketch, rows: Rows) -> Lead:
        """The first of the best `rows`."""
        columns = sketch.values(rows[:_LEADING])
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return Lead(sketch.name, tuple(columns), tuple(values))

    def rows(self, sketch: Sketch) -> Rows:
        """The nearest rows of the structure in another task."""
        columns = zip(*self.values, strict=True)
        values = {n: np.array(c) for n, c in zip(self.holes, columns, strict=False)}
        return sketch.nearest(values, max(len(self.values), 1))


@dataclass(frozen=True, slots=True)
class Choice:
    """A default, and the structures of its task that the cost model likes best, in order."""

    candidate: Candidate
    structures: tuple[Lead, ...]


def default_choice(
    dag: ComputeDAG,
    target: Target,
    n_threads: int,
    max_error: float = math.inf,
    among: Collection[Lead] = (),
) -> Choice:
    """`default_candidate`; of those structures alone that are `among`, where the task has any.

    Then they are those of a task of the same form, whose best rows the search begins with. Raises
    NoValidSchedule as `default_steps`.
    """
    policy = bearable_policy(dag, target, n_threads, max_error)
    leads = {lead.sketch: lead for lead in among if lead.sketch in policy.sketches}
    begun = {name: lead.rows(policy.sketches[name]) for name, lead in leads.items()}
    if leads:
        policy.sketches = {n: s for n, s in policy.sketches.items() if n in leads}
    pools = policy.unmeasured(_WIDTHS_AMONG if leads else _WIDTHS, False, _CHILDREN, begun)
    for candidate in islice(policy.best_of(pools), _MOST):
        with contextlib.suppress(ScheduleError):
            lower(dag, candidate.steps)  # the analysis estimates buffers, lowering computes them
            return Choice(candidate, _leads(policy, pools))
    if leads:
        return default_choice(dag, target, n_threads, max_error)
    raise NoValidSchedule(
        f"no schedule fits task {dag.key}", "report the output of `autotune tasks --dag`"
    )


def _leads(policy: SketchPolicy, pools: Mapping[str, Pool]) -> tuple[Lead, ...]:
    """The best structures, and the best of each kind of arithmetic."""
    best = sorted((float(scores[0]), name) for name, (_, scores, _) in pools.items())
    names = dict.fromkeys(name for _, name in best[:N_STRUCTURES])
    kinds = {policy.sketches[name].tags & ARITHMETIC for name in names}
    for _, name in best[N_STRUCTURES:]:
        kind = policy.sketches[name].tags & ARITHMETIC
        if kind not in kinds:
            kinds.add(kind)
            names[name] = None
    return tuple(Lead.of(policy.sketches[name], pools[name][0]) for name in names)


def candidate_key(dag: ComputeDAG, target: Target, n_threads: int, max_error: float) -> str:
    """A digest of all that `default_candidate` depends on."""
    text = json.dumps(dag_to_json(dag), sort_keys=True)
    return key_of(
        "default",
        package_key(),
        text,
        json.dumps(target.to_json()),
        str(n_threads),
        repr(max_error),
    )


def encode(candidate: Candidate) -> bytes:
    """A candidate as a store keeps it."""
    fields = [steps_to_json(candidate.steps), candidate.sketch, candidate.predicted_s]
    return json.dumps(fields).encode()


def decode(content: bytes) -> Candidate:
    """Inverse of `encode`. Raises ValueError for anything else."""
    try:
        steps, sketch, predicted_s = json.loads(content)
        return Candidate(steps_from_json(steps), str(sketch), predicted_s)
    except (LogMismatch, TypeError) as error:
        raise ValueError("not a schedule") from error


def default_alternatives(
    dag: ComputeDAG, target: Target, n_threads: int, max_error: float, n: int, factor: float
) -> list[Candidate]:
    """Up to `n` candidates that are estimated at most at `factor` times the default's seconds.

    Some may have no program: lowering knows limits that the cost model does not.
    """
    found = bearable_policy(dag, target, n_threads, max_error).unmeasured_best(
        _WIDE, factor, one_per_order=True
    )
    return sorted(found, key=lambda c: c.predicted_s or math.inf)[:n]


def bearable_policy(
    dag: ComputeDAG, target: Target, n_threads: int, max_error: float, only: str | None = None
) -> SketchPolicy:
    """A policy of the structures whose errors are within `max_error`; `only`: the one called so."""
    policy = SketchPolicy(dag, target, n_threads, Ranker(0), np.random.default_rng(0))
    policy.sketches = {
        name: sketch
        for name, sketch in policy.sketches.items()
        if algorithm_error(sketch) <= max_error and only in (None, name)
    }
    return policy
