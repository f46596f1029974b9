"""⑪ From a model and a log to an artifact: best records, analytic defaults for the rest, a check.

plan(model, log, …) ─► compile_plan(plan) ─► Compiled: the artifact, and what the check found
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from autotune.api.bindings import Dims, arrays_of, only, variants
from autotune.api.operators import operators_of
from autotune.api.tuning import require_same_machine
from autotune.api.warm import Note
from autotune.config import TuneConfig
from autotune.errors import LogMismatch, UsageError
from autotune.graph.network import Network, build_network, chosen, under_names_of
from autotune.graph.reader.constant_inputs import constants_from_json
from autotune.graph.reader.onnx_reader import model_hash
from autotune.graph.reader.random_weights import needs_weights
from autotune.measure.parallel_map import OnProgress, parallel_map
from autotune.network.artifact import Artifact, Tuned
from autotune.network.check import Report, check_model
from autotune.network.compiler import compile_network
from autotune.network.oracles import Original
from autotune.network.runtime import Model
from autotune.records import Header, Log, MeasureRecord, best_for, read_log
from autotune.schedule.steps import Steps
from autotune.search.policy import default_candidate
from autotune.target import Target, parse_target, require_cores, runs_here, usable_cores

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Arrays: TypeAlias = dict[str, NDArray[Any]]
Progress: TypeAlias = Callable[[str], AbstractContextManager[OnProgress]]
"""Told what long work begins; the block gets a callable for how much of it is done."""


@contextmanager
def no_progress(what: str) -> Iterator[OnProgress]:
    """Nobody watches."""
    yield lambda n_done, n_all: None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compile, for what, from what. Shapes bind dynamic dimensions of inputs by name."""

    model: Path
    shapes: Shapes
    target: Target
    n_threads: int
    max_error: float
    log: Log | None
    random_weights: bool = False
    operators: tuple[str, ...] = ()
    constants: Arrays = field(default_factory=dict)


