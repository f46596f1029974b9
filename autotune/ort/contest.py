"""⑪ Contest of two ways to compute a call: the faster one here and now, timed on real calls.

    contest.left -= 1
    if contest.left < 0:  side = contest.turn(); …; contest.add(side, seconds)
    elif contest.is_ours: …

Both answer in turns first, and again now and then, for what was faster on a quiet machine need not
be on a busy one. The slower one gets at most a hundredth of the time.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

from autotune.ort.request import Run

OURS, THEIRS = 0, 1
_FIRST_ROUNDS, _ROUNDS = 4, 2
"""Turns of each side: in the beginning, and later. Even, see `_turns_from`."""
_SAMPLES = 5
_MOST_SHARE = 0.01
"""Of all time, for the side that is slower."""
_MOST_DEFEATS = 6
"""Decisions against the compiled network one after the other, after which it is given up."""


class Contest:
    """A compiled network, `run`, beside ONNX Runtime. `left`: calls before the next turns.

    `is_held`: else the compiled network answers all calls, however long it takes. Several threads
    may disturb one another's counts, which costs a turn.
    """

    def __init__(self, run: Run, is_held: bool = True) -> None:
        self.run = run
        self.is_ours = True
        self.left = 0
        self.n_defeats = 0
        self._times: tuple[deque[float], deque[float]] = (
            deque(maxlen=_SAMPLES),
            deque(maxlen=_SAMPLES),
        )
        self._turns = _turns_from(OURS, _FIRST_ROUNDS)
        if not is_held:
            self.left = 1 << 62

    @property
    def ratio(self) -> float | None:
        """Median latency of the compiled network over that of ONNX Runtime; None before turns."""
        if not all(self._times):
            return None
        ours_s, theirs_s = map(statistics.median, self._times)
        return ours_s / theirs_s

    @property
    def is_lost(self) -> bool:
        """Whether ONNX Runtime has been faster again and again."""
        return self.n_defeats >= _MOST_DEFEATS

    def turn(self) -> int:
        """The side that computes the next call."""
        try:
            return self._turns.pop()
        except IndexError:  # another thread has taken the last one
            return OURS if self.is_ours else THEIRS

    def add(self, side: int, time_s: float) -> None:
        """The time that a side took in its turn."""
        self._times[side].append(time_s)
        if not self._turns and all(self._times):
            self._decide()

    def _decide(self) -> None:
        ratio: Any = self.ratio
        self.is_ours = ratio <= 1.0
        self.n_defeats = 0 if self.is_ours else self.n_defeats + 1
        slower = max(ratio, 1.0 / ratio)
        self._turns = _turns_from(OURS if self.is_ours else THEIRS, _ROUNDS)
        self.left = int(_ROUNDS * slower / _MOST_SHARE)


def _turns_from(side: int, n_rounds: int) -> list[int]:
    """Turns behind calls of `side`: it, the other, the other, it, …; the same from both ends.

    Each follows itself as often as the other, as in `measure.turns`: behind the other one, caches
    are not its own, and threads of ONNX Runtime still spin.
    """
    order = (side, THEIRS if side == OURS else OURS)
    return [*order, *reversed(order)] * (n_rounds // 2)
