"""A measurer needs a builder and a runner and nothing else: here of another transport, made up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import measure_fakes as fakes
import pytest

from autotune.measure.measurer import Measurer
from autotune.measure.messages import BuildResult, Time
from autotune.measure.protocols import Abandoned
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG

S = MeasureStatus


class FarBuilder:
    """Builds what is called `good`; `hang` waits until it is abandoned."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.abandoned = events, threading.Event()
        self.pids = list[int]()

    def build(self, dag: ComputeDAG, candidates: Sequence[Steps]) -> list[BuildResult]:
        if fakes.does("hang") in candidates:
            assert self.abandoned.wait(60)
            raise Abandoned
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
            yield MeasureResult(S.OK, (float(n),)) if each.program else each.failure()

    def close(self) -> None:
        self.events.append("runner closed")


@pytest.fixture
def events() -> list[str]:
    return []


def stream(measurer: Measurer, *what: str, then: Callable[[], None]) -> Iterator[MeasureResult]:
    return measurer.stream(fakes.double_dag(), [*map(fakes.does, what)], 3.0, then)


def test_results_come_one_by_one_from_whatever_builds_and_runs(events: list[str]) -> None:
    runner = FarRunner(events)
    with Measurer(FarBuilder(events), runner) as measurer:
        results = stream(measurer, "good", "bad", "good", then=lambda: events.append("meanwhile"))
        assert next(results).times_s == (0.0,)
        assert events == ["runner started", "meanwhile", "ran 0"]
        assert [(r.status, r.times_s) for r in results] == [(S.BUILD_ERROR, ()), (S.OK, (2.0,))]
        finals = measurer.measure_interleaved(fakes.double_dag(), [fakes.does("good")], 7)
        assert [r.ok for r in finals] == [True]
    assert runner.asked == [Time(best_s=3.0), Time(rounds=7)]
    assert sorted(events[-2:]) == ["builder closed", "runner closed"]


def test_an_interrupt_abandons_the_build(events: list[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    builder = FarBuilder(events)
    with Measurer(builder, FarRunner(events)) as measurer:
        with pytest.raises(KeyboardInterrupt):
            next(stream(measurer, "hang", then=interrupt))
        assert builder.abandoned.is_set()
    assert not any(e.startswith("ran") for e in events)
