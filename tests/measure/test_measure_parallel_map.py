"""One function of many arguments: the same results, whoever computes them and whoever dies."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from autotune.errors import NoValidSchedule
from autotune.measure.processes.parallel_map import MIN_SHARE, parallel_map
from autotune.measure.processes.process import ChildCrash

MANY = list(range(8 * MIN_SHARE))


def squared(n: int) -> int:
    return n * n


def who(_: int) -> int:
    return sum(k for k in range(50_000)) and os.getpid()


def dies_elsewhere(here: int) -> bool:
    if os.getpid() != here:
        os._exit(1)
    time.sleep(0.01)
    return True


def picky(n: int) -> int:
    if n == MANY[-1]:
        raise NoValidSchedule("no schedule", "a hint")
    return n


@pytest.mark.parametrize("n_processes", [None, 1, 3])
def test_results_are_in_the_order_of_the_arguments(n_processes: int | None) -> None:
    assert parallel_map(squared, MANY, n_processes=n_processes) == [n * n for n in MANY]


def test_nothing_to_do() -> None:
    assert parallel_map(squared, []) == []


@pytest.mark.slow
def test_calls_run_in_several_processes() -> None:
    n_each = Counter(parallel_map(who, list(range(1000)), n_processes=2))
    assert os.getpid() in n_each
    assert len(n_each) == 2


def test_few_arguments_start_no_process() -> None:
    assert set(parallel_map(who, list(range(2 * MIN_SHARE - 1)), n_processes=2)) == {os.getpid()}


def test_calls_of_a_process_that_died_are_repeated_here() -> None:
    assert parallel_map(dies_elsewhere, [os.getpid()] * 200, n_processes=3) == [True] * 200


@pytest.mark.parametrize("n_processes", [1, 2])
def test_an_error_is_that_of_the_function(n_processes: int) -> None:
    with pytest.raises(NoValidSchedule, match="no schedule") as caught:
        parallel_map(picky, MANY, n_processes=n_processes)
    assert caught.value.hint == "a hint"


def test_progress_is_reported_for_every_result() -> None:
    told: list[tuple[int, int]] = []
    parallel_map(squared, MANY, lambda n, total: told.append((n, total)), n_processes=1)
    assert told == [(n + 1, len(MANY)) for n in range(len(MANY))]


def test_a_function_that_ends_its_process_is_called_in_another_one() -> None:
    """As LLVM does where it cannot select an instruction."""
    with pytest.raises(ChildCrash):
        parallel_map(os._exit, [3], is_apart=True)
    assert parallel_map(abs, [-2, 3], is_apart=True) == [2, 3]
    assert parallel_map(abs, [], is_apart=True) == []
