from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.errors import OutputError
from autotune.records import End, Entry, Header, Journal, Log, MeasureRecord, read_log
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Parallel, Steps
from autotune.search.policy import Candidate
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.tuner import (
    BatchMeasured,
    Budget,
    CandidateMeasured,
    FinalistsMeasured,
    ReplayMeasurer,
    Run,
    Scheduler,
    Session,
    SessionFinished,
    SessionStarted,
    StopReason,
    TaskFinished,
    TaskImproved,
    TaskSelected,
    TaskStop,
    TuningTask,
    event_to_json,
)

RUN = Run("r1", "t1", 1)


@dataclass
class FakePolicy:
    """Walks through its space in order; `observed` is all that it knows."""

    size: int
    observed: list[tuple[Steps, MeasureResult]] = field(default_factory=list)

    def propose(self, n: int) -> Sequence[Candidate]:
        done = {steps for steps, _ in self.observed}
        space = [(Parallel("c", i),) for i in range(self.size)]
        return [Candidate(steps, "fake") for steps in space if steps not in done][:n]

    def observe(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        self.observed += [(c.steps, r) for c, r in results]


def ok(latency: float) -> MeasureResult:
    return MeasureResult(MeasureStatus.OK, (latency,) * 3, 0.1, 0.2)


FAILED = MeasureResult(MeasureStatus.BUILD_ERROR, error="too large")


@dataclass
class FakeMeasurer:
    """Latency of candidate i of a task is `curve(i)`; every trial takes one second."""

    clock: list[float]
    curve: Callable[[int], MeasureResult] = lambda i: ok(1e-3 / (1 + i))
    calls: list[tuple[str, tuple[Steps, ...]]] = field(default_factory=list)
    waited_s: float = 0.0
    built_s: float = 0.0
    n_slots: int = 1

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterator[MeasureResult]:
        if meanwhile is not None:
            meanwhile()
        self.calls.append((dag.key, tuple(candidates)))
        for (step,) in candidates:
            assert isinstance(step, Parallel)
            self.clock[0] += 1
            yield self.curve(step.n)

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> list[MeasureResult]:
        return list(self.stream(dag, candidates))


@dataclass
class SlottedMeasurer(FakeMeasurer):
    """Several batches at a time, whose results come in any order, and not at every look."""

    n_slots: int = 3
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    most: int = 0

    def first_done(self, batches: Sequence[object], waits: bool = True) -> int | None:
        self.most = max(self.most, len(batches))
        return None if self.rng.random() < 0.3 else self.rng.randrange(len(batches))


@dataclass
class FakeModel:
    train_s: float = 0.0


class Harness:
    """A session over tasks of the given sizes with weight 1, and everything that it talks to."""

    def __init__(
        self,
        matmul_of: Callable[[int], ComputeDAG],
        sink: object,
        budget: Budget,
        sizes: Sequence[int] = (8, 16),
        space: int = 10_000,
    ) -> None:
        dags = [matmul_of(n) for n in sizes]
        self.tasks = [
            TuningTask(dag.key, dag, 1, f"m{n}") for dag, n in zip(dags, sizes, strict=True)
        ]
        self.keys = [task.key for task in self.tasks]
        self.clock = [100.0]
        self.measurer = FakeMeasurer(self.clock)
        self.policies = {task.key: FakePolicy(space) for task in self.tasks}
        self.session = Session(
            run=RUN,
            tasks=self.tasks,
            policy_of=lambda task: self.policies[task.key],
            measurer=self.measurer,
            sink=sink,  # type: ignore[arg-type]
            budget=budget,
            scheduler=Scheduler(self.tasks, batch=4, patience=16),
            clock=lambda: self.clock[0],
            model=FakeModel(0.25),
            batch=4,
            finals=False,
        )


@dataclass
class ListSink:
    entries: list[Entry] = field(default_factory=list)

    def append(self, entries: Sequence[Entry]) -> None:
        self.entries += entries

    def sync(self) -> None:
        pass

    @property
    def records(self) -> list[MeasureRecord]:
        return [e for e in self.entries if isinstance(e, MeasureRecord)]


@pytest.fixture
def harness(matmul_of: Callable[[int], ComputeDAG]) -> Callable[..., Harness]:
    def make(budget: Budget, sink: object = None, **more: object) -> Harness:
        return Harness(matmul_of, ListSink() if sink is None else sink, budget, **more)  # type: ignore[arg-type]

    return make


@pytest.fixture
def journal_header(any_target: Target) -> Header:
    return Header("r1", "2026", "m.onnx", "h", {}, any_target, 1, 0, {}, {}, ())


def test_the_trial_budget_is_met_exactly(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=11))
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert (last.reason, last.n_trials) == (StopReason.TRIALS, 11)
    assert [len(steps) for _, steps in h.measurer.calls] == [4, 4, 3]


