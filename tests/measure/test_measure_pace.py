from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import measure_fakes as fakes
import numpy as np
import pytest

from autotune.measure.options import MeasureOptions
from autotune.measure.processes.run_worker import Hold, Prepare, RunHandler, Time
from autotune.measure.timing.pace import Pace
from autotune.measure.timing.timing import in_rounds, repeat_in_turns
from autotune.result import MeasureResult

OPTIONS = MeasureOptions(repeat_target_s=0.03, min_repeats=3, max_repeats=15, repeat_wall_s=9.0)
FULL = 236.0


@dataclass
class Machine:
    """Two threads share a core in `shared`, spans of seconds; a probe takes 0.1 ms."""

    shared: list[tuple[float, float]] = field(default_factory=list)
    now_s: float = 0.0
    n_probes: int = 0

    @property
    def rate(self) -> float:
        return FULL / 2 if any(a <= self.now_s < b for a, b in self.shared) else FULL

    def probe(self) -> float:
        self.n_probes += 1
        self.now_s += 1e-4
        return self.rate

    def run(self) -> float:
        """A program of 1 ms: it is slow where the machine is when it ends."""
        time_s = 1e-3 * FULL / self.rate
        self.now_s += time_s
        return 1e-3 * FULL / self.rate

    def pace(self) -> Pace:
        pace = Pace(self.probe, clock=lambda: self.now_s)
        pace.start(FULL)
        pace.begin()
        return pace


def batch(machine: Machine, pace: Pace) -> list[tuple[float, ...]]:
    programs = [machine.run] * 8
    return repeat_in_turns(
        programs, [1e-3] * 8, OPTIONS, clock=lambda: machine.now_s, counts=pace.holds
    )


@pytest.mark.parametrize("begin_s", [0.0, 0.002, 0.02, 0.05])
def test_no_program_is_timed_while_threads_share_a_core(begin_s: float) -> None:
    machine = Machine([(begin_s, begin_s + 0.6)])
    pace = machine.pace()
    assert {t for times in batch(machine, pace) for t in times} == {1e-3}
    assert pace.share == 1.0
    assert machine.now_s > begin_s + 0.6


def test_a_round_that_counts_ran_at_full_pace_whenever_cores_are_shared(
    rng: np.random.Generator,
) -> None:
    for _ in range(20):
        begins = rng.uniform(0, 0.3, 3)
        machine = Machine([(b, b + rng.uniform(0.01, 0.9)) for b in begins])
        pace = machine.pace()
        times = [t for found in batch(machine, pace) for t in found]
        assert sum(t > 1.5e-3 for t in times) <= 8 * len(begins) / 2  # within a round, unseen
        assert sorted(times)[len(times) // 2] == 1e-3


def test_a_machine_that_stays_slow_is_told_and_is_not_waited_for_again_and_again() -> None:
    machine = Machine([(1.0, math.inf)])
    pace = machine.pace()
    machine.now_s = 1.0
    n_batches = 50
    for _ in range(n_batches):
        pace.begin()
        assert {t for times in batch(machine, pace) for t in times} == {2e-3}
        assert pace.share == pytest.approx(0.5)
    worked_s = n_batches * 15 * 8 * 2e-3
    assert machine.now_s < 1.4 * worked_s + 6


def test_threads_of_one_core_are_slow_from_the_first_to_the_last() -> None:
    machine = Machine([(0.0, math.inf)])
    pace = Pace(machine.probe, clock=lambda: machine.now_s)
    pace.start(FULL)  # twice what one thread has
    assert machine.now_s < 3
    pace.begin()
    batch(machine, pace)
    assert pace.share == 1.0  # nothing better is known: all results compare


def test_a_quiet_machine_is_probed_once_a_round() -> None:
    machine = Machine()
    pace = machine.pace()
    n_before = machine.n_probes
    found = batch(machine, pace)
    assert machine.n_probes - n_before == len(found[0])


def test_rounds_of_finalists_are_timed_again_too() -> None:
    machine = Machine([(0.004, 0.3)])
    found = in_rounds([machine.run] * 3, 10, machine.pace().holds)
    assert [len(times) for times in found] == [10] * 3
    assert {t for times in found for t in times} == {1e-3}


@pytest.fixture
def handler() -> Iterator[RunHandler]:
    yield from fakes.pinned_handler()


@pytest.mark.parametrize("rounds", [None, 6])
@pytest.mark.parametrize("pace", [0.5, 1.0])
def test_results_tell_the_pace_of_the_machine(
    handler: RunHandler, rounds: int | None, pace: float
) -> None:
    machine = Machine()
    handler._pace = machine.pace()
    machine.shared = [(0.0, math.inf)] if pace < 1 else []
    dag = fakes.double_dag()
    handler(Prepare(1, dag, None))
    handler(Hold(1, fakes.build(dag, fakes.does("good"), fakes.TARGET), first=True))
    (result,) = handler(Time(rounds=rounds))  # type: ignore[misc]
    assert isinstance(result, MeasureResult)
    assert result.pace == pytest.approx(pace)
    assert result.is_slow == (pace < 1)
