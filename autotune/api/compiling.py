"""⑪ From a model and a log to an artifact: best records, analytic defaults for the rest, a check.

plan(model, log, …) ─► compile_plan(plan) ─► Compiled: the artifact, and what the check found
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from autotune.api.bindings import Dims, arrays_of, variants, variants_of
from autotune.api.choosing import (
    Plan,
    Progress,
    best_records,
    choose,
    no_progress,
    tuned_latencies,
    with_kept_records,
)
from autotune.api.cutting import Sources, cut_times
from autotune.api.mixing import NOT_MIXED, compile_mixed, form_notes
from autotune.api.sizing import fitting
from autotune.api.sources import model_files, total_bytes
from autotune.api.splitting import check_split, split_of
from autotune.api.warm import Note
from autotune.brief import brief
from autotune.cache import program_store
from autotune.config import AUTO, TuneConfig, resolve
from autotune.errors import AutotuneError, LogMismatch, UsageError
from autotune.files import Files, Stamps, paths_of
from autotune.graph.constant_values import constants_from_json
from autotune.graph.network import Network, under_names_of
from autotune.graph.reader.model_files import ModelSource, is_path, model_file
from autotune.graph.reader.onnx_reader import model_hash
from autotune.graph.reader.random_weights import needs_weights
from autotune.machine import require_threads
from autotune.measure.threads import default_threads
from autotune.network.accuracy import Report, joint_report
from autotune.network.artifact import Artifact, Split, Tuned
from autotune.network.check import check_model
from autotune.network.compiler import compile_variants
from autotune.network.experience import Experience
from autotune.network.hybrid import hybrid_artifact
from autotune.network.loading import model_of
from autotune.network.oracles import Original
from autotune.records import Header, Log, read_log
from autotune.records.kept import record_store
from autotune.target import parse_target, runs_here
from autotune.target.tiles import denial

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Given: TypeAlias = Mapping[str, NDArray[Any]] | Sequence[Mapping[str, NDArray[Any]]] | None
"""The user's own inputs for a check, by name: of one inference or of several."""


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
    precision: str | None = None,
) -> Plan:
    """What to compile: defaults filled from the log, where there is one, else from this machine.

    `target`: the name of a CPU; "log" is the one of the log. `random_weights`: None as the log was
    made with; `precision` likewise. Raises UsageError and LogMismatch for what does not go
    together.
    """
    require_threads(n_threads, are_here=target in (None, "native"))
    fixed = arrays_of(constants)
    if log is None:
        if model is None:
            raise UsageError("there is no model", "name a model, or a log that knows it")
        threads = n_threads or default_threads()
        chosen = parse_target(target or "native")
        files = Stamps.of(model_files(model))
        bound = variants(model, shapes, dims, fixed)
        given = bool(random_weights)
        config = resolve(None, {"precision": precision, "max_error": max_error}).config
        return Plan(
            model,
            bound,
            chosen,
            threads,
            config.task_error,
            None,
            given,
            constants=fixed,
            precision=config.precision,
            network_error=config.max_error,
            files=files,
        )
    read = read_log(log)
    config = TuneConfig.from_json(read.settings)
    if config.precision == AUTO and precision not in (None, AUTO):  # such logs have all of them
        config = replace(config, precision=precision, max_error=config.task_error)
    if max_error is not None:
        config = replace(config, max_error=max_error)
    limit = config.task_error
    read = read.within(limit)
    if not read.headers:
        raise LogMismatch(f"{log} has no header", "name a log that autotune has written")
    header = read.header
    chosen = header.target if target == "log" else parse_target(target or "native")
    path = model or _model_of(read)
    files = Stamps.of(model_files(path))
    is_random = _has_random_weights(path, header) if random_weights is None else random_weights
    threads = n_threads or header.n_threads
    if precision not in (None, config.precision):
        raise LogMismatch(
            f"the log was made in precision {config.precision}, not {precision}",
            "leave `precision` out, or tune in that precision",
        )
    fixed = fixed or constants_from_json(header.constant_inputs)
    bound = variants(path, shapes, dims, fixed) if shapes or dims else variants_of(header)
    return Plan(
        path,
        bound,
        chosen,
        threads,
        limit,
        read,
        is_random,
        config.operators,
        fixed,
        precision=config.precision,
        network_error=config.max_error,
        files=files,
    )


