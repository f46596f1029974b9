"""⑨ Finalists of a task: programs that are measured again before one is declared the winner."""

from __future__ import annotations

import math

from autotune.search.policy import Candidate
from autotune.tuner.ledger import Ledger
from autotune.tuner.scheduler import TaskState

_FINALISTS = 4
_FINAL_MARGIN = 1.15  # finalists are within this factor of the best: noise comes in bursts
_DEFAULT_MARGIN = 4.0
"""The default program may be further away: of it, a gain is told. Two threads on one core, when it
was measured first, made it twice as slow."""


def finalists(ledger: Ledger, state: TaskState) -> list[Candidate]:
    """The best few programs that are about as fast, and the default unless it is far slower."""
    default = ledger.defaults.get(state.task.key)
    found = []
    for n, record in enumerate(ledger.ranking(state.task.key)):
        ratio = (record.result.latency_s or math.inf) / (state.best_s or math.inf)
        is_default = default is not None and record.steps_json == default.steps_json
        is_near = n < _FINALISTS and ratio <= _FINAL_MARGIN
        if is_near or (is_default and ratio <= _DEFAULT_MARGIN):
            found.append(Candidate(record.steps, record.sketch))
    return found
