"""A task of tensor expressions: tuned, scheduled by hand, built, timed; logs like any other."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import autotune
from autotune import te
from autotune.cli.main import run
from autotune.errors import DefinitionError, LogMismatch, ScheduleError, UsageError
from autotune.tuner import BatchMeasured, Event, SessionFinished


def matmul_add(n: int, m: int, k: int) -> te.Tensor:
    a, b = te.placeholder((n, k), "a"), te.placeholder((k, m), "b", constant=True)
    c, r = te.placeholder((n, m), "c"), te.reduce_axis(k, "r")
    product = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "product")
    return te.compute((n, m), lambda i, j: product[i, j] + c[i, j], "out")


def arrays(*shapes: tuple[int, ...]) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@pytest.fixture
def task() -> autotune.Task:
    return autotune.Task(matmul_add, (20, 24, 28), threads=1)


@pytest.mark.slow
def test_a_task_is_tuned_built_and_timed(task: autotune.Task, tmp_path: Path) -> None:
    log = tmp_path / "matmul.jsonl"
    events = list(task.tuning(trials=6, log=log, seed=1))
    assert isinstance(events[-1], SessionFinished)
    assert any(isinstance(e, BatchMeasured) for e in events)
    best = task.best()
    a, b, c = arrays((20, 28), (28, 24), (20, 24))
    built = task.build(constants={"b": b})
    np.testing.assert_allclose(built(a, c), a @ b + c, rtol=1e-4, atol=1e-5)
    out = np.empty((20, 24), np.float32)
    assert built(a, c, out=out) is out
    np.testing.assert_allclose(out, a @ b + c, rtol=1e-4, atol=1e-5)
    timing = task.time(built, time_s=0.05)
    assert timing.median_s > 0
    assert 0 < timing.share_of_peak < 2
    in_turns = task.compare([built, built], time_s=0.01, runs=3)
    assert [len(t.timing.times_s) >= 3 for t in in_turns] == [True, True]
    assert str(timing).count("median") == 1
    assert task.schedule(best.steps).steps == best.steps


@pytest.mark.slow
def test_a_log_of_a_task_goes_on_and_is_read_by_the_commands(
    task: autotune.Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "matmul.jsonl"
    first = task.tune(trials=3, log=log)
    again = autotune.Task(matmul_add, (20, 24, 28), threads=1)
    assert again.tune(trials=3, log=log).latency_s <= first.latency_s * 1.5
    capsys.readouterr()
    assert run(["explain", str(log), "--task", "0", "--stage", "te"]) == 0
    assert capsys.readouterr().out.splitlines() == str(task.dag).splitlines()
    assert run(["distill", str(log)]) == 0
    other = autotune.Task(matmul_add, (20, 24, 8), threads=1)
    with pytest.raises(LogMismatch, match="is the log of another task"):
        other.tune(trials=1, log=log)


def test_a_schedule_by_hand_is_built(task: autotune.Task) -> None:
    s = task.schedule()
    s["out"].tile("i", "j", 4, 8)
    s["out"].parallel("i.0").vectorize("j.1")
    s["product"].compute_at("out", "j.0").reorder("r", "i").vectorize("j").unroll("i").pack("b")
    a, b, c = arrays((20, 28), (28, 24), (20, 24))
    np.testing.assert_allclose(task.build(s, {"b": b})(a, c), a @ b + c, rtol=1e-4, atol=1e-5)


def test_without_a_log_the_analytic_schedule_is_built_and_saved(
    task: autotune.Task, tmp_path: Path
) -> None:
    a, b, c = arrays((20, 28), (28, 24), (20, 24))
    task.build(constants={"b": b}).save(tmp_path / "f.atn")
    found = autotune.load(tmp_path / "f.atn").run({"a": a, "c": c})["out"]
    np.testing.assert_allclose(found, a @ b + c, rtol=1e-4, atol=1e-5)


def test_several_outputs_and_integers() -> None:
    x = te.placeholder(9, "x", dtype="int32")
    k = te.reduce_axis(9, "k")
    total = te.compute((), lambda: te.sum(x[k], k), "total")
    doubled = te.compute(9, lambda i: x[i] * 2 - 1, "doubled")
    function = autotune.Task([total, doubled], threads=1).build()
    values = np.arange(9, dtype=np.int32)
    found = function(values)
    assert isinstance(found, tuple)
    assert found[0] == 36
    np.testing.assert_array_equal(found[1], values * 2 - 1)


def test_what_does_not_fit_is_told(task: autotune.Task) -> None:
    a, b, c = arrays((20, 28), (28, 24), (20, 24))
    with pytest.raises(UsageError, match="the constants are none, the task has b"):
        task.build()
    with pytest.raises(UsageError, match="constant 'b' is float64 of shape"):
        task.build(constants={"b": b.astype(np.float64)})
    built = task.build(constants={"b": b})
    with pytest.raises(UsageError, match="1 arrays are given, the function takes 2"):
        built(a)
    with pytest.raises(UsageError, match=r"`out` of 'out' is float64"):
        built(a, c, out=c.astype(np.float64))
    with pytest.raises(UsageError, match="this task was not tuned"):
        task.best()
    with pytest.raises(DefinitionError, match="needs its outputs"):
        autotune.Task([])
    with pytest.raises(DefinitionError, match="<lambda> returns None, no tensor"):
        autotune.Task(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="cannot run on -1 threads"):
        autotune.Task(matmul_add, (8, 8, 8), threads=-1)
    s = task.schedule()
    s["product"].split("r", 5)
    with pytest.raises(ScheduleError, match="a reduction over r must not overlap"):
        task.build(s, {"b": b})


@pytest.mark.parametrize("shape", [(1 << 16,), (64, 1024), (70_001,)], ids=str)
def test_a_sum_of_everything_is_accurate_and_fills_vectors(shape: tuple[int, ...]) -> None:
    """By the default program, which is the first that a search measures."""
    x = te.placeholder(shape, "x")
    axes = [te.reduce_axis(n, f"k{d}") for d, n in enumerate(shape)]
    task = autotune.Task(te.compute((), lambda: te.sum(x[tuple(axes)], axes), "y"), threads=1)
    values = np.random.default_rng(0).random(shape, np.float32)
    np.testing.assert_allclose(task.build()(values), values.sum(dtype=np.float64), rtol=1e-5)
    assert "vectorize" in str(task.default()) or 70_001 in shape


def test_code_for_a_cpu_that_this_one_is_not_is_never_run() -> None:
    here = autotune.host_target()
    elsewhere = replace(here, cpu="x86-64-v3", features=f"{here.features},+tbm")
    task = autotune.Task(matmul_add, (8, 8, 8), threads=1, target=elsewhere)
    with pytest.raises(autotune.ArtifactError, match="this CPU lacks tbm"):
        task.build(constants={"b": np.ones((8, 8), np.float32)})


TUNE = """
from autotune import Task, te
x = te.placeholder(64, "x")
task = Task(te.compute(64, lambda i: x[i] + 1, "y"), threads=1)
task.tune(trials=2, show="auto")
"""


@pytest.mark.slow
def test_a_search_is_shown_as_asked() -> None:
    def shown(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stderr + done.stdout

    python = (sys.executable, "-c", TUNE)
    lines = shown(*python)  # a pipe
    assert "2 trials  task 0" in lines
    assert "stopped: trials after 2 trials" in lines
    assert "\x1b" not in lines
    on_terminal = shown("script", "-qec", shlex.join(python), "/dev/null")
    assert "% bound" in on_terminal
    assert "\x1b[2K" in on_terminal  # redrawn in place


@pytest.mark.slow
def test_settings_that_do_not_fit_are_told(
    task: autotune.Task, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "m.jsonl"
    with pytest.raises(UsageError, match="show='tabel' is no way to show a search"):
        task.tune(trials=1, show="tabel")
    with pytest.raises(UsageError, match="there is no setting 'sead'"):
        task.tune(trials=1, sead=3)
    events: list[Event] = []
    task.tune(trials=1, log=log, show=events.append)
    assert isinstance(events[-1], SessionFinished)
    with pytest.raises(UsageError, match="keeps its own seed"):
        task.tune(trials=1, log=log, seed=3)
    other = autotune.Task(matmul_add, (20, 24, 28), threads=1, target="x86-64-v3")
    with pytest.raises(LogMismatch, match=r"is for 1 thread of .*, this task for 1 of x86-64-v3"):
        other.tune(trials=1, log=log)
    capfd.readouterr()
    assert other.tune(trials=1, show="nothing").latency_s > 0
    assert capfd.readouterr() == ("", "")
