"""⑪ Selection: a plan, the best records of a log, and a schedule for every task.

best_records(networks, plan) ─► choose([Measured]) ─► networks without chains, steps
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from autotune.api.bindings import Bound
from autotune.api.compile.drafting import Drafts
from autotune.api.compile.fallback import Sources, sources_of
from autotune.api.request import CompileRequest, Given, Note, silent
from autotune.cache import FileStore, key_of
from autotune.errors import LogMismatch, ScheduleError
from autotune.graph.network import Network, chosen
from autotune.measure.processes.cached_map import cached_map
from autotune.measure.processes.parallel_map import OnProgress
from autotune.network.artifact.artifact import Tuned
from autotune.network.compile.sharing import (
    BLOCKS,
    SHARING_COSTS,
    Option,
    SharedWeights,
    cost_in_blocks,
    forms,
    in_blocks,
    prefer_shared,
    shared_weights,
    width,
)
from autotune.network.compile.variants import tasks_of
from autotune.records import Header, Log, MeasureRecord, best_for, ranked_records
from autotune.records.store import RecordStore, form_digest
from autotune.schedule.steps import Steps, steps_from_json, steps_text, steps_to_json
from autotune.search.defaults import candidate_key, default_alternatives
from autotune.search.policy import Candidate
from autotune.target import Target, difference
from autotune.te.dag import ComputeDAG
from autotune.te.form import form_of
from autotune.units import counted_of
from autotune.wording import arguments

Progress: TypeAlias = Callable[[str], AbstractContextManager[OnProgress]]
"""Told the name of long work that begins; the block gets a progress callback."""


@contextmanager
def no_progress(what: str) -> Iterator[OnProgress]:
    """No progress callback."""
    yield lambda n_done, n_all: None


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """A request with its defaults filled in; an artifact has all variants of `bound`.

    `precision` may be "auto", see `mixed_precision`: then `network_error` is the largest error
    of the outputs, and `max_error` of candidates. `log`: of the request; `stored`: what was found
    in `records` of tasks without a record in it. `store`: where programs are kept and found
    again. `max_bytes`: most bytes of constants. `given`: inputs of the user's for the check.
    `note`, `progress`: are told what is going on. `drafts`: analytic defaults of tasks that were
    found already, by key; `carried`: those that were measured at other extents. `others`: for
    further CPUs, the less demanding later.
    """

    request: CompileRequest
    bound: Bound
    target: Target
    n_threads: int
    max_error: float
    network_error: float
    precision: str = "f32"
    log: Log | None = None
    stored: Log | None = None
    store: FileStore | None = None
    records: RecordStore | None = None
    max_bytes: int | None = None
    given: Given = None
    note: Note = silent
    progress: Progress = no_progress
    others: tuple[CompilePlan, ...] = ()
    drafts: dict[str, Candidate] = field(default_factory=dict, compare=False)
    carried: set[str] = field(default_factory=set, compare=False)

    @property
    def by_cpu(self) -> tuple[CompilePlan, ...]:
        """The plan for each CPU."""
        given, tell = self.given, self.progress
        others = (replace(one, given=given, progress=tell) for one in self.others)
        return (replace(self, others=()), *others)

    @property
    def sharing(self) -> float:
        """So many times as long a program may take to read weights in the order of another."""
        return self.request.sharing or SHARING_COSTS

    @property
    def known(self) -> Log | None:
        """Everything that was measured of its tasks: `log` and `stored`."""
        if self.log is None or self.stored is None:
            return self.log or self.stored
        own, stored = self.log, self.stored
        return replace(
            own,
            workloads=stored.workloads | own.workloads,
            records=(*own.records, *stored.records),
        )

    def sources(self, is_whole: bool = False) -> Sources:
        """The model, cut where not all of it can be compiled: see `sources_of`."""
        return sources_of(self.bound, self.precision, is_whole)


def with_stored_records(plan: CompilePlan, networks: Sequence[Network]) -> CompilePlan:
    """`plan` with what its store knows of tasks without a record in its log, and of their forms."""
    if plan.records is None:
        return plan
    tasks = tasks_of(networks)
    own = _best_of(plan.log, plan).keys()
    missing = {key: dag for key, dag in tasks.items() if key not in own}
    forms = {form_digest(form_of(dag).text) for dag in missing.values()}
    stored = plan.records.log(plan.target.key, plan.n_threads, missing, forms)
    found = stored.within(plan.max_error) if stored else None
    return replace(plan, stored=found if _best_of(found, plan) else None)


def _best_of(log: Log | None, plan: CompilePlan) -> dict[str, MeasureRecord]:
    """The best record of every task in a log; none where nothing in it can be used."""
    with suppress(LogMismatch):
        return best_for(log, plan.target.key, plan.n_threads) if log else {}
    return {}


def best_records(networks: Sequence[Network], plan: CompilePlan) -> dict[str, MeasureRecord]:
    """The best record of every task that the log knows, or else the store."""
    tasks = tasks_of(networks)
    stored = {key: r for key, r in _best_of(plan.stored, plan).items() if key in tasks}
    if stored and plan.records is not None:
        taken = counted_of(len(stored), len(tasks), "task", "take")
        plan.note(f"{taken} records of {plan.records.title}")
    best = {**stored, **_of_log(networks, plan)}
    counts = [n for r in best.values() if (n := r.n_threads) != plan.n_threads]
    if counts:
        others = ", ".join(map(str, sorted(set(counts))))
        taken = counted_of(len(counts), len(tasks), "task", "take")
        plan.note(
            f"{taken} records of another number of threads "
            f"({others}) than {plan.n_threads}: tune with {arguments(threads=plan.n_threads)}"
        )
    return best


def _of_log(networks: Sequence[Network], plan: CompilePlan) -> dict[str, MeasureRecord]:
    """The best record of every task that the log knows; none without a log."""
    if plan.log is None:
        return {}
    if not any(r.target_key == plan.target.key for r in plan.log.records):
        require_same_machine(plan.log.header, plan.target)
    best = best_for(plan.log, plan.target.key, plan.n_threads)
    tasks = tasks_of(networks)
    found = {key: best[key] for key in tasks if key in best}
    if not found and not _forms(plan.log, best) & {form_of(dag).text for dag in tasks.values()}:
        raise LogMismatch(
            f"the log has no record for any task of {plan.bound.path.name}",
            f"it was made for {plan.log.header.model_path}",
        )
    if networks[0].model_hash != plan.log.header.model_hash:
        plan.note("the log was made for another model file; tasks that are the same are used")
    return found


def _forms(log: Log, keys: Iterable[str]) -> set[str]:
    """Forms of tasks of a log."""
    return {form_of(log.workloads[key].dag).text for key in keys if key in log.workloads}


@dataclass(frozen=True, slots=True)
class Measured:
    """Networks for the CPU of a plan, and the best records of their tasks."""

    plan: CompilePlan
    networks: Sequence[Network]
    best: Mapping[str, MeasureRecord]


def choose(measured: Sequence[Measured]) -> list[tuple[list[Network], dict[str, Steps]]]:
    """For each CPU the faster alternative of every chain, and a schedule for every task.

    That of the best record, else the analytic default. A chain that was not measured as a whole and
    in all its parts is left as the analytical cost model would have it in an untuned network.
    Weights have one order in all shapes and CPUs where that costs little.
    """
    choices = {f"{n}:": _choice(one) for n, one in enumerate(measured)}
    kept = {cpu: choice.networks for cpu, choice in choices.items()}
    others = _shared(choices, weights) if (weights := shared_weights(kept)) else {}
    return [
        (
            choice.networks,
            {key: others.get(cpu + key, timed).steps for key, timed in choice.first.items()},
        )
        for cpu, choice in choices.items()
    ]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Networks without chains, and the program of each task that they call: measured, or not."""

    networks: list[Network]
    first: dict[str, Timed]
    measured: Measured


