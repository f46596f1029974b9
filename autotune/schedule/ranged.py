"""③ Programs of a task for some values of a number that its axes follow, beside the one for all.

(Ranged(steps, "n", ((1, 4), (9, 9))), …)       for n of 1 to 4, and of 9
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from autotune.schedule.steps import Steps

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last of each run of values, in order, apart from each other."""

UNBOUNDED = 1 << 62
"""The last value of a range without an end."""


@dataclass(frozen=True, slots=True)
class Ranged:
    """A schedule for the calls in which the number that placeholder `number` holds is in `ranges`.

    All such schedules of a task name one number, and no two have a value in common.
    """

    steps: Steps
    number: str
    ranges: Ranges


def rest_of(others: Iterable[Ranged]) -> Ranges:
    """The values that are in no range of `others`."""
    return tuple(_gaps(sorted(r for one in others for r in one.ranges)))


def _gaps(taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = 1
    for first, last in taken:
        if begin < first:
            yield begin, first - 1
        begin = last + 1
    yield begin, UNBOUNDED


def runs_of(values: Iterable[int]) -> Ranges:
    """Values in increasing order as ranges."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][1] == value - 1:
            found[-1] = found[-1][0], value
        else:
            found.append((value, value))
    return tuple(found)