def test_the_time_budget_ends_the_session_close_to_its_limit(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(time_s=10.0))
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert last.reason is StopReason.TIME
    assert last.elapsed_s == 10.0  # 4 + 4 + 2: the last batch was cut to what fits


def test_set_up_counts_against_the_time_budget(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(time_s=10.0))
    h.session.begun_s = h.session.clock() - 6.0
    first, *_, last = h.session.events()
    assert isinstance(first, SessionStarted)
    assert isinstance(last, SessionFinished)
    assert first.elapsed_s >= 6.0
    assert (last.n_trials, last.elapsed_s) == (4, 10.0)


def test_the_first_limit_reached_wins(harness: Callable[..., Harness]) -> None:
    assert [
        [*harness(Budget(trials, time_s)).session.events()][-1].reason  # type: ignore[union-attr]
        for trials, time_s in ((4, 100.0), (100, 4.0))
    ] == ["trials", "time"]


def test_every_task_gets_a_first_batch_the_heaviest_first(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=12), sizes=(8, 32, 16))
    list(h.session.events())
    assert [key for key, _ in h.measurer.calls] == [h.keys[1], h.keys[2], h.keys[0]]


def test_events_tell_the_whole_story(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=4), sizes=(8,))
    events = list(h.session.events())
    assert [type(e) for e in events] == [
        SessionStarted,
        TaskSelected,
        *[CandidateMeasured] * 5,
        BatchMeasured,
        TaskImproved,
        SessionFinished,
    ]
    *_, batch, improved, last = events
    assert isinstance(batch, BatchMeasured)
    assert (batch.n_trials, batch.best_s, batch.totals.n_known) == (4, 2.5e-4, 1)
    assert isinstance(improved, TaskImproved)
    assert (improved.before_s, improved.best_s) == (None, 2.5e-4)
    assert isinstance(last, SessionFinished)
    assert (last.totals.total_s, last.totals.ratio, last.invalid) == (2.5e-4, None, ())
    assert (last.seconds["measure"], last.seconds["model"]) == (4.0, 0.25)
    assert last.seconds["build"] == pytest.approx(0.4)
    assert event_to_json(batch)["event"] == "batch_measured"
    assert event_to_json(batch)["results"][0] == {
        "status": "ok",
        "latency_s": 1e-3,
        "error": "",
    }


def test_results_are_in_the_log_before_anybody_learns_of_them(
    harness: Callable[..., Harness],
) -> None:
    class FullDisk:
        def append(self, entries: Sequence[Entry]) -> None:
            raise OutputError("disk full")

    h = harness(Budget(trials=8), FullDisk())
    with pytest.raises(OutputError):
        list(h.session.events())
    assert all(policy.observed == [] for policy in h.policies.values())


