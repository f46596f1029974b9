"""A budget of time for the cases of a benchmark that are left, shared alike."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

import click

from benchmarks.tables import BASELINES

C = TypeVar("C")

_MOST_SIDES = 2 + len(BASELINES)
"""Runtimes that take turns: ours, the baselines, PyTorch."""
_LEAST_TUNING_S = 10.0
"""Even where the budget has less for a case: in less, hardly anything is measured."""


def within(
    budget_s: float | None, cases: Iterable[C], time_s: float
) -> Iterator[tuple[C, float | None]]:
    """The cases in order, each with the seconds to tune it for: None without a budget.

    `time_s`: how long a side is measured. Ends, and says how many are left, where the budget does.
    """
    left = deque(cases)
    end_s = None if budget_s is None else time.monotonic() + budget_s
    while left:
        tune_s = None if end_s is None else share_s(end_s - time.monotonic(), len(left), time_s)
        if tune_s is not None and tune_s <= 0:
            click.echo(f"{len(left)} cases are left: run the same command again")
            return
        yield left.popleft(), tune_s


def share_s(left_s: float, n_cases: int, time_s: float) -> float:
    """Seconds to tune the next of `n_cases` for, when `left_s` are left; 0 where none are."""
    measuring_s = _MOST_SIDES * (time_s + 1.0)
    share = left_s / n_cases - measuring_s
    return max(share, _LEAST_TUNING_S) if left_s > measuring_s + _LEAST_TUNING_S else 0.0
