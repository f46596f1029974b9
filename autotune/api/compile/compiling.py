"""⑪ From a model and a log to an artifact: best records, analytic defaults for the rest, a check.

plan(request) ─► compile_plan(plan) ─► Compiled: the artifact, and the report of the check
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.api.bindings import Variant, bind, variants_of
from autotune.api.compile.compiled import Compiled as Compiled
from autotune.api.compile.compiled import with_facts
from autotune.api.compile.fallback import Sources, cut_times
from autotune.api.compile.for_cpus import for_cpus
from autotune.api.compile.kept import kept_or_made
from autotune.api.compile.mixed_precision import NOT_MIXED, compile_mixed, form_notes
from autotune.api.compile.selection import (
    CompilePlan,
    Measured,
    best_records,
    choose,
    tuned_latencies,
    with_stored_records,
)
from autotune.api.compile.size_limit import fitting
from autotune.api.folders import source_in
from autotune.api.origins import model_of_log, remember, require_header
from autotune.api.request import CompileRequest, Note, by_fields, in_a_file
from autotune.api.sources import total_bytes
from autotune.brief import brief, cut
from autotune.cache import program_store
from autotune.config import AUTO, TuneConfig, resolve
from autotune.errors import AutotuneError, LogMismatch, NotCompilable, UsageError
from autotune.files import paths_of
from autotune.graph.constant_values import constants_from_json
from autotune.graph.network import Network, under_names_of
from autotune.graph.reader.model_files import is_path
from autotune.graph.reader.onnx_reader import model_hash
from autotune.graph.reader.random_weights import needs_weights
from autotune.machine import require_threads
from autotune.measure.far.program_device import program_device
from autotune.measure.processes.parallel_map import held_processes
from autotune.measure.threads import default_threads
from autotune.network.artifact.artifact import Artifact, Tuned
from autotune.network.artifact.cpus import joined_cpus
from autotune.network.artifact.hybrid import hybrid_artifact
from autotune.network.check.accuracy import joint_report
from autotune.network.check.experience import Experience
from autotune.network.check.size_check import check_any, fits
from autotune.network.check.state_check import check_state
from autotune.network.compile.compiler import Build, compile_builds
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model
from autotune.records import Header, Log, read_log
from autotune.records.store import store_to_read
from autotune.target import Target, is_of_file, parse_target, runs_here
from autotune.target.tiles import denial
from autotune.wording import arguments


@by_fields(CompileRequest)
def compile(request: CompileRequest) -> Compiled:
    """Compile a model from the best records of a log, or from analytic defaults.

    Where something runs in ONNX Runtime, the artifact is a `HybridArtifact`. See `compile_plan` for
    errors. The words are those of the command line:
    """
    return compiled(request)


def compiled(request: CompileRequest) -> Compiled:
    """`compile` for a request, now or before. Raises as `plan` and `compile_plan`."""
    if request.model is None or is_path(request.model):
        return kept_or_made(source_in(request, request.note), compiled_anew)
    done = compiled_anew(request)
    return replace(done, artifact=with_facts(done.artifact, model_path=""))


def compiled_anew(request: CompileRequest) -> Compiled:
    """`compiled`, of nothing but programs from the cache."""
    if request.model is None:
        return compile_plan(plan(request))
    with in_a_file(request) as (known, _):
        return compile_plan(plan(known))


def plan(request: CompileRequest) -> CompilePlan:
    """Plan of a request: defaults from the log, where there is one, else from this machine.

    The model of the request is a file, if there is one. Without the records of a log whose network
    was slower than the untuned one. Raises UsageError and LogMismatch for what does not go
    together.
    """
    first, *others = (request.target or "native").split(",")
    if not others:
        return _faster(_plan(request))
    found = _plan(replace(request, target=first))
    return for_cpus(found, [found.target, *(_target(found, name) for name in others)])


def _plan(request: CompileRequest) -> CompilePlan:
    if request.log is not None:  # which knows the capacity
        return plan_of_log(replace(source_in(request), capacity=request.capacity))
    request = source_in(request, request.note)
    if request.model is None:
        raise UsageError("there is no model", "name a model, or a log that knows it")
    asked = request.threads
    require_threads(asked, are_here=request.target in (None, "native"))
    words = {"precision": request.precision, "max_error": request.max_error}
    name = request.target or "native"
    target = _described(name, request.runner)
    is_other = is_of_file(name) or request.runner
    n_threads = asked or (target.n_cores if is_other else default_threads())
    return _planned(request, resolve(None, words).config, target, n_threads)


def _target(plan: CompilePlan, name: str) -> Target:
    """A further target of a request."""
    return target_in(plan.log, name) if plan.log else parse_target(name)


def plan_of_log(request: CompileRequest) -> CompilePlan:
    """`plan` for a request with a log, whose records are taken in any case."""
    given: Any = request.log
    asked = request.threads
    require_threads(asked, are_here=request.target in (None, "native"))
    log = read_log(Path(given))
    config = _config_of(request, log)
    log = log.within(config.task_error)
    require_header(log, Path(given))
    target = target_in(log, request.target or "native", request.runner)
    header = log.header_of(target.key)
    request = _completed(request, log, config)
    n_threads = asked or header.n_threads
    return replace(_planned(request, config, target, n_threads, variants_of(header)), log=log)


def _faster(plan: CompilePlan) -> CompilePlan:
    """`plan`, without its records where its network was timed in turns, and found slower."""
    request, log = plan.request, plan.log
    found = log.in_turns(plan.target.key, plan.n_threads) if log else None
    if log is None or found is None or not found.is_slower:
        return plan
    is_same = not (request.shapes or request.dims or request.max_error or request.precision)
    if not is_same or model_hash(plan.bound.path) != log.header.model_hash:
        return plan
    plan.note(
        f"the tuned network took {found.ratio:.3f} times as long as the untuned one in turns, so "
        "the untuned programs are taken"
    )
    return replace(plan, log=None, records=None)


def target_in(log: Log, name: str, runner: str | None = None) -> Target:
    """The target of a name, beside a log that may know it: "log", or the key of one of its CPUs."""
    known = log.targets | {"log": log.header.target}
    return known[name] if name in known else _described(name, runner)


def _described(name: str, runner: str | None) -> Target:
    """The target of a name, with the caches of the machine that a runner reaches."""
    target = parse_target(name)
    return program_device(runner, target).target if runner else target


def _planned(
    request: CompileRequest,
    config: TuneConfig,
    target: Target,
    n_threads: int,
    known: tuple[Variant, ...] = (),
) -> CompilePlan:
    """`known`: the variants where the request names no shapes."""
    if target.isa.threads:
        n_threads = request.threads or 1
        if n_threads > 1 and request.runner:
            raise UsageError("a runner checks code of one thread", "leave out `runner`")
    store = program_store() if request.cache else None
    bound, size = bind(request, known, store), request.max_size
    for text in bound.notes:
        request.note(text)
    return CompilePlan(
        request,
        bound,
        target,
        n_threads,
        config.task_error,
        config.max_error,
        config.precision,
        store=store,
        records=store_to_read(request.store, request.cache, request.note),
        max_bytes=None if size is None else round(size * total_bytes(bound.path)),
        given=request.check_inputs,
        note=request.note,
    )


def _config_of(request: CompileRequest, log: Log) -> TuneConfig:
    """The settings of a log, as far as the request has no others."""
    config, precision = TuneConfig.from_json(log.settings), request.precision
    if config.precision == AUTO and precision not in (None, AUTO):  # such logs have all of them
        config = replace(config, precision=precision, max_error=config.task_error)
    if request.max_error is not None:
        config = replace(config, max_error=request.max_error)
    return config


def _completed(request: CompileRequest, log: Log, config: TuneConfig) -> CompileRequest:
    """`request` with the model's facts in its log, where it sets nothing else."""
    path: Any = request.model or model_of_log(log, Path(request.log or ""))
    if request.precision not in (None, config.precision):
        raise LogMismatch(
            f"the log was made in precision {config.precision}, not {request.precision}",
            "leave `precision` out, or tune in that precision",
        )
    is_random = request.random_weights
    if request.capacity is None and not request.state:
        own = {"dims": request.dims} if request.dims else {}
        told = {name: value for name, value in log.header.state.items() if name != "chunks"}
        request = replace(request, **{**told, **own})
    return replace(
        request,
        model=path,
        random_weights=_has_random_weights(path, log.header) if is_random is None else is_random,
        constants=request.constants or constants_from_json(log.header.constant_inputs),
        operators=paths_of(request.operators) or config.operators,
        ragged=request.ragged or log.header.ragged,
    )


