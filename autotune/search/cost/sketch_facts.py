"""⑥ What the search asks of the candidates of one sketch: which are programs, and their features.

The first populations are analysed as `analysis` and `features` say. A search asks again and again:
then what they did is repeated as array programs, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.array_program import ArrayProgram, Columns, Trace, Untraceable
from autotune.search.cost.amounts import Array
from autotune.search.cost.analysis import Analysis, Population
from autotune.search.cost.features import features_of, log2_seconds
from autotune.search.space import Rows, Sketch, first_of_each
from autotune.target import Target
from autotune.te.at_numbers import Numbers, usual_numbers
from autotune.te.dag import ComputeDAG

_UNTRACED = 8
"""Populations that are analysed directly, those of two proposals: a trace takes as long as four,
an array program a third as long as one."""
_TRACED_ROWS = 61
"""Candidates of a trace: enough to differ, and no usual extent."""


@dataclass(frozen=True, slots=True)
class _Programs:
    """Of validity and identity; of what is found: all features, or the estimate alone."""

    checks: ArrayProgram
    found: ArrayProgram


class SketchFacts:
    """Facts about candidates of one sketch, for one machine and number of threads.

    Where axes follow numbers of a call, features and log2 seconds are means over `points`, usual
    ones by default: an order of candidates by geometric means, which is that of their ratios to
    whatever is best at each number.
    """

    def __init__(
        self,
        dag: ComputeDAG,
        sketch: Sketch,
        target: Target,
        n_threads: int,
        points: Sequence[Numbers] | None = None,
    ) -> None:
        self._dag, self._sketch = dag, sketch
        self._target, self._n_threads = target, n_threads
        self._points = usual_numbers(dag) if points is None else points
        self._n_direct = 0
        self._is_traceable = True
        self._programs: dict[bool, _Programs] = {}
        """By whether features are found."""

    @property
    def is_traced(self) -> bool:
        """Whether facts come from array programs."""
        return bool(self._programs)

    def programs(
        self, rows: Rows, with_features: bool
    ) -> tuple[NDArray[np.intp], NDArray[np.int64], Array]:
        """The candidates that can be built, the first of each program: where they are, their
        identities [n, k], and their features [n, n_features] or estimated log2 seconds [n]."""
        is_due = with_features not in self._programs and self._n_direct >= _UNTRACED
        if is_due and self._is_traceable and len(rows) >= _TRACED_ROWS:
            self._trace(rows[:_TRACED_ROWS], with_features)
        n, holes = len(rows), self._sketch.values(rows)
        programs = self._programs.get(with_features)
        if programs is None:
            self._n_direct += 1
            population = self._population(holes, n)
            valid, identity = population.valid, population.identity
        else:
            valid, identity = programs.checks(holes, n)
        is_first = np.zeros(n, bool)
        is_first[first_of_each(identity)] = True
        kept = np.flatnonzero(is_first & valid)
        holes = {name: values[kept] for name, values in holes.items()}
        if not len(kept):
            found = np.zeros(0)
        elif programs is None:
            found = self._found(population.some(kept), holes, with_features)
        else:
            (found,) = programs.found(holes, len(kept))
        return kept, identity[kept], found

    def features(self, rows: Rows) -> tuple[NDArray[np.int64], Array]:
        """Identities of candidates, shape [n, k], and features, shape [n, n_features]."""
        n, holes = len(rows), self._sketch.values(rows)
        programs = self._programs.get(True)
        if programs is None:
            population = self._population(holes, n)
            return population.identity, self._found(population, holes, True)
        _, identity = programs.checks(holes, n)
        (found,) = programs.found(holes, n)
        return identity, found

    def _population(self, holes: Columns, n: int) -> Population:
        return Population.of(self._dag, self._sketch, holes, n, self._target)

    def _found(self, population: Population, holes: Columns, with_features: bool) -> Array:
        first, *others = (
            self._of_one(analysis, holes, with_features)
            for analysis in population.analyses(self._points)
        )
        return sum(others, first) / (1 + len(others)) if others else first

    def _of_one(self, analysis: Analysis, holes: Columns, with_features: bool) -> Array:
        if with_features:
            return features_of(analysis, self._sketch, holes, self._target, self._n_threads)
        return log2_seconds(analysis, self._target, self._n_threads)

    def _trace(self, rows: Rows, with_features: bool) -> None:
        """Record the programs; without them, the search is slower."""
        trace, values = Trace(len(rows)), self._sketch.values(rows)
        holes = {name: trace.input(name, column) for name, column in values.items()}
        try:
            population = self._population(holes, trace.n)
            self._programs[with_features] = _Programs(
                checks=trace.program((population.valid, population.identity)),
                found=trace.program((self._found(population, holes, with_features),)),
            )
        except Untraceable:
            self._is_traceable = False
