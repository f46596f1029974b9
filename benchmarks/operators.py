"""Single operators and small subgraphs, as in the evaluation of Ansor, beside other runtimes.

    python -m benchmarks.operators --machine Z [--only C2D]… [--batch 1]… [--budget 25m]

Every case of `operator_cases` is tuned, compiled and measured in turns with ONNX Runtime and
OpenVINO. Each is a row of the table `--out` as soon as it is done and is
not measured again, so a run that was interrupted, or that has spent its budget, is gone on with by
the same command. With a budget, what is left of it is shared by what is left to measure; first
shapes come first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import onnx

import autotune
from autotune.cli.option_types import COUNT, DURATION
from autotune.network.bench.bench import BenchResult, bench
from autotune.network.runtime.baselines import Runner, baseline
from autotune.network.runtime.runtime import Model as Compiled
from autotune.records import read_log
from benchmarks.budget import within
from benchmarks.operator_cases import CASES, Model
from benchmarks.results import FOLDER, append_row, read_rows
from benchmarks.tables import BASELINES

FILE = FOLDER / "operators.csv"
SIDES = ("autotune", *BASELINES, "torch")
FIELDS = ["machine", "operator", "shape", "batch", "threads", "trials"]
FIELDS += [*(f"{name}_us" for name in SIDES), "ratio", "error"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: `key` are its first cells."""

    key: dict[str, str]
    make: Callable[[int], Model]

    @property
    def identity(self) -> tuple[str, ...]:
        """What no other row has: all of the key."""
        return identity(self.key)

    @property
    def model(self) -> Model:
        """The model of the case's batch."""
        return self.make(int(self.key["batch"]))


@dataclass(frozen=True, slots=True)
class Plan:
    """What every case is given: at most `trials` and `tune_s` seconds; `time_s` a side."""

    threads: int
    trials: int
    tune_s: float | None
    time_s: float


@click.command()
@click.option("--machine", required=True, help="Name in docs/results/machines.csv.")
@click.option("--only", multiple=True, type=click.Choice(tuple(CASES)), help="Operators.  [all]")
@click.option("--batch", multiple=True, type=COUNT, default=(1, 16), show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--trials", type=COUNT, default=64, show_default=True, help="Per case at most.")
@click.option("--shapes", type=COUNT, default=4, show_default=True, help="Per operator at most.")
@click.option("--time", "time_s", type=float, default=1.0, show_default=True, help="Per side.")
@click.option("--budget", "budget_s", type=DURATION, help="For all that is left.  [no limit]")
@click.option("--out", type=click.Path(path_type=Path), default=FILE, help="The table.")
def main(
    machine: str,
    only: Sequence[str],
    batch: Sequence[int],
    threads: int,
    trials: int,
    shapes: int,
    time_s: float,
    budget_s: float | None,
    out: Path,
) -> None:
    """Measure what is not in the table yet."""
    done = {identity(row) for row in read_rows(out)} if out.exists() else set()
    cases = cases_of(machine, only or tuple(CASES), batch, threads, shapes)
    left = (case for case in cases if case.identity not in done)
    for case, tune_s in within(budget_s, left, time_s):
        row = case.key | measure(case.model, Plan(threads, trials, tune_s, time_s))
        append_row(out, FIELDS, row)
        click.echo(", ".join(row[key] for key in FIELDS[1:]))


def cases_of(
    machine: str, operators: Sequence[str], batch: Sequence[int], threads: int, shapes: int
) -> Iterator[Case]:
    """The first shape of every operator, for each batch, then the second ones."""
    for n_shape in range(shapes):
        for n in batch:
            for operator in operators:
                for text, make in CASES[operator][n_shape : n_shape + 1]:
                    shape = text.replace(", ", " ").strip("()")
                    key = {"machine": machine, "operator": operator, "shape": shape}
                    yield Case(key | {"batch": str(n), "threads": str(threads)}, make)


def identity(row: Mapping[str, str]) -> tuple[str, ...]:
    """What tells rows of the table apart."""
    return tuple(row[key] for key in ("machine", "operator", "shape", "batch", "threads"))


def measure(model: Model, plan: Plan) -> dict[str, str]:
    """Tune, compile and measure one model; microseconds, and our time over the best of others."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "operator.jsonl"
        compile_ = _compiled_model if model.expression is None else _compiled_expression
        compiled, error = compile_(model, log, plan)
        n_trials = len(read_log(log).records)
    proto = model.proto()
    runners: dict[str, Runner] = {n: baseline(n, proto, plan.threads) for n in BASELINES}
    return {"trials": str(n_trials)} | cells(bench(compiled, runners, min_s=plan.time_s), error)


def _compiled_model(model: Model, log: Path, plan: Plan) -> tuple[Compiled, float | None]:
    path = log.with_suffix(".onnx")
    onnx.save(model.proto(), path)
    trials, time_s = plan.trials, plan.tune_s
    autotune.tune(
        path, log, trials=trials, time_s=time_s, threads=plan.threads, show="nothing", compare=False
    )
    artifact = autotune.compile(path, log, threads=plan.threads).artifact
    artifact.save(log.with_suffix(".atn"))
    return autotune.load(log.with_suffix(".atn")), artifact.max_error


def _compiled_expression(model: Model, log: Path, plan: Plan) -> tuple[Compiled, float | None]:
    assert model.expression is not None
    task = autotune.Task(model.expression.output, threads=plan.threads)
    task.tune(trials=plan.trials, time_s=plan.tune_s, log=log)
    function = task.build(constants=model.expression.constants(model.arrays()))
    return function.model, function.model.artifact.max_error


def cells(result: BenchResult, error: float | None) -> dict[str, str]:
    """The figures of a row; `error`: largest of the tasks, by default that to the baselines."""
    data = result.to_json()
    differences = [t.max_error for t in result.baselines.values() if t.max_error is not None]
    error = max(differences, default=0.0) if error is None else error
    found = {
        f"{name}_us": f"{data[name]['median_s'] * 1e6:.1f}" if data.get(name) else ""
        for name in SIDES
    }
    return found | {"ratio": f"{data['ratio']:.3f}", "error": f"{error:.1e}"}


if __name__ == "__main__":
    main()
