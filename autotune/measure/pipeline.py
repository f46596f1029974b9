"""⑦ A measurer of several batches at a time: builders here, machines elsewhere.

    candidates ─► builders, one batch after the other ─► runner, a batch per machine ─► results

A batch begins when it is given, so machines measure one while the builders compile the next. There
are as many as the runner can have (`Runner.n_slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from autotune.measure.build import Build, build_program
from autotune.measure.measurer import Measurer
from autotune.measure.messages import BuildResult, Time
from autotune.measure.options import MeasureOptions
from autotune.measure.protocols import Builder, Device, Runner, TellsNoise
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG

_ATTENTION_S = 0.05
"""How long `first_done` waits."""
_MOST_RUNS = 512
_AHEAD = 0.25
"""Batches beyond one for each device, as a share of the devices; and one."""


def slots_of(n_devices: int) -> int:
    """Batches that keep so many devices busy: one on each, and some that are built or wait."""
    return n_devices + 1 + round(_AHEAD * n_devices)


class Flight:
    """A batch on its way; iterating it waits for its results, and raises what went wrong."""

    def __init__(self) -> None:
        self.results: Future[list[MeasureResult]] = Future()

    def __iter__(self) -> Iterator[MeasureResult]:
        return iter(self.results.result())


class PipelinedMeasurer:
    """Builds batches one after the other, and runs those that are built side by side.

    A context manager: leaving it ends all processes, and gives up what is on its way.
    """

    waited_s = 0.0

    def __init__(self, builder: Builder, runner: Runner) -> None:
        self._builder, self._runner = builder, runner
        # builder processes end with the thread that started them, so one thread starts all
        self._building = ThreadPoolExecutor(1, "build")
        self._running = ThreadPoolExecutor(_MOST_RUNS, "run")

    def __enter__(self) -> PipelinedMeasurer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self._building.shutdown(wait=False, cancel_futures=True)
        self._builder.abandon()
        self._building.shutdown()
        self._builder.close()
        self._runner.close()
        self._running.shutdown(cancel_futures=True)

    @property
    def n_slots(self) -> int:
        """Batches that it can have at a time."""
        return self._runner.n_slots

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that measure."""
        return tuple(self._runner.devices)

    @property
    def noises(self) -> Mapping[str, Mapping[str, Any]]:
        """What disturbs the devices (`NoiseWatch.to_json`), by name, as far as they tell."""
        return self._runner.noises if isinstance(self._runner, TellsNoise) else {}

    @property
    def pids(self) -> list[int]:
        """Ids of the running builders."""
        return self._builder.pids + self._runner.pids

    def first_done(
        self, batches: Sequence[Iterable[MeasureResult]], waits: bool = True
    ) -> int | None:
        """Index of a batch whose results are there; None after a moment without one."""
        results = [batch.results for batch in batches if isinstance(batch, Flight)]
        done, _ = wait(results, _ATTENTION_S if waits else 0.0, FIRST_COMPLETED)
        return next((n for n, found in enumerate(results) if found in done), None)

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Flight:
        """Begin a batch: one result per candidate, in order. See `Measurer.stream`."""
        flight = self._begin(dag, candidates, Time(best_s))
        if meanwhile is not None:
            meanwhile()
        return flight

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> Flight:
        """Begin to time finalists in turns, `rounds` repeats each."""
        return self._begin(dag, candidates, Time(rounds=rounds))

    def _begin(self, dag: ComputeDAG, candidates: Sequence[Steps], time: Time) -> Flight:
        flight = Flight()

        def build() -> None:
            try:
                built = self._builder.build(dag, candidates)
                self._running.submit(run, built)
            except BaseException as error:
                flight.results.set_exception(error)

        def run(built: Sequence[BuildResult]) -> None:
            try:
                flight.results.set_result(list(self._runner.run(dag, built, time)))
            except BaseException as error:
                flight.results.set_exception(error)

        self._building.submit(build)
        return flight


def measurer_for(
    device: Device, options: MeasureOptions, build: Build = build_program
) -> Measurer | PipelinedMeasurer:
    """The measurer that suits the runner of `device`."""
    builder, runner = device.builder(options, build), device.runner(options)
    return (Measurer if runner.n_slots == 1 else PipelinedMeasurer)(builder, runner)
