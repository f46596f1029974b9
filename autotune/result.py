"""Floor 0: the outcome of measuring a candidate: a status, never an exception or a sentinel."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, TypeAlias

from autotune.brief import brief
from autotune.codec import LEFT_OUT, AnyFloat, Coded, Holds, within

_LEAST_NOISE = 0.002  # however calm the machine
_FEW = 5  # repeats that say nothing of their spread
_MAX_TEXT = 100_000
_MOST_OF_LINE = 200


def _end(text: str) -> str:
    return text[-_MAX_TEXT:]


ErrorText: TypeAlias = Annotated[
    str, Coded(_end, _end), Holds(lambda text: isinstance(text, str), "a text")
]
"""Text of a failure; JSON has the end of a long text."""


class MeasureStatus(StrEnum):
    """Status of a measured candidate: timed, or the reason for no time."""

    OK = "ok"
    SCHEDULE_ERROR = "schedule_error"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    RUN_ERROR = "run_error"
    RUN_CRASH = "run_crash"
    RUN_TIMEOUT = "run_timeout"
    WRONG_ANSWER = "wrong_answer"
    INACCURATE = "inaccurate"


@brief
@dataclass(frozen=True, slots=True)
class AtNumbers:
    """Median of the repeats of one evaluation where a call brings these numbers."""

    numbers: dict[str, Annotated[int, within(1)]]
    latency_s: Annotated[float, within(0.0)]


@brief
@dataclass(frozen=True, slots=True)
class MeasureResult:
    """Outcome of one candidate. All times in seconds.

    `times_s`: every repeat of one whole evaluation, weights cold, activations warm; empty unless
    the status is OK or INACCURATE. `error` is the full text of the failure. `max_error`:
    largest absolute difference from the float64 oracle over the largest oracle value.
    `peaks`: FMA peak (fed from L1) in flops per second right after each of `times_s`, where that
    was asked for. `device`: the name of the machine, where it is one of several. `at`: of a task
    whose axes follow numbers of a call, what each of those numbers took that were timed; a repeat
    is then one evaluation at each of them, and its time their geometric mean. `pace`: of the
    machine while these repeats were timed, as a share of the best rate that its threads had; 1
    where it was near that. Those of a slow pace do not compare with others.
    """

    status: MeasureStatus
    times_s: tuple[Annotated[float, within(0.0)], ...] = ()
    build_s: float = 0.0
    run_s: float = 0.0
    error: ErrorText = ""
    max_error: AnyFloat | None = None
    peaks: Annotated[tuple[float, ...], LEFT_OUT] = ()
    device: Annotated[str, LEFT_OUT] = ""
    at: Annotated[tuple[AtNumbers, ...], LEFT_OUT] = ()
    pace: Annotated[float, within(0.0), LEFT_OUT] = 1.0

    @property
    def ok(self) -> bool:
        """Whether the candidate ran and computed the right numbers, accurately enough."""
        return self.status is MeasureStatus.OK

    @property
    def latency_s(self) -> float | None:
        """Median of the repeats, or None for a failed candidate."""
        return statistics.median(self.times_s) if self.ok else None

    @property
    def is_slow(self) -> bool:
        """Whether the machine was slow: then only results of the same batch compare."""
        return self.pace < 1.0

    @property
    def at_full_pace_s(self) -> float | None:
        """`latency_s`, less what a slow machine may have added to it."""
        return self.latency_s and self.latency_s * self.pace

    @property
    def noise(self) -> float:
        """Relative uncertainty of `latency_s`: the standard error of the median of its repeats."""
        median = self.latency_s
        if not median or len(self.times_s) < _FEW:
            return _LEAST_NOISE
        deviation = 1.4826 * statistics.median(abs(t - median) for t in self.times_s)
        return max(_LEAST_NOISE, 1.2533 * deviation / math.sqrt(len(self.times_s)) / median)

    @property
    def last_line(self) -> str:
        """The end of `error` in one line."""
        lines = self.error.strip().splitlines()
        return lines[-1][:_MOST_OF_LINE] if lines else "no message"

    def within(self, limit: float) -> MeasureResult:
        """The same measurement under a limit on `max_error`: OK up to it, INACCURATE beyond.

        Failures stay what they are, and so does a result whose error is not known.
        """
        if self.status not in (MeasureStatus.OK, MeasureStatus.INACCURATE) or not self.max_error:
            return self
        if self.max_error <= limit:
            return replace(self, status=MeasureStatus.OK, error="")
        error = f"off by {self.max_error:.1e} of the largest value, allowed is {limit:g}"
        return replace(self, status=MeasureStatus.INACCURATE, error=error)
