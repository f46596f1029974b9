"""The list of official cases is true: no case that was right is anything else."""

from __future__ import annotations

import random

import pytest

from benchmarks.conformance import official, read, tried
from benchmarks.conformance_page import OTHER, reason_of
from benchmarks.outcomes import Case

N_SAMPLED = 12
BAD = {"wrong", "untyped", "lost"}
DISPUTED = {"test_maxunpool_export_with_output_shape"}
"""Its indices count in another shape than that of the result; MaxPool's count in its input, and
ONNX Runtime and PyTorch unpool them so: https://github.com/onnx/onnx/issues/5398."""


@pytest.fixture(scope="module")
def cases() -> list[tuple[str, Case]]:
    """Every official case and its set, which take seconds to make."""
    return official()


@pytest.mark.slow
def test_the_list_has_every_official_case_and_none_is_wrong(cases: list[tuple[str, Case]]) -> None:
    rows = {row["case"]: row for row in read()}
    assert rows.keys() == {case.name for _, case in cases}
    assert {name for name, row in rows.items() if row["outcome"] in BAD} == DISPUTED
    assert not [
        row["case"]
        for row in rows.values()
        if row["outcome"] == "refused" and reason_of(row["reason"])[0] == OTHER
    ]


@pytest.mark.slow
def test_a_sample_of_the_official_cases_is_as_the_list_says(cases: list[tuple[str, Case]]) -> None:
    """A refused case may have become right: `python -m benchmarks.conformance` writes that down."""
    listed = {row["case"]: row for row in read()}
    small = [(s, case) for s, case in cases if s != "real"]
    rows = list(tried(random.Random(0).sample(small, N_SAMPLED)))
    assert len(rows) == N_SAMPLED
    worse = [
        (row, listed[row["case"]])
        for row in rows
        if row["outcome"] != "right" and row["outcome"] != listed[row["case"]]["outcome"]
    ]
    assert not worse
