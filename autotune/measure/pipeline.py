"""⑦ A measurer of several batches at a time: builders here, machines elsewhere.

    candidates ─► builders, a batch per pool ─► runner, a batch per machine ─► results

A batch begins when it is given, so machines measure one while the builders compile the next. There
are as many as the runner can have (`Runner.n_slots`). A batch waits for its slowest candidate, so
of many processes that compile one most would wait: they are pools of a few, with a batch each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from autotune.machine import read_limits
from autotune.measure.build import Build, build_program
from autotune.measure.measurer import Measurer
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.messages import BuildResult, Time
from autotune.measure.protocols import Builder, Device, LeftOut, Runner, TellsOfMachines
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG

_ATTENTION_S = 0.05
"""How long `first_done` waits."""
_MOST_RUNS = 512
_AHEAD = 0.5
"""Batches beyond one for each device, as a share of the devices; and one."""


_POOL = 4
"""Processes that compile one batch."""


def pools_of(n_builders: int) -> list[int]:
    """Numbers of processes in each of the pools of so many builders."""
    n_pools = max(1, n_builders // _POOL)
    return [n_builders // n_pools + (k < n_builders % n_pools) for k in range(n_pools)]


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
    """Builds a batch on each builder, in the order they come, and runs those that are built.

    A context manager: leaving it ends all processes, and gives up what is on its way.
    """

    waited_s = built_s = 0.0

    def __init__(self, builders: Sequence[Builder], runner: Runner) -> None:
        self._builders, self._runner = builders, runner
        # builder processes end with the thread that started them, so each builder has one
        self._building = [ThreadPoolExecutor(1, "build") for _ in builders]
        self._waiting: deque[Callable[[Builder], None]] = deque()
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
        for thread in self._building:
            thread.shutdown(wait=False, cancel_futures=True)
        for builder in self._builders:
            builder.abandon()
        for thread, builder in zip(self._building, self._builders, strict=True):
            thread.shutdown()
            builder.close()
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
        return self._runner.noises if isinstance(self._runner, TellsOfMachines) else {}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Devices that measure no more."""
        runner = self._runner
        return tuple(runner.left_out.values()) if isinstance(runner, TellsOfMachines) else ()

    @property
    def pids(self) -> list[int]:
        """Ids of the running builders."""
        return [*(pid for builder in self._builders for pid in builder.pids), *self._runner.pids]

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

        def build(builder: Builder) -> None:
            try:
                built = builder.build(dag, candidates)
                self._running.submit(run, built)
            except BaseException as error:
                flight.results.set_exception(error)

        def run(built: Sequence[BuildResult]) -> None:
            try:
                flight.results.set_result(list(self._runner.run(dag, built, time)))
            except BaseException as error:
                flight.results.set_exception(error)

        self._waiting.append(build)
        for thread, builder in zip(self._building, self._builders, strict=True):
            thread.submit(self._build_next, builder)
        return flight

    def _build_next(self, builder: Builder) -> None:
        """Build the batch that waits longest, if no other builder has taken it."""
        with suppress(IndexError):
            self._waiting.popleft()(builder)


def measurer_for(
    device: Device, options: MeasureOptions, build: Build = build_program
) -> Measurer | PipelinedMeasurer:
    """The measurer that suits the runner of `device`."""
    runner = device.runner(options)
    if runner.n_slots == 1:
        return Measurer(device.builder(options, build), runner)
    pools = pools_of(options.n_builders or read_limits().n_busy)
    return PipelinedMeasurer(
        [device.builder(replace(options, n_builders=n), build) for n in pools], runner
    )
