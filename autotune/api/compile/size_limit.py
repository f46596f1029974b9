"""⑪ Programs for an artifact of limited size: sums as they are defined, where that saves most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.api.compile.selection import CompilePlan, drafted
from autotune.errors import UsageError
from autotune.graph.network import Network
from autotune.network.compile.sizes import Smaller, constant_bytes, within
from autotune.network.compile.variants import tasks_of
from autotune.records import MeasureRecord, ranked_records
from autotune.schedule.steps import Algorithm, Steps
from autotune.search.policy import Candidate
from autotune.units import counted_of, format_bytes


def fitting(
    networks: Sequence[Network],
    steps: Mapping[str, Steps],
    plan: CompilePlan,
    best: Mapping[str, MeasureRecord],
) -> dict[str, Steps]:
    """`steps`, with others for tasks that transform their weights, as far as `plan.max_bytes` asks.

    The others are the fastest of the log that transform nothing, else what the analytic cost model
    chooses. Raises UsageError where these are too large, too.
    """
    if plan.max_bytes is None or constant_bytes(networks, steps) <= plan.max_bytes:
        return dict(steps)
    rewritten = {key for key in steps if _is_rewritten(steps[key])}
    tasks = {key: dag for key, dag in tasks_of(networks).items() if key in rewritten}
    exact = drafted(replace(plan, max_error=0.0, drafts={}, carried=set()), tasks)
    smaller = {
        key: Smaller(d.steps, _difference(d, plan.drafts.get(key))) for key, d in exact.items()
    }
    smaller |= _measured(plan, {key: best[key] for key in rewritten & best.keys()})
    chosen = within(networks, steps, smaller, plan.max_bytes)
    n_bytes = constant_bytes(networks, chosen)
    if n_bytes > plan.max_bytes:
        raise UsageError(
            f"the weights take {format_bytes(n_bytes)} in the smallest form that is known,"
            f" and `max_size` allows {format_bytes(plan.max_bytes)}",
            "allow more, or leave it out",
        )
    n_changed = sum(chosen[key] != steps[key] for key in chosen)
    taken = counted_of(n_changed, len(steps), "task", "take")
    plan.note(f"{taken} a program with smaller weights")
    return chosen


def _difference(exact: Candidate, first: Candidate | None) -> float:
    """Extra seconds of `exact` by the cost model."""
    return (exact.predicted_s or 0.0) - (first.predicted_s or 0.0 if first else 0.0)


def _is_rewritten(steps: Steps) -> bool:
    return any(isinstance(step, Algorithm) for step in steps)


def _measured(plan: CompilePlan, best: Mapping[str, MeasureRecord]) -> dict[str, Smaller]:
    """The fastest measured program of each task that sums up as is defined, where there is one."""
    found: dict[str, Smaller] = {}
    ranked = ranked_records(plan.known.records) if plan.known else {}
    for key, first in best.items():
        records = ranked.get((key, plan.target.key, plan.n_threads), ())
        for record in (r for r in records if not _is_rewritten(r.steps)):
            longer_s = (record.result.latency_s or 0.0) - (first.result.latency_s or 0.0)
            found[key] = Smaller(record.steps, longer_s)
            break
    return found