def _choice(given: Measured) -> _Choice:
    plan, networks, best = given.plan, given.networks, given.best
    tasks = tasks_of(networks)
    open_keys = {key for network in networks for key in _open_alternatives(network, best)}
    unknown = [key for key in tasks if key not in best or key in open_keys]
    defaults = drafted(plan, {key: tasks[key] for key in unknown})
    guess = {key: default.predicted_s or math.inf for key, default in defaults.items()}
    latency_s = {key: record.result.latency_s or math.inf for key, record in best.items()}
    decided = taken_in(best)
    kept = [chosen(network, latency_s, guess, decided) for network in networks]
    first = {key: Timed(d.steps, guess[key]) for key, d in defaults.items()}
    first |= {key: Timed(r.steps, latency_s[key]) for key, r in best.items()}
    n_tasks = len(tasks)
    missing = [key for key in tasks if key not in best]
    n_carried = len(plan.carried.intersection(missing))
    if n_carried:
        taken = counted_of(n_carried, n_tasks, "task", "take")
        plan.note(f"{taken} schedules measured at other extents")
    if len(missing) > n_carried:
        taken = counted_of(len(missing) - n_carried, n_tasks, "task", "take")
        plan.note(f"{taken} the analytic default")
    return _Choice(kept, {key: first[key] for key in tasks_of(kept)}, given)


