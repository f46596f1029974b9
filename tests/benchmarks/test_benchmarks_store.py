from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.records import MeasureRecord
from autotune.result import MeasureResult, MeasureStatus
from benchmarks.store import choices, trials_within
from benchmarks.store_page import tables


def measured(steps: str, ms: float | None, final: bool = False) -> MeasureRecord:
    ok = ms is not None
    status = MeasureStatus.OK if ok else MeasureStatus.BUILD_ERROR
    result = MeasureResult(status, (ms / 1000,) * 3 if ms is not None else ())
    return MeasureRecord("r", 0, "task", "cpu", 1, steps, result, final=final)


def test_a_choice_is_the_fastest_so_far_and_as_good_as_all_its_measurements_say() -> None:
    records = [
        measured("a", None),
        measured("b", 3.0),
        measured("c", 1.0),  # measured too fast
        measured("d", 2.0),
        replace(measured("b", 0.1), final=True),
    ]
    pooled = {("task", "b"): 3e-3, ("task", "c"): 4e-3, ("task", "d"): 2e-3}
    assert choices(records, pooled) == [float("inf"), 3e-3, 4e-3, 4e-3]


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