def compile_plan(plan: CompilePlan, sources: Sources | None = None) -> Compiled:
    """Compile `plan` and compare outputs with an oracle.

    `sources`: those of the plan, where they were read already. Raises WrongNumbers where the
    outputs are wrong, LogMismatch for a log of another model or CPU, ModelError where the model's
    file has changed meanwhile.
    """
    if plan.request.check and any(map(_is_runnable, plan.by_cpu)):
        plan.bound.process.start()  # it is there when the outputs are to be checked
    sources = plan.sources() if sources is None else sources
    notes = *form_notes(plan.precision, plan.target), *_scores_notes(sources.networks)
    for text in (*denial(), *sources.notes, *notes):
        plan.note(text)
    with held_processes():
        found = _by_precision(sources, plan)
    plan.bound.files.require_same()
    return found


def _scores_notes(networks: Sequence[Network]) -> Iterator[str]:
    """Of outputs that steps have for the last new place alone."""
    lasts = {name: "" for one in networks if one.state for name in one.state.last_rows}
    if lasts:
        names = ", ".join(f"'{cut(name)}'" for name in lasts)
        yield f"a step gives {names} of its last place alone: {arguments(scores='all')} for all"


def _by_precision(sources: Sources, plan: CompilePlan) -> Compiled:
    if plan.precision != AUTO:
        return _compiled(sources, plan)
    if sources.cuts:
        plan.note(NOT_MIXED)
        return _compiled(sources, plan)

    def attempt(networks: Sequence[Network], tell: Note) -> Compiled:
        return _compiled(Sources(tuple(networks)), replace(plan, note=tell))

    return compile_mixed(plan, sources.networks, attempt)


