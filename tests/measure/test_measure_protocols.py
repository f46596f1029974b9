"""A session needs a device, its builder and its runner, and nothing else: here ones made up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import measure_fakes as fakes
import pytest

import autotune
from autotune import te
from autotune.api.tune.session import create, prepare_network
from autotune.config import TuneConfig
from autotune.loopir.nodes import Program
from autotune.measure.build import Build, BuiltProgram
from autotune.measure.measurer import Measurer
from autotune.measure.options import MeasureOptions
from autotune.measure.pipeline import PipelinedMeasurer, pools_of
from autotune.measure.processes.messages import BuildResult, Time
from autotune.measure.processes.process import WorkerError
from autotune.measure.protocols import Abandoned, Built
from autotune.measure.timing.peak import Peaks
from autotune.records import read_log
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import ComputeDAG
from autotune.tuner import SessionFinished

S = MeasureStatus


class FarBuilder:
    """Builds what is called `good`; `hang` waits until it is abandoned."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.abandoned = events, threading.Event()
        self.pids = list[int]()
        self.n_built = 0

    def build(self, dag: ComputeDAG, candidates: Sequence[Steps]) -> list[BuildResult]:
        if fakes.does("hang") in candidates:
            assert self.abandoned.wait(60)
            raise Abandoned
        self.n_built = len(candidates)
        return [self._one(dag, steps) for steps in candidates]

    def _one(self, dag: ComputeDAG, steps: Steps) -> BuildResult:
        if steps != fakes.does("good"):
            return BuildResult(S.BUILD_ERROR, error="no such program")
        return BuildResult(S.OK, fakes.build(dag, steps, fakes.TARGET), 0.25)

    def abandon(self) -> None:
        self.abandoned.set()

    def close(self) -> None:
        self.events.append("builder closed")


class FarRunner:
    """A machine on which the n-th program takes n seconds."""

    n_slots = 1

    def __init__(self, events: list[str]) -> None:
        self.events, self.asked = events, list[Time]()
        self.pids = list[int]()

    def start(self) -> None:
        self.events.append("runner started")

    def run(
        self, dag: ComputeDAG, built: Sequence[BuildResult], time: Time
    ) -> Iterator[MeasureResult]:
        self.asked.append(time)
        for n, each in enumerate(built):
            self.events.append(f"ran {n}")
            yield MeasureResult(S.OK, (1.0 + n,)) if each.program else each.failure()

    def close(self) -> None:
        self.events.append("runner closed")


@pytest.fixture
def events() -> list[str]:
    return []


def stream(measurer: Measurer, *what: str, then: Callable[[], None]) -> Iterator[Any]:
    return measurer.stream(fakes.double_dag(), [*map(fakes.does, what)], 3.0, then)


def test_results_come_one_by_one_from_whatever_builds_and_runs(events: list[str]) -> None:
    runner = FarRunner(events)
    with Measurer(FarBuilder(events), runner) as measurer:
        results = stream(measurer, "good", "bad", "good", then=lambda: events.append("meanwhile"))
        assert next(results) == Built(3)
        assert events == ["runner started", "meanwhile"]
        assert next(results).times_s == (1.0,)
        assert events == ["runner started", "meanwhile", "ran 0"]
        assert measurer.built_s > 0
        assert [(r.status, r.times_s) for r in results] == [(S.BUILD_ERROR, ()), (S.OK, (3.0,))]
        finals = measurer.measure_interleaved(fakes.double_dag(), [fakes.does("good")], 7)
        assert [r.ok for r in finals] == [True]
    assert runner.asked == [Time(best_s=3.0), Time(rounds=7)]
    assert sorted(events[-2:]) == ["builder closed", "runner closed"]


