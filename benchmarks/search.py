"""The search on recorded spaces: what cost model, ranker and exploration bring, without any timing.

    python -m benchmarks.search LOG… [--pool] [--tasks conv] [--seeds 3] [--format json]
    python -m benchmarks.search --record resnet50 --log LOG --trials-per-task 128

Every task of a log with enough recorded candidates is a space; policies search it through the
product's own session and may pick only what was recorded. Same logs and seeds, same tables. The
method, and how recorded spaces are biased: docs/results/search.md.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from autotune.cli.option_types import COUNT
from autotune.config import TuneConfig
from autotune.records import read_log
from benchmarks.models import NAMES, model_file
from benchmarks.search_metrics import (
    TOP,
    TRIALS,
    Curve,
    Quality,
    curve,
    from_halves,
    from_others,
    median_and_worst,
)
from benchmarks.search_policies import KINDS, RANKERS, replay
from benchmarks.search_record import record
from benchmarks.search_spaces import Seconds, Space, pool, seconds, spaces
from benchmarks.tables import counted, markdown

FILE = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class Searched:
    """What a policy did on a space of `n` candidates."""

    policy: str
    log: str
    task: str
    label: str
    n: int
    seed: int
    curve: Curve


@dataclass(frozen=True, slots=True)
class Ordered:
    """What a ranker makes of a task; by name of what it was trained on."""

    ranker: str
    log: str
    task: str
    label: str
    n: int
    seed: int
    trained_on: dict[str, Quality]


@click.command()
@click.argument("logs", nargs=-1, type=FILE)
@click.option("--tasks", default="", help="Tasks whose label has this, or whose key begins so.")
@click.option("--seeds", type=COUNT, default=3, show_default=True)
@click.option("--least", type=COUNT, default=32, show_default=True, help="Candidates of a space.")
@click.option("--pool", "pooled", is_flag=True, help="One space per task, not one per log.")
@click.option("--format", "form", type=click.Choice(("markdown", "json")), default="markdown")
@click.option("--record", "model", help="Record spaces of this model: a file, or a name.")
@click.option("--log", "log_path", type=FILE, help="Log that --record writes.")
@click.option("--trials-per-task", type=COUNT, default=128, show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True, help="For --record.")
@click.option("--seed", default=0, show_default=True, help="For --record.")
@click.option("--target", default="native", show_default=True, help="For --record.")
def main(
    logs: tuple[Path, ...],
    tasks: str,
    seeds: int,
    least: int,
    pooled: bool,
    form: str,
    model: str | None,
    log_path: Path | None,
    trials_per_task: int,
    threads: int,
    seed: int,
    target: str,
) -> None:
    """Compare policies on the spaces that LOGS recorded, or record some."""
    if model is not None and log_path is not None:
        file = model_file(model, Path("logs/networks/models")) if model in NAMES else Path(model)
        config = TuneConfig(threads=threads, seed=seed, target=target)
        record(file, log_path, trials_per_task, config)
    elif model is not None or not logs:
        raise click.UsageError("give logs to compare policies on, or --record MODEL --log LOG")
    else:
        known = {path.stem: read_log(path) for path in logs}
        times = [seconds(path, known[path.stem]) for path in logs]
        sources = {" + ".join(known): pool(list(known.values()))} if pooled else known
        found = {name: spaces(log, least, tasks) for name, log in sources.items()}
        click.echo(compare({n: f for n, f in found.items() if f}, range(seeds), times, form))


def compare(
    found: Mapping[str, Sequence[Space]], seeds: range, times: Sequence[Seconds], form: str
) -> str:
    """The tables, or everything that they summarise; `found`: the spaces of each log."""
    searched = [s for log, some in found.items() for s in compare_policies(log, some, seeds)]
    ordered = [o for log, some in found.items() for o in compare_rankers(log, some, seeds)]
    if form == "json":
        lists: dict[str, Sequence[Any]]
        lists = {"searched": searched, "ordered": ordered, "seconds": times}
        data = {name: [asdict(item) for item in items] for name, items in lists.items()}
        return json.dumps(_finite(data), indent=2)
    tables = [policies_table(searched), rankers_table(ordered)] if searched else []
    return "\n\n".join([*tables, seconds_table(times)])


def _finite(value: Any) -> Any:
    """JSON knows neither infinity nor nan: null."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def compare_policies(log: str, found: Sequence[Space], seeds: range) -> Iterator[Searched]:
    """Every policy on every space, with every seed."""
    for policy, kind in KINDS.items():
        for seed in seeds:
            batches = replay(found, kind, seed)
            for s in found:
                done = curve(batches[s.task.key], s.best_s)
                n = len(s.points)
                yield Searched(policy, log, s.task.key, s.task.label, n, seed, done)


