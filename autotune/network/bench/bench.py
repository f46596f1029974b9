"""⑩ Latency of a compiled network, alone or beside other runtimes in one interleaved run.

All take turns in blocks of about `BLOCK_S`, in an order that changes (`measure.turns`), because
others keep worker threads that spin for some milliseconds after an inference (ONNX Runtime's,
OpenVINO's, each at its default) and would steal the next one's cores if runs alternated one by one.
Between blocks everyone sleeps `PAUSE_S`, long enough for spinning threads to park. The first run of
a block wakes the threads and refills the caches and is not counted. No thread is pinned.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.brief import cut
from autotune.measure.timing.noise import Noise, Usage, judge
from autotune.measure.timing.turns import turns
from autotune.network.bench.core_latency import CoreLatency
from autotune.network.check.differences import flat_outputs, max_error
from autotune.network.runtime.baselines import Runner
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.units import counted, format_seconds

BLOCK_S = 0.15
PAUSE_S = 0.03

Array = NDArray[Any]
T = TypeVar("T", bound="TimingLike")


@dataclass(frozen=True, slots=True, repr=False)
class Timing:
    """Latencies of single inferences in seconds, in order of measurement.

    `max_error`: a baseline's largest absolute difference from our outputs over the largest
    absolute value of that output, the worst of all outputs; None for ourselves.
    """

    times_s: tuple[float, ...]
    n_threads: int
    max_error: float | None = None

    @property
    def median_s(self) -> float:
        """Median latency."""
        return statistics.median(self.times_s)

    @property
    def p95_s(self) -> float:
        """Latency that 95 % of the runs stay within."""
        return percentile(self.times_s, 95)

    @property
    def p99_s(self) -> float:
        """Latency that 99 % of the runs stay within."""
        return percentile(self.times_s, 99)

    @property
    def per_s(self) -> float:
        """Inferences per second, one after the other."""
        return 1 / max(statistics.fmean(self.times_s), 1e-12)

    def __repr__(self) -> str:
        text = f"{format_seconds(self.median_s)}, {counted(len(self.times_s), 'run')}"
        return f"Timing({text}, {counted(self.n_threads, 'thread')})"

    def to_json(self) -> dict[str, float | int | None]:
        """Summary with the names that the command line documents."""
        data: dict[str, float | int | None] = {
            "min_s": min(self.times_s),
            "median_s": self.median_s,
            "mean_s": statistics.fmean(self.times_s),
            "p95_s": self.p95_s,
            "p99_s": self.p99_s,
            "max_s": max(self.times_s),
            "std_s": statistics.pstdev(self.times_s),
            "inferences_per_s": self.per_s,
            "runs": len(self.times_s),
            "threads": self.n_threads,
        }
        if self.max_error is not None:  # JSON knows no infinity
            data["max_error"] = self.max_error if math.isfinite(self.max_error) else None
        return data


class TimingLike(Protocol):
    """Measurements of one side."""

    def to_json(self) -> dict[str, Any]:
        """For `--format json`."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Generic[T]):
    """Measurements of the compiled model and of each requested baseline, by name.

    `noise`: activity of co-tenants; None on a quiet machine or when it was not watched.
    """

    autotune: T
    baselines: Mapping[str, T] = field(default_factory=dict)
    noise: Noise | None = field(default=None, kw_only=True)

    @property
    def ratios(self) -> dict[str, float]:
        """Our seconds over each baseline's: below 1 we are faster."""
        raise NotImplementedError

    @property
    def sides(self) -> dict[str, T]:
        """Ours first, then the others, by name."""
        return {"autotune": self.autotune, **self.baselines}

    def __repr__(self) -> str:
        return cut(
            f"{type(self).__name__}({', '.join(f'{n} {t!r}' for n, t in self.sides.items())})"
        )

    @property
    def best(self) -> str | None:
        """The fastest baseline."""
        return max(self.ratios, key=self.ratios.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        """`ratios` to the best baseline: below 1 we are faster than all."""
        return max(self.ratios.values(), default=None)

    def sides_json(self, **more: Any) -> dict[str, Any]:
        """All sides and `ratio`; `ratios` where there are several; `more`; `noise`."""
        data: dict[str, Any] = {"autotune": self.autotune.to_json(), "onnxruntime": None}
        data |= {name: timing.to_json() for name, timing in self.baselines.items()}
        data["ratio"] = self.ratio
        if len(self.baselines) > 1:
            data["ratios"] = self.ratios
        return data | more | {"noise": None if self.noise is None else self.noise.to_json()}


@dataclass(frozen=True, slots=True, repr=False)
class BenchResult(Comparison[Timing]):
    """Timings of the compiled model and of each requested baseline, by name.

    `round_trip_s`: of a cache line between two of the threads, all along; None for one thread.
    """

    round_trip_s: float | None = None

    @property
    def ratios(self) -> dict[str, float]:
        """Our median over each baseline's: below 1 we are faster."""
        return {name: self.autotune.median_s / t.median_s for name, t in self.baselines.items()}

    def __repr__(self) -> str:
        medians = ", ".join(f"{n} {format_seconds(t.median_s)}" for n, t in self.sides.items())
        ratio = "" if self.ratio is None else f", ratio {self.ratio:.3f}"
        return cut(f"BenchResult({medians}{ratio})")

    def _repr_html_(self) -> str:
        from autotune.reporting.blocks import Sheet
        from autotune.reporting.html import fragment

        head = ("", "median", "p95", "per second", "runs", "threads", "ratio")
        rows = [_row("autotune", self.autotune, "")]
        rows += [_row(n, t, f"{self.ratios[n]:.3f}") for n, t in self.baselines.items()]
        caption = "Latency; ratio: autotune over the other, below 1 autotune is faster"
        return fragment([Sheet(caption, head, tuple(rows), frozenset(head[1:]))])

    def to_json(self) -> dict[str, Any]:
        """`{"autotune": {…}, "onnxruntime": {…} or null, "ratio": ours/theirs or null}`.

        Further baselines are further entries, and with several there is `"ratios": {name: ratio}`
        while `ratio` is to the best of them. On several threads there is `round_trip_s`.
        `noise` is null where nothing disturbed.
        """
        if self.round_trip_s is None:
            return self.sides_json()
        return self.sides_json(round_trip_s=self.round_trip_s)


def _row(name: str, timing: Timing, ratio: str) -> tuple[str, ...]:
    data = timing.to_json()
    times = (format_seconds(data[key] or 0.0) for key in ("median_s", "p95_s"))
    counts = (str(data["runs"]), str(data["threads"]))
    return (name, *times, f"{data['inferences_per_s']:.1f}", *counts, ratio)


def bench(
    model: Model,
    baselines: Mapping[str, Runner] | None = None,
    min_runs: int = 10,
    min_s: float = 2.0,
    seed: int = 0,
    usage: Callable[[], Usage] | None = None,
    wide: Collection[str] = (),
    given: Mapping[str, Array] | None = None,
) -> BenchResult:
    """Time `model` until each side has `min_runs` runs and `min_s` seconds.

    `given`: the inputs, else random ones.

    `baselines`: by name, runners of the same model with the same weights on as many threads.
    `usage`: reads processor times, to detect co-tenants. `wide`: inputs that the baselines
    take in float32, whatever the model does; nothing is converted while time is taken.
    """
    each = {name: [run] for name, run in (baselines or {}).items()}
    calls, errors = contestants(model, each, 1, given, wide, seed)
    trips = _Trips(CoreLatency(model.artifact.target, model.n_threads))
    before = usage() if usage else None
    times = interleave([call for (call,) in calls.values()], min_runs, min_s, trips.add)
    timings = {
        name: Timing(tuple(times_s), model.n_threads, errors.get(name))
        for name, times_s in zip(calls, times, strict=True)
    }
    noise = judge(before, usage(), trips.times_s) if usage and before else None
    return BenchResult(timings.pop("autotune"), timings, trips.median_s, noise=noise)


Call = Callable[[], object]


def contestants(
    model: Model,
    baselines: Mapping[str, Sequence[Runner]],
    n_callers: int,
    given: Mapping[str, Array] | None,
    wide: Collection[str],
    seed: int,
) -> tuple[dict[str, Sequence[Call]], dict[str, float]]:
    """Inferences on the same inputs, for each caller of every side, ours first; errors of others.

    `baselines`, `given` and `wide` as of `bench`.
    """
    inputs = random_inputs(model.input_info, seed) if given is None else given
    theirs = {n: a.astype(np.float32, copy=False) if n in wide else a for n, a in inputs.items()}
    ours = model.run(inputs)
    errors = {n: error_on(model, inputs, each[0](theirs), ours) for n, each in baselines.items()}
    others = {n: [partial(run, theirs) for run in each] for n, each in baselines.items()}
    return {"autotune": [partial(model.run, inputs)] * n_callers, **others}, errors


@dataclass(slots=True)
class _Trips:
    """Core-to-core round trips, measured between the rounds."""

    way: CoreLatency
    times_s: list[float] = field(default_factory=list)

    def add(self) -> None:
        trip_s = self.way.measure()
        self.times_s += [] if trip_s is None else [trip_s]

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.times_s) if self.times_s else None


