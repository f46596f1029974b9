"""⑥ The row of a sketch that a schedule came from, found in the schedule's text.

Without parsing it: a sketch's own text is cut where its holes are, and what is between the pieces
of another text are the numbers. A log of 100,000 records takes a second or two.
"""

from __future__ import annotations

import re

import numpy as np

from autotune.schedule.state import bind
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
        *self._pieces, self._last = _MARK.split(text)
        self._holes = [int(mark) - _FIRST_MARK for mark in _MARK.findall(text)]
        self._positions = [{v: i for i, v in enumerate(p.domain)} for p in sketch.parameters]

    def row(self, text: str) -> Rows | None:
        """The row, shape [n_parameters], whose schedule has this text, or None."""
        row = np.full(len(self._positions), -1, np.int64)
        at = 0
        for piece, hole in zip(self._pieces, self._holes, strict=True):
            number = _NUMBER.match(text, at + len(piece)) if text.startswith(piece, at) else None
            position = self._positions[hole].get(int(number[0])) if number else None
            if number is None or position is None or row[hole] not in (-1, position):
                return None
            row[hole] = position
            at = number.end()
        return row if text[at:] == self._last and (row >= 0).all() else None
