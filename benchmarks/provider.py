"""An artifact by itself and inside ONNX Runtime, through the provider, in turns.

    python -m benchmarks.provider MODEL.onnx … [--threads 2] [--starts 5]

Each model is compiled untuned, unless an artifact MODEL.atn is beside it, and exported with
`--onnx`. Then processes of both kinds take turns, `--starts` of each, and each tells the median of
its inferences: `Model.run` with arrays that are there, and ONNX Runtime's session with bound
arrays. The ratio is that of the medians of processes; *processes* are the least and the most of one
kind. Figures of machines are in `docs/results/exported.md`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import autotune
from autotune.network.runtime.runtime import random_inputs

_HEAD = """\
| network | artifact | processes | provider | processes | ratio | more, µs |
|---|---:|---:|---:|---:|---:|---:|"""
_WARM_S = 0.3


def timed(call: Callable[[], Any], seconds: float) -> float:
    """The median of µs of a call."""
    found, end = list[float](), time.perf_counter() + _WARM_S
    while time.perf_counter() < end:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 5:
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return statistics.median(found) * 1e6


def by_artifact(folder: Path, seconds: float) -> float:
    """Of `Model.run`."""
    model: Any = autotune.load(folder / "net.atn")
    feeds = random_inputs(model.artifact.inputs, 1)
    out = model.run(feeds)
    return timed(lambda: model.run(feeds, out), seconds)


def by_provider(folder: Path, seconds: float) -> float:
    """Of a session of ONNX Runtime whose arrays are bound."""
    from autotune.telemetry import imported

    ort: Any = imported("onnxruntime")
    ort.register_execution_provider_library("autotune", str(autotune.onnxruntime_provider()))
    devices = [d for d in ort.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices, {})
    session = ort.InferenceSession(str(folder / "net_ctx.onnx"), options)
    binding = session.io_binding()
    artifact: Any = autotune.load(folder / "net.atn").artifact
    for name, array in random_inputs(artifact.inputs, 1).items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for end in artifact.outputs:
        made = ort.OrtValue.ortvalue_from_shape_and_type(end.shape, end.numpy_dtype, "cpu", 0)
        binding.bind_ortvalue_output(end.name, made)
    return timed(lambda: session.run_with_iobinding(binding), seconds)


_SIDES = {"artifact": by_artifact, "provider": by_provider}


def prepared(model: Path, folder: Path, threads: int) -> None:
    """Write the artifact and its export to `folder`."""
    known = model.with_suffix(".atn")
    if known.exists():
        artifact: Any = autotune.load(known).artifact
    else:
        artifact = autotune.compile(model, threads=threads, check=False).artifact
    artifact.save(folder / "net.atn")
    autotune.export(artifact, folder, "net", onnx=True, force=True)


def measured(folder: Path, starts: int, seconds: float) -> dict[str, list[float]]:
    """µs of each process of both kinds."""
    found: dict[str, list[float]] = {side: [] for side in _SIDES}
    for _ in range(starts):
        for side in _SIDES:
            command = [sys.executable, "-m", "benchmarks.provider", "--side", side]
            told = subprocess.run(
                [*command, "--seconds", str(seconds), str(folder)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found[side].append(json.loads(told.stdout.splitlines()[-1]))
    return found


def row(name: str, found: dict[str, list[float]]) -> str:
    """A line of the table."""
    ours, theirs = (statistics.median(found[side]) for side in _SIDES)
    spans = (f"{min(found[side]):,.0f} to {max(found[side]):,.0f}" for side in _SIDES)
    first, second = spans
    more = f"{theirs / ours:.3f} | {theirs - ours:,.0f}"
    return f"| {name} | {ours:,.0f} | {first} | {theirs:,.0f} | {second} | {more} |"


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--threads", default=2, show_default=True)
@click.option("--starts", default=5, show_default=True, help="Processes of each kind.")
@click.option("--seconds", default=1.0, show_default=True, help="Of a process.")
@click.option("--side", type=click.Choice([*_SIDES]), hidden=True)
def main(paths: tuple[Path, ...], threads: int, starts: int, seconds: float, side: str) -> None:
    """Print the table of the models."""
    if side:
        click.echo(_SIDES[side](paths[0], seconds))
        return
    click.echo(_HEAD)
    for path in paths:
        with tempfile.TemporaryDirectory() as made:
            prepared(path, Path(made), threads)
            click.echo(row(path.stem, measured(Path(made), starts, seconds)))


if __name__ == "__main__":
    main()