def compile(
    model: ModelSource | None = None,
    log: str | Path | None = None,
    *,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Mapping[str, Any] | None = None,
    target: str | None = None,
    max_error: float | None = None,
    precision: str | None = None,
    random_weights: bool | None = None,
    operators: Files = (),
    check: bool = True,
    check_inputs: Given = None,
    fallback: bool = True,
    keep_cut: bool = False,
    cache: bool = True,
    max_size: float | None = None,
    split: str | None = None,
    note: Note = lambda text: None,
) -> Compiled:
    """Compile `model` from the best records of `log`; the words are those of the command line.

    `model`: the path of an ONNX file, its bytes, or an `onnx.ModelProto`; None: that of the log.
    Tasks without a record take the program that the analytic cost model chooses, so a log is not
    needed. `check_inputs`: your own, of one inference or of several. `dims`: extents of dimensions
    by name, see `bindings`; `constants`: inputs that are the same in every inference. `fallback`:
    what cannot be compiled runs in ONNX Runtime, and the artifact is a `HybridArtifact`;
    `keep_cut`: even where all of the model is faster there. `split`: a dimension of which any
    extent is computed, by the variants that there are. `note` is told, in a line each, what a
    user should know. See `compile_plan` for errors.
    """
    with nullcontext() if model is None else model_file(model) as path:
        chosen_plan = plan(
            path,
            Path(log) if log else None,
            shapes,
            target,
            threads,
            max_error,
            random_weights,
            dims,
            constants,
            precision,
        )
        store, records = (program_store(), record_store()) if cache else (None, None)
        chosen_plan = replace(chosen_plan, store=store, records=records)
        chosen_plan = replace(chosen_plan, fallback=fallback, keep_cut=keep_cut, split=split)
        if max_size is not None:
            n_bytes = round(max_size * total_bytes(chosen_plan.model))
            chosen_plan = replace(chosen_plan, max_bytes=n_bytes)
        if operators:
            files = tuple(map(str, paths_of(operators)))
            chosen_plan = replace(chosen_plan, operators=files)
        done = compile_plan(chosen_plan, check=check, given=check_inputs, note=note)
    if model is None or is_path(model):
        return done
    return replace(done, artifact=_from(done.artifact, model_path=""))


@brief
@dataclass(frozen=True, slots=True)
class Compiled:
    """An artifact, and the report of its check; None where it was not checked."""

    artifact: Artifact
    report: Report | None

    @property
    def error(self) -> float | None:
        """The largest of the check; None where it was not checked."""
        return self.report.error if self.report else None


def compile_plan(
    plan: Plan,
    sources: Sources | None = None,
    check: bool = True,
    given: Given = None,
    note: Note = lambda text: None,
    progress: Progress = no_progress,
) -> Compiled:
    """Compile what `plan` says and compare its outputs with an oracle.

    `sources`: those of the plan, where they were read already. `given`: inputs of the user's for
    the check of the variant of their shapes, by name. Raises WrongNumbers where the outputs are
    wrong, LogMismatch for a log of another model or CPU, ModelError where the model's file has
    changed meanwhile.
    """
    sources = plan.sources() if sources is None else sources
    for text in (*denial(), *sources.notes, *form_notes(plan.precision, plan.target)):
        note(text)
    found = _by_precision(sources, plan, check, given, note, progress)
    plan.files.require_same()
    return found


def _by_precision(
    sources: Sources, plan: Plan, check: bool, given: Given, note: Note, progress: Progress
) -> Compiled:
    split = split_of(plan)
    if plan.precision != AUTO:
        return _compiled(sources, plan, split, check, given, note, progress)
    if sources.cuts:
        note(NOT_MIXED)
        return _compiled(sources, plan, split, check, given, note, progress)

    def attempt(networks: Sequence[Network], tell: Note) -> Compiled:
        return _compiled(Sources(tuple(networks)), plan, split, check, given, tell, progress)

    return compile_mixed(plan, attempt, note, progress)


def _compiled(
    sources: Sources,
    plan: Plan,
    split: Split | None,
    check: bool,
    given: Given,
    note: Note,
    progress: Progress,
) -> Compiled:
    artifact, networks = _programs(sources, plan, note, progress)
    artifact = replace(artifact, split=split)
    if not runs_here(plan.target):
        if check:
            note("not checked: this CPU cannot run the code")
        return Compiled(artifact, None)
    if sources.cuts and plan.fallback and _costs_more(artifact, plan, note):
        artifact, networks = _programs(plan.sources(is_whole=True), plan, note, progress)
    if not check:
        return Compiled(artifact, None)
    return _checked(artifact, networks, plan, given, note)


def _costs_more(artifact: Artifact, plan: Plan, note: Note) -> bool:
    """Whether a cut is to be undone: its price is measured, and told."""
    try:
        found = cut_times(model_of(artifact), _originals(plan))
    except AutotuneError as error:
        note(f"what ONNX Runtime takes cannot be measured on random inputs: {error.message}")
        return False
    if found is None:
        note("nothing is compiled: all of the model runs in ONNX Runtime")
        return False
    note(str(found))
    if not found.is_slower:
        return False
    note(KEPT_CUT if plan.keep_cut else KEPT_WHOLE)
    return not plan.keep_cut


