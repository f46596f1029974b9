"""⑪ Sessions before they run: `tune` creates one, `resume` reopens one; nothing is measured.

    resolved(request) ─► prepare(request, config) ─► create(prepared, log) ─┐
                                                                   reopen(log) ──┴─► OpenSession
    OpenSession.start() ─► Tuning: peaks measured, earlier logs learnt

A session has a run for each kind of CPU that it tunes for: one, or several in a fleet.

The command line and the library both take these steps; the command line shows more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.api.bindings import Variant, bind, told_of_state
from autotune.api.compile.fallback import require_tunable, sources_of
from autotune.api.compile.mixed_precision import (
    NOT_MIXED,
    Mixtures,
    alternatives,
    form_notes,
    mixtures_of,
)
from autotune.api.compile.selection import require_same_machine
from autotune.api.folders import source_in
from autotune.api.origins import remember
from autotune.api.request import Note, ResumeRequest, Source, TuneRequest, never, silent
from autotune.api.rules import rules_of
from autotune.api.sources import model_bytes, model_path, random_weights_note
from autotune.api.tune.comparable import is_comparable
from autotune.api.tune.headers import network_workloads, new_header, next_header, require_tasks
from autotune.api.tune.in_network import in_network
from autotune.api.tune.machines import TunedMachine, fleet_device, machines_of, with_machine
from autotune.api.tune.several import SeveralTunings
from autotune.api.tune.tuning import Tuning
from autotune.cache import told_store
from autotune.config import AUTO, Resolved, TuneConfig, plain_precision, resolve
from autotune.errors import LogMismatch, UsageError
from autotune.files import paths_of
from autotune.graph.file_nodes import FileNode, nodes_of
from autotune.graph.network import Network
from autotune.graph.reader.onnx_reader import read_outline
from autotune.machine import read_limits
from autotune.measure.fleet.address import is_fleet
from autotune.measure.memory_plan import private_bytes, require_memory
from autotune.measure.protocols import Device
from autotune.network.compile.variants import unified
from autotune.records import Header, Journal, Log, read_log, require_new_log
from autotune.records.store import Where, absolute, store_to_read
from autotune.search.cost.ranker import notes_of_ranker
from autotune.search.partial import Rule
from autotune.target import Target, is_of_file
from autotune.target.tiles import denial
from autotune.tuner import Budget, spent
from autotune.units import counted, format_duration
from autotune.wording import arguments

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model with settings, checked and ready for a log: `networks`, one for each of `variants`.

    `source`: what the header of the log names, "" for a network that was made in memory. `notes`:
    what a user should know of nodes that are not compiled. `others`: the networks in other
    precisions, which are tuned as well. `machines`: the kinds of CPU to tune for. `begun_s`: when
    its time began, of `time.monotonic`: what comes before the search counts against the budget.
    `state`, `nodes`: see `Header`.
    """

    networks: tuple[Network, ...]
    config: TuneConfig
    machines: tuple[TunedMachine, ...]
    source: str = ""
    variants: tuple[Variant, ...] = (Variant({}),)
    notes: tuple[str, ...] = ()
    others: tuple[tuple[Network, ...], ...] = ()
    begun_s: float = field(default_factory=time.monotonic)
    state: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[FileNode, ...] = ()

    @property
    def network(self) -> Network:
        """The first network."""
        return self.networks[0]

    @property
    def target(self) -> Target:
        """The first CPU."""
        return self.machines[0].target


_LEAST_S = 60
"""Seconds in which a session finds something."""
_WORDS = [f.name for f in fields(TuneConfig) if hasattr(TuneRequest, f.name)]
"""Settings that a request may have."""


