"""`make soak`: thousands of everything, and a table of what became of it.

    python -m tests.fuzz.soak --models 10000 --logs 10000 --kills 500 --hostile 200

Exit code 1 where anything is wrong, untyped, lost or left behind. `--record` writes the table
to docs/results/soak.csv, of which `python -m benchmarks.results` makes a part of a page.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click

from benchmarks.outcomes import Kind, Outcome
from tests.fuzz.campaigns import CAMPAIGNS, Tally, each
from tests.fuzz.judging import NO_ORACLE
from tests.fuzz.reported import kinds, models
from tests.fuzz.sessions import hostile_candidates, kills

FILE = Path(__file__).parents[2] / "docs" / "results" / "soak.csv"
HEAD = ("what", "tried", *map(str, Kind), NO_ORACLE)


@click.command()
@click.option("--models", "n_models", default=10_000, help="Random and damaged models.")
@click.option("--logs", "n_logs", default=10_000)
@click.option("--artifacts", "n_artifacts", default=10_000)
@click.option("--decoders", "n_decoders", default=500, help="Random decoders with a state.")
@click.option("--open", "n_open", default=2_000, help="Models with open dimensions.")
@click.option("--forests", "n_forests", default=400, help="Forests, and models on strings.")
@click.option("--kills", "n_kills", default=500, help="Sessions that are killed and resumed.")
@click.option("--hostile", "n_hostile", default=200, help="Candidates that harm their process.")
@click.option("--seed", default=0, help="Of the first of each.")
@click.option("--processes", default=2)
@click.option("--record", is_flag=True, help="Write docs/results/soak.csv.")
def main(
    n_models: int,
    n_logs: int,
    n_artifacts: int,
    n_decoders: int,
    n_open: int,
    n_forests: int,
    n_kills: int,
    n_hostile: int,
    seed: int,
    processes: int,
    record: bool,
) -> None:
    """Try everything, print what is wrong and the counts."""
    counts = {
        "random models": n_models,
        "passes": n_models,
        "damaged models": n_models,
        "logs": n_logs,
        "artifacts": n_artifacts,
        "contexts": n_artifacts,
        "decoders": n_decoders,
        "open models": n_open,
        "forests and strings": n_forests,
    }
    tallies = [_tried("reported models", 0, len(models()), processes)]
    tallies += [_tried(name, seed, n, processes) for name, n in counts.items() if n]
    if n_hostile:
        tallies.append(_of("hostile candidates", hostile_candidates(n_hostile)))
    if n_kills:
        tallies.append(_of("killed sessions", kills(n_kills, seed)))
    if record:
        _write(tallies)
    for tally in tallies:
        click.echo(str(tally))
    sys.exit(1 if any(tally.bad for tally in tallies) else 0)


def _tried(name: str, seed: int, n: int, n_processes: int) -> Tally:
    assert name in CAMPAIGNS
    tally = Tally(name)
    for item, outcome in each(name, range(seed, seed + n), n_processes):
        tally.add(item, outcome)
        if outcome.kind not in (Kind.RIGHT, Kind.REFUSED):
            click.echo(f"{name} {item}: {outcome.kind}: {outcome.text}", err=True)
        if tally.tried % 500 == 0:
            click.echo(str(tally), err=True)
    return tally


def _of(name: str, found: list[Outcome]) -> Tally:
    tally = Tally(name)
    for number, outcome in enumerate(found):
        tally.add(number, outcome)
    return tally


def _write(tallies: list[Tally]) -> None:
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for tally in tallies:
            name = tally.name
            if name == "reported models":
                name = f"models of {len(kinds())} reported kinds"
            row = [tally.kinds[kind] for kind in HEAD[2:]]
            writer.writerow([name, tally.tried, *row])


if __name__ == "__main__":
    main()
