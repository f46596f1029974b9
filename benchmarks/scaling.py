"""How a search scales with the devices of a fleet: a session whose builders and devices are drawn.

    python -m benchmarks.scaling --record        # docs/results/scaling.csv, in ten minutes

Search, scheduler and ranker are those of `autotune tune`, over the tasks of ResNet-50, and take the
processor time that they take. Everything else is drawn: how long a candidate is built and measured,
whether it fails, its latency. Waiting is skipped, so an hour on 64 devices takes minutes.
"""

from __future__ import annotations

import csv
import heapq
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import click
import numpy as np

from autotune.api.tune.tuning import first_batch, n_drafted
from autotune.config import TuneConfig
from autotune.measure.pipeline import pools_of, slots_of
from autotune.records import read_log
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Steps, steps_text
from autotune.search.cost.ranker import Ranker
from autotune.search.elite_pool import ElitePool
from autotune.search.policy import SketchPolicy
from autotune.te.dag import ComputeDAG
from autotune.tuner import Budget, Run, Scheduler, Session, TuningTask
from benchmarks.search_policies import Nowhere

LOG = Path(__file__).parents[1] / "logs" / "reference-resnet50.jsonl"
FILE = Path(__file__).parents[1] / "docs" / "results" / "scaling.csv"
BUILD_S, RUN_S, SPREAD = 0.15, 0.25, 0.5
"""Median seconds to build and to measure a candidate; both are lognormal with this deviation."""
FAILED, HUNG, HUNG_S = 0.05, 0.002, 10.0
"""Shares of candidates that fail at once, and that end with their time-out."""
ROUND_TRIP_S = 0.012
N_DEVICES = (1, 4, 16, 64)


@dataclass(slots=True)
class Clock:
    """Seconds: those of the processor that this process has taken, and those skipped."""

    skipped_s: float = 0.0
    begin_s: float = field(default_factory=time.process_time)

    def __call__(self) -> float:
        """Now."""
        return self.skipped_s + time.process_time() - self.begin_s

    def until(self, at_s: float) -> None:
        """Skip what is left until then."""
        self.skipped_s += max(0.0, at_s - self())


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """A batch, and when its results are there."""

    done_s: float
    results: tuple[MeasureResult, ...]

    def __iter__(self) -> Iterator[MeasureResult]:
        return iter(self.results)


