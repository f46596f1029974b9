"""Every pass of lowering takes and gives a well-formed program that computes the same numbers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner

from autotune.api.te.schedule import Schedule
from autotune.cli.explain import command
from autotune.errors import CodegenError, ScheduleError, UsageError
from autotune.loopir import lower as pipeline
from autotune.loopir.lower import PASSES, Pass, lower, stages
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import If, PrefetchLine, Program
from autotune.loopir.visitor import statements
from autotune.schedule.steps import Annotate, Pack, Prefetch, Steps
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import parse_target
from autotune.te.dag import ComputeDAG
from tests.loopir.interp import interpret
from tests.loopir.test_loopir_predicate_hoisting import rows_of
from tests.schedule.random_schedules import random_steps
from tests.schedule.running import random_inputs
from tests.schedule.small_dags import ALL, conv, gemm

AVX2 = parse_target("x86-64-v3")


def schedules(dag: ComputeDAG, seed: int) -> list[Steps]:
    """A valid candidate of three sketches, and two schedules that no sketch would give."""
    rng = np.random.default_rng(seed)
    found = [random_steps(dag, Random(n)) for n in range(seed, seed + 2)]
    sketches = generate_sketches(dag, AVX2)
    for n in rng.permutation(len(sketches))[:3]:
        rows = sketches[int(n)].sample(40, rng)
        valid = rows[analyse(dag, sketches[int(n)], rows, AVX2).valid]
        found += [sketches[int(n)].bind(row) for row in valid[:1]]
    return found


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", sorted(ALL))
def test_no_pass_changes_a_number(name: str) -> None:
    dag = ALL[name]()
    inputs, n_lowered = random_inputs(dag), 0
    for steps in schedules(dag, 11):
        try:
            programs = dict(stages(dag, steps, verify=True))
        except ScheduleError:
            continue
        n_lowered += 1
        assert list(programs) == [each.name for each in PASSES]
        expected = interpret(programs["nests"], inputs)
        distinct = {id(p): p for p in programs.values() if p != programs["nests"]}
        for program in distinct.values():
            found = interpret(program, inputs)
            for output, array in expected.items():
                np.testing.assert_array_equal(found[output], array)
    assert n_lowered


def kinds(program: Program, kind: type) -> int:
    return sum(isinstance(s, kind) for k in program.kernels for s in statements(k.body))


def test_each_pass_does_what_its_name_says() -> None:
    """On a convolution with inlined padding whose weights are packed and prefetched."""
    dag = conv(oc=8)
    steps = (*rows_of(1, 7), Pack("weight", "conv"), Prefetch("weight", "conv", 256))
    steps += (Annotate("relu", "h.1", "unroll"), Annotate("relu", "w.1", "unroll"))
    steps += (Annotate("relu", "o", "vectorize"), Prefetch("relu", "relu", 1))
    after = dict(stages(dag, steps))
    assert kinds(after["hoist-predicates"], If) > kinds(after["nests"], If)
    assert not kinds(after["peel"], PrefetchLine)
    assert kinds(after["prefetch-activations"], PrefetchLine)
    assert not after["prefetch-activations"].packs
    assert after["pack"].packs
    n_lines = kinds(after["pack"], PrefetchLine)
    assert kinds(after["prefetch-constants"], PrefetchLine) > n_lines
    schedule = Schedule(dag, AVX2, steps)
    assert schedule.lower(verify=True).program == after["instructions"]
    assert schedule.lower(after="pack").program == after["pack"]


def test_the_verifier_names_the_pass_that_broke_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drop_arguments(program: Program, lowering: Lowering) -> Program:
        kernels = tuple(replace(k, buffers=()) for k in program.kernels)
        return replace(program, kernels=kernels)

    monkeypatch.setattr(
        pipeline, "PASSES", (*PASSES[:3], Pass("drop", drop_arguments), *PASSES[3:])
    )
    dag = gemm(4, 4, 4)
    sketch = generate_sketches(dag, AVX2)[0]
    steps = sketch.bind(sketch.sample(1, np.random.default_rng(0))[0])
    lower(dag, steps)
    text = "pass drop made a malformed program: .* is not in scope"
    with pytest.raises(CodegenError, match=text):
        lower(dag, steps, verify=True)


def test_an_unknown_pass_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(UsageError, match="no pass 'fold'") as error:
        lower(gemm(4, 4, 4), (), after="fold")
    help_text = "".join(CliRunner().invoke(command, ["--help"]).output.split())
    for each in PASSES:
        assert each.name in error.value.hint
        assert each.name in help_text
