from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.units import (
    counted,
    counted_of,
    format_bytes,
    format_duration,
    format_flops,
    format_seconds,
    gflops,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5d", 43200), ("20ms", 0.02)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_duration(f" {text.upper()} ") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "10 minutes", "-5s", "0", "5s!", "1e3", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (59.6, "1m00s"), (61, "1m01s"), (3599.4, "59m59s"), (7380, "2h03m"), (-3, "0s")],
)
def test_spans(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.23456, "1.235 s"),
        (0.0123456, "12.35 ms"),
        (1e-3, "1.000 ms"),
        (123.4e-6, "123.4 µs"),
        (2e-9, "2.000 ns"),
        (None, "-"),
    ],
)
def test_latencies(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


def test_sizes_and_work() -> None:
    assert format_bytes(1000) == "1000 B"
    assert format_bytes(100 << 20) == "100.0 MiB"
    assert format_flops(4.1e9) == "4.1 GFLOP"
    assert gflops(2e9, 0.5) == 4.0
    assert gflops(2e9, None) is None


def test_one_thing_is_in_the_singular() -> None:
    assert [counted(n, "task") for n in range(3)] == ["0 tasks", "1 task", "2 tasks"]
    assert [counted(n, "entry") for n in range(3)] == ["0 entries", "1 entry", "2 entries"]
    texts = [counted_of(n, total, "task", "take") for n, total in ((1, 1), (1, 2), (0, 2), (2, 2))]
    assert texts == [
        "1 of 1 task takes",
        "1 of 2 tasks takes",
        "0 of 2 tasks take",
        "2 of 2 tasks take",
    ]