def taken_in(best: Mapping[str, MeasureRecord]) -> dict[str, bool]:
    """Whether tasks replace their parts, where that was decided in the compiled network."""
    decided = {key: r.in_network.is_taken for key, r in best.items() if r.in_network is not None}
    return {key: is_taken for key, is_taken in decided.items() if is_taken is not None}


def drafted(plan: CompilePlan, tasks: Mapping[str, ComputeDAG]) -> dict[str, Candidate]:
    """The analytic default of every task by key; each is sought once for a plan."""
    unknown = [key for key in tasks if key not in plan.drafts]
    if unknown:
        with plan.progress("choosing programs") as tell:
            drafts = Drafts(plan.target, plan.n_threads, plan.max_error, plan.store, plan.known)
            found = drafts.drafts([tasks[key] for key in unknown], tell)
        plan.drafts.update({k: d.candidate for k, d in zip(unknown, found, strict=True)})
        plan.carried.update(k for k, d in zip(unknown, found, strict=True) if d.is_carried)
    return {key: plan.drafts[key] for key in tasks}


_N_ALTERNATIVES = 16
"""Programs of a task that are looked through for one that packs its weights as others do.

Six times as many gave files of the same size: weights in blocks are what most programs agree on.
"""
_N_IN_BLOCKS = 8
"""The fastest of them, which are tried with weights in blocks."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A schedule and its seconds: as measured, or as the cost model expects them."""

    steps: Steps
    latency_s: float


def _shared(choices: Mapping[str, _Choice], weights: Sequence[SharedWeights]) -> dict[str, Timed]:
    """Schedules of tasks that read the same `weights`, in one order where that costs little.

    By the key of the task behind that of its CPU, where they are others than the choice otherwise.
    """
    users = {key for weight in weights for key, _ in weight.users}
    first = {cpu + key: t for cpu, one in choices.items() for key, t in one.first.items()}
    options: dict[str, Sequence[Option]] = {}
    for cpu, choice in choices.items():
        keys = sorted(key for key in choice.first if cpu + key in users)
        found = _options_of(choice, keys)
        options |= {cpu + key: each for key, each in zip(keys, found, strict=True)}
    plan = next(iter(choices.values())).measured.plan
    picked = prefer_shared(weights, options, plan.sharing)
    changed = {key: o for key, o in picked.items() if o.steps != first[key].steps}
    if changed:
        most = max(o.latency_s / first[key].latency_s for key, o in changed.items())
        taken = counted_of(len(changed), len(options), "task", "take")
        others = "variants" if len(choices) == 1 else "CPUs"
        plan.request.note(
            f"{taken} a program that packs weights as other {others} do "
            f"(at most {100 * (most - 1):.1f} % slower)"
        )
    return {key: Timed(option.steps, option.latency_s) for key, option in changed.items()}


def _options_of(choice: _Choice, keys: Sequence[str]) -> list[list[Option]]:
    """Those of each task: in the log for measured ones, by the cost model for the rest."""
    plan, measured = choice.measured.plan, choice.measured.best
    tasks = tasks_of(choice.networks)
    known = _measured_programs(plan, {k: choice.first[k] for k in keys if k in measured})
    items = [(tasks[key], choice.first[key], known.get(key)) for key in keys]
    settings = plan.target, plan.n_threads, plan.max_error, plan.sharing
    names = [_options_key(item, plan) for item in items]
    find = partial(_options, settings=settings)
    with plan.progress("sharing weights") as tell:
        return cached_map(find, items, names, plan.store, _encode, _decode, tell)


_Item: TypeAlias = tuple[ComputeDAG, Timed, list[Timed] | None]
"""A task, its choice otherwise, and its measured programs where it was measured."""


def _options_key(item: _Item, plan: CompilePlan) -> str:
    """A digest of all that `_options` depends on."""
    dag, first, others = item
    task = candidate_key(dag, plan.target, plan.n_threads, plan.max_error)
    known = [f"{steps_text(t.steps)} {t.latency_s!r}" for t in (first, *(others or ()))]
    return key_of("options", task, str(others is not None), repr(plan.sharing), *known)


