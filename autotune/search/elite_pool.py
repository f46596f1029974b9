"""⑥ The elite pool: the best rows of one task seed the search of tasks of equal structure.

The policies of a run share one `ElitePool`. A row is transferred as hole values by name; each hole
of the receiving sketch takes the nearest value of its domain, holes without a match are random.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autotune.search.space import Rows, Sketch

Values = dict[str, int]


@dataclass
class ElitePool:
    """Best row of each (structure, task); resuming a log restores it by replaying measurements."""

    _best: dict[str, dict[str, tuple[float, Values]]] = field(default_factory=dict)

    def enter(self, task: str, sketch: Sketch, row: Rows, latency_s: float) -> None:
        """Keep `row`, shape [n_parameters], unless a better one of task and structure is known."""
        best = self._best.setdefault(sketch.name, {})
        if task not in best or latency_s < best[task][0]:
            values = {p.name: p.domain[int(i)] for p, i in zip(sketch.parameters, row, strict=True)}
            best[task] = latency_s, values

    def rows(self, task: str, sketch: Sketch, rng: np.random.Generator) -> Rows:
        """Best rows of all other tasks for this structure, shape [n_tasks, n_parameters]."""
        best = self._best.get(sketch.name, {})
        others = [values for key, (_, values) in best.items() if key != task]
        rows = sketch.sample(len(others), rng)
        for row, values in zip(rows, others, strict=False):
            for k, p in enumerate(sketch.parameters):
                if p.name in values:
                    row[k] = np.argmin(np.abs(np.array(p.domain) - values[p.name]))
        return rows
