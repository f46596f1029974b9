"""The search live: how near to the best known a few trials come, on this machine.

    python -m benchmarks.search_live resnet50 mobilenet_v2 inception_v1 [--tasks 8] [--trials 32]

Every policy searches the same tasks with several seeds, each seed in a session of its own whose
ranker starts empty; a longer search of the product's policy looks for what is better still. Then
the four fastest programs of each are measured again, all those of a task in turns. As in a tuning
session these repeats choose one of the four: every second one does, and the others tell how fast
the chosen is, so that luck counts for nothing. The fastest of the chosen is the best known. Nothing
else may run. Method: docs/results/search.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from autotune.cli.options import COUNT
from autotune.graph.network import Network
from autotune.measure.build import build_program
from autotune.measure.local import local_measurer
from autotune.measure.options import MeasureOptions
from autotune.measure.peak import stay_cached
from autotune.network.aliasing import overwritable
from autotune.records import Entry, MeasureRecord
from autotune.schedule.steps import Steps
from autotune.search.cost.ranker import Ranker
from autotune.search.elite_pool import ElitePool
from autotune.search.policy import FIRST_BATCH, SketchPolicy
from autotune.target import Target, parse_target
from autotune.tuner import Budget, Policy, Run, Session, TaskState, TuningTask
from autotune.tuner import Measurer as AnyMeasurer
from autotune.tuner.budget import TaskStop
from benchmarks.models import NAMES, model_file, read
from benchmarks.search_metrics import median_and_worst
from benchmarks.search_policies import AnalyticOnly, InTurns
from benchmarks.search_record import Uniform
from benchmarks.tables import counted, markdown

BATCH = 12
"""After a first batch of 8: 8, 20, 32 trials."""
FINALISTS = 4
ROUNDS = 40
REFERENCE_SEED = 1000
NEAR = 1.1

PolicyOf = Callable[[TuningTask], Policy]


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest programs of a task that a policy had measured after so many trials."""

    policy: str
    seed: int
    task: str
    trials: int
    finalists: tuple[Steps, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """What was chosen of `found` beside the best known of its task: latency over latency."""

    found: Found
    ratio: float


class UpTo(InTurns):
    """Turns until every task has had that many trials; the last batch may be more."""

    def __init__(self, tasks: Sequence[TuningTask], trials: int) -> None:
        super().__init__(tasks, BATCH, patience=1)
        self._trials = trials

    def stopped(self, state: TaskState) -> TaskStop | None:
        """A task stops when its trials are spent."""
        return TaskStop.BUDGET if state.n_trials >= self._trials else super().stopped(state)


class Kept:
    """A sink that keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[MeasureRecord] = []

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep what was measured."""
        self.records += [e for e in entries if isinstance(e, MeasureRecord)]

    def sync(self) -> None:
        """Nothing to wait for."""


def policies(target: Target, threads: int, seed: int, trials: int) -> dict[str, PolicyOf]:
    """Policies by name, each with a ranker of its own."""

    def search(ranker: Ranker) -> PolicyOf:
        elite_pool = ElitePool()
        return lambda t: SketchPolicy(t.dag, target, threads, ranker, _rng(seed, t), elite_pool)

    return {
        "random": lambda t: Uniform(t.dag, target, trials, _rng(seed, t)),
        "cost model only": search(AnalyticOnly(seed)),
        "full": search(Ranker(seed)),
    }


def _rng(seed: int, task: TuningTask) -> np.random.Generator:
    return np.random.default_rng([seed, int(task.key, 16)])


def search(
    policy_of: PolicyOf, tasks: Sequence[TuningTask], trials: int, measurer: AnyMeasurer
) -> list[MeasureRecord]:
    """What a policy measured, at least `trials` candidates of every task, whole batches."""
    sink = Kept()
    session = Session(
        run=Run("live", "", 1),
        tasks=tasks,
        policy_of=policy_of,
        measurer=measurer,
        sink=sink,
        budget=Budget(),
        scheduler=UpTo(tasks, trials),
        clock=time.monotonic,
        batch=BATCH,
        finals=False,
    )
    for _ in session.events():
        pass
    return sink.records


def fastest(
    policy: str, seed: int, records: Iterable[MeasureRecord], after: Sequence[int]
) -> list[Found]:
    """The finalists of every task after each of the numbers of trials `after`."""
    of: dict[str, list[MeasureRecord]] = {}
    for record in records:
        of.setdefault(record.workload, []).append(record)
    found = []
    for task, measured in of.items():
        for n in after:
            timed = [r for r in measured[:n] if r.result.latency_s]
            timed.sort(key=lambda r: r.result.latency_s or np.inf)
            if timed:
                finalists = tuple(r.steps for r in timed[:FINALISTS])
                found.append(Found(policy, seed, task, n, finalists))
    return found


def places(found: Sequence[Found], task: TuningTask, measurer: AnyMeasurer) -> list[Place]:
    """The finalists of a task, measured against each other in turns."""
    mine = [f for f in found if f.task == task.key]
    programs = list(dict.fromkeys(steps for f in mine for steps in f.finalists))
    results = measurer.measure_interleaved(task.dag, programs, ROUNDS)
    times = {p: r.times_s for p, r in zip(programs, results, strict=True) if r.latency_s}
    latency_s: list[tuple[Found, float]] = []
    for f in mine:
        ran = [times[steps] for steps in f.finalists if steps in times]
        if ran:
            chosen = min(ran, key=lambda t: statistics.median(t[::2]))
            latency_s.append((f, statistics.median(chosen[1::2])))
    best_s = min((s for _, s in latency_s), default=np.inf)
    return [Place(f, s / best_s) for f, s in latency_s]


def spread(network: Network, n: int) -> list[TuningTask]:
    """`n` tasks of a network, evenly over their weight, the heaviest among them."""
    tasks = [
        TuningTask(key, dag, network.weights[key], network.labels[key])
        for key, dag in network.tasks.items()
    ]
    tasks.sort(key=lambda t: -t.weight * t.flops)
    return tasks[:: max(1, -(-len(tasks) // n))]


@click.command()
@click.argument("models", nargs=-1, type=click.Choice(NAMES), required=True)
@click.option("--tasks", "n_tasks", type=COUNT, default=8, show_default=True, help="Per model.")
@click.option("--trials", type=COUNT, default=32, show_default=True, help="Per task and policy.")
@click.option("--reference", type=COUNT, default=128, show_default=True, help="Of the long search.")
@click.option("--seeds", type=COUNT, default=3, show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--target", "target_name", default="native", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("logs/networks/models"))
def main(
    models: tuple[str, ...],
    n_tasks: int,
    trials: int,
    reference: int,
    seeds: int,
    threads: int,
    target_name: str,
    folder: Path,
) -> None:
    """Compare policies on tasks of MODELS, measured here and now."""
    target = parse_target(target_name)
    found: list[Place] = []
    for model in models:
        network = read(model_file(model, folder))
        cached = stay_cached(target, threads, network.n_constant_bytes, network.flops)
        options = MeasureOptions(evict=not cached)
        tasks = spread(network, n_tasks)
        build = partial(build_program, overwritten=overwritable(network))
        with local_measurer(target, threads, options, build) as measurer:
            some: list[Found] = []
            for seed in range(seeds):
                for name, policy_of in policies(target, threads, seed, trials).items():
                    click.echo(f"{model}: {name}, seed {seed}", err=True)
                    records = search(policy_of, tasks, trials, measurer)
                    some += fastest(name, seed, records, (FIRST_BATCH, trials))
            click.echo(f"{model}: {reference} trials of each task", err=True)
            long = policies(target, threads, REFERENCE_SEED, reference)["full"]
            records = search(long, tasks, reference, measurer)
            some += fastest("full", REFERENCE_SEED, records, (reference,))
            for task in tasks:
                found += places(some, task, measurer)
                click.echo(_line(task, [p for p in found if p.found.task == task.key]), err=True)
    click.echo(table(found))


def _line(task: TuningTask, found: Sequence[Place]) -> str:
    cells = _cells(found)
    texts = (f"{name} {n}: {max(ratios):.3f}" for (name, n), ratios in cells.items())
    return f"{task.label} {task.key[:6]}, worst: {', '.join(texts)}"


def _cells(found: Sequence[Place]) -> Mapping[tuple[str, int], list[float]]:
    cells: dict[tuple[str, int], list[float]] = {}
    for place in found:
        cells.setdefault((place.found.policy, place.found.trials), []).append(place.ratio)
    return cells


def table(found: Sequence[Place]) -> str:
    """Latency over the best known, median / worst over tasks and seeds."""
    cells = _cells(found)
    counts = sorted({n for _, n in cells})
    rows = []
    for name in dict.fromkeys(name for name, _ in cells):
        pairs = (median_and_worst(cells[name, n]) if (name, n) in cells else None for n in counts)
        rows.append([name, *("–" if p is None else f"{p[0]:.3f} / {p[1]:.3f}" for p in pairs)])
    tasks = {p.found.task for p in found}
    seeds = {p.found.seed for p in found} - {REFERENCE_SEED}
    last = max((n for name, n in cells if name == "random"), default=0)
    near = [r <= NEAR for r in cells.get(("full", last), [])]
    share = f"; full within 10 % in {100 * statistics.mean(near):.0f} % of them" if near else ""
    scope = f"* {counted(len(tasks), 'task')}, {counted(len(seeds), 'seed')}{share}"
    return f"{markdown(['policy', *(f'{n} trials' for n in counts)], rows)}\n\n{scope}"


if __name__ == "__main__":
    main()