def _compiled(sources: Sources, plan: CompilePlan) -> Compiled:
    built = _programs(sources, plan)
    here = next((one for one in built if _is_runnable(one.plan)), None)
    is_timed = here and sources.cuts and plan.bound.fallback and not plan.request.runner
    if is_timed and here and _costs_more(here.artifact, plan):
        built = _programs(plan.sources(is_whole=True), plan)
    done = [_checked_here(one) for one in built]
    reports = [one.report for one in done if one.report is not None]
    artifact = joined_cpus([one.artifact for one in done])
    return Compiled(artifact, joint_report(reports) if len(reports) > 1 else (*reports, None)[0])


def _checked_here(built: ForCpu) -> Compiled:
    """The artifact for one CPU, checked if that is asked for and can be."""
    artifact, plan = built.artifact, built.plan
    if not plan.request.check:
        return Compiled(artifact, None)
    if _is_runnable(plan):
        return _checked(artifact, built.networks, plan)
    text = f"not checked: this CPU cannot run code for {plan.target.cpu}"
    plan.note(f"{text}; give a command that can as `runner`")
    return Compiled(artifact, None)


def _is_runnable(plan: CompilePlan) -> bool:
    """Whether the network can be run: here, or behind a runner."""
    return bool(plan.request.runner) or runs_here(plan.target)


def _costs_more(artifact: Artifact, plan: CompilePlan) -> bool:
    """Whether a cut is to be undone: its price is measured, and told."""
    try:
        with plan.progress("timing it beside ONNX Runtime"):
            found = cut_times(artifact, plan.bound.originals())
    except AutotuneError as error:
        text = f"what ONNX Runtime takes cannot be measured on random inputs: {error.message}"
        plan.note(text)
        return False
    if found is None:
        plan.note("nothing is compiled: all of the model runs in ONNX Runtime")
        return False
    plan.note(str(found))
    if not found.is_slower:
        return False
    plan.note(KEPT_CUT if plan.request.keep_cut else KEPT_WHOLE)
    return not plan.request.keep_cut


KEPT_WHOLE = (
    "so all of the model runs in ONNX Runtime: tuned programs may change that (`autotune.tune`), "
    "and `keep_cut=True` compiles what can be"
)
KEPT_CUT = "it is kept all the same (`keep_cut=True`)"


@brief
@dataclass(frozen=True, slots=True)
class ForCpu:
    """The artifact for one CPU, and the network of each of its variants, for its check."""

    artifact: Artifact
    networks: Sequence[Network]
    plan: CompilePlan


def _programs(sources: Sources, plan: CompilePlan) -> list[ForCpu]:
    """What is compiled for each CPU."""
    if sources.cuts and plan.bound.replaced:
        raise NotCompilable(
            "a model of several parts keeps no state: the data decide what it computes",
            "bind what decides it (`constants`), or leave out `state`",
        )
    if sources.cuts and any(network.lengths for network in sources.networks):
        raise NotCompilable(
            "a model of which parts run in ONNX Runtime has no lengths",
            "compile it for single sizes with `dims`",
        )
    if not sources.networks:
        plan = plan.by_cpu[-1]  # no code: it runs on all of them
        artifact: Artifact = hybrid_artifact((), sources.cuts, plan.target, plan.n_threads)
        return [ForCpu(_named(artifact, plan, {}, ()), sources.wholes, plan)]
    return made_networks(sources, [measured_networks(sources.networks, one) for one in plan.by_cpu])


def measured_networks(networks: Sequence[Network], plan: CompilePlan) -> Measured:
    """The plan with what its store knows, the networks in their names, and the best records."""
    plan = with_stored_records(plan, networks)
    best = best_records(networks, plan)
    workloads = plan.known.workloads if plan.known else {}
    for key in best:
        if key in workloads:
            dag = workloads[key].dag
            networks = [under_names_of(n, dag) if key in n.tasks else n for n in networks]
    return Measured(plan, networks, best)


