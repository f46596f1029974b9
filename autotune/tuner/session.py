"""⑨ The tuning loop: ask the scheduler and a policy, measure, journal, tell both.

    propose -> measure -> journal -> observe

While the candidates of one task are built, those of the next are proposed, so that search uses
cores that would be idle. A measurer with several slots has a batch in each of them: what is
proposed then does not know the results of those in flight.

A resumed session replays the records of its log through the same `observe`, and so continues in
the state in which it was killed: nothing is measured twice, and the budget goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import TypeAlias

from autotune.measure.protocols import Built
from autotune.measure.timing.peak import Peaks
from autotune.records.record import End, InTurns, Log, MeasureRecord
from autotune.result import MeasureResult
from autotune.search.policy import Candidate, MeasuredSchedule
from autotune.tuner.book import Book, Run
from autotune.tuner.budget import Budget, StopReason, TaskStop, spent
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
from autotune.tuner.finals import finalists
from autotune.tuner.ledger import Ledger
from autotune.tuner.outlook import Outlook, least_s, outlook
from autotune.tuner.proposals import Proposals
from autotune.tuner.protocols import CandidateMeasurer, Finals, LearnedModel, Policy, Sink
from autotune.tuner.scheduler import Scheduler, TaskState
from autotune.tuner.slots import SlotBatch, Slots
from autotune.tuner.task import TuningTask
from autotune.tuner.totals import Totals, fastest

_Turns: TypeAlias = Generator[Event | None, None, None]


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
    policy_of: InitVar[Callable[[TuningTask], Policy]]
    measurer: InitVar[CandidateMeasurer]
    sink: Sink
    budget: Budget
    scheduler: Scheduler
    clock: Callable[[], float]
    model: LearnedModel | None = None
    stop: Callable[[], bool] = lambda: False
    batch: int = 16
    default: InitVar[Callable[[TuningTask], Candidate | None]] = lambda task: None
    first: InitVar[Mapping[str, Sequence[Candidate]]] = MappingProxyType({})
    drafted: InitVar[Mapping[str, Sequence[Candidate]]] = MappingProxyType({})
    finals: bool = True
    network: Finals | None = None
    noise: Callable[[], dict[str, object]] = dict
    peaks: Peaks | None = None
    networks: Sequence[Sequence[TuningTask]] = ()
    numbers: Iterator[int] | None = None
    begun_s: float | None = None
    ledger: Ledger = field(default_factory=Ledger)
    slots: Slots = field(init=False)
    proposals: Proposals = field(init=False)
    _book: Book = field(init=False)
    _n_remeasured: int = 0
    _before_s: float = 0.0
    _started_s: float | None = None
    _gained: InTurns | None = None
    _is_cut_off: bool = False
    _is_outlook_told: bool = False

    def __post_init__(
        self,
        policy_of: Callable[[TuningTask], Policy],
        measurer: CandidateMeasurer,
        default: Callable[[TuningTask], Candidate | None],
        first: Mapping[str, Sequence[Candidate]],
        drafted: Mapping[str, Sequence[Candidate]],
    ) -> None:
        self.slots = Slots(measurer, self.clock, self.ledger.seconds)
        self.proposals = Proposals(
            policy_of=policy_of,
            scheduler=self.scheduler,
            ledger=self.ledger,
            slots=self.slots,
            clock=self.clock,
            room=self._room,
            default=default,
            first=first,
            drafted=drafted,
        )
        self._book = Book(self.run, self.sink, self.ledger, self.elapsed_s, self.numbers)

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
                self.proposals.look_ahead(state, 0)  # proposed before the last results were known
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
            if not self.slots.batches:
                return reason or StopReason.CONVERGED
            batch = yield from self.slots.next_done(self.stop)
            if batch is None:
                return StopReason.INTERRUPTED
            yield from self._round(batch)
            yield from self._finished(batch.state)

    def _fill(self) -> Generator[Event, None, StopReason | None]:
        """Begin batches until every slot has one; the reason where no more can begin.

        What has come while a proposal was made is learnt before the next one.
        """
        while self.slots.n_free:
            while (batch := self.slots.done_already()) is not None:
                yield from self._round(batch)
                yield from self._finished(batch.state)
            reason = self._stop_reason()
            if reason is not None:
                return reason
            state, candidates = self.proposals.choose()
            if state is None:
                spent = all(s.exhausted for s in self.scheduler.states.values())
                return StopReason.EXHAUSTED if spent else StopReason.CONVERGED
            yield TaskSelected(state.task.key, self.scheduler.gain_s(state))
            for begin in range(0, len(candidates), self.batch):
                part = candidates[begin : begin + self.batch]
                meanwhile = partial(self.proposals.look_ahead, state, len(part))
                self.slots.begin(state, part, meanwhile)
            if not candidates:
                self.scheduler.exhaust(state.task.key)
                yield from self._finished(state)
        return None

    def _finished(self, state: TaskState) -> Iterator[Event]:
        stop = self.scheduler.stopped(state)
        if stop is not None:
            yield TaskFinished(state.task.key, state.best_s, stop)

    def _stop_reason(self) -> StopReason | None:
        if self.stop():
            return StopReason.INTERRUPTED
        n_trials = self.ledger.n_trials + self.slots.candidates().total()
        return self._search_budget().reached(n_trials, self.elapsed_s())

    def _room(self, n_batches: int, n_building: int) -> int:
        """Candidates that the budget has room for after `n_building` more."""
        live, elapsed_s = self.ledger.n_live, self.elapsed_s()
        if live and not self.slots.is_alone:  # a fleet's first are no measure of its speed
            live = max(live, n_building)
        trial_s = (elapsed_s - self._before_s) / live if live else None
        used = self.ledger.n_trials + n_building
        return self._search_budget().room(
            n_batches * self.batch, used, elapsed_s + n_building * (trial_s or 0.0), trial_s
        )

    def _search_budget(self) -> Budget:
        return self._task_budget().of_search if self.finals else self.budget

    def _task_budget(self) -> Budget:
        return self.budget.of_tasks if self.network else self.budget

    def _round(self, batch: SlotBatch) -> Generator[Event, None, None]:
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

    def _measure(self, batch: SlotBatch) -> Generator[Event, None, list[MeasureResult]]:
        """Measure; every result is appended to the log before it is observed or shown."""
        is_alone, measurer = self.slots.is_alone, self.slots.measurer
        begin, waited_s = self.clock(), measurer.waited_s
        begin = batch.begun_s if is_alone else begin
        results: list[MeasureResult] = []
        n_batch = len(batch.candidates)
        yield CandidateMeasured(batch.key, 0, n_batch)
        for result in batch.believed():
            if isinstance(result, Built):
                yield CandidateBuilt(batch.key, result.n_done, n_batch, self.elapsed_s())
                continue
            self._book.write(batch.key, batch.candidates[len(results)], result)
            results.append(result)
            yield CandidateMeasured(batch.key, len(results), n_batch)
            if is_alone and self._stop_reason() is not None:  # no need to run built candidates
                break
        self.sink.sync()
        searched_s = measurer.waited_s - waited_s
        self.ledger.seconds.search += searched_s
        self.ledger.seconds.measure += self.clock() - begin - searched_s
        return results

    def _learn(
        self, state: TaskState, pairs: Sequence[tuple[MeasuredSchedule, MeasureResult]]
    ) -> None:
        self.scheduler.observe(state.task.key, [result for _, result in pairs])
        begin = self.clock()
        self.proposals.policy(state.task).observe(pairs)
        self.ledger.seconds.search += self.clock() - begin

    def _measure_finals(self) -> _Turns:
        """Measure the finalists of every task against each other, the weightiest task first."""
        states = [s for s in self.scheduler.states.values() if s.best_s is not None]
        waiting = iter(sorted(states, key=lambda s: -s.task.weight * (s.best_s or 0.0)))
        while True:
            self._fill_finals(waiting)
            batch = (yield from self.slots.next_done(self.stop)) if self.slots.batches else None
            if batch is None:
                break
            yield self._measure_final(batch)
        self.sink.sync()

    def _choose_in_network(self) -> _Turns:
        """Try finalists in the compiled network; what wins there is written to the log."""
        if self.network is None or self.stop():
            return
        begin = self.clock()
        won = yield from self.network(self.budget.left_for_network_s(self.elapsed_s()))
        self._book.write_winners(won)
        self.ledger.seconds.measure += self.clock() - begin

    def _fill_finals(self, waiting: Iterator[TaskState]) -> None:
        """Begin batches of finalists until every slot has one, or time is up."""
        while self.slots.n_free:
            limit_s = self._task_budget().time_s
            late = limit_s is not None and self.elapsed_s() >= limit_s
            state = None if late or self.stop() else next(waiting, None)
            if state is None:
                return
            again = finalists(self.ledger, state)
            if len(again) > 1:
                self.slots.begin_in_turns(state, again)

    def _measure_final(self, batch: SlotBatch) -> FinalistsMeasured:
        task = batch.state.task
        begin = batch.begun_s if self.slots.is_alone else self.clock()
        results = (result for result in batch.believed() if not isinstance(result, Built))
        for candidate, result in zip(batch.candidates, results, strict=True):
            self._book.write(task.key, candidate, result, final=True)
        self.ledger.seconds.measure += self.clock() - begin
        self._n_remeasured += 1
        best_s = self.ledger.times(task.key).tuned_s
        return FinalistsMeasured(task.key, best_s, self.elapsed_s(), self._totals())

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
        self._book.write_end(end)

    def _seconds(self) -> dict[str, float]:
        found = self.ledger.seconds.split(self.model.train_s if self.model else 0.0)
        built_s = min(self.slots.measurer.built_s, found["measure"])
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
