"""⑨ The tuning loop: ask the scheduler and a policy, measure, journal, tell both.

    propose -> measure -> journal -> observe

While the candidates of one task are built, those of the next are proposed, so that search uses
cores that would be idle. A measurer with several slots has a batch in each of them: what is
proposed then does not know the results of those in flight.

A resumed session replays the records of its log through the same `observe`, and so continues in
the state in which it was killed: nothing is measured twice, and the budget goes on.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, groupby
from typing import TypeAlias

from autotune.errors import AutotuneError
from autotune.measure.protocols import Built
from autotune.measure.timing.peak import Peaks
from autotune.records.record import End, InTurns, Log, MeasureRecord
from autotune.result import MeasureResult
from autotune.search.policy import Candidate, MeasuredSchedule
from autotune.tuner.bound import believed
from autotune.tuner.budget import NETWORK_TIME, Budget, StopReason, TaskStop, network_s, spent
from autotune.tuner.events import (
    BatchMeasured,
    CandidateBuilt,
    CandidateMeasured,
    DefaultsMeasured,
    Event,
    FinalistsMeasured,
    SessionFinished,
    SessionStarted,
    TaskFinished,
    TaskImproved,
    TaskProgress,
    TaskSelected,
)
from autotune.tuner.ledger import Default, Ledger
from autotune.tuner.outlook import Outlook, least_s, outlook
from autotune.tuner.protocols import (
    CandidateMeasurer,
    Finals,
    LearnedModel,
    NetworkWinner,
    Policy,
    Sink,
)
from autotune.tuner.scheduler import Scheduler, TaskState
from autotune.tuner.task import TuningTask
from autotune.tuner.totals import Totals, fastest

_MAX_ASKS = 3  # proposals of nothing new after which a task's space counts as exhausted
_FINALISTS = 4
_FINAL_ROUNDS = 10  # repeats of each
_FINAL_MARGIN = 1.15  # finalists are within this factor of the best: noise comes in bursts
_ONE_TASK = 0.35  # of the slots may be filled by one proposal
_DEFAULT_MARGIN = 4.0
"""The default program may be further away: of it, a gain is told. Two threads on one core, when it
was measured first, made it twice as slow."""


_Choice: TypeAlias = tuple[TaskState | None, list[Candidate]]
_Turns: TypeAlias = Generator[Event | None, None, None]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Candidates of a task that a slot of the measurer has; `results` come as it is iterated."""

    state: TaskState
    candidates: Sequence[Candidate]
    results: Iterable[MeasureResult | Built]
    begun_s: float

    @property
    def key(self) -> str:
        """Of the task."""
        return self.state.task.key

    def believed(self) -> Iterator[MeasureResult | Built]:
        """The results, without times that no machine can reach."""
        bound_s = self.state.task.bound_s
        return (one if isinstance(one, Built) else believed(one, bound_s) for one in self.results)


@dataclass(frozen=True, slots=True)
class Run:
    """Fields that all records of a run share."""

    run_id: str
    target_key: str
    n_threads: int


