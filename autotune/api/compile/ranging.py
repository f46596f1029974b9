"""⑪ Further programs of tasks that follow a number: by their measurements, else by the cost model.

ranged(plan, networks, steps, best) ─► {task: (Ranged(…), …)}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from typing import TypeAlias

from autotune.api.compile.selection import CompilePlan
from autotune.cache import key_of
from autotune.errors import LogMismatch, ScheduleError
from autotune.graph.network import Network
from autotune.measure.cached_map import cached_map
from autotune.network.compile.sharing import forms
from autotune.network.compile.variants import tasks_of
from autotune.records import MeasureRecord, ranked_records
from autotune.schedule.ranged import Ranged
from autotune.schedule.steps import Steps, steps_from_json, steps_text, steps_to_json
from autotune.search.defaults import candidate_key
from autotune.search.ranges import MOST_OTHERS, other_programs
from autotune.target import Target
from autotune.te.at_numbers import numbers_of
from autotune.te.dag import ComputeDAG

_CLEARLY = 1.05
"""So much faster another program was where it is taken."""
_MOST_TRIED = 4
"""Programs for each number whose order of constants is looked at."""

_Item: TypeAlias = tuple[ComputeDAG, Steps]


def ranged(
    plan: CompilePlan,
    networks: Sequence[Network],
    steps: Mapping[str, Steps],
    best: Mapping[str, MeasureRecord],
) -> dict[str, tuple[Ranged, ...]]:
    """Of the tasks that have such programs, those beside `steps`."""
    tasks = {k: dag for k, dag in tasks_of(networks).items() if len(numbers_of(dag)) == 1}
    measured = [k for k in tasks if k in best and best[k].result.at]
    found = _by_measurement(plan, {k: tasks[k] for k in measured}, steps, best)
    items = [(dag, steps[k]) for k, dag in tasks.items() if k not in best]
    keys = [k for k in tasks if k not in best]
    find = partial(_by_estimate, target=plan.target, n_threads=plan.n_threads)
    names = [_key(item, plan) for item in items]
    others = cached_map(find, items, names, plan.store, _encode, _decode, lambda n, of: None)
    found |= dict(zip(keys, others, strict=True))
    return {key: programs for key, programs in found.items() if programs}


def _by_estimate(item: _Item, target: Target, n_threads: int) -> tuple[Ranged, ...]:
    return other_programs(*item, target, n_threads)


def _key(item: _Item, plan: CompilePlan) -> str:
    dag, steps = item
    task = candidate_key(dag, plan.target, plan.n_threads, plan.max_error)
    return key_of("ranged", task, steps_text(steps))


def _encode(programs: tuple[Ranged, ...]) -> bytes:
    return json.dumps([[steps_to_json(p.steps), p.number, p.ranges] for p in programs]).encode()


def _decode(content: bytes) -> tuple[Ranged, ...]:
    """Inverse of `_encode`. Raises ValueError for anything else."""
    try:
        return tuple(
            Ranged(steps_from_json(steps), number, tuple((a, b) for a, b in ranges))
            for steps, number, ranges in json.loads(content)
        )
    except (LogMismatch, TypeError) as error:
        raise ValueError("no programs") from error


# --- measured programs ------------------------------------------------------------------------


def _by_measurement(
    plan: CompilePlan,
    tasks: Mapping[str, ComputeDAG],
    steps: Mapping[str, Steps],
    best: Mapping[str, MeasureRecord],
) -> dict[str, tuple[Ranged, ...]]:
    """For each number that was timed the program that is clearly faster there, if one is."""
    known = ranked_records(plan.known.records) if plan.known and tasks else {}
    return {
        key: _fastest(dag, steps[key], best[key], known.get(_group(best[key]), ()))
        for key, dag in tasks.items()
    }


def _group(record: MeasureRecord) -> tuple[str, str, int]:
    return record.workload, record.target_key, record.n_threads


def _fastest(
    dag: ComputeDAG, steps: Steps, main: MeasureRecord, records: Sequence[MeasureRecord]
) -> tuple[Ranged, ...]:
    (name,) = numbers_of(dag)
    values = [at.numbers[name] for at in main.result.at if name in at.numbers]
    found: dict[Steps, list[tuple[int, int]]] = {}
    for k, where in enumerate(_ranges(values)):
        other = _faster_at(dag, steps, main, records, k)
        if other is not None:
            found.setdefault(other, []).append(where)
    programs = (Ranged(other, name, tuple(where)) for other, where in found.items())
    return tuple(islice(programs, MOST_OTHERS))


def _faster_at(
    dag: ComputeDAG, steps: Steps, main: MeasureRecord, records: Sequence[MeasureRecord], k: int
) -> Steps | None:
    """The fastest program at number `k` of those timed that reads constants as `steps` does."""
    point = main.result.at[k]
    timed = (
        (record.result.at[k].latency_s, record.sequence, record)
        for record in records
        if len(record.result.at) > k and record.result.at[k].numbers == point.numbers
    )
    faster = sorted(t for t in timed if t[0] * _CLEARLY < point.latency_s)
    for _, _, record in faster[:_MOST_TRIED]:
        with suppress(ScheduleError, LogMismatch):
            if forms(dag, record.steps) == forms(dag, steps):
                return record.steps
    return None


def _ranges(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The values that each of those timed stands for: up to the geometric mean with the next."""
    begin = 1
    for value, after in pairwise(values):
        end = max(value, math.isqrt(value * after))
        yield begin, end
        begin = end + 1
    yield from [(begin, values[-1])] if values else []
