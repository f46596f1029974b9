"""⑪ `autotune compile`: best records of a log, analytic defaults for the rest, one artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from numpy.typing import NDArray

from autotune.cli.console import counting, debug_option, put_path, say, say_note
from autotune.cli.models import model_bytes, model_files, model_path, needs_weights, read_network
from autotune.cli.options import (
    COUNT,
    FILE,
    check_input_option,
    max_error_option,
    random_weights_option,
    shape_option,
    shapes_of,
)
from autotune.errors import LogMismatch, UsageError
from autotune.files import require_place
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.graph.network import Network
    from autotune.network.artifact import Artifact, Tuned
    from autotune.records import Log, MeasureRecord
    from autotune.schedule.steps import Steps
    from autotune.target import Target

Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, NDArray[Any]]


@click.command("compile")
@click.argument("model", required=False, type=FILE)
@click.option("--log", "log_path", type=FILE, help="Log with the records to compile from.")
@click.option("-o", "--output", type=FILE, help="File to write.  [MODEL.atn]")
@click.option("--threads", type=COUNT, help="Threads to run on.  [as tuned]")
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
    from autotune.target import runs_here

    if check_files and not check:
        raise UsageError("--check-input is for the check", "leave out --no-check")
    plan = _plan(model, log_path, shapes_of(shapes), target, threads, max_error)
    path = output or Path(f"{plan.model.stem}.atn")
    inputs = [*model_files(plan.model), *([log_path] if log_path else [])]
    inputs += [file for _, file in check_files]
    require_place(path, n_bytes=model_bytes(plan.model), inputs=inputs)
    plan = replace(plan, random_weights=random_weights or _has_random_weights(model, plan))
    network = read_network(plan.model, plan.shapes, plan.random_weights)
    given = _given(network, check_files)
    best = _best(network, plan)
    tasks = tuple(network.weights)
    network, steps = _choose(network, plan, best)
    artifact = _compile(network, steps, plan)
    artifact = replace(artifact, tuned=tuned_latencies(best), tasks=tasks)
    if check and not runs_here(plan.target):
        say_note("not checked: this CPU cannot run the code")
    elif check:
        artifact = replace(artifact, max_error=_check(artifact, network, plan, given))
    artifact.save(path)
    say(f"{path.stat().st_size:,} bytes, {format_bytes(artifact.arena_bytes)} of working memory")
    put_path(path)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to compile, for what, from what."""

    model: Path
    shapes: Shapes
    target: Target
    n_threads: int
    max_error: float
    log: Log | None
    random_weights: bool = False


def _plan(
    model: Path | None,
    log_path: Path | None,
    shapes: Shapes,
    target_name: str | None,
    threads: int | None,
    max_error: float | None,
) -> _Plan:
    from autotune.config import TuneConfig
    from autotune.records import read_log
    from autotune.target import parse_target, require_cores, usable_cores

    if target_name in (None, "native"):  # another machine may have more cores
        require_cores(threads or 1)
    limit = TuneConfig().max_error if max_error is None else max_error
    if log_path is None:
        target = parse_target(target_name or "native")
        return _Plan(model_path(model), shapes, target, threads or usable_cores(), limit, None)
    log = read_log(log_path)
    limit = log.max_error if max_error is None and log.max_error is not None else limit
    log = log.within(limit)
    if not log.headers:
        raise LogMismatch(f"{log_path} has no header", "name a log that autotune has written")
    header = log.header
    target = header.target if target_name == "log" else parse_target(target_name or "native")
    path = model or _model_of(log)
    n_threads = threads or header.n_threads
    return _Plan(path, shapes or header.shapes, target, n_threads, limit, log)


def _has_random_weights(model: Path | None, plan: _Plan) -> bool:
    """Whether the log was made with random weights, of the very model that is compiled."""
    from autotune.graph.onnx_reader import model_hash

    if plan.log is None:
        return model is None
    header = plan.log.header
    if header.random_weights is None:  # a log from before they had to be asked for
        return needs_weights(plan.model)
    return header.random_weights and model_hash(plan.model) == header.model_hash