@pytest.mark.slow
def test_a_task_in_which_everything_fails_does_not_end_the_session(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=200), sizes=(8, 16))
    good = h.measurer.curve
    bad_key = h.keys[1]

    def stream(
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[MeasureResult]:
        meanwhile()
        h.measurer.calls.append((dag.key, tuple(candidates)))
        return [FAILED if dag.key == bad_key else good(s.n) for (s,) in candidates]  # type: ignore[union-attr]

    h.measurer.stream = stream  # type: ignore[method-assign,assignment]
    events = list(h.session.events())
    last = events[-1]
    assert isinstance(last, SessionFinished)
    assert last.invalid == (bad_key,)
    assert last.failures == {"build_error": 16}
    assert TaskFinished(bad_key, None, TaskStop.INVALID) in events
    assert last.stops == {h.keys[0]: TaskStop.BUDGET, bad_key: TaskStop.INVALID}
    assert last.n_trials == 200


def test_what_comes_first_is_measured_first_and_once(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=8), sizes=(8,))
    steps = [(Parallel("c", i),) for i in (9, 7, 1)]
    h.session.proposals.first = {h.keys[0]: [Candidate(s, "old") for s in steps]}
    list(h.session.events())
    assert isinstance(h.session.sink, ListSink)
    tried = [s.n for r in h.session.sink.records for s in r.steps]  # type: ignore[union-attr]
    assert tried == [9, 7, 1, 0, 2, 3, 4, 5]
    again = harness(Budget(trials=12), sizes=(8,))
    again.session.proposals.first = h.session.proposals.first
    again.session.replay(Log(records=tuple(h.session.sink.records)))
    list(again.session.events())
    assert isinstance(again.session.sink, ListSink)
    assert [s.n for r in again.session.sink.records for s in r.steps] == [6, 8, 10, 11]  # type: ignore[union-attr]


def default_of(n: int) -> Callable[[TuningTask], Candidate | None]:
    return lambda task: Candidate((Parallel("c", n),), "fake", 2e-3)


def tried(h: Harness) -> list[int]:
    assert isinstance(h.session.sink, ListSink)
    return [s.n for r in h.session.sink.records for s in r.steps]  # type: ignore[union-attr]


def test_the_default_program_is_the_first_of_every_task(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=12))
    h.session.proposals.default = default_of(7)
    h.session.proposals.first = {h.keys[1]: [Candidate((Parallel("c", 9),), "old")]}
    *_, last = h.session.events()
    assert tried(h) == [7, 9, 0, 1, 7, 0, 1, 2, 2, 3, 4, 5]
    assert isinstance(h.session.sink, ListSink)
    estimates = [r.default_estimate_s for r in h.session.sink.records]
    assert [n for n, s in enumerate(estimates) if s == 2e-3] == [0, 4]
    assert estimates.count(None) == 10
    assert isinstance(last, SessionFinished)
    assert last.totals.untuned_s == pytest.approx(2 * 1e-3 / 8)
    assert last.totals.is_complete


@pytest.mark.parametrize("n_trials", [1, 2])
def test_fewer_trials_than_candidates_go_to_the_default_programs(
    harness: Callable[..., Harness], n_trials: int
) -> None:
    h = harness(Budget(trials=n_trials), sizes=(8, 32, 16))
    h.session.proposals.default = default_of(7)
    *_, last = h.session.events()
    assert tried(h) == [7, 0][:n_trials]
    assert isinstance(last, SessionFinished)
    assert (last.totals.n_compared, len(last.untried)) == (1, 2)
    assert 0 < last.totals.share < 1


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("n_before_kill", [4, 8, 12, 20])
def test_a_resumed_session_knows_the_default_programs(
    harness: Callable[..., Harness], n_before_kill: int
) -> None:
    whole = harness(Budget(trials=32))
    whole.session.proposals.default = default_of(7)
    *_, reference = whole.session.events()
    assert isinstance(whole.session.sink, ListSink)
    again = harness(Budget(trials=32))
    again.session.proposals.default = default_of(7)
    again.session.replay(Log(records=tuple(whole.session.sink.records[:n_before_kill])))
    started, *_, last = again.session.events()
    assert tried(again) == tried(whole)[n_before_kill:]
    assert isinstance(started, SessionStarted)
    assert isinstance(last, SessionFinished)
    assert isinstance(reference, SessionFinished)
    assert started.totals.n_compared == min(2, n_before_kill // 4)
    assert last.totals == reference.totals


def test_an_old_log_gets_its_default_programs_when_it_goes_on(
    harness: Callable[..., Harness],
) -> None:
    old = harness(Budget(trials=8))
    list(old.session.events())
    assert isinstance(old.session.sink, ListSink)
    again = harness(Budget(trials=16))
    again.session.proposals.default = default_of(7)
    again.session.replay(Log(records=tuple(old.session.sink.records)))
    started, *_, last = again.session.events()
    assert tried(again).count(7) == 2
    assert isinstance(started, SessionStarted)
    assert (started.totals.n_known, started.totals.ratio) == (2, None)
    assert isinstance(last, SessionFinished)
    assert last.totals.is_complete


def test_an_old_log_that_holds_the_default_program_does_not_repeat_it(
    harness: Callable[..., Harness],
) -> None:
    old = harness(Budget(trials=8), sizes=(8,))
    list(old.session.events())
    assert isinstance(old.session.sink, ListSink)
    again = harness(Budget(trials=12), sizes=(8,))
    again.session.proposals.default = default_of(2)
    again.session.replay(Log(records=tuple(old.session.sink.records)))
    *_, last = again.session.events()
    assert tried(again) == [8, 9, 10, 11]
    assert isinstance(last, SessionFinished)
    assert last.totals.untuned_s == pytest.approx(1e-3 / 3)


def test_a_default_program_that_fails_is_compared_with_nothing(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=8), sizes=(8,))
    h.session.proposals.default = default_of(7)
    h.measurer.curve = lambda i: FAILED if i == 7 else ok(1e-3 / (1 + i))
    *_, last = h.session.events()
    assert tried(h).count(7) == 1
    assert isinstance(last, SessionFinished)
    assert (last.totals.ratio, last.totals.n_known, last.totals.n_compared) == (None, 1, 0)