def resolved(request: TuneRequest) -> Resolved:
    """The settings of the preset of a request and of its own.

    Raises UsageError, LogMismatch or StoreError for files without logs, rules or settings, and for
    a place without a store.
    """
    operators = tuple(str(path.resolve()) for path in paths_of(request.operators))
    target = request.target
    files = {
        "warm_start": logs_to_learn(paths_of(request.warm_start)),
        "rules": rule_files(paths_of(request.rules)),
        "operators": operators or None,
        "target": str(Path(target).resolve()) if target and is_of_file(target) else target,
        "store": place_to_learn(request.store, request.note),
    }
    found = resolve(request.preset, {name: getattr(request, name) for name in _WORDS} | files)
    if request.store is None and found.config.store:
        usual = "AUTOTUNE_STORE" if told_store() else "cache folder"
        return replace(found, sources=found.sources | {"store": usual})
    return found


def place_to_learn(where: Where, note: Note = silent) -> str | None:
    """The place of the store to learn from, the same in any folder; None where there is none.

    Raises as `store_to_read`.
    """
    store = store_to_read(where, note=note)
    return absolute(store.title) if store else "" if where else None


def prepare(source: Source, config: TuneConfig, log: Path | None = None) -> PreparedModel:
    """Read an ONNX model for tuning, by default the ResNet-50 of the `onnx` package.

    `log` is where the session will be written: whether that is possible is checked before the model
    is read; None for a session that will not run. Raises UsageError, ModelError, OutputError.
    """
    begun_s = time.monotonic()
    source = source_in(source)
    machines = _machines(config)
    target = machines[0].target
    given: Any = source.model
    path = model_path(given)
    require_room(path, log)
    is_random = source.random_weights or given is None
    bound = bind(replace(source, model=path, random_weights=is_random, operators=config.operators))
    sources = sources_of(bound, config.precision)
    require_tunable(sources, path.name)
    forms = form_notes(plain_precision(config.precision), target)
    notes = (*denial(), *bound.notes, *sources.notes, *forms)
    name = path.name
    if log is not None:
        remember(path, sources.wholes[0].model_hash)
    prepared = PreparedModel(sources.wholes, config, machines, name, bound.variants, notes)
    prepared = replace(prepared, begun_s=begun_s, state=told_of_state(source))
    if config.precision == AUTO and sources.cuts:
        prepared = replace(prepared, notes=(*prepared.notes, NOT_MIXED))
    elif config.precision == AUTO:
        prepared = _mixed(prepared, mixtures_of(bound, sources.networks))
    everything = [*prepared.networks, *(n for other in prepared.others for n in other)]
    nodes = nodes_of(read_outline(path).graph, everything)
    bound.files.require_same()
    return replace(prepared, nodes=nodes)


def _mixed(prepared: PreparedModel, mixtures: Mixtures) -> PreparedModel:
    """With the networks in other precisions, which share the names of equal tasks."""
    others = alternatives(mixtures, prepared.target)
    n_variants = len(prepared.variants)
    found = unified([*prepared.networks, *(n for other in others for n in other)])
    several = [found[n : n + n_variants] for n in range(0, len(found), n_variants)]
    return replace(prepared, networks=several[0], others=tuple(several[1:]))


def prepare_network(
    network: Network, config: TuneConfig, log: Path | None = None, source: str = ""
) -> PreparedModel:
    """`prepare` for a network that was read or made already. Raises UsageError, OutputError."""
    machines = _machines(config)
    require_room(Path(source), log)
    return PreparedModel((network,), config, machines, source, notes=denial())


def _machines(config: TuneConfig) -> tuple[TunedMachine, ...]:
    """`machines_of`, where the settings permit several."""
    machines = machines_of(config)
    if len(machines) > 1 and config.precision == AUTO:
        cpus = ", ".join(machine.target.key for machine in machines)
        raise UsageError(
            f"precision auto is for one kind of CPU, {config.runner} has {cpus}",
            f"choose one: {arguments(target=machines[0].target.key)}",
        )
    return machines