def _model_of(log: Log) -> Path:
    """The model that a log was made for, if it is still the same file."""
    from autotune.graph.onnx_reader import model_hash

    path = Path(log.header.model_path)
    if not path.is_file():
        raise UsageError(
            f"the model of the log is gone: {path}", "name it: autotune compile MODEL --log LOG"
        )
    if model_hash(path) != log.header.model_hash:
        raise LogMismatch(
            f"{path} is not the model that the log was made for: its contents have changed",
            "if that is meant, name it: autotune compile MODEL --log LOG",
        )
    return path


def _best(network: Network, plan: _Plan) -> dict[str, MeasureRecord]:
    """The best record of every task that the log knows; none without a log."""
    from autotune.cli.sessions import require_same_machine
    from autotune.records import best_for

    if plan.log is None:
        return {}
    if not any(r.target_key == plan.target.key for r in plan.log.records):
        require_same_machine(plan.log.header, plan.target)
    best = best_for(plan.log, plan.target.key, plan.n_threads)
    found = {key: best[key] for key in network.tasks if key in best}
    if not found:
        raise LogMismatch(
            f"the log has no record for any task of {plan.model.name}",
            f"it was made for {plan.log.header.model_path}",
        )
    if network.model_hash != plan.log.header.model_hash:
        say_note("the log was made for another model file; tasks that are the same are used")
    return found


def _choose(
    network: Network, plan: _Plan, best: dict[str, MeasureRecord]
) -> tuple[Network, dict[str, Steps]]:
    """The faster alternative of every chain, and a schedule for every task.

    That of the best record, else the analytic default. A chain that was not measured as a whole and
    in all its parts is left as the analytical cost model would have it in an untuned network.
    """
    from autotune.graph.network import chosen
    from autotune.measure.spread import spread
    from autotune.search.policy import default_candidate

    open_keys = _open_alternatives(network, best)
    unknown = [key for key in network.tasks if key not in best or key in open_keys]
    draft = partial(
        default_candidate, target=plan.target, n_threads=plan.n_threads, max_error=plan.max_error
    )
    with counting("choosing programs") as tell:
        drafts = spread(draft, [network.tasks[key] for key in unknown], tell)
    defaults = dict(zip(unknown, drafts, strict=True))
    steps = {key: default.steps for key, default in defaults.items()}
    steps |= {key: record.steps for key, record in best.items()}
    guess = {key: default.predicted_s or math.inf for key, default in defaults.items()}
    latency_s = {key: record.result.latency_s or math.inf for key, record in best.items()}
    network = chosen(network, latency_s, guess)
    missing = [key for key in network.weights if key not in best]
    if missing:
        say_note(f"{len(missing)} of {len(network.tasks)} tasks take their analytic default")
    return network, {key: steps[key] for key in network.tasks}


def _open_alternatives(network: Network, best: Mapping[str, MeasureRecord]) -> set[str]:
    """Tasks of chains of which a part, or the whole, was not measured."""
    chains = ({whole, *parts} for whole, parts in network.parts.items())
    return set().union(*(keys for keys in chains if not keys <= best.keys()))


def tuned_latencies(best: Mapping[str, MeasureRecord]) -> dict[str, Tuned]:
    """What the best records say of tasks alone, by key, as an artifact keeps it."""
    from autotune.network.artifact import Tuned

    measured = ((key, r.result.latency_s, r.n_threads) for key, r in best.items())
    return {key: Tuned(latency_s, n) for key, latency_s, n in measured if latency_s}


def _compile(network: Network, steps: dict[str, Steps], plan: _Plan) -> Artifact:
    from autotune.network.compiler import compile_network

    with counting("compiling programs") as tell:
        artifact = compile_network(network, steps, plan.target, plan.n_threads, tell)
    return replace(artifact, model_path=str(plan.model.resolve()))


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


def _check(artifact: Artifact, network: Network, plan: _Plan, given: Arrays | None) -> float:
    """Compare with an oracle; returns the largest error. Raises WrongNumbers."""
    from autotune.network.check import check_model
    from autotune.network.oracles import Original
    from autotune.network.runtime import Model

    original = Original(plan.model, plan.shapes, plan.random_weights)
    report = check_model(Model(artifact), network, original, given)
    for note in report.notes:
        say_note(note)
    say(str(report))
    return report.error
