"""⑪ `autotune compile`: best records of a log, analytic defaults for the rest, one artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from numpy.typing import NDArray

from autotune.cli.console import counting, debug_option, put_path, say, say_note
from autotune.cli.models import model_bytes, model_files, model_path, read_network
from autotune.cli.options import (
    FILE,
    THREADS,
    check_input_option,
    max_error_option,
    random_weights_option,
    shape_option,
    shapes_of,
)
from autotune.errors import UsageError
from autotune.files import require_place
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.graph.network import Network

Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, NDArray[Any]]


@click.command("compile")
@click.argument("model", required=False, type=FILE)
@click.option("--log", "log_path", type=FILE, help="Log with the records to compile from.")
@click.option("-o", "--output", type=FILE, help="File to write.  [MODEL.atn]")
@click.option("--threads", type=THREADS, help="Threads to run on.  [as tuned]")
@shape_option
@random_weights_option
@click.option("--target", help="CPU to compile for; 'log': the one in the log.  [native]")
@max_error_option
@click.option("--check/--no-check", default=True, help="Compare the outputs with an oracle.")
@check_input_option
@debug_option
def command(
    model: Path | None,
    log_path: Path | None,
    output: Path | None,
    threads: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    random_weights: bool,
    target: str | None,
    max_error: float | None,
    check: bool,
    check_files: tuple[tuple[str, Path], ...],
) -> None:
    """Compile MODEL into one file that `autotune run` and `autotune.load` take.

    MODEL may be left out with --log: the log knows it. Without --log, every task takes the program
    that an analytic model of this CPU chooses. Records with a larger error than --max-error (the
    limit that the log was tuned with, by default) are left out. The outputs are compared with those
    of ONNX Runtime, where it is installed, on the model file itself.
    """
    from autotune.api.compiling import compile_plan
    from autotune.api.compiling import plan as plan_of

    if check_files and not check:
        raise UsageError("--check-input is for the check", "leave out --no-check")
    source = model_path(model) if log_path is None else model
    is_random = True if random_weights or (model is None and log_path is None) else None
    plan = plan_of(source, log_path, shapes_of(shapes), target, threads, max_error, is_random)
    path = output or Path(f"{plan.model.stem}.atn")
    inputs = [*model_files(plan.model), *([log_path] if log_path else [])]
    inputs += [file for _, file in check_files]
    require_place(path, n_bytes=model_bytes(plan.model), inputs=inputs)
    network = read_network(plan.model, plan.shapes, plan.random_weights)
    given = _given(network, check_files)
    if network.n_denormal:
        say_note(
            f"weights below 1.2e-38 count as zero ({network.n_denormal} here): docs/numbers.md"
        )
    done = compile_plan(plan, network, check, given, say_note, counting)
    if done.report is not None:
        say(str(done.report))
    done.artifact.save(path)
    working = format_bytes(done.artifact.arena_bytes)
    say(f"{path.stat().st_size:,} bytes, {working} of working memory")
    put_path(path)


def _given(network: Network, files: tuple[tuple[str, Path], ...]) -> Arrays | None:
    """The user's own inputs for the check; looked at before minutes are spent."""
    from autotune.cli.run import read_inputs
    from autotune.network.artifact import Endpoint
    from autotune.network.runtime import require_inputs

    ports = tuple(Endpoint(p.name, p.shape, p.dtype, 0) for p in network.inputs)
    if not files:
        return None
    arrays = read_inputs(ports, files, "--check-input")
    require_inputs(ports, arrays)
    return arrays
