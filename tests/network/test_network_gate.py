"""The gate on sides whose runs take drawn times, by a clock that only they move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import comb, exp
from random import Random

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

import autotune
from autotune.machine import Limits
from autotune.network.bench.gate import (
    LEAST_ROUNDS,
    GateVerdict,
    Load,
    Outcome,
    Rounds,
    Run,
    gate,
    loads_of,
    measure_rounds,
    median_interval,
    rounds_within,
)
from autotune.network.runtime import loading
from autotune.network.runtime.loading import loaded_anew, model_of
from autotune.network.runtime.runtime import Model, random_inputs

LIMIT = 1.05


@dataclass
class Machine:
    """Its clock goes on by what its sides take.

    `placed`: the deviation of what a load takes, by where it lies, in log. `drift`: that of the
    pace, from run to run. `busy`: the share of time in which others compute, in spans of 30 ms: a
    run takes up to eight times as long then. `warm`: how much less a side takes behind itself.
    """

    seed: int
    placed: float = 0.005
    drift: float = 0.0
    busy: float = 0.0
    warm: float = 0.0
    now_s: float = 0.0
    pace: float = 1.0
    _last: object = None
    _rng: Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)

    def clock(self) -> float:
        return self.now_s

    def side(self, seconds: float) -> Load:
        def load() -> Run:
            placed = exp(self._rng.gauss(0, self.placed))
            return lambda: self._run(side, seconds * placed)

        side = object()
        return load

    def reference(self) -> Run:
        return self.side(5e-4)()

    def _run(self, side: object, seconds: float) -> None:
        rng = self._rng
        self.pace *= exp(rng.gauss(0, self.drift))
        took = seconds * self.pace * (1 + rng.uniform(0, 0.02))
        took *= 1 - self.warm * (self._last is side)
        if Random(f"{self.seed} {self.now_s // 0.03}").random() < self.busy:
            took *= 1 + rng.uniform(0.2, 8)
        self.now_s += took
        self._last = side

    def judged(self, now_s: float, before_s: float, limit: float | None = LIMIT) -> GateVerdict:
        sides = self.side(now_s), self.side(before_s), self.reference()
        return gate(*sides, limit, clock=self.clock)


MACHINES: dict[str, Callable[[int], Machine]] = {
    "quiet": lambda seed: Machine(seed, warm=0.05),
    "placed": lambda seed: Machine(seed, placed=0.02),
    "drifting": lambda seed: Machine(seed, drift=1e-3),
    "busy": lambda seed: Machine(seed, busy=0.5, drift=1e-4, warm=0.05),
}


@pytest.mark.parametrize("kind", MACHINES)
def test_a_file_beside_itself_is_1_and_a_slower_one_is_caught(kind: str) -> None:
    same = [MACHINES[kind](seed).judged(8e-3, 8e-3) for seed in range(25)]
    slower = [MACHINES[kind](seed).judged(8.4e-3, 8e-3, 1.02) for seed in range(25)]
    assert not any(v.fails for v in same)
    assert sum(v.low <= 1 <= v.high for v in same) >= 22
    assert sum(v.fails for v in slower) >= 24
    assert np.median([v.ratio for v in slower]) == pytest.approx(1.05, abs=0.01)
    assert np.median([v.ratio for v in same]) == pytest.approx(1.0, abs=0.005)


def test_the_interval_is_of_loads_not_of_runs() -> None:
    """Where a load lies stays until the next one: its runs agree, and tell nothing of another."""
    found = Machine(1, placed=0.03).judged(8e-3, 8e-3, None)
    assert found.high - found.low > 0.02


def test_it_goes_on_while_the_interval_holds_the_limit() -> None:
    near, far = (Machine(1, placed=0.05).judged(s, 3e-3) for s in (3.15e-3, 6e-3))
    assert near.n_rounds >= 2 * far.n_rounds
    assert far.n_rounds >= LEAST_ROUNDS
    assert (near.outcome, far.outcome) == (Outcome.UNDECIDED, Outcome.FAILS)


def test_figures_alone_are_relative_to_the_clock() -> None:
    machine = Machine(2)
    reference = machine.reference()
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
    reference = machine.side(1e-3)()
    found = gate(machine.side(1.0), rounds, reference, None, clock=machine.clock)
    assert found.outcome is Outcome.SLOWER
    assert not found.fails


@pytest.mark.parametrize(
    ("limit", "low", "high", "outcome"),
    [
        (1.05, 1.06, 1.08, "fails"),
        (1.05, 1.01, 1.05, "undecided"),
        (1.05, 1.01, 1.04, "passes"),
        (None, 1.01, 1.04, "slower"),
        (None, 0.9, 0.99, "faster"),
        (None, 0.99, 1.01, "undecided"),
    ],
)
def test_the_outcome_is_a_side_of_the_limit(
    limit: float | None, low: float, high: float, outcome: str
) -> None:
    assert GateVerdict((low + high) / 2, low, high, 20, True, limit).outcome == outcome


@pytest.mark.parametrize("n", [*range(6, 30), 99, 1000])
def test_ends_of_the_interval_are_as_near_as_95_percent_permit(n: int) -> None:
    _, low, high = median_interval(range(n))
    n_out = round(low)
    assert high == n - 1 - n_out

    def tail(k: int) -> float:
        return sum(comb(n, heads) for heads in range(k + 1)) / 2**n

    assert tail(n_out) <= 0.025 < tail(n_out + 1)


def test_few_rounds_are_six_even_where_each_takes_long() -> None:
    machine = Machine(4)
    slow = machine.side(3.0), machine.side(2.0)
    found = rounds_within(*slow, time_s=1.0, clock=machine.clock)
    assert len(found.now_s) == 6
    assert min(found.ratios) > 1.4
    stops = count()
    assert len(rounds_within(*slow, 1.0, lambda: next(stops) > 1, machine.clock).now_s) == 3


# --- loads --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Model:
    """Two shapes over one set of weights."""
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"{head} f (float[n, 32] x, float[32, 8] w) => (float[n, 8] y) {{ y = MatMul(x, w) }}"
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del proto.graph.input[1]
    return model_of(autotune.compile(proto, dims={"n": [2, 5]}, threads=1, check=False).artifact)


def test_a_load_is_a_copy_at_other_addresses(model: Model) -> None:
    again = loaded_anew(model)
    mine, copied = model.artifact.constants, again.artifact.constants
    assert mine.nbytes
    assert not np.shares_memory(mine, copied)
    assert copied.ctypes.data % 64 == 0
    assert {id(a.constants) for a in again.artifact.over_the_constants()} == {id(copied)}


def test_each_load_runs_its_variant(model: Model) -> None:
    for n, variant in enumerate(model.variants):
        inputs = random_inputs(variant.input_info)
        load = loads_of(model, inputs, n)
        for found in (load()(), load()()):
            np.testing.assert_array_equal(found["y"], model.run(inputs)["y"])


def test_where_memory_is_short_constants_stay(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "read_limits", lambda: Limits(2, 2.0, 1 << 20))
    again = loaded_anew(model)
    assert np.shares_memory(model.artifact.constants, again.artifact.constants)
    inputs = random_inputs(model.input_info)
    np.testing.assert_array_equal(again.run(inputs)["y"], model.run(inputs)["y"])
