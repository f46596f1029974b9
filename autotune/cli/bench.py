"""⑪ `autotune bench`: latency of a compiled model, alone or beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import columns, debug_option, put, put_json
from autotune.cli.options import COUNT, FILE, Duration, format_option
from autotune.errors import LogMismatch, UsageError
from autotune.units import format_seconds

if TYPE_CHECKING:
    from autotune.network.runtime import Model


@click.command("bench")
@click.argument("artifact", metavar="OUT", type=FILE)
@click.option(
    "--against", type=click.Choice(["onnxruntime"]), help="Measure this as well, in turns."
)
@click.option("--threads", type=COUNT, help="Threads to run on.  [as compiled]")
@click.option("--model", type=FILE, help="ONNX file for --against.  [the one compiled]")
@click.option("--time", "time_s", type=Duration(), default="2s", help="Time per side.  [2s]")
@format_option
@debug_option
def command(
    artifact: Path,
    against: str | None,
    threads: int | None,
    model: Path | None,
    time_s: float,
    style: str,
) -> None:
    """Measure the latency of OUT, a file that `autotune compile` wrote.

    With --against, both run the same weights on the same random inputs with the same number of
    threads and take turns, so that what disturbs the machine disturbs both.
    """
    from autotune.network.bench import bench
    from autotune.network.runtime import load

    compiled = load(artifact, threads)
    theirs = _onnx_model(compiled, model) if against else None
    result = bench(compiled, theirs, min_s=time_s)
    data = result.to_json()
    if style == "json":
        put_json(data)
        return
    head = ("", "min", "median", "mean", "max", "std", "runs", "threads")
    rows = [_row(side, data[side]) for side in ("autotune", "onnxruntime") if data.get(side)]
    put(columns(head, rows, right=head[1:]))
    if result.ratio is not None:
        put(f"ratio of medians: {result.ratio:.3f} (below 1: autotune is faster)")


def _row(side: str, timing: dict[str, Any]) -> tuple[str, ...]:
    names = ("min_s", "median_s", "mean_s", "max_s", "std_s")
    times = (format_seconds(timing[name] or 1e-12) for name in names)
    return side, *times, str(timing["runs"]), str(timing["threads"])


def _onnx_model(compiled: Model, path: Path | None) -> Any:
    """The ONNX model with the very weights that were compiled."""
    from autotune.graph.onnx_reader import model_hash, prepare_model

    artifact = compiled.artifact
    source = path or Path(artifact.model_path)
    if not source.is_file():
        raise UsageError(f"there is no model file '{source}'", "name it with --model")
    if model_hash(source) != artifact.model_hash:
        raise LogMismatch(
            f"{source} is not the model that was compiled", "name the right one with --model"
        )
    return prepare_model(source, {end.name: end.shape for end in artifact.inputs})