def test_the_default_program_is_a_finalist_unless_it_is_far_slower(
    harness: Callable[..., Harness],
) -> None:
    for factor, is_final in ((3.9, True), (4.1, False)):
        h = harness(Budget(trials=8), sizes=(8,))
        h.session.finals, h.session.proposals.default = True, default_of(7)
        h.measurer.curve = lambda i, f=factor: ok(f * 1e-3 if i == 7 else 1e-3)  # type: ignore[misc]
        events = list(h.session.events())
        assert isinstance(h.session.sink, ListSink)
        finals = [s.n for r in h.session.sink.records if r.final for s in r.steps]  # type: ignore[union-attr]
        assert finals == [0, 1, 2, 3, *([7] if is_final else [])]
        again = [e for e in events if isinstance(e, FinalistsMeasured)]
        assert [e.totals for e in again] == [events[-1].totals]  # type: ignore[union-attr]
        assert events[-1].n_remeasured == 1  # type: ignore[union-attr]


def test_an_exhausted_space_ends_its_task_and_the_last_one_the_session(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=100), space=6)
    events = list(h.session.events())
    last = events[-1]
    assert isinstance(last, SessionFinished)
    assert (last.reason, last.n_trials) == (StopReason.EXHAUSTED, 12)
    assert sum(isinstance(e, TaskFinished) and e.reason == "exhausted" for e in events) == 2
    assert last.stops == dict.fromkeys(h.keys, TaskStop.EXHAUSTED)


def test_a_policy_that_only_repeats_itself_counts_as_exhausted(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=100), sizes=(8,))
    h.policies[h.keys[0]].propose = lambda n: [
        Candidate((Parallel("c", i),), "fake") for i in range(n)
    ]  # type: ignore[method-assign]
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert (last.reason, last.n_trials) == (StopReason.EXHAUSTED, 4)


@pytest.mark.slow
def test_no_improvement_for_long_ends_the_session(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=10_000))
    h.measurer.curve = lambda i: ok(1e-3)
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert last.reason is StopReason.CONVERGED
    assert last.n_trials < 200
    assert last.stops == dict.fromkeys(h.keys, TaskStop.NO_GAIN)
    assert isinstance(h.session.sink, ListSink)
    end = h.session.sink.entries[-1]
    assert isinstance(end, End)
    assert end.stops == dict.fromkeys(h.keys, "no_gain")