class DrawnMeasurer:
    """`n_devices` devices and `n_builders` builders that take drawn times on `clock`.

    What devices do after `end_s` does not count.
    """

    waited_s, built_s, end_s = 0.0, 0.0, math.inf

    def __init__(self, n_devices: int, n_builders: int, clock: Clock, seed: int = 0) -> None:
        self.n_slots = slots_of(n_devices)
        self._clock, self._rng = clock, np.random.default_rng(seed)
        self._pools = [[0.0] * n for n in pools_of(n_builders)]
        self._devices = [0.0] * n_devices
        self.built_s = self.ran_s = self.n_done = 0.0
        """Seconds of all builders, and of all devices, at work; candidates of these."""

    def first_done(
        self, batches: Sequence[Iterable[MeasureResult]], waits: bool = True
    ) -> int | None:
        """The batch that is done first; the clock is then at its end."""
        ends = [batch.done_s for batch in batches if isinstance(batch, DrawnBatch)]
        n = min(range(len(ends)), key=ends.__getitem__)
        if not waits and ends[n] > self._clock():
            return None
        self._clock.until(ends[n])
        return n

    def stream(
        self,
        dag: ComputeDAG,
        candidates: Sequence[Steps],
        best_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> DrawnBatch:
        """A batch: on the pool of builders, then on the device, that is free first."""
        results = tuple(self._draw(dag, steps) for steps in candidates)
        built_s = self._build([r.build_s for r in results])
        run_s = ROUND_TRIP_S + sum(r.run_s for r in results)
        begin_s = max(built_s, heapq.heappop(self._devices))
        heapq.heappush(self._devices, begin_s + run_s)
        share = min(max(0.0, (self.end_s - begin_s) / run_s), 1.0)
        self.ran_s, self.n_done = self.ran_s + share * run_s, self.n_done + share * len(results)
        return DrawnBatch(begin_s + run_s, results)

    def measure_interleaved(
        self, dag: ComputeDAG, candidates: Sequence[Steps], rounds: int
    ) -> DrawnBatch:
        """Finalists, as any batch."""
        return self.stream(dag, candidates)

    def _build(self, each_s: Sequence[float]) -> float:
        """When the last is built, by the pool that is free first."""
        pool = min(self._pools, key=max)
        ends = [max(self._clock(), *pool)] * len(pool)
        for seconds in each_s:
            heapq.heapreplace(ends, ends[0] + seconds)
        pool[:] = ends
        self.built_s += sum(each_s)
        return max(ends)

    def _draw(self, dag: ComputeDAG, steps: Steps) -> MeasureResult:
        """Latency by the text of the steps; the rest as it comes."""
        build_s, run_s = (m * math.exp(SPREAD * self._rng.normal()) for m in (BUILD_S, RUN_S))
        fate = self._rng.random()
        if fate < HUNG:
            return MeasureResult(MeasureStatus.RUN_TIMEOUT, (), build_s, HUNG_S)
        if fate < FAILED:
            return MeasureResult(MeasureStatus.RUN_CRASH, (), build_s, run_s)
        number = zlib.crc32(steps_text(steps).encode()) / 2**32
        latency_s = dag.flops / 1e11 * (1 + 4 * number)
        return MeasureResult(MeasureStatus.OK, (latency_s,) * 5, build_s, run_s)


@dataclass(frozen=True, slots=True)
class Scaled:
    """One simulated search: trials until its time is up, and shares of the time: devices idle,
    builders busy, search."""

    builders_per_device: int
    devices: int
    builders: int
    trials: int
    seconds: float
    idle: float
    building: float
    searching: float

    @property
    def rate(self) -> float:
        """Trials per second."""
        return self.trials / self.seconds


def simulate(n_devices: int, per_device: int, time_s: float, seed: int = 0) -> Scaled:
    """Search for so long, with so many builders `per_device`; 0: two in all."""
    n_builders = per_device * n_devices or 2
    log = read_log(LOG)
    header, config = log.header, TuneConfig()
    weights = header.weights
    tasks = [
        TuningTask(key, log.workloads[key].dag, weights[key], log.workloads[key].label)
        for key, _ in header.tasks
    ]
    clock = Clock()
    begun_s = clock()
    several = tasks if n_devices > 1 else []
    machine = header.target, header.n_threads
    n_each = n_drafted(len(tasks), slots_of(n_devices), config.batch)
    drafted = {t.key: first_batch(t.dag, *machine, seed, n_each) for t in several}
    clock.skipped_s -= (clock() - begun_s) * (1 - 1 / n_builders)  # on all cores
    measurer = DrawnMeasurer(n_devices, n_builders, clock, seed)
    ranker, elites = Ranker(seed), ElitePool()

    def policy_of(task: TuningTask) -> SketchPolicy:
        rng = np.random.default_rng([seed, int(task.key, 16)])
        return SketchPolicy(task.dag, header.target, header.n_threads, ranker, rng, elites)

    session = Session(
        run=Run("drawn", header.target.key, header.n_threads),
        tasks=tasks,
        policy_of=policy_of,
        measurer=measurer,
        sink=Nowhere(),
        budget=Budget(time_s=time_s),
        scheduler=Scheduler(tasks, config.batch, patience=1 << 20),
        clock=clock,
        batch=config.batch,
        finals=False,
        drafted=drafted,
    )
    seconds = measurer.end_s = clock() + time_s
    for _ in session.events():
        pass
    return Scaled(
        builders_per_device=per_device,
        devices=n_devices,
        builders=n_builders,
        trials=round(measurer.n_done),
        seconds=seconds,
        idle=1 - measurer.ran_s / seconds / n_devices,
        building=measurer.built_s / seconds / n_builders,
        searching=session.ledger.seconds.search / seconds,
    )


@click.command()
@click.option("--time", "time_s", default=150.0, help="Simulated seconds of each search.")
@click.option("--devices", default=",".join(map(str, N_DEVICES)))
@click.option("--builders", "per_device", default="0,1", help="For each device; 0: two in all.")
@click.option("--record", is_flag=True, help="Write docs/results/scaling.csv.")
def main(time_s: float, devices: str, per_device: str, record: bool) -> None:
    """Print a line for every search."""
    found = []
    for per in map(int, per_device.split(",")):
        for n in map(int, devices.split(",")):
            one = simulate(n, per, time_s)
            found.append(one)
            click.echo(
                f"{one.devices} devices, {one.builders} builders: {one.rate:.2f} trials/s, "
                f"idle {one.idle:.0%}, building {one.building:.0%}, searching {one.searching:.0%}"
            )
    if record:
        write(found)


def write(found: Sequence[Scaled]) -> None:
    """One row for every search."""
    names = [f.name for f in fields(Scaled)]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for one in found:
            numbers = [getattr(one, name) for name in names]
            writer.writerow([n if isinstance(n, int) else f"{n:.3f}" for n in numbers])


if __name__ == "__main__":
    main()
