"""Further programs of tasks by their measurements at each number."""

from __future__ import annotations

import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from autotune.api.compile.ranging import ranged
from autotune.api.compile.selection import CompilePlan
from autotune.graph.network import Network
from autotune.records import Log, MeasureRecord
from autotune.result import AtNumbers, MeasureResult, MeasureStatus
from autotune.schedule.steps import Annotate, Pack, Parallel, Reorder, Split, Steps, steps_text
from tests.lengths_tasks import product
from tests.targets import AVX2

DAG = product(512, 12, 24)
MAIN: Steps = (
    Split("c", "j", (8,)),
    Reorder("c", ("i", "j.0", "k", "j.1")),
    Annotate("c", "j.1", "vectorize"),
    Pack("w", "c"),
    Parallel("c", 2),
)
SERIAL, OTHER_ORDER = MAIN[:-1], (Split("c", "j", (4,)), *MAIN[1:])


def _record(steps: Steps, *latencies_s: float) -> MeasureRecord:
    at = tuple(AtNumbers({"n": n}, s) for n, s in zip((32, 128, 512), latencies_s, strict=True))
    mean_s = statistics.geometric_mean(latencies_s)
    result = MeasureResult(MeasureStatus.OK, (mean_s,) * 5, at=at)
    return MeasureRecord("run", 0, DAG.key, AVX2.key, 1, steps_text(steps), result)


def _found(*records: MeasureRecord) -> list[tuple[Steps, Any]]:
    log = Log(records=tuple(replace(r, sequence=k) for k, r in enumerate(records)))
    plan = SimpleNamespace(known=log, target=AVX2, n_threads=1, max_error=1.0, store=None)
    network = cast("Network", SimpleNamespace(tasks={DAG.key: DAG}))
    best = {DAG.key: records[0]}
    found = ranged(cast("CompilePlan", plan), [network], {DAG.key: MAIN}, best)
    return [(one.steps, one.ranges) for one in found.get(DAG.key, ())]


def test_the_fastest_program_at_a_number_is_for_the_values_around_it() -> None:
    found = _found(_record(MAIN, 2e-6, 3e-6, 9e-6), _record(SERIAL, 1e-6, 3e-6, 3e-5))
    assert found == [(SERIAL, ((1, 64),))]
    found = _found(_record(MAIN, 2e-6, 3e-6, 9e-6), _record(SERIAL, 9e-6, 3e-6, 8e-6))
    assert found == [(SERIAL, ((257, 512),))]


def test_a_program_that_is_hardly_faster_is_not_taken() -> None:
    assert not _found(_record(MAIN, 2e-6, 3e-6, 9e-6), _record(SERIAL, 1.95e-6, 3e-6, 9.9e-6))


def test_a_program_that_packs_constants_otherwise_is_not_taken() -> None:
    assert not _found(_record(MAIN, 2e-6, 3e-6, 9e-6), _record(OTHER_ORDER, 1e-6, 3e-6, 9.9e-5))