def require_room(model: Path, log: Path | None) -> None:
    """Raise OutputError where `log` cannot be written, UsageError where memory is too short."""
    if log is not None:
        require_new_log(log)
        require_memory(read_limits(), private_bytes(), model_bytes(model))


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run of a session, over one kind of CPU. `log`: its entries so far, which are replayed."""

    log: Log
    header: Header
    budget: Budget


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A log that is open for writing, and the plan of the session: `runs`, one per kind of CPU.

    `log`: all entries so far. `notes`: for the user, of it. `begun_s`: as of `PreparedModel`.
    """

    journal: Journal
    log: Log
    runs: tuple[OpenRun, ...]
    notes: tuple[str, ...] = ()
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left of the budget of any run."""
        used = [(run.budget.of_search, spent(run.log)) for run in self.runs]
        return all(b.reached(s.trials, s.elapsed_s) is not None for b, s in used)

    def notes_of_set_up(self) -> Iterator[str]:
        """Notes where nothing can be learnt, and where the time is up before anything is measured:
        of it all was set-up."""
        yield from notes_of_ranker()
        age_s, log = time.monotonic() - self.begun_s, self.runs[0].log
        limit_s, used_s = self.budget.of_search.time_s, spent(log).elapsed_s
        if limit_s is not None and used_s < limit_s <= used_s + age_s:
            more = f"{str(self.journal.path)!r}, time_s={max(_LEAST_S, round(10 * age_s))}"
            yield (
                f"the set-up took {format_duration(age_s)}, all of the time: nothing is measured; "
                f"`autotune.resume({more})` goes on"
            )

    @property
    def header(self) -> Header:
        """Of the first run."""
        return self.runs[0].header

    @property
    def budget(self) -> Budget:
        """Of the first run."""
        return self.runs[0].budget

    @property
    def config(self) -> TuneConfig:
        """The settings of the session."""
        return TuneConfig.from_json(self.header.config)

    def start(
        self,
        stop: Callable[[], bool] = never,
        note: Note = silent,
        rules: Sequence[Rule] = (),
        device: Device | None = None,
        compiles: bool = False,
    ) -> Tuning | SeveralTunings:
        """Measure the peaks of the machine and learn from earlier logs; see `Tuning`.

        `compiles`: the finalists are tried in the compiled network, where it can run here.
        """
        compiles = compiles and len(self.runs) == 1 and is_comparable(self.log)
        found = [
            Tuning(
                self.journal,
                run.log,
                run.header,
                run.budget,
                stop,
                note,
                rules,
                device,
            )
            for run in self.runs
        ]
        if compiles:
            found[0].in_network = partial(in_network, self.journal.path, stop=stop, note=note)
        for tuning in found:
            tuning.begun_s = self.begun_s
        if len(found) == 1:
            return found[0]
        n_records = 1 + max((r.sequence for r in self.log.records), default=-1)
        return SeveralTunings(found, note, n_records)


@contextmanager
def create(prepared: PreparedModel, log_path: Path) -> Iterator[OpenSession]:
    """A session with a new log, which is open inside the block. Raises OutputError."""
    networks, config, others = prepared.networks, prepared.config, prepared.others
    source, variants = prepared.source, prepared.variants
    headers = []
    for machine in prepared.machines:
        own = with_machine(config, machine)
        header = new_header(networks, source, variants, machine.target, own, others)
        headers.append(replace(header, state=dict(prepared.state), nodes=prepared.nodes))
    workloads = network_workloads([*networks, *(n for other in others for n in other)])
    tasks = {w.key: w for w in workloads}
    with Journal.create(log_path, headers[0], workloads) as journal:
        if headers[1:]:
            journal.append(headers[1:])
        budget = Budget(config.trials, config.time_s)
        runs = tuple(OpenRun(Log(headers=(h,), workloads=tasks), h, budget) for h in headers)
        log = Log(headers=tuple(headers), workloads=tasks)
        yield OpenSession(journal, log, runs, begun_s=prepared.begun_s)


@contextmanager
def reopen(request: ResumeRequest) -> Iterator[OpenSession]:
    """The session of a log that was written before, open inside the block.

    Raises LogMismatch for a log of another CPU or without its tasks, LogBusy where another process
    is writing it.
    """
    path, begun_s = Path(request.log), time.monotonic()
    with Journal.open(path) as journal:
        log = journal.log
        require_tasks(path, log)
        paths = logs_to_learn(
            paths_of(request.warm_start), TuneConfig.from_json(log.settings).warm_start
        )
        store = place_to_learn(request.store) if request.store else None
        given = {"max_error": request.max_error, "warm_start": paths, "store": store}
        parts, missing = _present(log)
        runs = tuple(_next_run(part, given, request) for part in parts)
        notes = (*denial(), *_notes(journal, runs[0].header), *missing)
        journal.append([run.header for run in runs])
        yield OpenSession(journal, log, runs, notes, begun_s)


@contextmanager
def reopen_for(prepared: PreparedModel, request: ResumeRequest) -> Iterator[OpenSession]:
    """The session of a log over the same tasks, up to the budget of `prepared` in total.

    Raises as `reopen`, and LogMismatch for a log of another model, machine or other settings.
    """
    path, config = Path(request.log), prepared.config
    header = read_log(path).header
    several = (prepared.networks, *prepared.others)
    wanted = {key for networks in several for network in networks for key in network.weights}
    if wanted != {key for key, _ in header.tasks}:
        raise LogMismatch(
            f"{path} is of another model, or of other shapes or settings", "choose another log"
        )
    asked = {machine.n_threads for machine in prepared.machines}
    if not asked & {0, header.n_threads}:
        raise LogMismatch(
            f"{path} is of {counted(header.n_threads, 'thread')}",
            f"choose another log, or {arguments(threads=header.n_threads)}",
        )
    with reopen(request) as session:
        budget = Budget(config.trials, config.time_s)
        runs = tuple(replace(run, budget=budget) for run in session.runs)
        yield replace(session, runs=runs, begun_s=prepared.begun_s)


def _next_run(log: Log, given: Mapping[str, Any], request: ResumeRequest) -> OpenRun:
    """The run that goes on with the part of a log that is of one kind of CPU."""
    header = next_header(log, given)
    config = TuneConfig.from_json(header.config)
    budget = Budget(config.trials, config.time_s)
    if request.trials is not None or request.time_s is not None:
        budget = spent(log).plus(request.trials, request.time_s)
    return OpenRun(log, header, budget)


def _present(log: Log) -> tuple[list[Log], list[str]]:
    """The parts of a log whose machines are there, and notes of the others.

    Raises LogMismatch where none is.
    """
    parts = log.by_machine()
    config = TuneConfig.from_json(log.settings)
    if not is_fleet(config.runner):
        own = replace(config, threads=log.header.n_threads)
        require_same_machine(log.header, machines_of(own)[0].target)
        return parts[:1], []
    there = {(m.target.key, m.n_threads) for m in machines_of(replace(config, threads=0))}
    here = [p for p in parts if (p.header.target.key, p.header.n_threads) in there]
    if not here:
        fleet_device(config.runner, log.header.target, log.header.n_threads)  # tells what is there
    away = [p.header for p in parts if p not in here]
    notes = [
        f"no device of {h.target.key} with {counted(h.n_threads, 'thread')} is there" for h in away
    ]
    return here, notes


def _notes(journal: Journal, header: Header) -> Iterator[str]:
    log = journal.log
    if journal.n_repaired_bytes:
        yield f"removed a line that was cut off ({counted(journal.n_repaired_bytes, 'byte')})"
    if header.random_weights:
        yield random_weights_note(Path(header.model_path).name)
    if log.n_skipped:
        yield f"{counted(log.n_skipped, 'line')} of the log skipped: foreign or corrupt"
    if log.headers[-1].versions != header.versions:
        yield "the log was written with other versions of autotune or its libraries"


def logs_to_learn(given: Iterable[Path], before: Iterable[str] = ()) -> tuple[str, ...] | None:
    """Absolute paths of the logs given now, after those of earlier runs; None where none is given.

    Raises UsageError or LogMismatch for one given now that is no log.
    """
    paths = list(given)
    for path in paths:
        read_log(path)
    return tuple(dict.fromkeys([*before, *(str(p.resolve()) for p in paths)])) if paths else None


def rule_files(given: Iterable[Path]) -> tuple[str, ...] | None:
    """Absolute paths of files with sketch rules; None where none is given. Raises UsageError."""
    paths = [str(path.resolve()) for path in given]
    rules_of(paths)
    return tuple(paths) or None
