"""How fast is what sessions have chosen? Finalists of all of them, measured again in turns.

As at the end of `tune`: half of the repeats choose one of a session's fastest programs, the others
tell how fast it is. What a session has measured itself is not compared with what another has: the
machine may have been busier then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from autotune.records import MeasureRecord
from autotune.schedule.steps import Steps
from autotune.te.dag import ComputeDAG
from autotune.tuner import CandidateMeasurer

_FINALISTS, _REPEATS = 4, 40


def finalists(records: Sequence[MeasureRecord]) -> tuple[Steps, ...]:
    """The fastest few programs of these measurements of a task."""
    right = [r for r in records if r.result.latency_s is not None]
    order = sorted(right, key=lambda r: r.result.latency_s or 0.0)
    return tuple(dict.fromkeys(r.steps for r in order))[:_FINALISTS]


def chosen_seconds(
    dag: ComputeDAG, sets: Collection[Sequence[Steps]], measurer: CandidateMeasurer
) -> list[float | None]:
    """Seconds of the best of each set of programs of a task; None where none of them ran."""
    programs = list(dict.fromkeys(steps for some in sets for steps in some))
    results = measurer.measure_interleaved(dag, programs, _REPEATS)
    times = {s: r.times_s for s, r in zip(programs, results, strict=True) if r.times_s}
    found: list[float | None] = []
    for some in sets:
        ran = [times[steps] for steps in some if steps in times]
        best = min(ran, key=lambda t: median(t[::2]), default=None)
        found.append(median(best[1::2]) if best is not None else None)
    return found