@dataclass(slots=True)
class Session:
    """One run over all tasks of a model.

    `policy_of` makes the policy of a task, once, when it is first needed. `clock` gives seconds
    that only grow. `stop` is asked between candidates: true ends the session as interrupted, with
    everything measured in the log. `default`: the program that a task has without tuning, which is
    measured first. `first`: candidates to measure next, before any proposal. `drafted`: those that
    are proposed first of tasks without measurements, made in advance. `noise`: how much
    others disturbed, and `peaks`: what the bounds come from, for the end of the log. `finals`: at
    the end, measure the best few of every task again before one of them is declared the winner.
    `network`: and then some of them in the compiled network.
    `networks`: where the model may become one of several, the tasks of each with their weights in
    it; else `tasks` are those of the only one. `numbers`: of records, where several sessions
    write one log. `begun_s`: on the clock, from which on time counts against the budget; None:
    the first event.
    """

    run: Run
    tasks: Sequence[TuningTask]
    policy_of: Callable[[TuningTask], Policy]
    measurer: CandidateMeasurer
    sink: Sink
    budget: Budget
    scheduler: Scheduler
    clock: Callable[[], float]
    model: LearnedModel | None = None
    stop: Callable[[], bool] = lambda: False
    batch: int = 16
    default: Callable[[TuningTask], Candidate | None] = lambda task: None
    first: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    drafted: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    finals: bool = True
    network: Finals | None = None
    noise: Callable[[], dict[str, object]] = dict
    peaks: Peaks | None = None
    networks: Sequence[Sequence[TuningTask]] = ()
    numbers: Iterator[int] | None = None
    begun_s: float | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _policies: dict[str, Policy] = field(default_factory=dict)
    _defaults: dict[str, Candidate | None] = field(default_factory=dict)
    _n_remeasured: int = 0
    _ahead: _Choice | None = None
    _flying: list[_Batch] = field(default_factory=list)
    _before_s: float = 0.0
    _started_s: float | None = None
    _gained: InTurns | None = None
    _is_cut_off: bool = False
    _is_outlook_told: bool = False

    def replay(self, log: Log) -> None:
        """Take over the records of this session's tasks, target and thread count."""
        self.ledger.next_sequence = 1 + max((r.sequence for r in log.records), default=-1)
        self._before_s = spent(log).elapsed_s
        self._gained = self._in_turns(log)
        self._is_cut_off = bool(log.records) and not _has_ended(log)
        ours = [r for r in log.records if self._is_ours(r)]
        self.ledger.add(ours, live=False)
        batches = list(self._batches([r for r in ours if not r.final]))
        for batch in batches:
            state = self.scheduler.states[batch[0].workload]
            if batch is batches[-1]:
                self._look_ahead(state, 0)  # proposed before the last results were known
            self._learn(state, [(r, r.result) for r in batch])

    def _in_turns(self, log: Log) -> InTurns | None:
        """What the network of the last session on this machine gained, where it was timed."""
        machine = (self.run.target_key, self.run.n_threads)
        runs = {h.run_id for h in log.headers if (h.target.key, h.n_threads) == machine}
        found = [end.in_turns for end in log.ends if end.run_id in runs and end.in_turns]
        return found[-1] if found else None

    def _batches(self, records: Iterable[MeasureRecord]) -> Iterator[list[MeasureRecord]]:
        """Records in the batches in which they were measured: a task may come several times in a
        row, and only its first batch may be short."""
        seen: set[str] = set()
        for key, found in groupby(records, key=lambda r: r.workload):
            group = list(found)
            end = self.batch if key in seen else (len(group) - 1) % self.batch + 1
            for begin in (0, *range(end, len(group), self.batch)):
                yield group[begin:end]
                end += self.batch
            seen.add(key)

    def events(self) -> Generator[Event, None, None]:
        """Tune until the budget ends. The caller iterates; nothing happens otherwise.

        KeyboardInterrupt and errors go through, after the end of the run is in the log.
        """
        with closing(self.turns()) as turns:
            yield from (event for event in turns if event is not None)

    def turns(self) -> _Turns:
        """`events`, and None whenever nothing is measured yet: then another session may go on."""
        self._started_s = self.clock() if self.begun_s is None else self.begun_s
        reason = StopReason.FAILED
        try:
            yield self._start()
            reason = yield from self._search()
            if self.finals and reason is not StopReason.INTERRUPTED:
                if self.ledger.n_live:
                    yield from self._measure_finals()
                if self.ledger.n_live or self._is_cut_off:
                    yield from self._choose_in_network()
        except (KeyboardInterrupt, GeneratorExit):
            reason = StopReason.INTERRUPTED
            raise
        finally:
            self._write_end(reason)
        yield self._summary(reason)

    def elapsed_s(self) -> float:
        """Session time so far, the runs before this one included."""
        now = 0.0 if self._started_s is None else self.clock() - self._started_s
        return self._before_s + now

    def _start(self) -> SessionStarted:
        states = [self.scheduler.states[task.key] for task in self.tasks]
        progress = [
            TaskProgress(
                task=s.task,
                n_trials=s.n_trials,
                untuned_s=self.ledger.times(s.task.key).untuned_s,
                best_s=s.best_s,
                stop=self.scheduler.stopped(s),
            )
            for s in states
        ]
        return SessionStarted(
            run_id=self.run.run_id,
            tasks=tuple(progress),
            budget=self.budget,
            n_replayed=self.ledger.n_trials,
            elapsed_s=self.elapsed_s(),
            totals=self._totals(),
            outlook=self._outlook(),
            in_turns=self._gained,
            bound_s=least_s(self.networks or (self.tasks,)),
        )

    def _outlook(self) -> Outlook | None:
        """Once in a session, when the default programs of all tasks are measured."""
        untuned_s = {task.key: self.ledger.times(task.key).untuned_s for task in self.tasks}
        known_s = {key: s for key, s in untuned_s.items() if s is not None}
        if self._is_outlook_told or len(known_s) < len(untuned_s):
            return None
        self._is_outlook_told = True
        return outlook(self.networks or (self.tasks,), known_s)

    def _totals(self) -> Totals:
        times = {task.key: self.ledger.times(task.key) for task in self.tasks}
        return fastest(self.networks or (self.tasks,), times)

    def _search(self) -> Generator[Event | None, None, StopReason]:
        while True:
            reason = yield from self._fill()
            if not self._flying:
                return reason or StopReason.CONVERGED
            batch = yield from self._next_done()
            if batch is None:
                return StopReason.INTERRUPTED
            yield from self._round(batch)
            yield from self._finished(batch.state)

    def _fill(self) -> Generator[Event, None, StopReason | None]:
        """Begin batches until every slot has one; the reason where no more can begin.

        What has come while a proposal was made is learnt before the next one.
        """
        while len(self._flying) < self.measurer.n_slots:
            while (batch := self._done_already()) is not None:
                yield from self._round(batch)
                yield from self._finished(batch.state)
            reason = self._stop_reason()
            if reason is not None:
                return reason
            state, candidates = self._ahead or self._choose()
            self._ahead = None
            if state is None:
                spent = all(s.exhausted for s in self.scheduler.states.values())
                return StopReason.EXHAUSTED if spent else StopReason.CONVERGED
            yield TaskSelected(state.task.key, self.scheduler.gain_s(state))
            for begin in range(0, len(candidates), self.batch):
                part = candidates[begin : begin + self.batch]
                self._flying.append(self._begin(state, part))
            if not candidates:
                self.scheduler.exhaust(state.task.key)
                yield from self._finished(state)
        return None

    def _finished(self, state: TaskState) -> Iterator[Event]:
        stop = self.scheduler.stopped(state)
        if stop is not None:
            yield TaskFinished(state.task.key, state.best_s, stop)

    def _begin(self, state: TaskState, candidates: list[Candidate]) -> _Batch:
        """Give a batch to the measurer; with one slot it is measured when it is iterated."""
        begin = self.clock()
        steps = [c.steps for c in candidates]
        is_alone = self.measurer.n_slots == 1
        ahead = partial(self._look_ahead, state, len(candidates)) if is_alone else None
        results = self.measurer.stream(state.task.dag, steps, state.best_s, ahead)
        return _Batch(state, candidates, results, begin)

    def _next_done(self) -> Generator[None, None, _Batch | None]:
        """The batch whose results come next; None where an end is asked for before they come."""
        begin = self.clock()
        found: int | None = 0
        while self.measurer.n_slots > 1:
            found = self.measurer.first_done([b.results for b in self._flying])
            if found is not None or self.stop():
                break
            yield None
        self.ledger.seconds.measure += self.clock() - begin
        return None if found is None else self._flying.pop(found)

    def _done_already(self) -> _Batch | None:
        """A batch whose results are there now; with one slot, none is before it is asked for."""
        if self.measurer.n_slots == 1 or not self._flying:
            return None
        found = self.measurer.first_done([b.results for b in self._flying], waits=False)
        return None if found is None else self._flying.pop(found)

    def _choose(self) -> _Choice:
        """The task to work on, and new candidates of it.

        A task whose batches in flight are all that there is to try is passed over.
        """
        begin = self.clock()
        flying = self._in_flight()
        passed: set[str] = set()
        while True:
            state = self.scheduler.next(flying, passed)
            candidates = self._ask(state, flying.total(), self._n_free()) if state else []
            if state is None or candidates or not flying[state.task.key]:
                break
            passed.add(state.task.key)
        self.ledger.seconds.search += self.clock() - begin
        return state, candidates

    def _n_free(self) -> int:
        """Batches of one proposal: more where the search is slower than the machines.

        A proposal takes about as long however many candidates are taken of it, and slots become
        free meanwhile. Some of those are left to other tasks.
        """
        n_slots = self.measurer.n_slots
        return max(1, min(n_slots - len(self._flying), round(_ONE_TASK * n_slots)))

    def _in_flight(self) -> Counter[str]:
        """Candidates that are being measured, by task."""
        found = Counter[str]()
        for batch in self._flying:
            found[batch.key] += len(batch.candidates)
        return found

    def _look_ahead(self, state: TaskState, n_building: int) -> None:
        """Choose the next task, while the builders work on candidates of `state`."""
        after = self.scheduler.after(state)
        self._ahead = (after, self._ask(after, n_building)) if after else None

    def _stop_reason(self) -> StopReason | None:
        if self.stop():
            return StopReason.INTERRUPTED
        n_trials = self.ledger.n_trials + self._in_flight().total()
        return self._search_budget().reached(n_trials, self.elapsed_s())

    def _search_budget(self) -> Budget:
        return self._task_budget().of_search if self.finals else self.budget

    def _task_budget(self) -> Budget:
        return self.budget.of_tasks if self.network else self.budget

    def _ask(self, state: TaskState, n_building: int = 0, n_batches: int = 1) -> list[Candidate]:
        """New candidates of a task, as many as the budget has room for after `n_building` more."""
        live, elapsed_s = self.ledger.n_live, self.elapsed_s()
        if live and self.measurer.n_slots > 1:  # the first of a fleet's are no measure of its speed
            live = max(live, n_building)
        trial_s = (elapsed_s - self._before_s) / live if live else None
        used = self.ledger.n_trials + n_building
        n = self._search_budget().room(
            n_batches * self.batch, used, elapsed_s + n_building * (trial_s or 0.0), trial_s
        )
        key = state.task.key
        drafted = self.drafted.get(key, ()) if state.n_trials == 0 else ()
        before_all = (*self._default(state.task), *self.first.get(key, ()), *drafted)
        found = self._unmeasured(state, before_all)
        if drafted and found:
            return list(found.values())[:n]
        n_known = self._in_flight()[key]
        for _ in range(_MAX_ASKS if len(found) < n else 0):
            proposed = self._policy(state.task).propose(n + n_known)
            fresh = self._unmeasured(state, proposed)
            found |= fresh
            if fresh or not proposed:
                break
        return list(found.values())[:n]

    def _default(self, task: TuningTask) -> list[Candidate]:
        """The default program of a task, unless the log knows it already."""
        if task.key not in self._defaults and task.key not in self.ledger.defaults:
            found = self._defaults[task.key] = self.default(task)
            if found is not None:
                default = Default(found.steps_json, found.predicted_s)
                self.ledger.book_default(task.key, default)
        candidate = self._defaults.get(task.key)
        return [candidate] if candidate else []

    def _unmeasured(self, state: TaskState, some: Sequence[Candidate]) -> dict[str, Candidate]:
        """Candidates by the text of their steps, without those that were or are being measured."""
        key = state.task.key
        flying = {c.steps_json for b in self._flying if b.key == key for c in b.candidates}
        texts = [(c.steps_json, c) for c in some]
        return {t: c for t, c in texts if t not in flying and not self.ledger.has(key, t)}

    def _round(self, batch: _Batch) -> Generator[Event, None, None]:
        state, before = batch.state, batch.state.best_s
        results = yield from self._measure(batch)
        self._learn(state, list(zip(batch.candidates, results, strict=False)))
        yield BatchMeasured(
            task=state.task.key,
            results=tuple(results),
            best_s=state.best_s,
            n_trials=state.n_trials,
            session_trials=self.ledger.n_trials,
            elapsed_s=self.elapsed_s(),
            totals=self._totals(),
        )
        if (found := self._outlook()) is not None:
            yield DefaultsMeasured(found)
        if state.best_s is not None and state.best_s != before:
            yield TaskImproved(state.task.key, before, state.best_s)

    def _measure(self, batch: _Batch) -> Generator[Event, None, list[MeasureResult]]:
        """Measure; every result is appended to the log before it is observed or shown."""
        is_alone = self.measurer.n_slots == 1
        begin, waited_s = self.clock(), self.measurer.waited_s
        begin = batch.begun_s if is_alone else begin
        results: list[MeasureResult] = []
        n_batch = len(batch.candidates)
        yield CandidateMeasured(batch.key, 0, n_batch)
        for result in batch.believed():
            if isinstance(result, Built):
                yield CandidateBuilt(batch.key, result.n_done, n_batch, self.elapsed_s())
                continue
            self._write(batch.state.task, batch.candidates[len(results)], result)
            results.append(result)
            yield CandidateMeasured(batch.key, len(results), n_batch)
            if is_alone and self._stop_reason() is not None:  # no need to run built candidates
                break
        self.sink.sync()
        searched_s = self.measurer.waited_s - waited_s
        self.ledger.seconds.search += searched_s
        self.ledger.seconds.measure += self.clock() - begin - searched_s
        return results

    def _write(
        self, task: TuningTask, candidate: Candidate, result: MeasureResult, final: bool = False
    ) -> None:
        default = self.ledger.defaults.get(task.key)
        is_default = default is not None and default.steps_json == candidate.steps_json
        record = MeasureRecord(
            run_id=self.run.run_id,
            sequence=self._next_number(),
            workload=task.key,
            target_key=self.run.target_key,
            n_threads=self.run.n_threads,
            steps_json=candidate.steps_json,
            result=result,
            sketch=candidate.sketch,
            elapsed_s=self.elapsed_s(),
            final=final,
            default_estimate_s=default.estimate_s if default and is_default else None,
        )
        self.sink.append([record])
        self.ledger.add([record], live=True)

    def _next_number(self) -> int:
        if self.numbers is None:
            self.numbers = count(self.ledger.next_sequence)
        return next(self.numbers)

    def _learn(
        self, state: TaskState, pairs: Sequence[tuple[MeasuredSchedule, MeasureResult]]
    ) -> None:
        self.scheduler.observe(state.task.key, [result for _, result in pairs])
        begin = self.clock()
        self._policy(state.task).observe(pairs)
        self.ledger.seconds.search += self.clock() - begin

    def _measure_finals(self) -> _Turns:
        """Measure the finalists of every task against each other, the weightiest task first."""
        states = [s for s in self.scheduler.states.values() if s.best_s is not None]
        waiting = iter(sorted(states, key=lambda s: -s.task.weight * (s.best_s or 0.0)))
        while True:
            self._fill_finals(waiting)
            batch = (yield from self._next_done()) if self._flying else None
            if batch is None:
                break
            yield self._measure_final(batch)
        self.sink.sync()

    def _choose_in_network(self) -> _Turns:
        """Try finalists in the compiled network; what wins there is written to the log."""
        if self.network is None or self.stop():
            return
        elapsed_s = self.elapsed_s()
        limit_s = self.budget.time_s
        if limit_s is None:
            time_s = elapsed_s * NETWORK_TIME / (1 - NETWORK_TIME)
        else:
            time_s = min(network_s(limit_s), limit_s - elapsed_s)
        begin = self.clock()
        won = yield from self.network(time_s)
        records = [self._in_network(winner) for winner in won]
        self.sink.append(records)
        self.sink.sync()
        self.ledger.add(records, live=False)
        self.ledger.seconds.measure += self.clock() - begin

    def _in_network(self, winner: NetworkWinner) -> MeasureRecord:
        return replace(
            winner.record,
            run_id=self.run.run_id,
            sequence=self._next_number(),
            elapsed_s=self.elapsed_s(),
            final=True,
            in_network=winner.told,
        )

    def _fill_finals(self, waiting: Iterator[TaskState]) -> None:
        """Begin batches of finalists until every slot has one, or time is up."""
        while len(self._flying) < self.measurer.n_slots:
            limit_s = self._task_budget().time_s
            late = limit_s is not None and self.elapsed_s() >= limit_s
            state = None if late or self.stop() else next(waiting, None)
            if state is None:
                return
            again = self._finalists(state)
            if len(again) > 1:
                begin = self.clock()
                steps = [c.steps for c in again]
                found = self.measurer.measure_interleaved(state.task.dag, steps, _FINAL_ROUNDS)
                self._flying.append(_Batch(state, again, found, begin))

    def _finalists(self, state: TaskState) -> list[Candidate]:
        """The best few programs that are about as fast, and the default unless it is far slower."""
        default = self.ledger.defaults.get(state.task.key)
        found = []
        for n, record in enumerate(self.ledger.ranking(state.task.key)):
            ratio = (record.result.latency_s or math.inf) / (state.best_s or math.inf)
            is_default = default is not None and record.steps_json == default.steps_json
            is_near = n < _FINALISTS and ratio <= _FINAL_MARGIN
            if is_near or (is_default and ratio <= _DEFAULT_MARGIN):
                found.append(Candidate(record.steps, record.sketch))
        return found

    def _measure_final(self, batch: _Batch) -> FinalistsMeasured:
        task = batch.state.task
        begin = batch.begun_s if self.measurer.n_slots == 1 else self.clock()
        results = (result for result in batch.believed() if not isinstance(result, Built))
        for candidate, result in zip(batch.candidates, results, strict=True):
            self._write(task, candidate, result, final=True)
        self.ledger.seconds.measure += self.clock() - begin
        self._n_remeasured += 1
        best_s = self.ledger.times(task.key).tuned_s
        return FinalistsMeasured(task.key, best_s, self.elapsed_s(), self._totals())

    def _policy(self, task: TuningTask) -> Policy:
        if task.key not in self._policies:
            self._policies[task.key] = self.policy_of(task)
        return self._policies[task.key]

    def _is_ours(self, record: MeasureRecord) -> bool:
        machine = (record.target_key, record.n_threads)
        ours = (self.run.target_key, self.run.n_threads)
        return machine == ours and record.workload in self.scheduler.states

    def _write_end(self, reason: StopReason) -> None:
        end = End(
            run_id=self.run.run_id,
            reason=reason.value,
            n_trials=self.ledger.n_trials,
            elapsed_s=self.elapsed_s(),
            stops={key: stop.value for key, stop in self._stops(reason).items()},
            bounds_s={task.key: task.bound_s for task in self.tasks if task.bound_s},
            seconds=self._seconds(),
            noise=self.noise(),
            peaks=self.peaks.to_json() if self.peaks else {},
        )
        with contextlib.suppress(AutotuneError):  # a full disk has been reported already
            self.sink.append([end])
            self.sink.sync()

    def _seconds(self) -> dict[str, float]:
        found = self.ledger.seconds.split(self.model.train_s if self.model else 0.0)
        built_s = min(self.measurer.built_s, found["measure"])
        return found | ({"building": built_s} if built_s else {})

    def _stops(self, reason: StopReason) -> dict[str, TaskStop]:
        """Reasons for no more trials, by task; an interrupt is none."""
        stops = self.scheduler.stops()
        if reason in (StopReason.TRIALS, StopReason.TIME):
            stops = dict.fromkeys(self.scheduler.states, TaskStop.BUDGET) | stops
        return stops

    def _summary(self, reason: StopReason) -> SessionFinished:
        missing = [t.key for t in self.tasks if self.ledger.times(t.key).tuned_s is None]
        return SessionFinished(
            reason=reason,
            n_trials=self.ledger.n_trials,
            elapsed_s=self.elapsed_s(),
            totals=self._totals(),
            invalid=tuple(k for k in missing if k in self.ledger.by_task),
            untried=tuple(k for k in missing if k not in self.ledger.by_task),
            failures=self.ledger.failures,
            stops=self._stops(reason),
            seconds=self._seconds(),
            n_remeasured=self._n_remeasured,
        )


def _has_ended(log: Log) -> bool:
    """Whether the last run with measurements came to its end."""
    ends = {end.run_id: end.reason for end in log.ends}
    return ends.get(log.records[-1].run_id, StopReason.INTERRUPTED) != StopReason.INTERRUPTED