def compare_rankers(log: str, found: Sequence[Space], seeds: range) -> Iterator[Ordered]:
    """Every ranker on every space, with every seed."""
    for ranker, kind in RANKERS.items():
        for seed in seeds:
            both = zip(
                found, from_others(found, kind, seed), from_halves(found, kind, seed), strict=True
            )
            for s, others, halves in both:
                n, trained_on = len(s.points), {"others": others, "halves": halves}
                yield Ordered(ranker, log, s.task.key, s.task.label, n, seed, trained_on)


# --- tables -----------------------------------------------------------------------------------


def policies_table(searched: Sequence[Searched]) -> str:
    """Best so far over best recorded, median / worst over tasks and seeds."""
    rows = []
    for policy in dict.fromkeys(s.policy for s in searched):
        curves = [s.curve for s in searched if s.policy == policy]
        after = [[c.after[t] for c in curves if t in c.after] for t in TRIALS]
        rows.append([policy, *(_ratios(x) for x in ([c.first for c in curves], *after))])
    sizes = {(s.log, s.task): s.n for s in searched}
    counts = [len(sizes), *(sum(n > t for n in sizes.values()) for t in TRIALS)]
    rows.append(["tasks with more candidates", *map(str, counts)])
    head = ["policy", "first batch", *(f"{t} trials" for t in TRIALS)]
    return f"{markdown(head, rows)}\n\n{_scope(sizes.values(), searched)}"


def rankers_table(ordered: Sequence[Ordered]) -> str:
    """Pairs in the right order and the fastest found, median / worst over tasks and seeds."""
    rows = []
    for ranker in dict.fromkeys(o.ranker for o in ordered):
        cells = [ranker]
        for known in ("others", "halves"):
            found = [o.trained_on[known] for o in ordered if o.ranker == ranker]
            cells += [_shares(q.accuracy for q in found), _shares(q.recall for q in found)]
        rows.append(cells)
    head = ["ranker"]
    for known in ("other tasks", "half of every task"):
        head += [f"pairs, from {known}", f"top {TOP}, from {known}"]
    return markdown(head, rows)


def seconds_table(times: Sequence[Seconds]) -> str:
    """Where the time of each log went."""
    head = ["log", "trials", "s", "trials per s", "search s", "model s", "build s", "run s"]
    return markdown(
        head,
        [
            [
                t.log,
                str(t.trials),
                f"{t.elapsed:.0f}",
                f"{t.trials_per_s:.1f}",
                *("–" if x is None else f"{x:.1f}" for x in (t.search, t.model, t.build, t.run)),
            ]
            for t in times
        ],
    )


def _scope(sizes: Iterable[int], searched: Sequence[Searched]) -> str:
    n = list(sizes)
    logs, seeds = {s.log for s in searched}, {s.seed for s in searched}
    return (
        f"* {counted(len(n), 'task')} of {counted(len(logs), 'log')}, "
        f"{counted(len(seeds), 'seed')}; {min(n)} to {max(n)} candidates per task, "
        f"median {statistics.median(n):g}"
    )


def _ratios(values: Iterable[float]) -> str:
    return _pair(median_and_worst(values), ".2f")


def _shares(values: Iterable[float]) -> str:
    return _pair(median_and_worst(values, lowest=True), ".2f")


def _pair(numbers: tuple[float, float], form: str) -> str:
    return "–" if math.isnan(numbers[0]) else " / ".join(f"{x:{form}}" for x in numbers)


if __name__ == "__main__":
    main()