def percentile(times_s: Sequence[float], percent: float) -> float:
    """The time that `percent` of a hundred runs stay within: one that was measured."""
    return float(np.percentile(times_s, percent, method="inverted_cdf"))


def error_of(theirs: Mapping[str, Array], ours: Mapping[str, Array]) -> float:
    """Largest difference over the largest value, the worst of all outputs."""
    given, found = flat_outputs(theirs), flat_outputs(ours)
    if given.keys() != found.keys():  # lists of other lengths
        return math.inf
    return max(max_error(array, given[name]) for name, array in found.items())


def error_on(
    model: Model,
    inputs: Mapping[str, Array],
    theirs: Mapping[str, Array],
    ours: Mapping[str, Array],
) -> float:
    """`error_of`, of a model over tokens at these alone."""
    rows = model.ragged_ports
    if rows is None or rows.ragged.mask not in inputs:
        return error_of(theirs, ours)
    return error_of(rows.counted(inputs, theirs), rows.counted(inputs, ours))


def interleave(
    sides: Sequence[Callable[[], object]],
    min_runs: int,
    min_s: float,
    between: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> list[list[float]]:
    """Seconds of every counted run of every side; the sides take turns in blocks.

    `between` is called before every round of turns.
    """
    times: list[list[float]] = [[] for _ in sides]
    spent_s = [0.0 for _ in sides]
    order = turns(len(sides))
    while min(map(len, times)) < min_runs or min(spent_s) < min_s:
        between()
        for n in next(order):
            sleep(PAUSE_S)
            sides[n]()
            block = _block(sides[n], clock)
            times[n] += block
            spent_s[n] += sum(block)
    return times


def _block(side: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    out: list[float] = []
    start = before = clock()
    while before - start < BLOCK_S:
        side()
        now = clock()
        out.append(now - before)
        before = now
    return out
