"""⑧ The records of a task that a store keeps: enough to compile from, and to learn from.

The fastest schedules and the default win; the ranker learns from a few of all speeds; and a
schedule that crashed or was wrong once must not win elsewhere. What was sampled is sampled to
itself, so stores may be merged in any order and any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.records.distill import UNSAFE, pooled, ranked_records
from autotune.records.record import MeasureRecord

_N_BEST = 8
_N_OTHERS = 24
"""Of those that were slower, evenly over their ranks."""
_N_FAILED = 8
_N_RUNS = 4
"""Measurements of one schedule in several runs."""


def once(records: Iterable[MeasureRecord]) -> list[MeasureRecord]:
    """One record of each schedule and run: of a fault, else the one with the most repeats."""
    found: dict[tuple[str, str, str], MeasureRecord] = {}
    for record in records:
        slot = record.run_id, record.workload, record.steps_json
        known = found.get(slot)
        if known is None or _told(record) > _told(known):
            found[slot] = record
    return list(found.values())


def _told(record: MeasureRecord) -> tuple[bool, int]:
    return record.result.status in UNSAFE, len(record.result.times_s)


def pooled_by_run(records: Iterable[MeasureRecord]) -> list[MeasureRecord]:
    """One record of each schedule and run of a log, with the repeats of all; a failure stays.

    What won in the network of the log is of no use to others.
    """
    runs: dict[tuple[str, str, str], list[MeasureRecord]] = {}
    for record in (replace(r, in_network=None) for r in records if r.is_alone):
        runs.setdefault((record.run_id, record.workload, record.steps_json), []).append(record)
    return [_pooled(found) for found in runs.values()]


def _pooled(records: Sequence[MeasureRecord]) -> MeasureRecord:
    unsafe = [r for r in records if r.result.status in UNSAFE]
    timed = [r for r in records if r.result.ok]
    return unsafe[-1] if unsafe else pooled(timed) if timed else records[-1]


def sampled(records: Iterable[MeasureRecord]) -> list[MeasureRecord]:
    """The records of one task, CPU and number of threads that a store keeps."""
    by_steps: dict[str, list[MeasureRecord]] = {}
    known = once(records)
    for record in known:
        by_steps.setdefault(record.steps_json, []).append(record)
    ranked = [r.steps_json for found in ranked_records(known).values() for r in found]
    others = ranked[_N_BEST:]
    n = min(len(others), _N_OTHERS)
    spread = [others[i * (len(others) - 1) // max(1, n - 1)] for i in range(n)]
    defaults = [s for s, found in by_steps.items() if any(_is_default(r) for r in found)]
    failed = sorted(by_steps.keys() - set(ranked))[:_N_FAILED]
    kept = dict.fromkeys([*ranked[:_N_BEST], *spread, *defaults, *failed])
    return [r for steps in kept for r in _longest(by_steps[steps])]


def _is_default(record: MeasureRecord) -> bool:
    return record.default_estimate_s is not None


def _longest(records: Sequence[MeasureRecord]) -> list[MeasureRecord]:
    """Of too many runs of a schedule those with failures, then with the most repeats."""
    return sorted(records, key=lambda r: (*_told(r), r.run_id), reverse=True)[:_N_RUNS]
