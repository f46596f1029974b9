"""⑪ Schedules in turns: one that a user wrote beside the best of a log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from autotune.api.te.schedule import Schedule
from autotune.api.user_code import named, reported
from autotune.errors import NoValidSchedule
from autotune.measure.build import build_program
from autotune.measure.local import local_measurer
from autotune.measure.options import MeasureOptions
from autotune.result import MeasureResult
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_ROUNDS = 30


def schedule_of(file: Path, name: str, dag: ComputeDAG, target: Target) -> Schedule:
    """Schedule of `dag` by the function `name` of a Python file.

    Raises UsageError, with file and line, for whatever goes wrong in it.
    """
    function = named(file, name)
    schedule = Schedule(dag, target)
    with reported(file):
        function(schedule)
    return schedule


def measure_in_turns(
    dag: ComputeDAG,
    schedules: Sequence[Steps],
    target: Target,
    n_threads: int,
    max_error: float,
    dense: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[MeasureResult]:
    """Build, check and time schedules against each other, 30 repeats each.

    `dense`: of the header of the log, the operands whose long rows are not padded. Raises
    NoValidSchedule, with the reason, for a schedule that does not build, run or compute the right
    numbers.
    """
    options = MeasureOptions(max_error=max_error)
    with local_measurer(
        target, n_threads, options, partial(build_program, dense=dense)
    ) as measurer:
        results = measurer.measure_interleaved(dag, schedules, _ROUNDS)
    for n, result in enumerate(results):
        if not result.ok:
            lines = result.error.strip().splitlines() or ["no message"]
            raise NoValidSchedule(
                f"schedule {n + 1} is not valid: {result.status.value}: {lines[-1]}",
                "print its loops: autotune explain --stage schedule, or print(s)",
            )
    return results
