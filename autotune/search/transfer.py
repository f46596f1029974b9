"""⑥ Good schedules travel: what was best for one task is tried where the structure is alike.

The policies of a run share one `Hall`. A row travels as the values of its holes, by name, and takes
the nearest values that the other task has; the rest of its holes are left to chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autotune.search.space import Rows, Sketch

Values = dict[str, int]


@dataclass
class Hall:
    """The best row of every structure of every task; restored by replaying the measurements."""

    _best: dict[str, dict[str, tuple[float, Values]]] = field(default_factory=dict)

    def enter(self, task: str, sketch: Sketch, row: Rows, latency_s: float) -> None:
        """Keep `row`, shape [n_parameters], unless a better one of task and structure is known."""
        best = self._best.setdefault(sketch.name, {})
        if task not in best or latency_s < best[task][0]:
            values = {p.name: p.domain[int(i)] for p, i in zip(sketch.parameters, row, strict=True)}
            best[task] = latency_s, values

    def rows(self, task: str, sketch: Sketch, rng: np.random.Generator) -> Rows:
        """What other tasks found best for this structure, shape [n_tasks, n_parameters]."""
        best = self._best.get(sketch.name, {})
        others = [values for key, (_, values) in best.items() if key != task]
        rows = sketch.sample(len(others), rng)
        for row, values in zip(rows, others, strict=False):
            for k, p in enumerate(sketch.parameters):
                if p.name in values:
                    row[k] = np.argmin(np.abs(np.array(p.domain) - values[p.name]))
        return rows
