"""What a session looks like, from hand-made events: golden text, no clock, no terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.cli.progress import (
    JsonLines,
    LiveTable,
    Plain,
    View,
    batch_line,
    status_line,
    summary_lines,
    task_table,
)
from autotune.measure.result import MeasureResult, MeasureStatus
from autotune.te.dag import ComputeDAG
from autotune.tuner import (
    BatchMeasured,
    Budget,
    Event,
    SessionFinished,
    SessionStarted,
    StopReason,
    TaskFinished,
    TaskProgress,
    TaskSelected,
    TaskStop,
    TuningTask,
)

Golden = Callable[[str, str], None]
GOOD = MeasureResult(MeasureStatus.OK, (2e-3,) * 3)
BAD = MeasureResult(MeasureStatus.BUILD_TIMEOUT, error="killed after 15 s")


@pytest.fixture
def story(matmul_of: Callable[[int], ComputeDAG]) -> list[Event]:
    """A resumed session of three tasks: one known from before, one measured, one invalid."""
    specs = ((256, 3, "Conv+Relu", 1e-3), (64, 1, "MatMul", None), (32, 12, "Conv", 1e-5))
    tasks = [TuningTask(f"key{n}", matmul_of(n), w, label, b) for n, w, label, b in specs]
    progress = (
        TaskProgress(tasks[0], 16, 4e-3, 1.5e-3),
        TaskProgress(tasks[1], 0, None, None),
        TaskProgress(tasks[2], 0, None, None),
    )
    budget = Budget(trials=64, time_s=600.0)
    return [
        SessionStarted("r2", progress, budget, 16, 65.0),
        TaskSelected("key64", 1e-3),
        BatchMeasured("key64", (GOOD, BAD), 1e-3, 2, 18, 71.5, 5.5e-3, 2),
        TaskFinished("key32", None, TaskStop.INVALID),
        TaskSelected("key256", 1e-4),
    ]


END = SessionFinished(
    StopReason.TIME,
    64,
    3725.0,
    14e-3,
    5.5e-3,
    ("key32",),
    (),
    {"build_timeout": 1, "run_crash": 1},
    {"search": 10.0, "model": 10.0, "measure": 80.0, "build": 99.6, "run": 12.0},
    {"key32": TaskStop.INVALID, "key64": TaskStop.BUDGET, "key256": TaskStop.BUDGET},
)


def test_live_table(story: list[Event], golden: Golden) -> None:
    view = View()
    for event in story:
        view.apply(event)
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(task_table(view))
    console.print(status_line(view, 75.0))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    golden("cli/live_table.txt", "".join(f"{line.rstrip()}\n" for line in lines))


def test_a_table_longer_than_the_screen_drops_the_lightest(
    matmul_of: Callable[[int], ComputeDAG],
) -> None:
    dag = matmul_of(8)
    rows = tuple(
        TaskProgress(TuningTask(f"k{i}", dag, i + 1, f"t{i}"), 1, 1e-3, 1e-3) for i in range(40)
    )
    view = View()
    view.apply(SessionStarted("r", rows, Budget(trials=1), 0, 0.0))
    table = task_table(view)
    assert (table.row_count, table.caption) == (30, "and 10 lighter tasks")


def test_plain_lines(
    story: list[Event], golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    renderer = Plain()
    with renderer:
        for event in story:
            renderer.show(event)
    told = capsys.readouterr()
    assert told.out == ""
    golden("cli/plain.txt", told.err)


def test_json_lines(story: list[Event], capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLines() as renderer:
        for event in [*story, END]:
            renderer.show(event)
    told = capsys.readouterr()
    events = [json.loads(line) for line in told.out.splitlines()]
    assert told.err == ""
    assert [e["event"] for e in events] == [
        "session_started",
        "task_selected",
        "batch_measured",
        "task_finished",
        "task_selected",
        "session_finished",
    ]
    assert events[0]["tasks"][0]["best_s"] == 1.5e-3
    assert events[0]["budget"] == {"trials": 64, "time_s": 600.0}
    assert events[2]["results"][1]["status"] == "build_timeout"
    assert events[-1]["reason"] == "time"


def test_live_display_ends_with_the_table(story: list[Event]) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with LiveTable(console, lambda: 0.0) as live:
        for event in story:
            live.show(event)
    assert isinstance(console.file, io.StringIO)
    last = [line.rstrip() for line in console.file.getvalue().splitlines()[-4:]]
    assert last[0].endswith("trials  task")
    assert [line.split()[0] for line in last[1:]] == ["0", "1", "2"]


def test_summary(golden: Golden) -> None:
    golden("cli/summary.txt", "\n".join(summary_lines(END)) + "\n")


def test_a_session_that_ends_early_says_why() -> None:
    stops = {"a": TaskStop.AT_BOUND, "b": TaskStop.NO_GAIN, "c": TaskStop.AT_BOUND}
    first, _, second, *_ = summary_lines(replace(END, reason=StopReason.CONVERGED, stops=stops))
    assert first == "stopped: converged after 64 trials, 1h02m: no task has anything left to gain"
    assert second == "tasks: 2 at bound, 1 no gain"


def test_nothing_measured_yet() -> None:
    view = View()
    view.apply(SessionStarted("r", (), Budget(trials=5), 0, 0.0))
    assert status_line(view, 0.0) == "Σ weight·latency -  ·  0 trials  ·  0s used, 5 trials left"


def test_batch_line_without_a_valid_program(story: list[Event]) -> None:
    view = View()
    view.apply(story[0])
    event = BatchMeasured("key32", (BAD, BAD), None, 2, 18, 70.0, 4.5e-3, 1)
    view.apply(event)
    assert "        -" in batch_line(view, event)
    assert batch_line(view, event).endswith("2x build_timeout")
