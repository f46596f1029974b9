from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.records import MeasureRecord
from autotune.result import MeasureResult, MeasureStatus
from autotune.te.dag import ComputeDAG
from benchmarks.store import choices, trials_within
from benchmarks.store_page import tables


def measured(steps: str, ms: float | None, final: bool = False) -> MeasureRecord:
    ok = ms is not None
    status = MeasureStatus.OK if ok else MeasureStatus.BUILD_ERROR
    result = MeasureResult(status, (ms / 1000,) * 3 if ms is not None else ())
    return MeasureRecord("r", 0, "task", "cpu", 1, steps, result, final=final)


class Again:
    """Measures every program as so fast, whatever a session has found."""

    def __init__(self, ms: dict[str, float]) -> None:
        self.ms = ms

    def measure_interleaved(
        self, dag: ComputeDAG, programs: Sequence[Any], repeats: int
    ) -> list[MeasureResult]:
        return [measured(steps, self.ms.get(steps)).result for steps in programs]


def test_a_choice_is_the_best_finalist_when_all_are_measured_again() -> None:
    found = [("a", None), ("b", 3.0), ("c", 1.0), ("d", 2.0), ("e", 1.5), ("f", 2.5)]
    again = Again({"b": 1.0, "c": 4.0, "d": 2.0, "e": 3.0, "f": 9.0})
    record = SimpleNamespace
    sessions = [[record(steps=s, result=measured(s, ms).result) for s, ms in found]]
    (chosen_s,) = choices(sessions, None, again)  # type: ignore[arg-type]
    assert chosen_s == [float("inf"), 1e-3, 1e-3, 1e-3, 1e-3, 2e-3]  # `b` is the fifth at the end


@pytest.mark.parametrize(
    ("ratios", "n"),
    [([1.2, 1.04, 1.0], 2), ([1.0], 1), ([1.0, 1.2, 1.0], 3), ([1.2, 1.3], 3), ([], 1)],
)
def test_trials_within_five_percent_count_only_where_the_choice_stays_there(
    ratios: list[float], n: int
) -> None:
    assert trials_within(ratios) == n


def test_tables_weigh_tasks_by_their_time_and_take_what_was_measured_last() -> None:
    def row(sessions: str, key: str, end_us: float, to_5: int, ratio: float) -> dict[str, str]:
        return {
            "machine": "C",
            "network": "n",
            "task": "Conv",
            "key": key,
            "weight": "2",
            "known": "form",
            "sessions": sessions,
            "trials": "16",
            "end_us": str(end_us),
            "to_5_pct": str(to_5),
            "after": f"8:{ratio}",
        }

    rows = [
        row("no store", "a", 100, 99, 9.0),
        row("no store", "a", 100, 10, 2.0),
        row("no store", "b", 300, 4, 1.0),
        row("store of others", "a", 100, 1, 1.0),
        row("store of others", "b", 300, 2, 1.0),
    ]
    pairs = {"machine": "C", "network": "n", "key": "a", "ranker": "cost model only"}
    text = "\n".join(tables(rows, [{**pairs, "pairs": "0.7"}, {**pairs, "pairs": "0.6"}]))
    assert [cell.strip() for cell in text.split("| n ")[1].splitlines()[0].split("|")][1:7] == [
        *("2", "2", "0", "7.0", "1.5", ""),
    ]
    assert "| 1.25 |" in text
    assert "1.00" in text
    assert "0.60" in text
    assert list(tables([], [])) == ["Nothing is measured yet."]
