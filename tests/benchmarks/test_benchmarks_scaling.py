"""The simulated fleet of `benchmarks.scaling`: what it counts, and the table of its page."""

from __future__ import annotations

import pytest

from autotune.schedule.steps import Parallel
from benchmarks.scaling import Clock, DrawnMeasurer
from benchmarks.scaling_page import tables
from tests.schedule.small_dags import gemm


@pytest.mark.parametrize("n_devices", [1, 3])
@pytest.mark.parametrize("n_builders", [1, 5, 16])
def test_nothing_that_devices_do_after_the_end_counts(n_devices: int, n_builders: int) -> None:
    clock = Clock()
    measurer = DrawnMeasurer(n_devices, n_builders, clock)
    measurer.end_s = 100.0
    candidates = [(Parallel("c", n),) for n in range(16)]
    batches = [measurer.stream(gemm(), candidates) for _ in range(100 * n_devices)]
    assert max(batch.done_s for batch in batches) > measurer.end_s
    assert 0.5 * 100.0 < measurer.ran_s / min(n_devices, n_builders) <= 100.0 * n_devices
    before = [batch for batch in batches if batch.done_s <= measurer.end_s]
    assert 0 <= measurer.n_done - 16 * len(before) <= 16 * n_devices
    waiting = list(batches)
    while waiting:
        at = measurer.first_done(waiting)
        assert at is not None
        assert clock() >= waiting.pop(at).done_s
    assert measurer.first_done(batches, waits=False) is not None


def test_a_page_compares_with_one_device() -> None:
    names = ("devices", "builders", "trials", "seconds", "idle", "building", "searching")
    rows = [
        ("1", "2", "30", "10", "0.1", "0.2", "0.3"),
        ("4", "2", "96", "10", "0.2", "0.9", "0.1"),
    ]
    (title, table) = tables(
        [{"builders_per_device": "0", **dict(zip(names, row, strict=True))} for row in rows]
    )
    assert "Two builders" in title
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert lines[2:] == [
        ["1", "2", "3.0", "1.00", "10%", "20%", "30%"],
        ["4", "2", "9.6", "0.80", "20%", "90%", "10%"],
    ]
