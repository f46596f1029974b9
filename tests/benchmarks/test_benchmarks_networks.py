"""How much longer to tune what a log has begun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.records import End, Log, read_log
from benchmarks.networks import seconds_left


@pytest.fixture
def log(assets: Path) -> Log:
    return read_log(assets / "log-v1.jsonl")


def ended(log: Log, reason: str, elapsed_s: float) -> Log:
    end = End(log.headers[-1].run_id, reason, 10, elapsed_s)
    return replace(log, records=(), ends=(end,))


@pytest.mark.parametrize(
    ("reason", "elapsed_s", "left_s"),
    [
        ("time", 237.0, 0.0),
        ("time", 300.0, 0.0),
        ("time", 60.0, 180.0),
        ("trials", 60.0, 180.0),
        ("converged", 60.0, 0.0),
        ("exhausted", 60.0, 0.0),
        ("interrupted", 60.0, 180.0),
        ("interrupted", 239.9, 1.0),
    ],
)
def test_a_search_goes_on_until_its_time_is_spent(
    log: Log, reason: str, elapsed_s: float, left_s: float
) -> None:
    assert seconds_left(ended(log, reason, elapsed_s), 240.0) == left_s


def test_a_killed_search_goes_on(log: Log) -> None:
    other = End("another run", "time", 10, 240.0)
    assert seconds_left(replace(log, records=(), ends=()), 240.0) == 240.0
    assert seconds_left(replace(log, records=(), ends=(other,)), 240.0) == 1.0