def _encode(options: list[Option]) -> bytes:
    return json.dumps([[steps_to_json(o.steps), o.latency_s, o.forms] for o in options]).encode()


def _decode(content: bytes) -> list[Option]:
    """Inverse of `_encode`. Raises ValueError for anything else."""
    try:
        return [Option(steps_from_json(s), latency_s, f) for s, latency_s, f in json.loads(content)]
    except (LogMismatch, TypeError) as error:
        raise ValueError("no options") from error


def _options(item: _Item, settings: tuple[Target, int, float, float]) -> list[Option]:
    """The fastest programs of a task, one for every order of its weights."""
    dag, first, others = item
    if others is None:
        found = default_alternatives(dag, *settings[:3], _N_ALTERNATIVES, settings[3])
        others = [Timed(c.steps, c.predicted_s or math.inf) for c in found]
    known: dict[object, str] = {}
    options: dict[tuple[tuple[str, str], ...], Option] = {}
    ordered = [first, *sorted(others, key=lambda t: t.latency_s)]
    for timed in ordered:
        _add(options, dag, timed, known)
    _add_in_blocks(options, dag, ordered[:_N_IN_BLOCKS], known)
    return list(options.values())


def _add_in_blocks(
    options: dict[tuple[tuple[str, str], ...], Option],
    dag: ComputeDAG,
    programs: Sequence[Timed],
    known: dict[object, str],
) -> None:
    """Options with weights in blocks of each size, by the program that likes it best."""
    widths: dict[Timed, int] = {}
    for timed in programs:
        with suppress(ScheduleError):
            widths[timed] = width(dag, timed.steps)
    for block in BLOCKS:
        for timed in sorted(widths, key=lambda t: widths[t] != block):
            cost = 1.0 if widths[timed] == block else cost_in_blocks(dag)
            with suppress(ScheduleError):
                blocked = in_blocks(dag, timed.steps, block)
                if _add(options, dag, Timed(blocked, cost * timed.latency_s), known):
                    break


def _add(
    options: dict[tuple[tuple[str, str], ...], Option],
    dag: ComputeDAG,
    timed: Timed,
    known: dict[object, str],
) -> bool:
    """Make a program one of the options, unless one has its orders; whether it is a program."""
    with suppress(ScheduleError):
        packed = forms(dag, timed.steps, known)
        option = Option(timed.steps, timed.latency_s, packed)
        options.setdefault(tuple(sorted(packed.items())), option)
        return True
    return False


def _measured_programs(plan: CompilePlan, first: Mapping[str, Timed]) -> dict[str, list[Timed]]:
    """Programs of tasks that the log knows to be right, and nearly as fast as `first`."""
    found: dict[str, list[Timed]] = {key: [] for key in first}
    ranked = ranked_records(plan.known.records) if plan.known else {}
    for (key, target, n_threads), records in ranked.items():
        if key not in first or (target, n_threads) != (plan.target.key, plan.n_threads):
            continue
        timed = ((record, record.result.latency_s or math.inf) for record in records)
        for record, latency_s in timed:
            if latency_s <= plan.sharing * first[key].latency_s:
                with suppress(LogMismatch):  # steps of another version
                    found[key].append(Timed(record.steps, latency_s))
    return found


def _open_alternatives(network: Network, best: Mapping[str, MeasureRecord]) -> set[str]:
    """Tasks of chains of which a part, or the whole, was not measured."""
    chains = ({whole, *parts} for whole, parts in network.parts.items())
    return set().union(*(keys for keys in chains if not keys <= best.keys()))


def tuned_latencies(best: Mapping[str, MeasureRecord]) -> dict[str, Tuned]:
    """Latencies of tasks alone in the best records, by key, as an artifact keeps them."""
    measured = ((key, r.result.latency_s, r.n_threads) for key, r in best.items())
    return {key: Tuned(latency_s, n) for key, latency_s, n in measured if latency_s}


def require_same_machine(header: Header, target: Target) -> None:
    """Raise LogMismatch when a log was measured on another CPU than this one."""
    if header.target.key != target.key:
        raise LogMismatch(
            f"the log was measured on another CPU: {difference(header.target, target)}",
            "use it there, or start a new log here: autotune tune",
        )