def made_networks(sources: Sources, measured: Sequence[Measured]) -> list[ForCpu]:
    """The artifact of these records for each CPU, over one image and one set of constants."""
    builds, kept = [], choose(measured)
    for one, (networks, steps) in zip(measured, kept, strict=True):
        steps = fitting(networks, steps, one.plan, one.best)
        builds.append(Build(networks, steps, one.plan.target, one.plan.n_threads))
    plan = measured[0].plan
    with plan.progress("compiling programs") as tell:
        compiled = compile_builds(builds, tell, plan.request.verify, plan.store)
    made = zip(measured, compiled.by_cpu, builds, strict=True)
    return [_built(sources, one, artifact, build.networks) for one, artifact, build in made]


def _built(
    sources: Sources, measured: Measured, artifact: Artifact, networks: Sequence[Network]
) -> ForCpu:
    plan = measured.plan
    tasks = tuple(dict.fromkeys(key for one in measured.networks for key in one.weights))
    if sources.cuts:
        parts = artifact.variants
        artifact = hybrid_artifact(parts, sources.cuts, plan.target, plan.n_threads)
        networks = sources.wholes
    return ForCpu(_named(artifact, plan, tuned_latencies(measured.best), tasks), networks, plan)


def _named(
    artifact: Artifact, plan: CompilePlan, tuned: Mapping[str, Tuned], tasks: tuple[str, ...]
) -> Artifact:
    """`artifact` with its origin and the facts of its tasks."""
    others = plan.stored.workloads if plan.stored else {}
    stored = tuple(key for key in tuned if key in others)
    if plan.store is not None:
        remember(plan.bound.path, artifact.model_hash)
    path = str(plan.bound.path.absolute())  # a link has other files beside it than its target
    return with_facts(artifact, tuned=tuned, tasks=tasks, stored=stored, model_path=path)


def _has_random_weights(model: Path, header: Header) -> bool:
    """Whether a log was made with random weights, of the very model that is compiled."""
    if header.random_weights is None:  # a log from before they had to be asked for
        return needs_weights(model)
    return header.random_weights and model_hash(model) == header.model_hash


def _checked(artifact: Artifact, networks: Sequence[Network], plan: CompilePlan) -> Compiled:
    """Compare every variant with an oracle. Raises WrongNumbers."""
    if plan.bound.grown:
        return _checked_state(artifact, networks[0].precision, plan)
    reports = []
    own = [plan.given] if isinstance(plan.given, Mapping) else plan.given or ()
    originals = plan.bound.originals()
    experience = Experience(plan.store, artifact.model_hash)
    with _runs(plan) as running, plan.progress("checking the outputs"):
        for one, network, original in zip(artifact.variants, networks, originals, strict=True):
            fitting = [arrays for arrays in own if fits(one, arrays)]
            model = running(one)
            reports.append(check_any(model, network, original, fitting, experience=experience))
    report = joint_report(reports)
    for line in report.notes:
        plan.note(line)
    first, *others = (
        replace(one, max_error=report.error)
        for one, report in zip(artifact.variants, reports, strict=True)
    )
    return Compiled(replace(first, others=tuple(others)), report)


def _checked_state(artifact: Artifact, precision: str, plan: CompilePlan) -> Compiled:
    """Compare steps at several lengths with ONNX Runtime. Raises WrongNumbers."""
    grown, most = plan.bound.grown[0], plan.request.max_error
    model = Model(artifact)
    report, joins = check_state(model, plan.bound.model, grown, most, precision=precision)
    for line in report.notes:
        plan.note(line)
    checked = with_facts(artifact, max_error=report.error)
    return Compiled(checked if joins else _apart(checked), report)


def _apart(artifact: Artifact) -> Artifact:
    """`artifact`, whose sessions never take several steps at once."""
    first, *others = (
        replace(one, state=one.state and replace(one.state, joins=False))
        for one in artifact.variants
    )
    return replace(first, others=tuple(others))


@contextmanager
def _runs(plan: CompilePlan) -> Iterator[Callable[[Artifact], Model]]:
    """Makes a model of an artifact: here, ONNX Runtime's part apart, or behind the runner of the
    request."""
    if not plan.request.runner:
        yield partial(model_of, is_apart=True)
        return
    from autotune.measure.far.program import connected, measuring_program
    from autotune.network.runtime.far import FarModel

    program = measuring_program(plan.target, plan.store)
    with connected(plan.request.runner, program) as connection:
        yield lambda artifact: FarModel(connection, artifact)
