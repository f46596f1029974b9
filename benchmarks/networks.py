"""Whole networks, tuned and untuned, beside ONNX Runtime and OpenVINO, by the command line.

    python -m benchmarks.networks [--only resnet50]… [--threads 1]… [--time 4m] [--out DIR]
    python -m benchmarks.networks --table-only [--view errors]

For every network and number of threads: compile without a log; tune, distill, compile; then measure
both in `--rounds` rounds, each against the baselines in turns. Every finished pair is a line of
`results.jsonl` in the output folder and is not measured again; a log that is there already is gone
on with until `--time` is spent. The table is Markdown on stdout.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from autotune.cli.option_types import COUNT, DURATION
from autotune.errors import AutotuneError
from autotune.records import Log, read_log
from autotune.tuner import spent
from benchmarks.direct import direct_error
from benchmarks.models import NAMES, lacks_weights, model_file
from benchmarks.tables import (
    BASELINES,
    VIEWS,
    Bench,
    Result,
    append_result,
    counted,
    networks_table,
    read_results,
)

_SPENT = 0.95
"""Share of its time after which a search that ended in an orderly way counts as finished."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every network is given. Times in seconds."""

    out: Path
    tune_s: float
    bench_s: float
    rounds: int
    against: tuple[str, ...]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Networks.  [all]")
@click.option("--threads", multiple=True, type=COUNT, default=(1, 2), show_default=True)
@click.option("--time", "tune_s", type=DURATION, default="4m", help="To tune for.  [4m]")
@click.option("--bench-time", "bench_s", type=DURATION, default="3s", help="Per side.  [3s]")
@click.option("--rounds", type=COUNT, default=3, show_default=True)
@click.option("--against", multiple=True, type=click.Choice(BASELINES), default=BASELINES)
@click.option("--out", type=click.Path(path_type=Path), default=Path("logs/networks"))
@click.option("--again", is_flag=True, help="Measure finished networks once more.")
@click.option("--view", type=click.Choice(tuple(VIEWS)), default="all", show_default=True)
@click.option("--table-only", is_flag=True, help="Print what is there; measure nothing.")
def main(
    only: tuple[str, ...],
    threads: tuple[int, ...],
    tune_s: float,
    bench_s: float,
    rounds: int,
    against: tuple[str, ...],
    out: Path,
    again: bool,
    view: str,
    table_only: bool,
) -> None:
    """Measure networks and print the table of what is known."""
    plan = Plan(out, tune_s, bench_s, rounds, against)
    store = out / "results.jsonl"
    pairs = [(model, n) for model in only or NAMES for n in threads]
    known = read_results(store)
    todo = [] if table_only else [pair for pair in pairs if again or pair not in known]
    failed = [pair for pair in todo if not _try(*pair, plan, store)]
    known = read_results(store)
    if found := [known[pair] for pair in pairs if pair in known]:
        click.echo(networks_table(found, view))
    for model, n in failed:
        click.echo(f"failed: {model}, {counted(n, 'thread')}", err=True)
    sys.exit(1 if failed else 0)


def _try(model: str, threads: int, plan: Plan, store: Path) -> bool:
    """Measure one pair and keep the result; False, and a message, where that fails."""
    click.echo(f"== {model}, {counted(threads, 'thread')}", err=True)
    try:
        append_result(store, measure(model, threads, plan))
    except (subprocess.CalledProcessError, AutotuneError) as error:
        click.echo(f"{model}: {error}", err=True)
        return False
    return True


def measure(model: str, threads: int, plan: Plan) -> Result:
    """Tune, compile and measure one network. Raises CalledProcessError for a failed command."""
    path = model_file(model, plan.out / "models")
    log_path = plan.out / f"{model}-{threads}t.jsonl"
    _tune(path, threads, plan.tune_s, log_path)
    log = read_log(log_path)
    with tempfile.TemporaryDirectory(dir=plan.out) as name:
        folder = Path(name)
        best = _distill(log_path, log_path.with_name(f"{log_path.stem}-best.jsonl"))
        tuned = _compile(path, threads, folder / "tuned.atn", best)
        untuned = _compile(path, threads, folder / "untuned.atn")
        rounds: list[tuple[Bench, Bench]] = []
        for _ in range(plan.rounds):
            pair = _bench(tuned, plan, plan.against), _bench(untuned, plan, ("onnxruntime",))
            rounds.append(pair)
        return Result(
            model=model,
            threads=threads,
            tuned=[pair[0] for pair in rounds],
            untuned=[pair[1] for pair in rounds],
            max_error=_max_error(tuned),
            untuned_error=_max_error(untuned),
            direct_error=direct_error(path, log_path),
            tune_s=spent(log).elapsed_s,
            trials=spent(log).trials,
            cpu=log.header.target.cpu,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=log.header.versions | _versions(plan.against),
        )


def _tune(model: Path, threads: int, time_s: float, log: Path) -> None:
    if not log.exists():
        options = ("--threads", threads, "--time", f"{time_s}s", *_weights(model))
        _cli("tune", model, "--log", log, *options)
    elif left := seconds_left(read_log(log), time_s):
        _cli("resume", log, "--time", f"{left}s")


def seconds_left(log: Log, time_s: float) -> float:
    """How much longer to search than a log has; 0 when it is finished."""
    last = log.ends[-1] if log.ends else None
    left = time_s - spent(log).elapsed_s
    if last is None or last.run_id != log.headers[-1].run_id or last.reason == "interrupted":
        return max(1.0, left)
    finished = last.reason in ("converged", "exhausted") or left <= (1 - _SPENT) * time_s
    return 0.0 if finished else left


def _distill(log: Path, best: Path) -> Path:
    _cli("distill", log, "-o", best)
    return best


def _compile(model: Path, threads: int, artifact: Path, log: Path | None = None) -> Path:
    records = ("--log", log) if log else ()
    _cli("compile", model, *records, "--threads", threads, "-o", artifact, *_weights(model))
    return artifact


def _weights(model: Path) -> tuple[str, ...]:
    return ("--random-weights",) if lacks_weights(model) else ()


def _bench(artifact: Path, plan: Plan, against: Iterable[str]) -> Bench:
    baselines = [word for side in against for word in ("--against", side)]
    text = _cli("bench", artifact, *baselines, "--time", f"{plan.bench_s}s", "--format", "json")
    result: Bench = json.loads(text)
    return result


def _max_error(artifact: Path) -> float:
    """What `autotune compile` found when it compared with ONNX Runtime."""
    with zipfile.ZipFile(artifact) as file:
        return float(json.loads(file.read("manifest.json"))["max_error"])


def _versions(packages: Iterable[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


def _cli(*words: object) -> str:
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
