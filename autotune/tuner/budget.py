"""⑨ Budget of a session, and the reason why it stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autotune.records.record import Log

FINAL_TIME = 0.06
"""Share of the time budget that is kept for measuring the finalists again."""
NETWORK_TIME, _NETWORK_LEAST_S, _NETWORK_MOST = 0.1, 8.0, 0.2
"""Share that is kept behind these for the finalists in the compiled network; seconds in which some
are compiled and timed, which are kept where they are no larger share than the last."""


class StopReason(StrEnum):
    """Reason for the end of a session; written to the log."""

    TRIALS = "trials"
    TIME = "time"
    EXHAUSTED = "exhausted"
    CONVERGED = "converged"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class TaskStop(StrEnum):
    """Reason for no more trials of a task; written to the log.

    `at_bound`: within a few percent of the roofline bound. `no_gain`: nothing better than
    noise for long. `exhausted`: nothing left to try. `invalid`: nothing works. `beaten`: its
    alternative is clearly faster. `budget`: the session ended first.
    """

    AT_BOUND = "at_bound"
    NO_GAIN = "no_gain"
    EXHAUSTED = "exhausted"
    INVALID = "invalid"
    BEATEN = "beaten"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a whole session, resumed parts included. None: no limit; the first reached wins."""

    trials: int | None = None
    time_s: float | None = None

    @property
    def of_tasks(self) -> Budget:
        """What is left of it for tasks alone, where finalists are tried in the network then."""
        if self.time_s is None:
            return self
        return Budget(self.trials, self.time_s - network_s(self.time_s))

    def left_for_network_s(self, elapsed_s: float) -> float:
        """Seconds for the finalists in the compiled network, when the tasks have taken so many."""
        if self.time_s is None:
            return elapsed_s * NETWORK_TIME / (1 - NETWORK_TIME)
        return min(network_s(self.time_s), self.time_s - elapsed_s)

    @property
    def of_search(self) -> Budget:
        """What is left of it for the search: the finalists are measured again at the end."""
        return self._less(FINAL_TIME)

    def _less(self, share: float) -> Budget:
        time_s = None if self.time_s is None else self.time_s * (1 - share)
        return Budget(self.trials, time_s)

    def reached(self, n_trials: int, elapsed_s: float) -> StopReason | None:
        """The limit that `n_trials` and `elapsed_s` have reached, if any."""
        if self.trials is not None and n_trials >= self.trials:
            return StopReason.TRIALS
        if self.time_s is not None and elapsed_s >= self.time_s:
            return StopReason.TIME
        return None

    def room(self, n_wanted: int, n_trials: int, elapsed_s: float, trial_s: float | None) -> int:
        """Number of trials that fit, of `n_wanted`, at `trial_s` seconds each where that is known.

        At least 1: callers have checked `reached`.
        """
        room = n_wanted
        if self.trials is not None:
            room = min(room, self.trials - n_trials)
        if self.time_s is not None and trial_s:
            room = min(room, math.ceil((self.time_s - elapsed_s) / trial_s))
        return max(1, room)


def network_s(time_s: float) -> float:
    """Seconds of so many that are kept for the finalists in the compiled network."""
    return min(_NETWORK_MOST * time_s, max(NETWORK_TIME * time_s, _NETWORK_LEAST_S))


@dataclass(frozen=True, slots=True)
class Spent:
    """Budget that the sessions of a log have used up."""

    trials: int
    elapsed_s: float

    def plus(self, trials: int | None, time_s: float | None) -> Budget:
        """The budget of a session that may spend so much more."""
        return Budget(
            None if trials is None else self.trials + trials,
            None if time_s is None else self.elapsed_s + time_s,
        )


def spent(log: Log) -> Spent:
    """Trials and time of all runs of a log. Measuring finalists takes time, but no trials."""
    ends = [end.elapsed_s for end in log.ends]
    elapsed_s = max([r.elapsed_s for r in log.records] + ends, default=0.0)
    return Spent(sum(not r.final for r in log.records), elapsed_s)
