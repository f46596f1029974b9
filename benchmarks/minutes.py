"""What a minute of tuning gives over none: networks tuned for 60 s, in turns with the untuned ones.

    python -m benchmarks.minutes --machine Z [--only resnet50]… [--time 60s] [--threads 1]

`left`: the share of the untuned time, of its tasks as measured, that their bounds leave to gain.
`changed`: tasks for which the compiled network chose otherwise than their times alone, `tried`: so
many changes; `in_network`: seconds of the network with them over those without.
Rows are added to `docs/results/minutes.csv`, and all of them are printed; logs stay in `--folder`,
and networks whose log is there are not tuned again.
"""

from __future__ import annotations

from pathlib import Path

import click

import autotune
from autotune.api.tune.in_turns import compare_in_turns
from autotune.cli.option_types import COUNT, DURATION
from autotune.tuner import DefaultsMeasured, Event, NetworkChosen, Outlook, SessionStarted
from benchmarks.models import NAMES, lacks_weights, model_file
from benchmarks.results import FOLDER, append_row, read_rows
from benchmarks.tables import markdown

FILE = FOLDER / "minutes.csv"
FIELDS = ["machine", "network", "threads", "tuning_s", "trials", "left", "untuned_ms", "tuned_ms",
          "ratio", "low", "high", "tried", "changed", "in_network"]  # fmt: skip


@click.command()
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Networks.  [all]")
@click.option("--time", "time_s", type=DURATION, default="60s", show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("logs/minutes"))
def main(machine: str, only: tuple[str, ...], time_s: float, threads: int, folder: Path) -> None:
    """Tune what has no log yet, measure it, add a row for each, and print all rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or NAMES:
        log = folder / f"{name}-{threads}t.jsonl"
        if not log.exists():
            row = measured(name, log, time_s, threads)
            append_row(FILE, FIELDS, {"machine": machine, **row})
            click.echo(row, err=True)
    head = [name for name in FIELDS if name != "tuning_s"]
    click.echo(markdown(head, ([row[name] for name in head] for row in read_rows(FILE))))


def measured(name: str, log: Path, time_s: float, threads: int) -> dict[str, str]:
    """Tune a network, then time it in turns with the untuned one."""
    outlook: Outlook | None = None
    chosen = NetworkChosen(0, (), 1.0)

    def tell(event: Event) -> None:
        nonlocal outlook, chosen
        if isinstance(event, NetworkChosen):
            chosen = event
        if isinstance(event, SessionStarted | DefaultsMeasured):
            outlook = event.outlook

    path = model_file(name, log.parent)
    done = autotune.tune(
        path,
        log,
        time_s=time_s,
        threads=threads,
        store="none",
        random_weights=lacks_weights(path),
        show=tell,
    )
    found = done.in_turns or compare_in_turns(log)
    return {
        "network": name,
        "threads": str(threads),
        "tuning_s": f"{time_s:.0f}",
        "trials": str(done.trials),
        "left": f"{outlook.left:.2f}" if outlook else "",
        "untuned_ms": f"{1e3 * found.untuned_s:.3f}",
        "tuned_ms": f"{1e3 * found.tuned_s:.3f}",
        "ratio": f"{found.ratio:.3f}",
        "low": f"{found.low:.3f}",
        "high": f"{found.high:.3f}",
        "tried": str(chosen.n_tried),
        "changed": str(len(chosen.changed)),
        "in_network": f"{chosen.ratio:.3f}",
    }


if __name__ == "__main__":
    main()
