"""Tuning sessions that are killed, and candidates that do the worst that machine code can do."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from autotune.measure.local import local_measurer
from autotune.result import MeasureStatus
from benchmarks.outcomes import Kind, Outcome

_MEASURE = Path(__file__).parents[1] / "measure"


def hostile_candidates(count: int) -> list[Outcome]:
    """Each of `tests/measure/hostile.py` in turn, between two good ones."""
    if str(_MEASURE) not in sys.path:
        sys.path.insert(0, str(_MEASURE))  # children have our path, and find its modules by name
    import hostile
    import measure_fakes as fakes

    options = replace(
        fakes.QUICK, n_builders=1, run_timeout_s=1.5, build_timeout_s=60.0, worker_bytes=1 << 30
    )
    names = list(hostile.HOSTILE)
    found: list[Outcome] = []
    with local_measurer(fakes.TARGET, 1, options, hostile.build) as measurer:
        for number in range(count):
            name = names[number % len(names)]
            steps = [fakes.does(what) for what in ("good", name, "good")]
            before, result, after = measurer.measure(fakes.double_dag(), steps)
            if (before.status, after.status) != (MeasureStatus.OK, MeasureStatus.OK):
                found.append(Outcome(Kind.LOST, f"{name}: a good candidate beside it is lost"))
            elif result.status not in hostile.EXPECTED[name]:
                found.append(Outcome(Kind.WRONG, f"{name}: {result.status}"))
            else:
                found.append(Outcome(Kind.REFUSED, f"{name}: {result.status}"))
    return found


def kills(count: int, seed: int) -> list[Outcome]:
    """Sessions that are killed at random moments after new records and resumed."""
    from tests.cli.kills import run_kills

    tally = run_kills(count, seed)
    found = [Outcome(Kind.RIGHT)] * tally.right
    bad = [Outcome(Kind.LOST, problem) for problem in tally.problems]
    bad += [Outcome(Kind.LOST, "no reason told")] * (tally.tried - len(found) - len(bad))
    return found + bad