KEPT_WHOLE = (
    "so all of the model runs in ONNX Runtime: tuned programs may change that (`autotune.tune`), "
    "and `keep_cut=True` compiles what can be"
)
KEPT_CUT = "it is kept all the same (`keep_cut=True`)"


def _programs(
    sources: Sources, plan: Plan, note: Note, progress: Progress
) -> tuple[Artifact, Sequence[Network]]:
    """The artifact, and what each of its variants was compiled from."""
    networks: Sequence[Network] = sources.networks
    if not networks:
        artifact: Artifact = hybrid_artifact((), sources.cuts, plan.target, plan.n_threads)
        return _named(artifact, plan, {}, ()), sources.wholes
    plan = with_kept_records(plan, networks)
    best = best_records(networks, plan, note)
    for key in best:
        if plan.log and key in plan.log.workloads:
            dag = plan.log.workloads[key].dag
            networks = [under_names_of(n, dag) if key in n.tasks else n for n in networks]
    tasks = tuple(dict.fromkeys(key for network in networks for key in network.weights))
    networks, steps = choose(networks, plan, best, note, progress)
    steps = fitting(networks, steps, plan, best, note, progress)
    with progress("compiling programs") as tell:
        artifact = compile_variants(
            networks, steps, plan.target, plan.n_threads, tell, plan.verify, plan.store
        )
    if sources.cuts:
        parts = artifact.variants
        artifact = hybrid_artifact(parts, sources.cuts, plan.target, plan.n_threads)
        networks = sources.wholes
    return _named(artifact, plan, tuned_latencies(best), tasks), networks


def _named(
    artifact: Artifact, plan: Plan, tuned: Mapping[str, Tuned], tasks: tuple[str, ...]
) -> Artifact:
    """`artifact` with where it comes from and what is known of its tasks."""
    return _from(artifact, tuned=tuned, tasks=tasks, model_path=str(plan.model.resolve()))


def _from(artifact: Artifact, **known: Any) -> Artifact:
    """`artifact`, and each of its variants, with these fields."""
    others = tuple(replace(other, **known) for other in artifact.others)
    return replace(artifact, **known, others=others)


def _has_random_weights(model: Path, header: Header) -> bool:
    """Whether a log was made with random weights, of the very model that is compiled."""
    if header.random_weights is None:  # a log from before they had to be asked for
        return needs_weights(model)
    return header.random_weights and model_hash(model) == header.model_hash


_NAME_IT = "name the model: `autotune.compile(MODEL, log=LOG)`"


def _model_of(log: Log) -> Path:
    """The model that a log was made for, if it is still the same file."""
    path = Path(log.header.model_path)
    if not log.header.model_path:
        raise UsageError("the log was made for a model in memory", _NAME_IT)
    if not path.is_file():
        raise UsageError(f"the model of the log is gone: {path}", _NAME_IT)
    if model_hash(path) != log.header.model_hash:
        raise LogMismatch(
            f"{path} is not the model that the log was made for: its contents have changed",
            f"if that is meant, {_NAME_IT}",
        )
    return path


def _originals(plan: Plan) -> list[Original]:
    """The file at the shapes of every variant."""
    return [
        Original(plan.model, variant.shapes, plan.random_weights, plan.constants)
        for variant in plan.variants
    ]


def _checked(
    artifact: Artifact, networks: Sequence[Network], plan: Plan, given: Given, note: Note
) -> Compiled:
    """Compare every variant with an oracle. Raises WrongNumbers."""
    reports = []
    own = [given] if isinstance(given, Mapping) else given or ()
    originals = _originals(plan)
    experience = Experience(plan.store, artifact.model_hash)
    for one, network, original in zip(artifact.variants, networks, originals, strict=True):
        fitting = [arrays for arrays in own if _fits(one, arrays)]
        model = model_of(one)
        reports.append(check_model(model, network, original, fitting, experience=experience))
    composed = [check_split(artifact, plan)] if artifact.split is not None else []
    report = joint_report([*reports, *composed])
    for line in report.notes:
        note(line)
    first, *others = (
        replace(one, max_error=report.error)
        for one, report in zip(artifact.variants, reports, strict=True)
    )
    return Compiled(replace(first, others=tuple(others), split=artifact.split), report)


def _fits(artifact: Artifact, given: Mapping[str, NDArray[Any]]) -> bool:
    return all(end.name in given and given[end.name].shape == end.shape for end in artifact.inputs)