def test_a_task_at_its_bound_stops_and_the_others_get_its_trials(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=40))
    done, other = h.keys
    h.session.scheduler.states[done].task = replace(h.tasks[0], bound_s=2.45e-4)
    h.session.scheduler.states[other].task = replace(h.tasks[1], bound_s=1e-9)
    events = list(h.session.events())
    last = events[-1]
    assert isinstance(last, SessionFinished)
    assert TaskFinished(done, 2.5e-4, TaskStop.AT_BOUND) in events
    assert last.stops == {done: TaskStop.AT_BOUND, other: TaskStop.BUDGET}
    trials = {key: s.n_trials for key, s in h.session.scheduler.states.items()}
    assert trials == {done: 4, other: 36}
    assert isinstance(h.session.sink, ListSink)
    again = harness(Budget(trials=80))
    again.session.scheduler.states[done].task = h.session.scheduler.states[done].task
    again.session.replay(Log(records=tuple(h.session.sink.records)))
    started, *_ = again.session.events()
    assert isinstance(started, SessionStarted)
    assert [p.stop for p in started.tasks] == [TaskStop.AT_BOUND, None]
    assert again.session.scheduler.states[done].n_trials == 4


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("n_before_kill", [4, 8, 12, 20, 37])
def test_a_resumed_session_is_in_the_state_before_the_kill(
    harness: Callable[..., Harness], tmp_path: Path, journal_header: Header, n_before_kill: int
) -> None:
    """Killed after n trials (possibly within a batch) and resumed, it goes on like one unkilled."""
    whole = harness(Budget(trials=60))
    list(whole.session.events())
    reference = whole.session.sink
    assert isinstance(reference, ListSink)

    path = tmp_path / "log.jsonl"
    with Journal.create(path, journal_header) as journal:
        journal.append(reference.records[:n_before_kill])
    with Journal.open(path) as journal:
        resumed = harness(Budget(trials=60), journal)
        resumed.session.replay(journal.log)
        started, *_, last = resumed.session.events()
    assert isinstance(started, SessionStarted)
    assert started.n_replayed == n_before_kill
    assert isinstance(last, SessionFinished)
    assert last.n_trials == 60
    log = read_log(path)
    assert [r.sequence for r in log.records] == list(range(60))
    assert len({(r.workload, r.steps_json) for r in log.records}) == 60
    assert last.elapsed_s == 60.0
    if n_before_kill % 4 == 0:  # whole batches: then even the order of tasks is the same
        assert [(r.workload, r.steps_json) for r in log.records] == [
            (r.workload, r.steps_json) for r in reference.records
        ]


def test_replay_ignores_records_of_other_targets_threads_and_tasks(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=8), sizes=(8,))
    list(h.session.events())
    assert isinstance(h.session.sink, ListSink)
    one = h.session.sink.records[0]
    others = [replace(one, target_key="t2"), replace(one, n_threads=7), replace(one, workload="w")]
    fresh = harness(Budget(trials=8), sizes=(8,))
    fresh.session.replay(Log(records=(*others, one)))
    assert fresh.session.ledger.n_trials == 1


def test_a_request_to_stop_ends_after_the_candidate(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=100))
    assert isinstance(h.session.sink, ListSink)
    sink = h.session.sink
    h.session.stop = lambda: len(sink.records) == 6
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert (last.reason, last.n_trials) == (StopReason.INTERRUPTED, 6)
    assert sum(len(policy.observed) for policy in h.policies.values()) == 6


def test_a_batch_that_takes_longer_than_expected_is_cut_by_the_time(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(time_s=2.0))
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert (last.reason, last.n_trials) == (StopReason.TIME, 2)


def test_an_interrupt_in_the_middle_of_a_batch_keeps_what_was_measured(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=100))

    def interrupted(i: int) -> MeasureResult:
        if len(h.measurer.calls) == 2 and i == 2:
            raise KeyboardInterrupt
        return ok(1e-3)

    h.measurer.curve = interrupted
    with pytest.raises(KeyboardInterrupt):
        list(h.session.events())
    assert isinstance(h.session.sink, ListSink)
    assert len(h.session.sink.records) == 6
    end = h.session.sink.entries[-1]
    assert isinstance(end, End)
    assert replace(end, seconds={}) == End("r1", "interrupted", 6, 7.0, stops={})
    assert set(end.seconds) == {"search", "model", "measure", "build", "run"}


