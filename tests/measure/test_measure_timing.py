from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from autotune.measure.options import MeasureOptions
from autotune.measure.timing.timing import n_repeats, repeat_in_turns

OPTIONS = MeasureOptions(repeat_target_s=0.03, min_repeats=3, max_repeats=20, repeat_wall_s=0.25)


def repeat(
    evaluate: Callable[[], float],
    first_s: float,
    options: MeasureOptions,
    best_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    (found,) = repeat_in_turns([evaluate], [first_s], options, best_s, clock)
    return found


def constant(time_s: float) -> Callable[[], float]:
    return lambda: time_s


def stopped() -> float:
    return 0.0


@pytest.mark.parametrize(("first_s", "n"), [(1e-6, 20), (2e-3, 15), (5e-3, 6), (0.02, 3), (2.0, 3)])
def test_repeats_fill_the_measuring_time(first_s: float, n: int) -> None:
    assert n_repeats(first_s, OPTIONS) == n
    assert repeat(constant(first_s), first_s, OPTIONS, clock=stopped) == (first_s,) * n


def test_every_repeat_is_kept() -> None:
    times: Iterator[float] = iter([0.02, 0.5, 0.01])
    assert repeat(lambda: next(times), 0.02, OPTIONS, clock=stopped) == (0.02, 0.5, 0.01)


def test_slow_candidate_is_abandoned() -> None:
    assert len(repeat(constant(4e-3), 4e-3, OPTIONS, best_s=1e-3, clock=stopped)) == 2
    assert len(repeat(constant(4e-2), 4e-2, OPTIONS, best_s=1e-3, clock=stopped)) == 1


def test_candidate_near_the_best_is_measured_in_full() -> None:
    full = n_repeats(1.1e-3, OPTIONS)
    assert full > 5
    assert len(repeat(constant(1.1e-3), 1.1e-3, OPTIONS, best_s=1e-3, clock=stopped)) == full


def test_candidate_beyond_contend_ratio_gets_five_repeats() -> None:
    assert len(repeat(constant(1.2e-3), 1.2e-3, OPTIONS, best_s=1e-3, clock=stopped)) == 5
    times = iter([1.3e-3] * 4 + [1.1e-3] * 30)  # one good repeat keeps it in
    found = repeat(lambda: next(times), 1.3e-3, OPTIONS, best_s=1e-3, clock=stopped)
    assert len(found) == n_repeats(1.3e-3, OPTIONS)


def test_one_disturbed_repeat_does_not_abandon() -> None:
    times = iter([9e-3] + [1e-3] * 30)
    assert len(repeat(lambda: next(times), 9e-3, OPTIONS, best_s=1e-3, clock=stopped)) == 4


def test_wall_time_limits_repeats_but_not_the_first() -> None:
    now = iter(range(100))
    seconds = repeat(constant(1e-6), 1e-6, OPTIONS, clock=lambda: float(next(now)))
    assert len(seconds) == OPTIONS.min_repeats


def test_programs_take_turns_until_each_has_enough() -> None:
    order: list[str] = []

    def program(name: str, time_s: float) -> Callable[[], float]:
        def evaluate() -> float:
            order.append(name)
            return time_s

        return evaluate

    seconds = {"a": 1e-3, "far": 4e-3, "near": 1.3e-3, "b": 1.1e-3}
    programs = [program(n, t) for n, t in seconds.items()]
    times = repeat_in_turns(programs, list(seconds.values()), OPTIONS, clock=stopped)
    full = OPTIONS.max_repeats
    assert [len(t) for t in times] == [full, 2, 5, full]
    assert order[:4] == order[7:3:-1]  # there and back
    for begin, end, at_work in ((0, 8, seconds), (8, 17, ("a", "near", "b")), (17, 999, "ab")):
        some = order[begin:end]
        n = len(at_work)
        assert all(sorted(some[k : k + n]) == sorted(at_work) for k in range(0, len(some), n))


def test_programs_are_compared_with_the_best_known_latency() -> None:
    both = [constant(4e-3), constant(1.1e-3)]
    times = repeat_in_turns(both, [4e-3, 1.1e-3], OPTIONS, best_s=0.9e-3, clock=stopped)
    assert [len(t) for t in times] == [2, 5]
    assert repeat_in_turns([], [], OPTIONS) == []
