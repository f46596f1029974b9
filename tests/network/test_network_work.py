"""What calls do at least: between known lengths by the parabola through them."""

from __future__ import annotations

import pytest

from autotune.network.artifact.work import Work, work_at


@pytest.mark.parametrize("number", [1, 7, 40, 64])
def test_work_follows_the_length(number: int) -> None:
    def known(n: int) -> Work:
        return Work(n, {"fma": 3.0 * n * n + 5 * n}, 100.0, 100.0 + 8 * n)

    found = work_at([known(1), known(32), known(64)], number)
    assert found.operations["fma"] == pytest.approx(known(number).operations["fma"])
    assert (found.constant_bytes, found.all_bytes) == pytest.approx((100, 100 + 8 * number))


def test_the_slowest_part_is_the_limit() -> None:
    work = Work(0, {"fma": 2e9}, 4e9, 5e9)
    assert work.seconds({"fma": 1e9}, cold=1e10, warm=1e10, cached=0) == pytest.approx(2)
    assert work.seconds({"fma": 1e12}, cold=1e9, warm=1e10, cached=0) == pytest.approx(4)
    assert work.seconds({"fma": 1e12}, cold=1e12, warm=1e9, cached=5e8) == pytest.approx(0.5)
