"""How many trials a store saves: sessions without one, and with one of other networks.

    python -m benchmarks.store --machine C [--networks resnet18,…] [--trials-per-task 24]

Some tasks of each network, from the heaviest to the lightest, are tuned four times, each session
with as many trials: for this CPU and for one with AVX2 alone, without a store; and for this CPU
with a store made of what these measured for the *other* networks, on this CPU or on that one.
After each trial a session has four finalists; those of all sessions are then measured again, in
turns, and the best of the four is its choice. The end is the best choice of any session.
Rows are added to `docs/results/store.csv`; logs stay in `--folder`, and sessions that are there are
not run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from autotune.api.tune.model import tune_network
from autotune.api.tune.tuning import measure_options
from autotune.cli.option_types import COUNT
from autotune.config import TuneConfig
from autotune.graph.network import Network
from autotune.measure.build import build_program
from autotune.measure.local import local_measurer
from autotune.records import Log, MeasureRecord, read_log
from autotune.records.store import store_to_write
from autotune.search.cost.ranker import OTHER_CPU, OTHER_TASK, Ranker
from autotune.te.dag import ComputeDAG
from autotune.te.form import form_of
from autotune.tuner import CandidateMeasurer, SessionFinished
from benchmarks.finalists import chosen_seconds, finalists
from benchmarks.models import NAMES, model_file, read
from benchmarks.results import FOLDER, append_row
from benchmarks.search_metrics import pairwise_accuracy
from benchmarks.search_spaces import Space, spaces

FILE, RANKERS = FOLDER / "store.csv", FOLDER / "store_rankers.csv"
FIELDS = ["machine", "network", "task", "key", "weight", "known", "sessions", "trials", "end_us",
          "to_5_pct", "after"]  # fmt: skip
RANKER_FIELDS = ["machine", "network", "key", "ranker", "pairs"]
AFTER = (4, 8, 16, 24, 32, 48, 64)
"""Trials of a task after which its choice is told."""
WITHIN = 1.05
NARROW_CPU = "x86-64-v3"
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet", "inception_v1")
_LEAST = 8
"""Measurements of a task that a ranker is judged on."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Sessions that begin in the same way: for a CPU, with a store made of the logs of a kind."""

    name: str
    target: str = "native"
    learns_from: str = ""


KINDS = (
    Kind("no store"),
    Kind("no store, AVX2", NARROW_CPU),
    Kind("store of others", learns_from="no store"),
    Kind("store of others, AVX2", learns_from="no store, AVX2"),
)
"""Each after those that it learns from."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: `folder` has the logs, of `seed`."""

    folder: Path
    networks: tuple[str, ...]
    n_tasks: int
    trials_per_task: int
    threads: int
    seed: int

    def log(self, network: str, kind: Kind) -> Path:
        """The log of a session."""
        name = kind.name.replace(" ", "-").replace(",", "").lower()
        return self.folder / f"{network}-{name}-{self.seed}.jsonl"

    def store(self, network: str, kind: Kind) -> Path:
        """The store of a session, which knows nothing of its network."""
        return self.log(network, kind).with_suffix(".store")


@click.command()
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--networks", default=",".join(NETWORKS), show_default=True)
@click.option("--tasks", "n_tasks", type=COUNT, default=8, show_default=True)
@click.option("--trials-per-task", type=COUNT, default=16, show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("logs/store"))
def main(
    machine: str,
    networks: str,
    n_tasks: int,
    trials_per_task: int,
    threads: int,
    seed: int,
    folder: Path,
) -> None:
    """Run the sessions that are missing, and add their rows."""
    chosen = tuple(networks.split(","))
    plan = Plan(folder, chosen, n_tasks, trials_per_task, threads, seed)
    run(plan)
    for row in [r for name in chosen for r in rows(plan, name)]:
        append_row(FILE, FIELDS, {"machine": machine, **row})
    for row in [r for name in chosen for r in ranker_rows(plan, name)]:
        append_row(RANKERS, RANKER_FIELDS, {"machine": machine, **row})


# --- sessions ---------------------------------------------------------------------------------


