from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace

import measure_fakes as fakes
import numpy as np
import pytest

from autotune.measure.build import build_program
from autotune.measure.processes import run_worker
from autotune.measure.processes.run_worker import Hold, Prepare, Prepared, RunHandler, Time
from autotune.measure.timing.arena import Arena
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Annotate, Split, Steps
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, add, idx, sub


@pytest.fixture
def handler() -> Iterator[RunHandler]:
    yield from fakes.pinned_handler()


def test_runs_on_one_core(handler: RunHandler) -> None:
    assert len(os.sched_getaffinity(0)) == 1


def test_references_of_old_tasks_are_evicted(
    handler: RunHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = fakes.double_dag()
    for task in (1, 2):
        reply = handler(Prepare(task, dag, None))
        assert isinstance(reply, Prepared)
        assert reply.held == set(range(1, task + 1))
    monkeypatch.setattr(run_worker, "_CACHED_BYTES", 0)
    reply = handler(Prepare(3, dag, None))
    assert isinstance(reply, Prepared)
    assert reply.held == {3}


def test_oracle_that_is_known_is_used(handler: RunHandler) -> None:
    dag = fakes.double_dag()
    expected = {"y": np.zeros(fakes.N, np.float32)}
    assert handler(Prepare(1, dag, expected)) == Prepared(expected, frozenset({1}))
    result = handler(Hold(1, fakes.build(dag, fakes.does("good"), fakes.TARGET), first=True))
    assert "expected 0" in str(result)


def sum_dag() -> ComputeDAG:
    i = Axis("i", 1000)
    a, b = placeholder("a", (1000,)), placeholder("b", (1000,))
    y = compute("y", (i,), add(a.tensor[i], b.tensor[i]))
    return ComputeDAG((a, b, y), ("y",))


def tiled(tail: str) -> Steps:
    return (Split("y", "i", (32,), tail), Annotate("y", "i.1", "vectorize"))


def test_a_result_that_aliases_a_dead_operand_is_measured_in_place() -> None:
    dag = sum_dag()
    for operands in (["b"], ["b", "a"]):
        built = build_program(dag, tiled("split"), fakes.TARGET, {dag.key: operands})
        assert built.program.shared == (min(operands), "y")
    assert build_program(dag, tiled("split"), fakes.TARGET).program.shared == ()
    overlapping = build_program(dag, tiled("shift"), fakes.TARGET, {dag.key: ["b"]})
    assert overlapping.program.shared == ()


def test_an_overwritten_operand_is_restored_for_each_evaluation(handler: RunHandler) -> None:
    dag = sum_dag()
    handler(Prepare(1, dag, None))
    built = build_program(dag, tiled("split"), fakes.TARGET, {dag.key: ["b"]})
    for first in (True, False, True, False):
        assert str(handler(Hold(1, built, first)).status) == "ok"
    for again in handler(Time(rounds=3)):
        assert (str(again.status), len(again.times_s)) == ("ok", 3), again
    assert handler(Time(rounds=3)) == []


def test_a_failure_while_timing_is_a_status(
    handler: RunHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> float:
        raise MemoryError

    dag = fakes.double_dag()
    handler(Prepare(1, dag, None))
    handler(Hold(1, fakes.build(dag, fakes.does("good"), fakes.TARGET), first=True))
    monkeypatch.setattr(run_worker.Loaded, "evaluate", fail)
    result = handler(Time())
    assert isinstance(result, MeasureResult)
    assert (result.status, result.error[:13]) == (MeasureStatus.RUN_ERROR, "out of memory")


def test_reading_an_overwritten_operand_is_a_wrong_answer(handler: RunHandler) -> None:
    i = Axis("i", 1000)
    x = placeholder("x", (1000,))
    last = sub(idx(999), i.var)
    y = compute("y", (i,), add(x.tensor[i], x.tensor[last]))
    dag = ComputeDAG((x, y), ("y",))
    built = build_program(dag, (), fakes.TARGET, {dag.key: ["x"]})
    assert built.program.shared == ()
    handler(Prepare(1, dag, None))
    assert str(handler(Hold(1, built, first=True)).status) == "ok"
    forced = replace(built, program=replace(built.program, shared=("x", "y")))
    assert str(handler(Hold(1, forced, first=True)).status) == "wrong_answer"


def test_aliased_buffers_have_guard_zones() -> None:
    program = build_program(sum_dag(), (), fakes.TARGET).program
    arena = Arena(program.buffers, ("b", "y"))
    assert arena.address("y") == arena.address("b") != arena.address("a")
    assert arena.damage() == ""
    ctypes.memset(arena.address("y") + 4000, 0, 1)
    assert "after the end of b changed" in arena.damage()
