"""⑪ `autotune compile`: best records of a log, analytic defaults for the rest, one artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.api.sources import model_bytes, model_files, model_path, random_weights_note
from autotune.cli.console import common_options, counting, put_json, put_path, say, say_note, stage
from autotune.cli.models import read_workload
from autotune.cli.option_types import FILE, THREADS, TIMES
from autotune.cli.options import (
    args_option,
    cache_option,
    check_input_option,
    exactness_options,
    fallback_option,
    force_option,
    format_option,
    operators_option,
    runner_option,
    source_options,
    state_options,
    store_option,
    target_option,
)
from autotune.errors import UsageError
from autotune.file_kinds import ARTIFACT
from autotune.files import require_place
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.api.compile.compiling import Compiled
    from autotune.api.request import CompileRequest
    from autotune.api.te.task import Task
    from autotune.network.artifact.artifact import Artifact
    from autotune.target import Target


def _refuse_split(_: click.Context, __: click.Parameter, dimension: str | None) -> None:
    """Raise UsageError for an option of former versions."""
    if dimension is not None:
        raise UsageError(
            f"--split {dimension} is no option any more",
            f"any size up to a most is one artifact: --dim {dimension}=..32",
        )


@click.command("compile")
@click.argument("model", required=False, type=FILE)
@click.option("--log", type=FILE, help="Log with the records to compile from.")
@click.option("-o", "--output", type=FILE, help="File to write.  [MODEL.atn]")
@force_option
@click.option("--threads", type=THREADS, help="Threads to run on.  [as tuned]")
@source_options
@state_options
@target_option(
    "CPU to compile for: a name, a file of `autotune target`, or of the log 'log' or a key; or "
    "several by commas.  [native]",
    "log",
)
@runner_option
@exactness_options
@click.option("--check/--no-check", default=True, help="Compare the outputs with an oracle.")
@check_input_option
@args_option
@operators_option
@fallback_option
@click.option("--keep-cut", is_flag=True, help="Even if all of MODEL is faster in ONNX Runtime.")
@click.option(
    "--constants", "weights", type=FILE, help="Constants of FILE.py:FUNCTION: an .npz by name."
)
@store_option
@cache_option
@click.option(
    "--max-size",
    type=TIMES,
    help="Most bytes of weights, such as 1.2x those of the model: slower programs where needed.",
)
@click.option(
    "--sharing",
    type=TIMES,
    help="Time that a program may take to share weights with others, such as 1.1x.  [1.03x]",
)
@click.option("--split", hidden=True, expose_value=False, callback=_refuse_split)
@click.option("--verify", is_flag=True, help="Check the loop IR after every pass of lowering.")
@format_option
@common_options
def command(
    model: Path | None,
    output: Path | None,
    force: bool,
    check_files: tuple[tuple[str, Path], ...],
    arguments: str | None,
    weights: Path | None,
    style: str,
    **options: Any,
) -> None:
    """Compile MODEL into one file that `autotune run` and `autotune.load` take.

    MODEL may be left out with --log: the log knows it. A task without a record in it takes that of
    the store, or else the program that an analytic model of this CPU chooses. Records with a larger
    error than --max-error (the limit that the log was tuned with, by default) are left out.
    Outputs are compared with those of ONNX Runtime, where it is installed, on the model file.

    What cannot be compiled (NonMaxSuppression, tree ensembles, strings, …) runs in ONNX Runtime.

    MODEL may be FILE.py:FUNCTION as well, a computation of `autotune.te`, which NumPy checks.
    """
    from autotune.api.request import CompileRequest

    request = CompileRequest(model, **options, note=say_note)
    log: Any = request.log
    if check_files and not request.check:
        raise UsageError("--check-input is for the check", "leave out --no-check")
    task = _workload(request, arguments, log)
    if task is not None:
        path = output or Path(f"{task.name}.atn")
        places = [p for p in (log, weights) if p]
        require_place(path, inputs=places, kind=None if force else ARTIFACT)
        _compile_workload(task, request, path, weights, style)
        return
    if weights is not None:
        raise UsageError("--constants is for workloads", "a model has its weights in its file")
    _compile_model(request, output, force, check_files, style)


def _compile_model(
    request: CompileRequest,
    output: Path | None,
    force: bool,
    check_files: tuple[tuple[str, Path], ...],
    style: str,
) -> None:
    from autotune.api.compile.kept import kept_or_made, model_of_request
    from autotune.api.folders import source_in

    if request.model is None and request.log is None:
        request = replace(request, model=model_path(None), random_weights=True)
    request = source_in(request, say_note)
    source = model_of_request(request)
    path = output or Path(f"{source.stem}.atn")
    given = [Path(request.log)] if request.log else []
    inputs = [*model_files(source), *given, *(file for _, file in check_files)]
    kind = None if force else ARTIFACT
    require_place(path, n_bytes=model_bytes(source), inputs=inputs, kind=kind)

    def make(known: CompileRequest) -> Compiled:
        return _made(known, check_files)

    done = kept_or_made(request, make, has_own=bool(check_files))
    if done.is_kept:
        say(f"{path.name}: compiled before from the same files and settings, found in the cache")
    if done.report is not None:
        say(str(done.report))
        for line in done.report.lines:
            say(f"  {line}")
    done.save(path)
    working = format_bytes(max(variant.arena_bytes for variant in done.artifact.variants))
    n_networks = len(done.artifact.variants)
    several = f"{n_networks} variants, " if n_networks > 1 else ""
    if done.artifact.cpus:
        from autotune.network.artifact.cpus import cpus_text

        names = cpus_text(done.artifact.by_cpu)
        say(f"for {names}: each machine takes the first of them that it can run")
    say(f"{several}{path.stat().st_size:,} bytes, {working} of working memory")
    kinds = _bytes_by_kind(path, done.artifact)
    say(", ".join(f"{kind} {format_bytes(n)}" for kind, n in kinds.items() if n))
    if style == "json":
        put_json(_compiled_json(path, done))
    else:
        put_path(path)


def _made(request: CompileRequest, check_files: tuple[tuple[str, Path], ...]) -> Compiled:
    """Read, choose, compile and check, with progress."""
    from autotune.api.compile.compiling import compile_plan, plan
    from autotune.cli.check_files import given_inferences

    chosen = replace(plan(request), progress=counting)
    name = chosen.bound.path.name
    with stage(f"reading {name}"):
        sources = chosen.sources()
    if chosen.bound.model.random_weights:
        request.note(random_weights_note(name))
    if check_files:
        chosen = replace(chosen, given=given_inferences(sources.inputs, check_files))
    n_denormal = sources.wholes[0].n_denormal
    if n_denormal:
        request.note(f"weights below 1.2e-38 count as zero ({n_denormal} here): docs/numbers.md")
    return compile_plan(chosen, sources)


def _bytes_by_kind(path: Path, artifact: Artifact) -> dict[str, int]:
    """Bytes of the file: weights by their kind, code, and all else."""
    weights = {f"weights {kind}": n for kind, n in artifact.constant_kinds.items()}
    kinds = {**weights, "code": len(artifact.image.data)}
    return {**kinds, "other": path.stat().st_size - sum(kinds.values())}


def _compiled_json(path: Path, done: Compiled) -> dict[str, Any]:
    """The written artifact, and its accuracy."""
    return {
        "artifact": str(path),
        "bytes": path.stat().st_size,
        "bytes_by_kind": _bytes_by_kind(path, done.artifact),
        "precision": done.artifact.precision,
        "tuned": len(done.artifact.tuned),
        "stored": list(done.artifact.stored),
        "check": done.report.to_json() if done.report else None,
    }


def _workload(request: CompileRequest, arguments: str | None, log_path: Path | None) -> Task | None:
    """The workload that is named, or that the log was made for; None where that is a model."""
    model: Any = request.model
    if log_path is None:
        return read_workload(model, arguments, request.threads or 0, request.target)
    from autotune.api.te.workloads import parse_source, task_of_log
    from autotune.records import read_log

    target: Target | str | None = request.target
    known = read_log(log_path)
    if known.headers:
        target = {"log": known.header.target, **known.targets}.get(request.target or "", target)
    if model is not None or arguments is not None:
        return read_workload(model, arguments, request.threads or 0, target)
    log = known
    if not log.headers or parse_source(log.header.model_path) is None:
        return None
    path, key, threads = log.header.model_path, log.header.model_hash, log.header.n_threads
    return task_of_log(path, key, threads=request.threads or threads, target=target)


def _compile_workload(
    task: Task, request: CompileRequest, path: Path, constants: Path | None, style: str
) -> None:
    from autotune.api.te.workloads import compile_task
    from autotune.cli.arrays import read_array

    log: Any = request.log
    arrays = read_array(constants) if constants else {}
    if not isinstance(arrays, dict):
        raise UsageError(f"{constants} holds one array", "write several by name: numpy.savez")
    artifact, error = compile_task(task, log, arrays, request.check, request.verify)
    if error is None and request.check:
        say_note(f"not checked: this CPU cannot run code for {task.target.cpu}")
    elif error is not None:
        say(f"outputs agree with NumPy: largest error {error:.1e} of the largest value")
    artifact.save(path)
    say(f"{path.stat().st_size:,} bytes")
    if style == "json":
        found = {"error": error} if error is not None else None
        put_json({"artifact": str(path), "bytes": path.stat().st_size, "check": found})
    else:
        put_path(path)
