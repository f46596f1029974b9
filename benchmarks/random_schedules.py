"""Draw random schedules over the tasks of the light models and compare each with the oracle.

    python benchmarks/random_schedules.py [--count 500] [--seed 0] [--model NAME]…
    … --target neoverse-v1 --runner 'qemu-aarch64-static -cpu max,sve-default-vector-length=32'

Every candidate goes through the product's own builder, worker and oracle. Prints one JSON object;
exits 1 when any program computed a wrong answer or could not be built or run.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

import click
import numpy as np
import onnx

from autotune.measure.build import build_program
from autotune.measure.far.program_device import program_device
from autotune.measure.local import LocalDevice
from autotune.measure.measurer import measurer_of
from autotune.measure.options import MeasureOptions
from autotune.schedule.steps import Steps, steps_to_json
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import Target, host_target, parse_target
from autotune.te.dag import ComputeDAG
from benchmarks.models import read

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@click.command()
@click.option("--count", default=500, show_default=True, help="Schedules to draw.")
@click.option("--seed", default=0, show_default=True)
@click.option("--model", "models", multiple=True, help="Light models to draw from (default: all).")
@click.option("--target", "target_name", default="native", show_default=True)
@click.option("--runner", default="", help="What the programs run behind; nothing: here.")
def main(count: int, seed: int, models: tuple[str, ...], target_name: str, runner: str) -> None:
    """Check random schedules against the oracle."""
    target = host_target() if target_name == "native" else parse_target(target_name)
    rng = np.random.default_rng(seed)
    tasks = _tasks(models)
    shares = rng.multinomial(count, [1 / len(tasks)] * len(tasks))
    statuses: collections.Counter[str] = collections.Counter()
    options = MeasureOptions(min_repeats=1, max_repeats=1, build_timeout_s=120.0)
    device = program_device(runner, target, 1) if runner else LocalDevice(target)
    with measurer_of(device, options, build_program) as measurer:
        for (name, dag), share in zip(tasks, shares, strict=True):
            steps = [random_schedule(dag, target, rng) for _ in range(share)]
            for result, schedule in zip(measurer.measure(dag, steps), steps, strict=True):
                statuses[str(result.status)] += 1
                if not result.ok:
                    click.echo(f"{name} {dag.key} {result.status}: {result.error}", err=True)
                    click.echo(json.dumps(steps_to_json(schedule)), err=True)
            click.echo(f"{name} {dag.key}: {dict(statuses)}", err=True)
    click.echo(json.dumps({"schedules": int(count), "tasks": len(tasks), "status": statuses}))
    sys.exit(0 if set(statuses) == {"ok"} else 1)


def _tasks(models: tuple[str, ...]) -> list[tuple[str, ComputeDAG]]:
    found: dict[str, tuple[str, ComputeDAG]] = {}
    for path in sorted(LIGHT.glob("light_*.onnx")):
        name = path.stem.removeprefix("light_")
        if not models or name in models:
            for key, dag in read(path).tasks.items():
                found.setdefault(key, (name, dag))
    return list(found.values())


def random_schedule(dag: ComputeDAG, target: Target, rng: np.random.Generator) -> Steps:
    """A schedule drawn uniformly from the valid rows of a uniformly drawn sketch."""
    sketches = generate_sketches(dag, target)
    for _ in range(200):
        sketch = sketches[int(rng.integers(len(sketches)))]
        rows = sketch.sample(64, rng)
        rows = rows[analyse(dag, sketch, rows, target).valid]
        if len(rows):
            return sketch.bind(rows[int(rng.integers(len(rows)))])
    raise SystemExit(f"task {dag.key} has no valid schedule")


if __name__ == "__main__":
    main()