def test_a_crash_among_finalists_is_not_that_of_all(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=4), sizes=(8,))
    h.session.finals = True
    h.measurer.curve = lambda i: ok(1e-3)
    crash = MeasureResult(MeasureStatus.RUN_CRASH)
    found = [ok(1e-3), ok(1e-3), crash, ok(1e-3)]
    h.measurer.measure_interleaved = lambda dag, steps, rounds: found  # type: ignore[method-assign]
    list(h.session.events())
    assert isinstance(h.session.sink, ListSink)
    finals = [r.result.status for r in h.session.sink.records if r.final]
    assert finals == ["ok", "ok", "run_crash", "ok"]


def test_finalists_are_measured_again_and_are_no_trials(harness: Callable[..., Harness]) -> None:
    h = harness(Budget(trials=8), sizes=(8,))
    h.session.finals = True
    latencies = [5.0, 1.0, 1.02, 1.04, 1.06, 1.0, 3.0, 9.0]
    seen: list[int] = []

    def curve(i: int) -> MeasureResult:
        seen.append(i)
        return ok(1.5e-3) if seen.count(1) > 1 and i == 1 else ok(latencies[i] * 1e-3)

    h.measurer.curve = curve
    *_, last = h.session.events()
    assert seen[8:] == [1, 5, 2, 3]
    assert isinstance(h.session.sink, ListSink)
    assert [r.final for r in h.session.sink.records] == [False] * 8 + [True] * 4
    assert isinstance(last, SessionFinished)
    assert last.n_trials == 8
    assert last.totals.total_s == 1.0e-3  # candidate 5 wins: 1 was lucky the first time


def test_replayed_results_make_a_search_repeatable(harness: Callable[..., Harness]) -> None:
    first = harness(Budget(trials=24))
    list(first.session.events())
    assert isinstance(first.session.sink, ListSink)
    again = harness(Budget(trials=24))
    again.session.slots.measurer = ReplayMeasurer(first.session.sink.records)
    list(again.session.events())
    assert isinstance(again.session.sink, ListSink)

    def story(h: Harness) -> list[tuple[str, str, float | None]]:
        assert isinstance(h.session.sink, ListSink)
        return [(r.workload, r.steps_json, r.result.latency_s) for r in h.session.sink.records]

    assert story(again) == story(first)
    unknown = ReplayMeasurer([]).stream(first.tasks[0].dag, [(Parallel("c", 1),)])
    assert [r.status for r in unknown] == [MeasureStatus.RUN_ERROR]


# --- scheduler --------------------------------------------------------------------------------


def scheduler_of(
    matmul_of: Callable[[int], ComputeDAG], *specs: tuple[int, int, float | None]
) -> tuple[Scheduler, list[str]]:
    """Tasks from (size, weight, bound)."""
    dags = [matmul_of(n) for n, _, _ in specs]
    tasks = [
        TuningTask(dag.key, dag, weight, bound_s=bound)
        for dag, (_, weight, bound) in zip(dags, specs, strict=True)
    ]
    return Scheduler(tasks, batch=4, patience=16), [task.key for task in tasks]


def test_a_task_at_its_bound_gets_nothing(matmul_of: Callable[[int], ComputeDAG]) -> None:
    scheduler, (a, b) = scheduler_of(matmul_of, (8, 100, 1e-3), (9, 1, 1e-4))
    scheduler.observe(a, [ok(1.02e-3)] * 4)
    scheduler.observe(b, [ok(1e-3)] * 4)
    assert scheduler.stops() == {a: TaskStop.AT_BOUND}
    chosen = scheduler.next()
    assert chosen is not None
    assert chosen.task.key == b


