"""⑧ From measurements to decisions: the best valid record of every task.

Repeated measurements of one schedule are pooled before schedules are compared, so that a winner
was not merely lucky once. What won in the compiled network is the best of what was known then,
however fast others are alone (`chosen_of`). Records of different targets or thread counts never
compete.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from autotune.errors import LogMismatch
from autotune.records.reader import read_log
from autotune.records.record import End, Header, Log, MeasureRecord, Workload
from autotune.result import AtNumbers, MeasureStatus

UNSAFE = (MeasureStatus.WRONG_ANSWER, MeasureStatus.RUN_CRASH, MeasureStatus.INACCURATE)
"""Statuses after which a schedule is not chosen, whatever it did at other times."""

_DISTURBED = 1.3

Group: TypeAlias = tuple[str, str, int]  # workload key, target key, threads


def best_records(records: Iterable[MeasureRecord]) -> dict[Group, MeasureRecord]:
    """The fastest record per workload, target and thread count, by pooled median latency.

    Where the default program is as fast within the noise of both, that one; else one of fewer
    steps that is. What won in the network comes before: see `chosen_of`.
    """
    best = [chosen_of(ranked) for ranked in ranked_records(records).values()]
    best.sort(key=lambda r: r.sequence)
    return {_group(r): r for r in best}


def ranked_records(records: Iterable[MeasureRecord]) -> dict[Group, list[MeasureRecord]]:
    """One record per valid schedule, the lowest pooled median latency first.

    Its result holds the repeats of every measurement of that schedule. A schedule that once crashed
    or gave wrong or inaccurate numbers is out, whatever it did at other times.
    """
    pools: dict[tuple[Group, str], list[MeasureRecord]] = {}
    unsafe: set[tuple[Group, str]] = set()
    for record in records:
        slot = (_group(record), record.steps_json)
        if record.result.status in UNSAFE:
            unsafe.add(slot)
        if record.result.ok and record.result.latency_s:
            pools.setdefault(slot, []).append(record)
    found: dict[Group, list[MeasureRecord]] = {}
    for slot, pool in pools.items():
        if slot not in unsafe:
            found.setdefault(slot[0], []).append(pooled(pool))
    return {group: sorted(ranked, key=_order) for group, ranked in found.items()}


def best_for(log: Log, target_key: str, n_threads: int) -> dict[str, MeasureRecord]:
    """Best record per workload key on one target.

    A workload that was measured with other thread counts only takes the nearest of these.
    Raises LogMismatch where the log holds no valid record of this target.
    """
    found: dict[str, MeasureRecord] = {}
    for (workload, target, threads), record in best_records(log.records).items():
        if target != target_key:
            continue
        known = found.get(workload)
        if known is None or abs(threads - n_threads) < abs(known.n_threads - n_threads):
            found[workload] = record
    if not found:
        raise _nothing_usable(log, target_key)
    return found


def distill(paths: Sequence[Path]) -> Log:
    """One self-contained log with only the best record per workload, target and thread count.

    Every log is judged by the limit on errors of its last run.
    Raises LogMismatch where no file holds a valid record.
    """
    logs = [log.within(log.max_error) for log in map(read_log, paths)]
    workloads = _workloads(logs)
    best = best_records(record for log in logs for record in _readable(log, workloads))
    if not best:
        raise LogMismatch("no log holds a valid measurement", "tune first: autotune tune MODEL")
    runs = {record.run_id for record in best.values()}
    ends = _timed_ends(logs[0]) if len(logs) == 1 else ()
    runs |= {end.run_id for end in ends}
    return Log(
        headers=_headers(logs, runs),
        workloads={key: w for key, w in workloads.items() if key in {group[0] for group in best}},
        records=tuple(best.values()),
        ends=ends,
        n_skipped=sum(log.n_skipped for log in logs),
    )


def _timed_ends(log: Log) -> tuple[End, ...]:
    """The ends that tell whether the network of a log is faster than the untuned one."""
    machines = {(h.target.key, h.n_threads): h.run_id for h in log.headers}
    kept = {run for machine, run in machines.items() if log.in_turns(*machine) is not None}
    return tuple(end for end in log.ends if end.run_id in kept and end.in_turns is not None)


def _headers(logs: Sequence[Log], runs: set[str]) -> tuple[Header, ...]:
    """Headers of the runs that won something, each once; resumed runs of a log share its first."""
    found: dict[str, Header] = {}
    for log in logs:
        if log.headers and any(header.run_id in runs for header in log.headers):
            found.setdefault(log.header.run_id, log.header)
        for header in log.headers:
            if header.run_id in runs:
                found.setdefault(header.run_id, header)
    return tuple(found.values())


def _workloads(logs: Sequence[Log]) -> dict[str, Workload]:
    """Every workload as the first log has it: the names in it are those of its schedules."""
    merged: dict[str, Workload] = {}
    for log in reversed(logs):
        merged |= log.workloads
    return merged


def _readable(log: Log, workloads: Mapping[str, Workload]) -> Iterable[MeasureRecord]:
    """Records of `log` whose schedules use the names that `workloads` have."""
    same = {
        key: key not in log.workloads or str(log.workloads[key].dag) == str(workload.dag)
        for key, workload in workloads.items()
    }
    return (record for record in log.records if same.get(record.workload, True))


def _group(record: MeasureRecord) -> Group:
    return record.workload, record.target_key, record.n_threads


def pooled(records: Sequence[MeasureRecord]) -> MeasureRecord:
    """The first of several measurements of one schedule, with the repeats of all.

    Those in a network are of no use beside others alone, but for the choice that they tell.
    """
    in_network = next((r.in_network for r in reversed(records) if r.in_network), None)
    alone = [r for r in records if r.is_alone] or records[:1]
    first = replace(alone[0], in_network=in_network)
    alone = _undisturbed(alone)
    if len(alone) == 1:
        return replace(first, result=alone[0].result)
    times = tuple(chain.from_iterable(r.result.times_s for r in alone))
    result = replace(alone[0].result, times_s=times, at=_at_numbers(alone))
    return replace(first, result=result)


def _undisturbed(records: Sequence[MeasureRecord]) -> Sequence[MeasureRecord]:
    """Measurements of one schedule without those of a slow machine, where there are others.

    Finalists are measured in turns, so theirs refute what took `_DISTURBED` times as long before.
    """
    steady = [r for r in records if not r.result.is_slow] or records
    finals_s = (r.result.latency_s or 0.0 for r in steady if r.final)
    limit_s = _DISTURBED * min(finals_s, default=math.inf)
    return [r for r in steady if (r.result.latency_s or 0.0) <= limit_s]


def chosen_of(ranked: Sequence[MeasureRecord]) -> MeasureRecord:
    """The best record of a task: what won in the network last, or else the `simplest`.

    A program that came after that choice is the best where it is faster than all before it, alone.
    """
    found = simplest(ranked)
    tried = [(r.in_network.known, r) for r in ranked if r.in_network is not None]
    if not tried:
        return found
    known, winner = max(tried, key=lambda pair: pair[0])
    return found if found.sequence >= known else winner


def _at_numbers(records: Sequence[MeasureRecord]) -> tuple[AtNumbers, ...]:
    """The numbers that the first was timed at, with means over all that were timed there."""
    known = [
        [a for r in records for a in r.result.at if a.numbers == one.numbers and a.latency_s]
        for one in records[0].result.at
    ]
    return tuple(
        AtNumbers(found[0].numbers, statistics.geometric_mean(a.latency_s for a in found))
        for found in known
        if found
    )


def simplest(ranked: Sequence[MeasureRecord]) -> MeasureRecord:
    """Of the records as fast as the first within their noise, the default or the fewest steps.

    Another program than the default has to be faster beyond doubt, so that a tuned task is no
    slower than an untuned one.
    """
    fastest = ranked[0].result

    def is_as_fast(record: MeasureRecord) -> bool:
        noise = math.hypot(record.result.noise, fastest.noise)
        return (record.result.latency_s or 0.0) <= (fastest.latency_s or 0.0) * (1 + noise)

    def preference(record: MeasureRecord) -> tuple[bool, int, float, int]:
        return record.default_estimate_s is None, record.n_steps, *_order(record)

    return min(filter(is_as_fast, ranked), key=preference)


def _order(record: MeasureRecord) -> tuple[float, int]:
    return record.result.latency_s or 0.0, record.sequence


def _nothing_usable(log: Log, target_key: str) -> LogMismatch:
    others: Mapping[str, None] = dict.fromkeys(r.target_key for r in log.records if r.result.ok)
    if not others and any(r.result.status is MeasureStatus.INACCURATE for r in log.records):
        return LogMismatch(
            "no measurement of the log is as accurate as it must be", "allow more with `max_error`"
        )
    if not others:
        return LogMismatch(
            "the log holds no valid measurement", "tune first, or compile without `log`"
        )
    return LogMismatch(
        f"the log was measured on {', '.join(others)}, not on {target_key}",
        "tune on this machine, or name the other one with `target`",
    )
