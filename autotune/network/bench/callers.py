"""⑩ Inferences per second of several threads that call one model at once, alone or beside others.

Every side has a function for each caller, which is a Python thread that calls it again and again.
Sides take turns in blocks of `BLOCK_S`, with a pause before each in which spinning threads park; in
a block all callers run once first, which is not counted, and start together. An inference that the
end of a block cuts counts for the part that lies before it. No thread is pinned.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autotune.brief import cut
from autotune.errors import UsageError
from autotune.measure.timing.noise import Usage, judge
from autotune.measure.timing.turns import turns
from autotune.network.bench.bench import PAUSE_S, Call, Comparison, contestants, percentile
from autotune.network.runtime.baselines import Runner
from autotune.network.runtime.runtime import Model
from autotune.units import counted, format_seconds

BLOCK_S = 0.5
MOST_CALLERS = 1024


@dataclass(frozen=True, slots=True, repr=False)
class CallersTiming:
    """Latencies of the inferences of `n_callers` callers in seconds, and their number.

    `n_done`: inferences in `seconds`, parts of them included. `n_threads`: of the runtime.
    `max_error`: as of `Timing`.
    """

    times_s: tuple[float, ...]
    n_done: float
    seconds: float
    n_callers: int
    n_threads: int
    max_error: float | None = None

    @property
    def per_s(self) -> float:
        """Inferences per second, of all callers together."""
        return self.n_done / self.seconds

    def within_s(self, percent: float) -> float:
        """Latency that so many percent of the inferences stay within."""
        return percentile(self.times_s, percent)

    def __repr__(self) -> str:
        text = f"{self.per_s:.1f} per second, p99 {format_seconds(self.within_s(99))}"
        callers, threads = counted(self.n_callers, "caller"), counted(self.n_threads, "thread")
        return f"CallersTiming({callers}: {text}, {threads})"

    def to_json(self) -> dict[str, float | int | None]:
        """Summary with the names that the command line documents."""
        data: dict[str, float | int | None] = {
            "inferences_per_s": self.per_s,
            "mean_s": statistics.fmean(self.times_s),
            "p50_s": self.within_s(50),
            "p95_s": self.within_s(95),
            "p99_s": self.within_s(99),
            "max_s": max(self.times_s),
            "runs": len(self.times_s),
            "threads": self.n_threads,
        }
        if self.max_error is not None:  # JSON knows no infinity
            data["max_error"] = self.max_error if math.isfinite(self.max_error) else None
        return data


@dataclass(frozen=True, slots=True, repr=False)
class CallersResult(Comparison[CallersTiming]):
    """Throughput of the compiled model and of each baseline, by name, for `n_callers` callers."""

    @property
    def ratios(self) -> dict[str, float]:
        """Our seconds per inference over each baseline's: below 1 we compute more."""
        return {name: t.per_s / self.autotune.per_s for name, t in self.baselines.items()}

    def __repr__(self) -> str:
        rates = ", ".join(f"{name} {t.per_s:.1f}/s" for name, t in self.sides.items())
        return cut(f"CallersResult({self.autotune.n_callers} callers: {rates})")

    def to_json(self) -> dict[str, Any]:
        """`{"callers": n, …}`, further as `BenchResult.to_json`."""
        return {"callers": self.autotune.n_callers, **self.sides_json()}


def bench_callers(
    model: Model,
    n_callers: int,
    baselines: Mapping[str, Sequence[Runner]] | None = None,
    min_s: float = 2.0,
    seed: int = 0,
    usage: Callable[[], Usage] | None = None,
    wide: Collection[str] = (),
    given: Mapping[str, Any] | None = None,
) -> CallersResult:
    """`n_callers` threads call `model` for `min_s` seconds, in turns with others, on `given` or
    random inputs.

    `baselines`: by name, a function for each caller; the others as of `bench`. Raises UsageError
    for a number of callers that is out of range, or that the system does not let start.
    """
    require_callers(n_callers)
    sides, errors = contestants(model, baselines or {}, n_callers, given, wide, seed)
    before = usage() if usage else None
    given_s = called([*sides.values()], min_s)
    found = {
        name: CallersTiming(tuple(times_s), n, s, n_callers, model.n_threads, errors.get(name))
        for name, (times_s, n, s) in zip(sides, given_s, strict=True)
    }
    noise = judge(before, usage(), ()) if usage and before else None
    return CallersResult(found.pop("autotune"), found, noise=noise)


def require_callers(n_callers: int) -> None:
    """Raise UsageError for a number of callers that is out of range."""
    if not 1 <= n_callers <= MOST_CALLERS:
        raise UsageError(f"cannot measure {n_callers} callers", f"give from 1 to {MOST_CALLERS}")


def called(
    sides: Sequence[Sequence[Call]],
    min_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> list[tuple[list[float], float, float]]:
    """Of every side: seconds of its inferences, their number, and the total seconds.

    A side is one function per caller; all sides have as many. Raises as a call does.
    """
    block_s = min(BLOCK_S, min_s)
    found: list[tuple[list[float], float, float]] = [([], 0.0, 0.0) for _ in sides]
    with ThreadPoolExecutor(len(sides[0]), "caller") as pool:
        for order in islice(turns(len(sides)), math.ceil(min_s / block_s)):
            for number in order:
                sleep(PAUSE_S)
                times_s, n_done, seconds = found[number]
                for some_s, n_more in _block(pool, sides[number], block_s, clock):
                    times_s += some_s
                    n_done += n_more
                found[number] = times_s, n_done, seconds + block_s
    return found


def _block(
    pool: ThreadPoolExecutor, side: Sequence[Call], block_s: float, clock: Callable[[], float]
) -> list[tuple[list[float], float]]:
    """One block of a side: of every caller its times, and its number of inferences."""
    gate = threading.Barrier(len(side))
    try:
        futures = [pool.submit(_called, call, gate, block_s, clock) for call in side]
    except RuntimeError as error:
        gate.abort()
        raise UsageError(
            f"cannot start {len(side)} callers: {error}",
            "give fewer, or allow this user more threads (ulimit -u)",
        ) from error
    failures = filter(None, [future.exception() for future in futures])
    for failure in sorted(failures, key=lambda each: isinstance(each, _Broken)):
        raise failure
    return [future.result() for future in futures]


_Broken = threading.BrokenBarrierError
"""Error of callers that wait for one that has failed."""


def _called(
    call: Call, gate: threading.Barrier, block_s: float, clock: Callable[[], float]
) -> tuple[list[float], float]:
    try:
        call()
    except BaseException:
        gate.abort()
        raise
    gate.wait()
    times_s: list[float] = []
    before_s = clock()
    end_s = before_s + block_s
    while before_s < end_s:
        call()
        now_s = clock()
        times_s.append(now_s - before_s)
        before_s = now_s
    return times_s, len(times_s) - (before_s - end_s) / times_s[-1]