def test_a_program_below_its_bound_shows_that_bounds_are_wrong(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    scheduler, (a, b) = scheduler_of(matmul_of, (8, 1, 1e-3), (9, 1, 1e-3))
    scheduler.observe(a, [ok(0.97e-3)])
    assert scheduler.stops() == {a: TaskStop.AT_BOUND}
    scheduler.observe(b, [ok(0.9e-3)])
    assert scheduler.stops() == {}


def test_expected_gain_is_never_more_than_what_is_left(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    scheduler, (a,) = scheduler_of(matmul_of, (8, 3, 0.9e-3))
    scheduler.observe(a, [ok(1.0), ok(1e-3)])
    assert 0 < scheduler.gain_s(scheduler.states[a]) <= 3 * 0.1e-3 * 1.0001


def test_staleness_lowers_the_gain_and_patience_ends_it(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    scheduler, (a,) = scheduler_of(matmul_of, (8, 1, 1e-4))
    state = scheduler.states[a]
    scheduler.observe(a, [ok(1e-3)] * 4)
    gains = []
    for _ in range(6):
        scheduler.observe(a, [ok(1e-3)] * 4)
        gains.append(scheduler.gain_s(state))
    assert all(later < earlier for earlier, later in pairwise(gains))
    assert gains[3] < gains[2] * 0.1  # beyond the patience of 16
    assert scheduler.stopped(state) is None
    scheduler.observe(a, [FAILED] * 64)
    assert scheduler.stopped(state) is TaskStop.NO_GAIN


def test_noise_is_no_improvement_unless_it_adds_up(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    scheduler, (a,) = scheduler_of(matmul_of, (8, 1, None))
    state = scheduler.states[a]
    scheduler.observe(a, [ok(1e-3), ok(0.9990e-3)])
    assert (state.stale, state.best_s) == (1, 0.9990e-3)
    scheduler.observe(a, [ok(0.9970e-3)])
    assert (state.stale, state.best_s) == (0, 0.9970e-3)


def test_a_gain_within_the_spread_of_its_repeats_is_none(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    scheduler, (a,) = scheduler_of(matmul_of, (8, 1, None))
    restless = MeasureResult(MeasureStatus.OK, (0.8e-3, 0.9e-3, 0.98e-3, 1.1e-3, 1.2e-3))
    assert restless.noise == pytest.approx(0.1018, rel=1e-2)
    assert ok(1e-3).noise == 0.002
    scheduler.observe(a, [ok(1e-3), restless])
    state = scheduler.states[a]
    assert (state.stale, state.best_s) == (1, 0.98e-3)


def test_weight_decides_between_equal_tasks(matmul_of: Callable[[int], ComputeDAG]) -> None:
    scheduler, (a, b) = scheduler_of(matmul_of, (8, 1, 1e-4), (9, 5, 1e-4))
    for key in (a, b):
        scheduler.observe(key, [ok(1e-3)] * 4)
    chosen = scheduler.next()
    assert chosen is not None
    assert chosen.task.key == b


def test_the_state_is_a_fold_over_results_whatever_the_batches(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    results = [FAILED, ok(2e-3), ok(1e-3), FAILED, ok(3e-3), ok(0.5e-3)]
    one, (a, _) = scheduler_of(matmul_of, (8, 1, None), (9, 1, None))
    two, _ = scheduler_of(matmul_of, (8, 1, None), (9, 1, None))
    one.observe(a, results)
    for result in results:
        two.observe(a, [result])
    assert one.states[a] == two.states[a]
    assert one.gain_s(one.states[a]) == two.gain_s(two.states[a])
    assert (one.states[a].best_s, one.states[a].first_s) == (0.5e-3, 2e-3)


@pytest.mark.slow
def test_spending_follows_the_weighted_headroom(harness: Callable[..., Harness]) -> None:
    """Of two tasks the one with ten times the latency gets most of the trials."""
    h = harness(Budget(trials=120), sizes=(8, 9))
    slow = h.keys[0]

    def stream(
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[MeasureResult]:
        meanwhile()
        scale = 1e-2 if dag.key == slow else 1e-3
        return [ok(scale * (0.5 + 1 / (1 + s.n))) for (s,) in candidates]  # type: ignore[union-attr]

    h.measurer.stream = stream  # type: ignore[method-assign,assignment]
    list(h.session.events())
    trials = {key: state.n_trials for key, state in h.session.scheduler.states.items()}
    assert trials[slow] > 3 * trials[h.keys[1]]


@pytest.mark.parametrize("n_slots", [2, 5])
@pytest.mark.parametrize("n_trials", [77, 1000])
def test_of_batches_in_flight_nothing_is_lost_doubled_or_mixed_up(
    harness: Callable[..., Harness], n_slots: int, n_trials: int
) -> None:
    h = harness(Budget(trials=n_trials), sizes=(8, 16, 32), space=40)
    measurer = h.session.slots.measurer = SlottedMeasurer(h.clock, n_slots=n_slots)
    h.session.proposals.default, h.session.finals = default_of(7), True
    *_, last = h.session.events()
    assert isinstance(h.session.sink, ListSink)
    assert isinstance(last, SessionFinished)
    searched = [r for r in h.session.sink.records if not r.final]
    assert len(searched) == last.n_trials == min(n_trials, 120)
    assert len({(r.workload, r.steps_json) for r in searched}) == len(searched)
    for record in h.session.sink.records:
        (step,) = record.steps
        assert isinstance(step, Parallel)
        assert record.result == measurer.curve(step.n)
    learned = {key: Counter(str(s) for s, _ in h.policies[key].observed) for key in h.keys}
    written = {k: Counter(str(r.steps) for r in searched if r.workload == k) for k in h.keys}
    assert learned == written
    assert [r.sequence for r in h.session.sink.records] == list(range(len(h.session.sink.records)))
    assert {r.workload for r in h.session.sink.records if r.final} == set(h.keys)
    assert measurer.most == n_slots
    assert last.reason is (StopReason.TRIALS if n_trials < 120 else StopReason.EXHAUSTED)


def test_what_came_during_a_proposal_is_learnt_before_the_next_which_fills_all_free_slots(
    harness: Callable[..., Harness],
) -> None:
    """Else search that takes longer than a batch gives one batch at a time, of old knowledge."""
    h = harness(Budget(trials=400), sizes=(8, 16))
    measurer = h.session.slots.measurer = SlottedMeasurer(h.clock, n_slots=20)
    measurer.first_done = lambda batches, waits=True: 0  # type: ignore[method-assign,misc]
    flying: list[int] = []

    def spied(policy: FakePolicy) -> Callable[[int], Sequence[Candidate]]:
        propose = policy.propose
        return lambda n: flying.append(len(h.session.slots.batches)) or propose(n)

    for policy in h.policies.values():
        policy.propose = spied(policy)  # type: ignore[method-assign]
    list(h.session.events())
    assert len(measurer.calls) == 400 / h.session.batch > 4 * len(flying)
    assert max(flying) == 0


def test_an_interrupt_while_batches_are_in_flight_keeps_what_has_come(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=100))
    measurer = h.session.slots.measurer = SlottedMeasurer(h.clock, n_slots=4)
    assert isinstance(h.session.sink, ListSink)
    h.session.stop = lambda: len(h.session.sink.records) >= 8  # type: ignore[attr-defined]
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert last.reason is StopReason.INTERRUPTED
    assert 8 <= last.n_trials <= 8 + measurer.n_slots * 4
    assert len(h.session.sink.records) == last.n_trials


def test_what_was_drafted_is_measured_before_anything_is_proposed(
    harness: Callable[..., Harness],
) -> None:
    h = harness(Budget(trials=8), sizes=(8,))
    h.session.proposals.default = default_of(7)
    drafts = [Candidate((Parallel("c", i),), "fake") for i in (9, 7, 5)]
    h.session.proposals.drafted = {h.keys[0]: drafts}
    list(h.session.events())
    assert tried(h) == [7, 9, 5, 0, 1, 2, 3, 4]
    assert [len(steps) for _, steps in h.measurer.calls] == [3, 4, 1]


@pytest.mark.parametrize("pace", [0.5, 1.0])
def test_a_default_that_a_slow_machine_measured_is_no_gain(
    harness: Callable[..., Harness], pace: float
) -> None:
    h = harness(Budget(trials=24), sizes=(24,))
    h.session.finals, h.session.proposals.default = True, default_of(7)

    def measured(i: int) -> MeasureResult:
        is_slow = h.clock[0] <= 100.0 + h.session.batch  # the first batch, a second a trial
        return replace(ok(2e-3 if is_slow else 1e-3), pace=pace if is_slow else 1.0)

    h.measurer.curve = measured
    *_, last = h.session.events()
    assert isinstance(last, SessionFinished)
    assert last.totals.ratio == pytest.approx(1.0)
    assert last.totals.untuned_s == pytest.approx(1e-3)
