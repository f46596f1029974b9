"""What the benchmarks print: medians of rounds, ratios to the best baseline, Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tables import (
    VIEWS,
    Bench,
    Result,
    append_result,
    geometric_mean,
    markdown,
    median_s,
    networks_table,
    read_results,
)


def bench(ours: float, onnxruntime: float, openvino: float | None = None) -> Bench:
    """As `autotune bench --format json` prints it, in milliseconds."""
    times = {"autotune": ours, "onnxruntime": onnxruntime, "openvino": openvino}
    return {n: None if t is None else {"median_s": t / 1e3} for n, t in times.items()}


RESULT = Result(
    model="resnet50",
    threads=1,
    tuned=[bench(9, 12, 10), bench(20, 22, 40), bench(9, 10, 9)],
    untuned=[bench(15, 12), bench(18, 12), bench(12, 12)],
    max_error=1.2e-6,
    untuned_error=1e-6,
    direct_error=None,
    tune_s=240.4,
    trials=2000,
)
OTHER = replace(RESULT, model="vgg19", tuned=[bench(30, 20, 10)], direct_error=2e-7)


def test_the_geometric_mean_is_for_ratios() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean(x for x in (4.0, 1.0)) == pytest.approx(2.0)


def test_a_ratio_is_the_median_over_rounds_against_the_best_of_each() -> None:
    assert RESULT.ratio == pytest.approx(20 / 22)
    assert RESULT.untuned_ratio == pytest.approx(15 / 12)


def test_latencies_are_medians_over_rounds() -> None:
    assert median_s(RESULT.tuned, "autotune") == pytest.approx(9e-3)
    assert median_s(RESULT.untuned, "openvino") is None


def test_without_baselines_there_is_no_ratio() -> None:
    alone = replace(RESULT, tuned=[{"autotune": {"median_s": 1.0}, "onnxruntime": None}])
    assert alone.ratio is None
    assert "| – |" in networks_table([alone, OTHER])


def test_results_are_appended_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.jsonl"
    assert read_results(path) == {}
    for result in (RESULT, OTHER, replace(RESULT, trials=5)):
        append_result(path, result)
    found = read_results(path)
    assert found == {("resnet50", 1): replace(RESULT, trials=5), ("vgg19", 1): OTHER}


def test_a_markdown_table() -> None:
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"


def test_a_column_without_values_is_left_out() -> None:
    assert "without Winograd" not in networks_table([RESULT])
    assert "without Winograd" in networks_table([RESULT, OTHER])


def test_a_view_has_some_of_the_columns() -> None:
    head = networks_table([RESULT, OTHER], "errors").splitlines()[0]
    assert head == "| model | threads | max error | untuned error | error without Winograd |"


def test_every_column_is_in_a_view() -> None:
    parts = {head for name, view in VIEWS.items() if name != "all" for head in view}
    assert parts == set(VIEWS["all"])


def test_the_table_of_networks(golden: Callable[[str, str], None]) -> None:
    two = replace(RESULT, threads=2, tuned=[bench(4, 5, 8) | {"round_trip_s": 1.5e-7}])
    golden("benchmarks/networks.md", networks_table([two, RESULT, OTHER]) + "\n")
