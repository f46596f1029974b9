"""⑥ The row of a sketch that a schedule came from, found in the schedule's text.

Without parsing it: a sketch's own text, with any number where it has holes, is what it has to be. A
log of 100,000 records takes a second.
"""

from __future__ import annotations

import re

import numpy as np

from autotune.schedule.replay import bind
from autotune.schedule.steps import steps_text
from autotune.search.space import Rows, Sketch

_FIRST_MARK = 10**12
"""Numbers from here on stand for holes; no schedule has such factors."""
_MARK = re.compile(r"1\d{12}")
_NUMBER = re.compile(r"-?\d+")


class Recogniser:
    """Knows the schedules of one sketch by their text."""

    def __init__(self, sketch: Sketch) -> None:
        marks = {p.name: _FIRST_MARK + k for k, p in enumerate(sketch.parameters)}
        text = steps_text(bind(sketch.steps, marks))
        self._first, *self._pieces = _MARK.split(text)
        self._holes = [int(mark) - _FIRST_MARK for mark in _MARK.findall(text)]
        self._domains = [{str(v): i for i, v in enumerate(p.domain)} for p in sketch.parameters]

    def row(self, text: str) -> Rows | None:
        """The row, shape [n_parameters], whose schedule has this text, or None."""
        found = self._numbers(text)
        if found is None:
            return None
        row = [-1] * len(self._domains)
        for hole, number in zip(self._holes, found, strict=True):
            position = self._domains[hole].get(number)
            if position is None or row[hole] not in (-1, position):
                return None
            row[hole] = position
        return np.array(row, np.int64) if -1 not in row else None

    def _numbers(self, text: str) -> list[str] | None:
        """Numbers in the places of the holes; None where the rest is another text.

        A pattern of a kilobyte takes ten milliseconds to compile.
        """
        if not text.startswith(self._first):
            return None
        found, at = list[str](), len(self._first)
        for piece in self._pieces:
            number = _NUMBER.match(text, at)
            if number is None or not text.startswith(piece, number.end()):
                return None
            found.append(number[0])
            at = number.end() + len(piece)
        return found if at == len(text) else None

    def nearest(self, text: str) -> Rows | None:
        """The row whose numbers are nearest to those of a schedule for other extents.

        None where the schedule has another structure.
        """
        found = self._numbers(text)
        if found is None:
            return None
        row = [-1] * len(self._domains)
        for hole, number in zip(self._holes, found, strict=True):
            values = [int(value) for value in self._domains[hole]]
            row[hole] = min(range(len(values)), key=lambda n: abs(values[n] - int(number)))
        return np.array(row, np.int64) if -1 not in row else None
