"""⑪ From a log's header to a running session: search and measurement wired together.

    tuning = Tuning(journal, log, header, budget)
    for event in tuning.events(): …                 # for a display; see `tuner.events`

Everything that is measured is in the journal before its event comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial

import numpy as np

from autotune.api.compile.drafting import Drafts
from autotune.api.request import Note, never, silent
from autotune.api.rules import rules_of
from autotune.api.tune.machines import device_of
from autotune.api.tune.warm import warm_start
from autotune.cache import program_store
from autotune.config import TuneConfig
from autotune.dtypes import dtype_bytes
from autotune.errors import NoValidSchedule
from autotune.machine import Limits, read_limits
from autotune.measure.build import build_program
from autotune.measure.measurer import Measurer
from autotune.measure.memory_plan import plan_memory, private_bytes
from autotune.measure.options import MeasureOptions
from autotune.measure.pipeline import PipelinedMeasurer, measurer_for
from autotune.measure.processes.parallel_map import parallel_map
from autotune.measure.protocols import Device
from autotune.measure.timing.noise import Noise, NoiseWatch, read_usage
from autotune.measure.timing.peak import Peaks
from autotune.records import Header, Journal, Log
from autotune.search.cost.ranker import Ranker
from autotune.search.elite_pool import ElitePool
from autotune.search.partial import Rule
from autotune.search.policy import FIRST_BATCH, Candidate, SketchPolicy
from autotune.search.sketch import generate_sketches
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.tuner import (
    BatchMeasured,
    Budget,
    CandidateMeasurer,
    DeviceLeftOut,
    DevicesChanged,
    Event,
    Finals,
    NoiseNoticed,
    Run,
    Scheduler,
    Session,
    SessionStarted,
    TuningTask,
    bound_s,
    dots_of,
    logged_tasks,
    networks_of,
)
from autotune.tuner.bound import bytes_read

_COPIES = 3


class Tuning:
    """A run that is ready to start: peaks are measured, earlier logs are learnt.

    `log` is what is replayed first: empty of records for a new session. `stop` is asked between
    measurements. `note` is told what a user should know of the earlier logs. Raises UsageError
    where memory is too short. `rules`: sketch rules beside those that the settings name.
    `device`: the machine to measure, this one by default.
    """

    def __init__(
        self,
        journal: Journal,
        log: Log,
        header: Header,
        budget: Budget,
        stop: Callable[[], bool] = never,
        note: Note = silent,
        rules: Sequence[Rule] = (),
        device: Device | None = None,
    ) -> None:
        self._journal, self._log, self._header = journal, log, header
        self._budget, self._stop = budget, stop
        self.begun_s = time.monotonic()
        """When its time began, of `time.monotonic`."""
        self._config = TuneConfig.from_json(header.config)
        self._device = device or device_of(header, self._config)
        self._options = measure_options(log, self._config, device=self._device)
        dots = dots_of((w.dag for w in log.workloads.values()), header.target)
        self._peaks = peaks = self._device.peaks(self._options.evict, dots)
        self._rules = (*rules, *rules_of(self._config.rules))
        self._tasks = tuning_tasks(log, peaks, self._rules)
        self._defaults: dict[str, Candidate | None] = {}
        # one thread trains on a few thousand rows in 0.2 s; OpenMP's threads, which spin, take many
        # seconds as soon as anything else runs on the machine
        self._ranker = Ranker(self._config.seed)
        paths, limit = self._config.warm_start, self._config.task_error
        store = self._config.store
        self.warm = warm_start(paths, header, limit, log, self._ranker, note, store)
        """Warm start from earlier logs and from a store."""
        self.numbers: Iterator[int] | None = None
        """Numbers for records, where several write one log."""
        self.in_network: Finals | None = None
        """What tries finalists in the compiled network, at the end."""

    @property
    def target(self) -> Target:
        """The CPU."""
        return self._header.target

    def events(self) -> Generator[Event, None, None]:
        """Tune; the last event is SessionFinished. To stop early, close the iterator."""
        with closing(self.turns()) as turns:
            yield from (event for event in turns if event is not None)

    def turns(self) -> Generator[Event | None, None, None]:
        """`events`, and None whenever nothing is measured yet: then another may go on."""
        header = self._header
        build = partial(build_program, overwritten=header.overwritten, dense=header.dense)
        with measurer_for(self._device, self._options, build) as measurer:
            session = self._session(measurer)
            session.replay(self._log.within(self._config.task_error))
            observers = [_noises(session, measurer), _devices(measurer), _left_out(measurer)]
            with closing(session.turns()) as turns:  # the end is written while the log is open
                for event in turns:
                    yield event
                    if isinstance(event, SessionStarted | BatchMeasured):
                        yield from (told for look in observers if (told := look()) is not None)
        self._journal.check()

    def _session(self, measurer: CandidateMeasurer) -> Session:
        """Search and measurement wired together."""
        header, config, ranker = self._header, self._config, self._ranker
        rules, elites = self._rules, ElitePool()

        def policy_of(task: TuningTask) -> SketchPolicy:
            rng = np.random.default_rng([config.seed, int(task.key, 16)])
            target, n_threads = header.target, header.n_threads
            return SketchPolicy(task.dag, target, n_threads, ranker, rng, elites, rules)

        def default(task: TuningTask) -> Candidate | None:
            if task.key not in self._defaults:
                self._defaults[task.key] = self._default_of(task.dag)
            return self._defaults[task.key]

        return Session(
            run=Run(header.run_id, header.target.key, header.n_threads),
            tasks=self._tasks,
            policy_of=policy_of,
            measurer=measurer,
            sink=self._journal,
            budget=self._budget,
            scheduler=Scheduler(self._tasks, config.batch, config.patience),
            clock=time.monotonic,
            begun_s=self.begun_s,
            model=ranker,
            stop=self._stop,
            batch=config.batch,
            default=default,
            first=self.warm.first,
            network=self.in_network,
            networks=networks_of(header, self._tasks),
            numbers=self.numbers,
            peaks=self._peaks,
            drafted=self._drafted(measurer.n_slots) if measurer.n_slots > 1 else {},
        )

    def _drafted(self, n_slots: int) -> dict[str, list[Candidate]]:
        """First candidates of tasks that nothing is known of, proposed on all cores.

        Devices of a fleet would wait for them one by one. They are as many as fill all slots.
        """
        if self._rules or self._ranker.is_trained:
            return {}
        known = {record.workload for record in self._log.records} | self.warm.first.keys()
        tasks = [task for task in self._tasks if task.key not in known]
        draft = partial(
            first_batch,
            target=self._header.target,
            n_threads=self._header.n_threads,
            seed=self._config.seed,
            n=n_drafted(len(tasks), n_slots, self._config.batch),
        )
        found = parallel_map(draft, [task.dag for task in tasks])
        return {task.key: one for task, one in zip(tasks, found, strict=True)}

    def _default_of(self, dag: ComputeDAG) -> Candidate | None:
        """The program that a task has without tuning, as `compile` keeps it; None: it has none."""
        settings = self._header.target, self._header.n_threads, self._config.task_error
        with suppress(NoValidSchedule):
            return Drafts(*settings, program_store()).untuned(dag, [t.dag for t in self._tasks])
        return None


def n_drafted(n_tasks: int, n_slots: int, batch: int) -> int:
    """Candidates of each of the tasks that are drafted, so that every slot has a batch."""
    return max(FIRST_BATCH, math.ceil(n_slots * batch / max(1, n_tasks)))


def first_batch(
    dag: ComputeDAG, target: Target, n_threads: int, seed: int, n: int
) -> list[Candidate]:
    """The first `n` candidates of a task, when nothing is known of any."""
    rng = np.random.default_rng([seed, int(dag.key, 16)])
    return SketchPolicy(dag, target, n_threads, Ranker(seed), rng).propose(2 * n)[:n]


def _noises(session: Session, measurer: Measurer | PipelinedMeasurer) -> Callable[[], Event | None]:
    """What is to be told of co-tenants of the machines that are measured, once of each."""
    if isinstance(measurer, PipelinedMeasurer):
        return _noises_elsewhere(session, measurer)
    watch = NoiseWatch(read_usage)
    session.noise = watch.to_json

    def look() -> Event | None:
        noise = watch.look()
        return None if noise is None else NoiseNoticed(noise)

    return look


def _noises_elsewhere(session: Session, measurer: PipelinedMeasurer) -> Callable[[], Event | None]:
    known: set[str] = set()

    def noises() -> list[Noise]:
        return [Noise.from_json(found, name) for name, found in sorted(measurer.noises.items())]

    def worst() -> dict[str, object]:
        found = max(noises(), key=lambda noise: noise.other_cpus, default=None)
        return found.to_json() if found else {}

    def look() -> Event | None:
        new = next((noise for noise in noises() if noise.device not in known), None)
        known.update((new.device,) if new else ())
        return NoiseNoticed(new) if new else None

    session.noise = worst
    return look


def _devices(measurer: Measurer | PipelinedMeasurer) -> Callable[[], Event | None]:
    """What is to be told of the devices that are measured: their names, when they change."""
    known: tuple[str, ...] = ()

    def look() -> Event | None:
        nonlocal known
        before, known = known, measurer.devices
        return DevicesChanged(known) if known != before else None

    return look


def _left_out(measurer: Measurer | PipelinedMeasurer) -> Callable[[], Event | None]:
    """What is to be told of devices that measure no more, once of each."""
    n_told = 0

    def look() -> Event | None:
        nonlocal n_told
        found = measurer.left_out[n_told:]
        n_told += bool(found)
        return DeviceLeftOut(found[0].device, found[0].reason) if found else None

    return look


def measure_options(
    log: Log, config: TuneConfig, limits: Limits | None = None, device: Device | None = None
) -> MeasureOptions:
    """Time-outs of the settings, and caches in the state in which this network leaves them.

    `device`: the machine to measure, this one by default. Raises UsageError where `limits` (those
    of this process by default) leave too little memory.
    """
    device = device or device_of(log.header, config)
    n_bytes, flops = constant_bytes(log), total_flops(log)
    plan = plan_memory(limits or read_limits(), private_bytes(), largest_bytes(log))
    return MeasureOptions(
        n_builders=plan.n_builders,
        builder_bytes=plan.builder_bytes,
        worker_bytes=plan.worker_bytes,
        evict=not device.stays_cached(n_bytes, flops),
        build_timeout_s=config.build_timeout_s,
        run_timeout_s=config.run_timeout_s,
        max_error=config.task_error,
        seed=config.seed,
    )


def tuning_tasks(log: Log, peaks: Peaks, rules: Sequence[Rule] = ()) -> list[TuningTask]:
    """The tasks of a log with their weights and bounds, in model order."""
    target = log.header.target
    bounds_s = {
        key: bound_s(w.dag, peaks, generate_sketches(w.dag, target, extra=rules))
        for key, w in log.workloads.items()
    }
    return logged_tasks(log, bounds_s)


def constant_bytes(log: Log) -> int:
    """Bytes of weights that the model streams per inference."""
    read = (
        weight * bytes_read(dag, p)
        for dag, weight in _called(log)
        for p in dag.placeholders
        if p.constant
    )
    return round(sum(read))


def largest_bytes(log: Log) -> int:
    """Memory that the run worker needs for the largest task of a model.

    Its inputs and outputs as the oracle and one program hold them, and as the check compares them.
    """
    return max((_COPIES * _array_bytes(w.dag) for w in log.workloads.values()), default=0)


def _array_bytes(dag: ComputeDAG) -> int:
    tensors = [p.tensor for p in dag.placeholders] + [dag[name].tensor for name in dag.outputs]
    return sum(t.size * dtype_bytes(t.dtype) for t in tensors)


def total_flops(log: Log) -> int:
    """Floating-point operations of an inference."""
    return round(sum(weight * dag.flops for dag, weight in _called(log)))


def _called(log: Log) -> list[tuple[ComputeDAG, float]]:
    """The tasks of a model without those that may replace others, with the calls of each."""
    header = log.header
    weights = dict(header.networks[0].tasks) if header.networks else header.weights
    tasks = (task for task in weights.items() if task[0] not in header.parts)
    return [(log.workloads[key].dag, weight) for key, weight in tasks]
