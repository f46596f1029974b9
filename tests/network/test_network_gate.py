"""The gate on sides whose runs take drawn times, by a clock that only they move."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from autotune.network.bench.gate import LEAST_ROUNDS, GateVerdict, Rounds, gate, measure_rounds

LIMIT = 1.05
Side = Callable[[], object]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


class Machine:
    """Its clock goes on by what its sides take: more while it is disturbed or slow."""

    def __init__(self, seed: int, disturbed: float = 0.0) -> None:
        self.now_s, self.pace = 0.0, 1.0
        self._rng, self._disturbed = Random(seed), disturbed

    def clock(self) -> float:
        return self.now_s

    def side(self, seconds: float) -> Side:
        def run() -> None:
            is_disturbed = self._rng.random() < self._disturbed
            more = self._rng.uniform(0.2, 8) if is_disturbed else self._rng.uniform(0, 0.02)
            self.now_s += seconds * self.pace * (1 + more)

        return run

    def judged(self, now_s: float, before_s: float, **how: float) -> GateVerdict:
        sides = self.side(now_s), self.side(before_s), self.side(5e-4)
        return gate(*sides, LIMIT, clock=self.clock, **how)


@pytest.mark.parametrize("disturbed", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(10))
def test_a_tenth_is_caught_and_a_rerun_passes(seed: int, disturbed: float) -> None:
    same = Machine(seed, disturbed).judged(2e-3, 2e-3)
    slower = Machine(seed, disturbed).judged(2.2e-3, 2e-3)
    assert (same.fails, slower.fails) == (False, True)
    assert same.low <= same.ratio <= same.high
    assert slower.ratio == pytest.approx(1.1, abs=0.03)
    assert same.is_decided
    assert slower.is_decided
    assert same.in_turns


def test_it_goes_on_while_the_interval_holds_the_limit() -> None:
    near, far = (Machine(1, 0.99).judged(s, 3e-3, time_s=1.0) for s in (3.15e-3, 6e-3))
    assert near.n_rounds > far.n_rounds >= LEAST_ROUNDS


def test_figures_alone_are_relative_to_the_clock() -> None:
    machine = Machine(2)
    reference = machine.side(5e-4)
    earlier = measure_rounds(
        machine.side(2e-3), None, reference, lambda r: len(r.now_s) > 20, machine.clock
    )
    machine.pace = 1.7  # another clock, or a warmer day
    same = gate(machine.side(2e-3), earlier, reference, LIMIT, clock=machine.clock)
    slower = gate(machine.side(2.2e-3), earlier, reference, LIMIT, clock=machine.clock)
    assert (same.fails, slower.fails) == (False, True)
    assert not same.in_turns


def test_without_a_limit_nothing_fails() -> None:
    rounds = Rounds((3.0,) * 20, (), (1.0,) * 20)
    machine = Machine(3)
    found = gate(machine.side(1.0), rounds, machine.side(1e-3), None, clock=machine.clock)
    assert found.is_decided
    assert not found.fails
