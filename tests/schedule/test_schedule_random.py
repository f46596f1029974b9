"""interpreter == NumPy == machine code, on schedules that nobody would write."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import with_strides
from autotune.schedule.steps import Steps
from autotune.strides import dense
from autotune.target import Target, parse_target, runs_here
from autotune.te.collapse import collapse
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from tests.schedule.random_schedules import lowered, random_steps
from tests.schedule.running import assert_close, assert_computes, random_inputs, run_compiled
from tests.schedule.small_dags import ALL
from tests.te.random_programs import random_program

TARGETS: list[Target] = [
    t for t in (parse_target("x86-64-v3"), parse_target("x86-64-v4")) if runs_here(t)
]


def check(dag: ComputeDAG, steps: Steps, target: Target, n_chunks: int) -> None:
    program = lower(dag, steps)
    inputs = random_inputs(dag)
    assert_computes(program, inputs, evaluate(dag, inputs), target, (n_chunks,))


def check_many(name: str, n: int, seed: int) -> None:
    """Check the first `n` schedules that have a program."""
    dag = ALL[name]()
    while n:
        seed += 1
        steps = random_steps(dag, Random(seed))
        try:
            lower(dag, steps)
        except ScheduleError:
            continue
        check(dag, steps, TARGETS[seed % len(TARGETS)], 1 + seed % 3)
        n -= 1


@pytest.mark.parametrize("seed", [1000, 2000, 3000, 4000, 5000, 6000])
@pytest.mark.parametrize("name", ALL)
def test_random_schedules(name: str, seed: int) -> None:
    check_many(name, 1, seed)


@pytest.mark.parametrize("seed", range(0, 96, 8))
def test_random_programs(seed: int) -> None:
    """Programs that nobody would write either, against NumPy."""
    for n in range(seed, seed + 8):
        program = random_program(n)
        dag = collapse(program.dag)
        shapes = {p.name: p.tensor.shape for p in dag.placeholders}
        inputs = {name: a.reshape(shapes[name]) for name, a in program.inputs.items()}
        expected = {
            name: a.reshape(dag[name].tensor.shape).astype(np.float32)
            for name, a in program.expected.items()
        }
        for steps in ((), random_steps(dag, Random(n))):
            try:
                lowered_program = lower(dag, steps)
            except ScheduleError:
                assert steps, "every task has a program"
                continue
            target = TARGETS[n % len(TARGETS)]
            assert_computes(lowered_program, inputs, expected, target, (1 + n % 3,), 1e-4)


@pytest.mark.parametrize("name", ["gemm", "conv", "max_pool", "broadcasting", "two_outputs"])
def test_windows(name: str) -> None:
    """Inputs and outputs that are part of something larger: no element in between is touched."""
    dag = ALL[name]()
    inputs = random_inputs(dag)
    for seed in (10, 20, 30):
        program = lowered(dag, seed)
        wide = {}
        for b in program.buffers:
            if b.role in ("input", "output") and b.tensor.shape:
                wide[b.name] = tuple(3 * s for s in dense((*b.tensor.shape[:-1], 1)))
                wide[b.name] = tuple(s * (b.tensor.shape[-1] + 5) for s in wide[b.name][:-1])
                wide[b.name] += (1,) if seed != 30 else (2,)
                if seed == 30:
                    wide[b.name] = tuple(s * 2 for s in wide[b.name][:-1]) + wide[b.name][-1:]
        found = run_compiled(with_strides(program, wide), inputs, TARGETS[-1], 2)
        assert_close(found, evaluate(dag, inputs), 3e-6)