def plan(
    model: Path | None = None,
    log: Path | None = None,
    shapes: Shapes | None = None,
    target: str | None = None,
    n_threads: int | None = None,
    max_error: float | None = None,
    random_weights: bool | None = None,
    dims: Dims | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Plan:
    """What to compile: defaults filled from the log, where there is one, else from this machine.

    `target`: as `--target`; "log" is the one of the log. `random_weights`: None as the log was made
    with. Raises UsageError and LogMismatch for what does not go together.
    """
    if target in (None, "native"):  # another machine may have more cores
        require_cores(n_threads or 1)
    fixed = arrays_of(constants)
    limit = TuneConfig().max_error if max_error is None else max_error
    if log is None:
        if model is None:
            raise UsageError("there is no model", "name a model, or a log that knows it")
        threads = n_threads or usable_cores()
        chosen = parse_target(target or "native")
        bound = only(variants(model, shapes, dims, fixed), "an artifact")
        given = bool(random_weights)
        return Plan(model, bound, chosen, threads, limit, None, given, constants=fixed)
    read = read_log(log)
    limit = read.max_error if max_error is None and read.max_error is not None else limit
    read = read.within(limit)
    if not read.headers:
        raise LogMismatch(f"{log} has no header", "name a log that autotune has written")
    header = read.header
    chosen = header.target if target == "log" else parse_target(target or "native")
    path = model or _model_of(read)
    is_random = _has_random_weights(path, header) if random_weights is None else random_weights
    threads = n_threads or header.n_threads
    operators = TuneConfig.from_json(read.settings).operators
    fixed = fixed or constants_from_json(header.constant_inputs)
    bound = only(variants(path, shapes, dims, fixed), "an artifact") or header.shapes
    return Plan(path, bound, chosen, threads, limit, read, is_random, operators, fixed)


def compile(
    model: str | Path | None = None,
    log: str | Path | None = None,
    *,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Mapping[str, Any] | None = None,
    target: str | None = None,
    max_error: float | None = None,
    random_weights: bool | None = None,
    operators: Sequence[str | Path] = (),
    check: bool = True,
    check_inputs: Arrays | None = None,
    note: Note = lambda text: None,
) -> Compiled:
    """Compile `model` from the best records of `log`; the words are those of the command line.

    Tasks without a record take the program that the analytic cost model chooses, so a log is not
    needed. `dims`: extents of dimensions by name, see `bindings`; `constants`: inputs that are the
    same in every inference. `note` is told, in a line each, what a user should know. See
    `compile_plan` for errors.
    """
    path, log_path = Path(model) if model else None, Path(log) if log else None
    chosen_plan = plan(
        path, log_path, shapes, target, threads, max_error, random_weights, dims, constants
    )
    if operators:
        chosen_plan = replace(chosen_plan, operators=tuple(map(str, operators)))
    return compile_plan(chosen_plan, check=check, given=check_inputs, note=note)


@dataclass(frozen=True, slots=True)
class Compiled:
    """An artifact, and the report of its check; None where it was not checked."""

    artifact: Artifact
    report: Report | None


def compile_plan(
    plan: Plan,
    network: Network | None = None,
    check: bool = True,
    given: Arrays | None = None,
    note: Note = lambda text: None,
    progress: Progress = no_progress,
) -> Compiled:
    """Compile what `plan` says and compare its outputs with an oracle.

    `network`: that of the plan, where it was read already. `given`: inputs of the user's for the
    check, by name. Raises WrongNumbers where the outputs are wrong, LogMismatch for a log of
    another model or CPU.
    """
    if network is None:
        operators = operators_of(plan.operators)
        network = build_network(
            plan.model, plan.shapes, plan.random_weights, operators, plan.constants
        )
    best = _best(network, plan, note)
    for key in best:
        if plan.log and key in plan.log.workloads:
            network = under_names_of(network, plan.log.workloads[key].dag)
    tasks = tuple(network.weights)
    network, steps = _choose(network, plan, best, note, progress)
    artifact = _compile(network, steps, plan, progress)
    artifact = replace(artifact, tuned=tuned_latencies(best), tasks=tasks)
    if not check:
        return Compiled(artifact, None)
    if not runs_here(plan.target):
        note("not checked: this CPU cannot run the code")
        return Compiled(artifact, None)
    report = _check(artifact, network, plan, given, note)
    return Compiled(replace(artifact, max_error=report.error), report)


def _has_random_weights(model: Path, header: Header) -> bool:
    """Whether a log was made with random weights, of the very model that is compiled."""
    if header.random_weights is None:  # a log from before they had to be asked for
        return needs_weights(model)
    return header.random_weights and model_hash(model) == header.model_hash


def _model_of(log: Log) -> Path:
    """The model that a log was made for, if it is still the same file."""
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


def _best(network: Network, plan: Plan, note: Note) -> dict[str, MeasureRecord]:
    """The best record of every task that the log knows; none without a log."""
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
        note("the log was made for another model file; tasks that are the same are used")
    return found


def _choose(
    network: Network,
    plan: Plan,
    best: dict[str, MeasureRecord],
    note: Note,
    progress: Progress,
) -> tuple[Network, dict[str, Steps]]:
    """The faster alternative of every chain, and a schedule for every task.

    That of the best record, else the analytic default. A chain that was not measured as a whole and
    in all its parts is left as the analytical cost model would have it in an untuned network.
    """
    open_keys = _open_alternatives(network, best)
    unknown = [key for key in network.tasks if key not in best or key in open_keys]
    choose = partial(
        default_candidate, target=plan.target, n_threads=plan.n_threads, max_error=plan.max_error
    )
    with progress("choosing programs") as tell:
        found = parallel_map(choose, [network.tasks[key] for key in unknown], tell)
    defaults = dict(zip(unknown, found, strict=True))
    steps = {key: default.steps for key, default in defaults.items()}
    steps |= {key: record.steps for key, record in best.items()}
    guess = {key: default.predicted_s or math.inf for key, default in defaults.items()}
    latency_s = {key: record.result.latency_s or math.inf for key, record in best.items()}
    network = chosen(network, latency_s, guess)
    missing = [key for key in network.weights if key not in best]
    if missing:
        note(f"{len(missing)} of {len(network.tasks)} tasks take their analytic default")
    return network, {key: steps[key] for key in network.tasks}


def _open_alternatives(network: Network, best: Mapping[str, MeasureRecord]) -> set[str]:
    """Tasks of chains of which a part, or the whole, was not measured."""
    chains = ({whole, *parts} for whole, parts in network.parts.items())
    return set().union(*(keys for keys in chains if not keys <= best.keys()))


def tuned_latencies(best: Mapping[str, MeasureRecord]) -> dict[str, Tuned]:
    """What the best records say of tasks alone, by key, as an artifact keeps it."""
    measured = ((key, r.result.latency_s, r.n_threads) for key, r in best.items())
    return {key: Tuned(latency_s, n) for key, latency_s, n in measured if latency_s}


def _compile(network: Network, steps: dict[str, Steps], plan: Plan, progress: Progress) -> Artifact:
    with progress("compiling programs") as tell:
        artifact = compile_network(network, steps, plan.target, plan.n_threads, tell)
    return replace(artifact, model_path=str(plan.model.resolve()))


def _check(
    artifact: Artifact, network: Network, plan: Plan, given: Arrays | None, note: Note
) -> Report:
    """Compare with an oracle. Raises WrongNumbers."""
    original = Original(plan.model, plan.shapes, plan.random_weights, plan.constants)
    report = check_model(Model(artifact), network, original, given)
    for line in report.notes:
        note(line)
    return report