def run(plan: Plan) -> None:
    """All sessions of a plan that have no log yet; those that others learn from first."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    parts = {name: part_of(_network(name), plan.n_tasks) for name in plan.networks}
    for kind in KINDS:
        for name, network in parts.items():
            if not plan.log(name, kind).exists():
                click.echo(_session(plan, kind, name, network), err=True)


def _network(name: str) -> Network:
    known = name in NAMES
    return read(model_file(name, Path("logs/networks/models")) if known else Path(name))


def part_of(network: Network, n_tasks: int) -> Network:
    """The calls of some tasks, evenly from the heaviest to the lightest; no chains."""
    work = {call.task: network.tasks[call.task].flops for call in network.calls}
    order = sorted(work, key=lambda key: -work[key] * network.weights[key])
    at = np.linspace(0, len(order) - 1, min(n_tasks, len(order))).astype(int)
    kept = {order[int(n)] for n in at}
    calls = tuple(call for call in network.calls if call.task in kept)
    return replace(network, calls=calls, tasks={key: network.tasks[key] for key in kept}, chains=())


def _session(plan: Plan, kind: Kind, name: str, network: Network) -> str:
    """Run a session; one line about it."""
    store = _made_store(plan, kind, name) if kind.learns_from else ""
    n_trials = plan.trials_per_task * len(network.tasks)
    config = TuneConfig(
        trials=n_trials,
        threads=plan.threads,
        seed=plan.seed,
        target=kind.target,
        store=store,
        patience=n_trials,
    )
    done = ""
    for event in tune_network(network, plan.log(name, kind), config, name):
        if isinstance(event, SessionFinished):
            done = f"{event.n_trials} trials, {event.elapsed_s:.0f} s"
    return f"{name}, {kind.name}: {done}"


def _made_store(plan: Plan, kind: Kind, name: str) -> str:
    """A store of what sessions of the kind that this one learns from found of other networks."""
    place = plan.store(name, kind)
    store = store_to_write(place)
    source = next(k for k in KINDS if k.name == kind.learns_from)
    for other in plan.networks:
        if other != name:
            store.add(read_log(plan.log(other, source)))
    return str(place.resolve())


# --- what they found --------------------------------------------------------------------------


def rows(plan: Plan, name: str) -> Iterator[dict[str, str]]:
    """A row per task and kind of sessions on this CPU."""
    logs = {k.name: read_log(plan.log(name, k)) for k in KINDS if k.target == "native"}
    first = logs[KINDS[0].name]
    forms = _known(plan, [o for o in plan.networks if o != name])
    build = partial(build_program, overwritten=first.header.overwritten)
    options = measure_options(first, TuneConfig(threads=plan.threads))
    with local_measurer(first.header.target, plan.threads, options, build) as measurer:
        for key, weight in first.header.tasks:
            workload = first.workloads[key]
            known = "task" if key in forms else "form" if _form(first, key) in forms else "none"
            found = choices([_trials(log, key) for log in logs.values()], workload.dag, measurer)
            end_s = min(s for some in found for s in some)
            for kind, chosen_s in zip(logs, found, strict=True):
                ratios = [s / end_s for s in chosen_s]
                counts = [n for n in AFTER if n <= plan.trials_per_task]
                after = {n: ratios[min(n, len(ratios)) - 1] for n in counts}
                yield {
                    "network": name,
                    "task": workload.label,
                    "key": key,
                    "weight": str(weight),
                    "known": known,
                    "sessions": kind,
                    "trials": str(len(ratios)),
                    "end_us": f"{1e6 * end_s:.1f}",
                    "to_5_pct": str(trials_within(ratios)),
                    "after": " ".join(f"{n}:{ratio:.4f}" for n, ratio in after.items()),
                }


def _known(plan: Plan, others: Sequence[str]) -> set[str]:
    """Keys and forms of the tasks of other networks."""
    logs = [read_log(plan.log(other, KINDS[0])) for other in others]
    keys = {key for log in logs for key in log.workloads}
    return keys | {_form(log, key) for log in logs for key in log.workloads}


def _form(log: Log, key: str) -> str:
    return form_of(log.workloads[key].dag).text


def _trials(log: Log, key: str) -> list[MeasureRecord]:
    return [r for r in log.records if r.workload == key and not r.final]


def choices(
    sessions: Sequence[Sequence[MeasureRecord]], dag: ComputeDAG, measurer: CandidateMeasurer
) -> list[list[float]]:
    """Of each session of a task, the seconds of its choice after each trial."""
    sets = [[finalists(found[: n + 1]) for n in range(len(found))] for found in sessions]
    distinct = list(dict.fromkeys(some for of in sets for some in of))
    seconds = dict(zip(distinct, chosen_seconds(dag, distinct, measurer), strict=True))
    return [[seconds[some] or float("inf") for some in of] for of in sets]


def trials_within(ratios: Sequence[float]) -> int:
    """Trials after which the choice stays within 5 % of the end; one more than all where never."""
    n = len(ratios)
    while n and ratios[n - 1] <= WITHIN:
        n -= 1
    return n + 1


# --- rankers ----------------------------------------------------------------------------------


def ranker_rows(plan: Plan, name: str) -> Iterator[dict[str, str]]:
    """Pairs that rankers order rightly of the candidates of a task on this CPU, by what they were
    trained on."""
    plain, narrow = KINDS[0], KINDS[1]
    others = [other for other in plan.networks if other != name]
    trained = {
        "cost model only": Ranker(plan.seed),
        "others, this CPU": _trained(plan, others, plain, OTHER_TASK),
        "others, AVX2": _trained(plan, others, narrow, OTHER_CPU),
        "same network, AVX2": _trained(plan, [name], narrow, OTHER_CPU),
    }
    for space in _spaces(plan, name, plain):
        ran = np.flatnonzero(np.isfinite(space.latency_s))
        x, latency_s = space.x[ran], space.latency_s[ran]
        for ranker, model in trained.items():
            pairs = pairwise_accuracy(model.predict(x), latency_s)
            row = {"network": name, "key": space.task.key, "ranker": ranker}
            yield row | {"pairs": f"{pairs:.4f}"}


def _spaces(plan: Plan, name: str, kind: Kind) -> list[Space]:
    return spaces(read_log(plan.log(name, kind)), _LEAST)


def _trained(plan: Plan, names: Sequence[str], kind: Kind, weight: float) -> Ranker:
    ranker = Ranker(plan.seed)
    for space in (s for name in names for s in _spaces(plan, name, kind)):
        ran = np.flatnonzero(np.isfinite(space.latency_s))
        ranker.teach(space.task.key, space.x[ran], space.latency_s[ran], weight)
    ranker.train()
    return ranker


if __name__ == "__main__":
    main()
