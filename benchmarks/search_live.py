"""How good are the programs that a search has found after so many trials, on this machine?

    python -m benchmarks.search_live --machine Z --network resnet50      # some minutes each
    python -m benchmarks.search_live --table

Some tasks of a network, from the heaviest to the lightest, are searched with several seeds, each in
a session with an empty ranker in which tasks take turns; one more session goes on for longer. The
four programs that were fastest after 8 and 32 trials and at the end of the long session are then
measured again, all programs of a task in turns. As at the end of `tune`, half of the repeats choose
one of the four, the others tell how fast it is. The best of the chosen is the best known.
Rows are added to `docs/results/search_live.csv`; `--table` prints the median and the worst of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import click
import numpy as np

from autotune.api.bindings import Variant
from autotune.api.tune.headers import network_workloads, new_header
from autotune.api.tune.machines import local_target
from autotune.api.tune.tuning import measure_options
from autotune.cli.option_types import COUNT
from autotune.config import TuneConfig
from autotune.measure.build import build_program
from autotune.measure.local import local_measurer
from autotune.records import Entry, Header, Log, MeasureRecord
from autotune.search.cost.ranker import Ranker
from autotune.search.defaults import default_candidate
from autotune.search.elite_pool import ElitePool
from autotune.search.policy import Candidate, SketchPolicy
from autotune.tuner import Budget, CandidateMeasurer, Run, Session, TuningTask
from benchmarks.finalists import chosen_seconds, finalists
from benchmarks.models import NAMES, model_file, read
from benchmarks.results import FOLDER, append_row, read_rows
from benchmarks.search_policies import BATCH, InTurns
from benchmarks.store import part_of
from benchmarks.tables import markdown

FILE = FOLDER / "search_live.csv"
FIELDS = ["machine", "network", "task", "key", "seed", "trials", "ratio"]
AFTER = (8, 32)


@dataclass(slots=True)
class Kept:
    """A sink that keeps measurements by task, in their order."""

    records: dict[str, list[MeasureRecord]] = field(default_factory=dict)

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep what was measured."""
        for entry in entries:
            if isinstance(entry, MeasureRecord):
                self.records.setdefault(entry.workload, []).append(entry)

    def sync(self) -> None:
        """Nothing is written."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The program that a session has chosen after some trials, and its seconds."""

    seed: int
    trials: int
    seconds: float


def searched(
    header: Header, tasks: Sequence[TuningTask], n: int, seed: int, measurer: CandidateMeasurer
) -> dict[str, list[MeasureRecord]]:
    """The first `n` measurements of every task, or all that there are, in one session."""
    ranker, elites, kept = Ranker(seed), ElitePool(), Kept()
    target, n_threads = header.target, header.n_threads
    scheduler = InTurns(tasks, BATCH, patience=1)

    def policy_of(task: TuningTask) -> SketchPolicy:
        rng = np.random.default_rng([seed, int(task.key, 16)])
        return SketchPolicy(task.dag, target, n_threads, ranker, rng, elites)

    def default(task: TuningTask) -> Candidate:
        return default_candidate(task.dag, target, n_threads)

    def is_enough() -> bool:
        open_keys = (key for key, state in scheduler.states.items() if not state.exhausted)
        return all(len(kept.records.get(key, ())) >= n for key in open_keys)

    session = Session(
        run=Run(header.run_id, target.key, n_threads),
        tasks=tasks,
        policy_of=policy_of,
        measurer=measurer,
        sink=kept,
        budget=Budget(),
        scheduler=scheduler,
        clock=time.monotonic,
        stop=is_enough,
        batch=BATCH,
        default=default,
        finals=False,
    )
    for _ in session.events():
        pass
    return {key: records[:n] for key, records in kept.records.items()}


def choices(
    task: TuningTask, found: Sequence[Sequence[MeasureRecord]], measurer: CandidateMeasurer
) -> list[Choice]:
    """What the sessions have chosen, after `AFTER` trials, and the last one at its end."""
    last = len(found) - 1
    counts = [(seed, n) for seed in range(last) for n in AFTER] + [(last, len(found[last]))]
    some = {(seed, n): finalists(found[seed][:n]) for seed, n in counts}
    seconds = chosen_seconds(task.dag, some.values(), measurer)
    return [Choice(seed, n, s) for (seed, n), s in zip(some, seconds, strict=True) if s is not None]


def measured(
    network: str, n_tasks: int, n_seeds: int, n_long: int, threads: int
) -> Iterator[dict[str, str]]:
    """A row per task, seed and number of trials; the long session has the last seed."""
    path = model_file(network, Path("logs/networks/models")) if network in NAMES else Path(network)
    part = part_of(read(path), n_tasks)
    config, workloads = TuneConfig(threads=threads), network_workloads([part])
    target = local_target(config.target)
    header = new_header([part], str(path), [Variant({})], target, config)
    log = Log(headers=(header,), workloads={w.key: w for w in workloads})
    tasks = [TuningTask(w.key, w.dag, part.weights[w.key], w.label) for w in workloads]
    build = partial(build_program, overwritten=header.overwritten)
    options = measure_options(log, config)
    with local_measurer(header.target, header.n_threads, options, build) as measurer:
        found = []
        for seed in range(n_seeds + 1):
            n = n_long if seed == n_seeds else max(AFTER)
            found.append(searched(header, tasks, n, seed, measurer))
            click.echo(f"{network}, seed {seed}: {n} trials of {len(tasks)} tasks", err=True)
        for task in tasks:
            chosen = choices(task, [one.get(task.key, []) for one in found], measurer)
            best_s = min(c.seconds for c in chosen)
            head = {"network": network, "task": task.label, "key": task.key}
            for c in chosen:
                numbers = {"seed": str(c.seed), "trials": str(c.trials)}
                yield {**head, **numbers, "ratio": f"{c.seconds / best_s:.4f}"}


def table(rows: Sequence[dict[str, str]]) -> str:
    """Median and worst over tasks and seeds, by the number of trials."""
    found: dict[str, list[float]] = {}
    for row in rows:
        n = int(row["trials"])
        what = f"{n} trials" if n in AFTER else "the long session"
        found.setdefault(what, []).append(float(row["ratio"]))
    cells = [
        [what, f"{median(r):.3f}", f"{max(r):.3f}", f"{np.mean(np.array(r) <= 1.1):.0%}"]
        for what, r in found.items()
    ]
    n_tasks = len({(row["network"], row["key"]) for row in rows})
    return markdown([f"{n_tasks} tasks", "median", "worst", "within 10 %"], cells)


@click.command()
@click.option("--machine", default="", help="Its letter in docs/results.")
@click.option("--network", "networks", multiple=True, help="A name or a file. Repeatable.")
@click.option("--tasks", "n_tasks", type=COUNT, default=8, show_default=True)
@click.option("--seeds", "n_seeds", type=COUNT, default=3, show_default=True)
@click.option("--long", "n_long", type=COUNT, default=128, show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--table", "is_table", is_flag=True, help="Print the table of all rows.")
def main(
    machine: str,
    networks: tuple[str, ...],
    n_tasks: int,
    n_seeds: int,
    n_long: int,
    threads: int,
    is_table: bool,
) -> None:
    """Search, measure what was found again, and add the rows."""
    for network in networks:
        for row in measured(network, n_tasks, n_seeds, n_long, threads):
            append_row(FILE, FIELDS, {"machine": machine, **row})
    if is_table:
        click.echo(table(read_rows(FILE)))


if __name__ == "__main__":
    main()
