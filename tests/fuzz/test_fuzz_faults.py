"""A few calls of the system that fail; `make soak` lets each of them fail, of every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.faults import COMMANDS, PROGRAMS, campaign, numbers


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_call_that_fails_loses_nothing(command: str, tmp_path: Path) -> None:
    found = dict(campaign([command], 1, tmp_path, ("write", "fsync", "open")))
    assert found
    assert not {point: wrong for point, wrong in found.items() if wrong}


@pytest.mark.slow
def test_an_exported_library_tells_its_caller_and_works_when_called_again(tmp_path: Path) -> None:
    calls = ("open", "mmap", "malloc", "clone")
    found = dict(campaign([*PROGRAMS], 2, tmp_path, calls))
    assert {(point.command, point.call) for point in found} >= {
        (program, call) for program in PROGRAMS for call in calls[1:]
    }
    assert not {point: wrong for point, wrong in found.items() if wrong}


def test_numbers_are_spread_evenly() -> None:
    assert numbers(3, 5) == [1, 2, 3]
    assert numbers(9, 3) == [1, 5, 9]
    assert numbers(9, 1) == [1]
    assert numbers(0, 3) == []
