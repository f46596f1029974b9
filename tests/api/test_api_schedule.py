"""Schedules by hand: methods make the log's steps, and the printed text makes them again."""

from __future__ import annotations

from random import Random

import pytest

from autotune.api.te.schedule import Schedule, python_text
from autotune.errors import ScheduleError, UsageError
from autotune.schedule.steps import Annotate, Parallel, Reorder, Split, Steps
from autotune.target import host_target
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from tests.schedule.random_schedules import random_steps
from tests.schedule.running import assert_close, random_inputs, run_compiled
from tests.schedule.small_dags import ALL, gemm

TARGET = host_target()


def made_by(text: str, dag: ComputeDAG) -> Steps:
    names: dict[str, object] = {}
    exec(text, names)
    schedule = Schedule(dag, TARGET)
    names["schedule"](schedule)  # type: ignore[operator]
    return schedule.steps


def test_methods_make_steps_and_return_the_names_of_loops() -> None:
    s = Schedule(gemm(), TARGET)
    s["d"].inline()
    names = s["e"].tile("i", "j", 4, 8)
    assert names == ("i.0", "j.0", "i.1", "j.1") == s["e"].loops
    s["e"].parallel("i.0", "j.0").unroll("i.1").vectorize("j.1")
    s["c"].compute_at("e", "j.0").reorder("k", "i")
    assert s["c"].loops == ("k", "j", "i")
    assert s.steps[1:4] == (
        Split("e", "i", (4,)),
        Split("e", "j", (8,)),
        Reorder("e", ("i.0", "j.0", "i.1", "j.1")),
    )
    assert Parallel("e", 2) in s.steps
    assert Annotate("e", "j.1", "vectorize") in s.steps
    assert "vectorize j.1 in 8" in str(s)
    assert "vectorize e.j.1 in 8" in str(s.lower())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ALL)
def test_the_text_of_every_schedule_makes_it_again(name: str) -> None:
    dag = ALL[name]()
    for seed in range(20):
        steps = random_steps(dag, Random(seed))
        assert made_by(Schedule(dag, TARGET, steps).python(), dag) == steps


def test_new_stages_are_returned() -> None:
    s = Schedule(gemm(), TARGET)
    rf = s["c"].rfactor(2)
    assert (rf.name, s["c"].loops) == ("c.rf", ("i", "j", "k.r"))
    copy = s.cache_read("a", "c.rf")
    copy.compute_at("c.rf", "i")
    assert s["e"].cache_write().name == "e.sum"
    inputs = random_inputs(s.dag)
    found = run_compiled(s.lower().program, inputs, TARGET)
    assert_close(found, evaluate(s.dag, inputs), 3e-6)


def test_a_refused_step_names_step_loop_and_reason_and_changes_nothing() -> None:
    s = Schedule(gemm(), TARGET)
    s["e"].split("i", 4)
    before = s.steps, str(s)
    with pytest.raises(ScheduleError, match=r's\["e"\].split\("q", 2\): stage e has no loop') as e:
        s["e"].split("q", 2)
    assert e.value.hint == "the loops of e are i.0, i.1, j"
    with pytest.raises(ScheduleError, match="are not its outermost loops"):
        s["e"].parallel("j")
    with pytest.raises(ScheduleError, match="there is no loop 'k'"):
        s["e"].reorder("j", "k")
    with pytest.raises(ScheduleError, match="there is no stage 'x'") as e:
        s["x"].inline()
    assert e.value.hint == "the stages are c, d, e"
    with pytest.raises(ScheduleError, match="factors are whole numbers above 0"):
        s["e"].split("j")
    with pytest.raises(ScheduleError, match="factors are whole numbers above 0"):
        s["e"].split("j", "2")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="prefetch of q: there is no such tensor"):
        s["e"].prefetch("q", 64)
    with pytest.raises(ScheduleError, match=r"not directly in i.0"):
        s["e"].fuse("i.0", "j")
    with pytest.raises(ScheduleError, match="factors are whole numbers above 0"):
        s["e"].tile("j", "i.1", 4, 0)
    assert (s.steps, str(s)) == before
    assert s.undo().steps == ()


def test_a_tile_is_taken_as_a_whole_or_not_at_all() -> None:
    s = Schedule(gemm(), TARGET)
    with pytest.raises(ScheduleError, match="stage e has no loop 'q'"):
        s["e"].tile("i", "q", 4, 8)
    assert s.steps == ()


@pytest.mark.parametrize(
    ("language", "word"),
    [("loops", "kernel k0_c"), ("python", "def k0_c"), ("llvm", "define void"), ("asm", "k0_c:")],
)
def test_sources(language: str, word: str) -> None:
    assert word in Schedule(gemm(), TARGET).source(language)


def test_unknown_source() -> None:
    with pytest.raises(UsageError, match="there is no 'fortran' text"):
        Schedule(gemm(), TARGET).source("fortran")


def test_text_of_a_step() -> None:
    assert python_text(Split("e", "i", (4, 8), "split")) == (
        's["e"].split("i", 4, 8, tail="split")'
    )


def test_a_schedule_without_a_program_names_the_step_and_a_way_out() -> None:
    s = Schedule(gemm(), TARGET)
    s["e"].split("i", 3)
    s["c"].split("k", 5)
    s["d"].inline()
    for lowered in (s.lower, s.source):
        with pytest.raises(ScheduleError) as caught:
            lowered()
        assert caught.value.message.startswith('s["c"].split("k", 5): c: a reduction over k')
        assert "tail='split'; step 2 of 3 made it so" in caught.value.hint
