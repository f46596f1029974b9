"""⑪ `autotune quantise`: products of bytes where that is faster, and nearly as exact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import (
    common_options,
    counting,
    put_json,
    put_path,
    say,
    say_late_note,
    say_note,
)
from autotune.cli.option_types import FILE, THREADS
from autotune.cli.options import force_option, format_option, shape_options
from autotune.codec import to_json
from autotune.config import AUTO_MAX_ERROR, LEAST_AGREEMENT
from autotune.file_kinds import QUANTISED
from autotune.files import require_place

if TYPE_CHECKING:
    from autotune.api.quantising import Quantised


@click.command("quantise")
@click.argument("model", type=FILE)
@click.option(
    "--data",
    type=FILE,
    required=True,
    help="An .npz of samples: arrays by the names of the inputs, samples along their first "
    "dimension; of one input an .npy as well.",
)
@click.option("-o", "--output", type=FILE, help="ONNX file to write.  [MODEL.int8.onnx]")
@force_option
@click.option("--threads", type=THREADS, help="Threads to run on.  [as many as are usable]")
@shape_options
@click.option(
    "--labels",
    multiple=True,
    metavar="OUTPUT",
    help="An output whose rows are scores, of which the highest has to be the same. Repeatable.  "
    "[classifiers and probabilities]",
)
@click.option(
    "--agreement",
    type=click.FloatRange(min=0, max=1),
    default=LEAST_AGREEMENT,
    show_default=True,
    help="Least share of rows with the label of float32.",
)
@click.option(
    "--max-error",
    type=click.FloatRange(min=0, min_open=True),
    default=AUTO_MAX_ERROR,
    show_default=True,
    help="Without labels: largest error of an output, as a share of its largest value.",
)
@format_option
@common_options
def command(
    model: Path,
    data: Path,
    output: Path | None,
    style: str,
    **options: Any,
) -> None:
    """Write MODEL with products of bytes (QDQ), where that is faster and the outputs are alike.

    ONNX Runtime finds the ranges of all tensors on every second sample of --data. Then all products
    with constant weights are compiled in bytes, and timed in the running network beside float32:
    those that bytes do not make faster stay as they are. On the other samples the outputs are
    compared; where they differ too much, products go back to float32, those first whose error is
    large for what they gain. The last line is measured: both networks in turns, and how alike they
    are.

    Where no product may be in bytes nothing is written, exit code 5. A network of integers that is
    slower, as without VNNI, is written with a note.
    """
    from autotune.api.quantising import QuantiseRequest, quantised
    from autotune.cli.arrays import read_array

    path = output or Path(f"{model.stem}.int8.onnx")
    kind = None if options["force"] else QUANTISED
    require_place(path, inputs=[model, data], kind=kind)
    arrays = read_array(data)
    given = arrays if isinstance(arrays, dict) else {data.stem: arrays}
    done = quantised(QuantiseRequest(model, given, path, **options, note=say_note), counting)
    if style == "json":
        put_json(_output(done))
    else:
        put_path(path)
    if done.is_slower:
        say_late_note(
            f"bytes take {1 / done.speed:.2f} times as long as float32 on this CPU; {path} is "
            "written all the same"
        )
    say(str(done))


def _output(done: Quantised) -> dict[str, Any]:
    likeness: Any = to_json(done.likeness)
    return {
        "model": str(done.path),
        "bytes": done.path.stat().st_size,
        "float_s": done.float_s,
        "integer_s": done.integer_s,
        "speed": done.speed,
        "slowest": done.slowest,
        "fastest": done.fastest,
        "rounds": done.n_rounds,
        "likeness": likeness,
        "integers": list(done.integers),
        "floats": list(done.floats),
    }
