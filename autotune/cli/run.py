"""⑪ `autotune run`: one inference on arrays from files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from autotune.cli.arrays import Arrays, largest_inputs, read_inputs, write_npz
from autotune.cli.console import columns, common_options, put, put_json, put_path, say, say_note
from autotune.cli.models import say_random_weights
from autotune.cli.option_types import FILE, THREADS
from autotune.cli.options import force_option, format_option, input_option
from autotune.file_kinds import ARRAYS
from autotune.files import require_place
from autotune.units import counted, format_shape

if TYPE_CHECKING:
    from autotune.network.runtime.runtime import Model


@click.command("run")
@click.argument("artifact", metavar="OUT", type=FILE)
@input_option
@click.option("-o", "--output", type=FILE, help="Write the outputs to this .npz file.")
@force_option
@click.option("--threads", type=THREADS, help="Threads to run on.  [as compiled]")
@format_option
@common_options
def command(
    artifact: Path,
    files: tuple[tuple[str, Path], ...],
    output: Path | None,
    force: bool,
    threads: int | None,
    style: str,
) -> None:
    """Run OUT, a file that `autotune compile` wrote.

    Without --input, runs on random numbers. Without -o, prints what the outputs look like.
    """
    from autotune.network.check.differences import flat_outputs
    from autotune.network.runtime.loading import load

    if output is not None:
        inputs = [artifact, *(path for _, path in files)]
        require_place(output, inputs=inputs, kind=None if force else ARRAYS)
    model = load(artifact, threads)
    if model.artifact.random_weights:
        say_random_weights(model.artifact.name)
    outputs = flat_outputs(model.run(_inputs(model, files)))
    if output is not None:
        write_npz(output, outputs)
        say(counted(len(outputs), "output"))
    if style == "json":
        found = [_facts(name, array) for name, array in outputs.items()]
        put_json({"outputs": found, "file": str(output) if output else None})
        return
    if output is not None:
        put_path(output)
        return
    put(
        columns(
            ("output", "shape", "dtype", "min", "mean", "max"), list(map(_row, outputs.items()))
        )
    )


def _inputs(model: Model, files: tuple[tuple[str, Path], ...]) -> Arrays:
    if files:
        return read_inputs(largest_inputs(model), files)
    from autotune.network.runtime.runtime import random_inputs

    say_note("no --input: running on random numbers")
    return random_inputs(model.input_info)


def _facts(name: str, array: NDArray[Any]) -> dict[str, Any]:
    """An output for scripts."""
    if array.dtype == object:
        return {"name": name, "shape": list(array.shape), "dtype": "string"}
    least, mean, most = (x if math.isfinite(x) else None for x in _numbers(array))
    found: dict[str, Any] = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
    return {**found, "min": least, "mean": mean, "max": most}


def _numbers(array: NDArray[Any]) -> tuple[float, float, float]:
    """Least, mean and largest element; NaN of an empty array."""
    wide = array if array.dtype.itemsize > 2 else array.astype(np.float32)
    if not array.size:
        return math.nan, math.nan, math.nan
    return float(wide.min()), float(wide.mean()), float(wide.max())


def _row(item: tuple[str, NDArray[Any]]) -> tuple[str, ...]:
    name, array = item
    shape = format_shape(array.shape)
    if array.dtype == object:
        return name, shape, "string", "", "", ""
    return name, shape, str(array.dtype), *(f"{x:.6g}" for x in _numbers(array))