def test_how_many_are_built_is_told_while_others_are_not(events: list[str]) -> None:
    class Slow(FarBuilder):
        def build(self, dag: ComputeDAG, candidates: Sequence[Steps]) -> list[BuildResult]:
            self.n_built = 4
            assert self.abandoned.wait(60)
            return super().build(dag, candidates)

    builder = Slow(events)
    with Measurer(builder, FarRunner(events)) as measurer:
        results = stream(measurer, *["good"] * 9, then=lambda: None)
        assert next(results) == Built(4)
        builder.abandoned.set()
        assert next(results) == Built(9)
        measured = [one for one in results if not isinstance(one, Built)]  # it may be told again
        assert len(measured) == 9


def test_an_interrupt_abandons_the_build(events: list[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    builder = FarBuilder(events)
    with Measurer(builder, FarRunner(events)) as measurer:
        with pytest.raises(KeyboardInterrupt):
            next(stream(measurer, "hang", then=interrupt))
        assert builder.abandoned.is_set()
    assert not any(e.startswith("ran") for e in events)


def test_a_limit_of_threads_is_told(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Measurer(FarBuilder(events), FarRunner(events)) as measurer:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(WorkerError, match="cannot be asked: can't start new") as caught:
            next(stream(measurer, "good", then=lambda: None))
        assert "ulimit" in caught.value.hint
        monkeypatch.undo()


class FarFarm(FarRunner):
    """Two such machines."""

    n_slots, devices = 3, ("one", "two")


def test_a_slow_build_holds_up_one_pool_of_builders(events: list[str]) -> None:
    builders = [FarBuilder(events) for _ in range(2)]
    with PipelinedMeasurer(builders, FarFarm(events)) as measurer:
        dag = fakes.double_dag()
        hanging = measurer.stream(dag, [fakes.does("hang")])
        others = [measurer.stream(dag, [*map(fakes.does, what)]) for what in ("aa", "a", "aaa")]
        assert [len(list(batch)) for batch in others] == [2, 1, 3]
        assert measurer.first_done([hanging], waits=False) is None
        assert measurer.first_done([hanging, *others], waits=False) in (1, 2, 3)
    assert events.count("builder closed") == 2
    with pytest.raises(Abandoned):
        list(hanging)


@pytest.mark.parametrize("n_builders", [1, 2, 7, 8, 16, 61])
def test_every_builder_is_in_a_pool_of_a_few(n_builders: int) -> None:
    found = pools_of(n_builders)
    assert sum(found) == n_builders
    assert max(found) - min(found) <= 1
    assert max(found) < 8


class FarDevice:
    """A machine that no process of this one is."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.target, self.n_threads = events, fakes.TARGET, 3

    def peaks(self, evict: bool, dots: Collection[MultiplyAdd] = ()) -> Peaks:
        self.events.append("peaks")
        return Peaks(1e11, 1e11, 1e10, 1 << 15)

    def stays_cached(self, n_bytes: int, flops: int) -> bool:
        return True

    def builder(self, options: MeasureOptions, build: Build) -> AnyBuilder:
        return AnyBuilder(self.events)

    def runner(self, options: MeasureOptions) -> FarRunner:
        return FarRunner(self.events)


class AnyBuilder(FarBuilder):
    def _one(self, dag: ComputeDAG, steps: Steps) -> BuildResult:
        return BuildResult(S.OK, BuiltProgram(b"", Program((), (), ())), 0.25)


def test_a_session_is_tuned_on_a_device_that_is_not_this_machine(
    events: list[str], tmp_path: Path
) -> None:
    def double() -> te.Tensor:
        x = te.placeholder((64,), "x")
        return te.compute((64,), lambda i: x[i] * 2, "y")

    network, log = autotune.Task(double, ()).network(), tmp_path / "far.jsonl"
    prepared = prepare_network(network, TuneConfig(trials=4, threads=1, batch=2), log)
    with create(prepared, log) as session:
        finished = list(session.start(device=FarDevice(events)).events())[-1]
    assert isinstance(finished, SessionFinished)
    assert events[:2] == ["peaks", "runner started"]
    assert sorted(events[-2:]) == ["builder closed", "runner closed"]
    assert [r.result.status for r in read_log(log).records][:4] == [S.OK] * 4
