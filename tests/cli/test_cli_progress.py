"""What a session looks like, from hand-made events: golden text, no clock, no terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autotune.api.tune.tune_result import run_to_end
from autotune.cli.console import say
from autotune.cli.progress import JsonLines
from autotune.display.lines import (
    batch_line,
    display,
    more_text,
    status_lines,
    summary_lines,
    task_table,
)
from autotune.display.renderers import LiveTable, Plain
from autotune.display.view import View
from autotune.result import MeasureResult, MeasureStatus
from autotune.te.dag import ComputeDAG
from autotune.tuner import (
    BatchMeasured,
    Budget,
    CandidateBuilt,
    CandidateMeasured,
    Event,
    FinalistsMeasured,
    OfTarget,
    SessionFinished,
    SessionStarted,
    StopReason,
    TaskFinished,
    TaskProgress,
    TaskSelected,
    TaskStop,
    Totals,
    TuningTask,
)

Golden = Callable[[str, str], None]
GOOD = MeasureResult(MeasureStatus.OK, (2e-3,) * 3)
BAD = MeasureResult(MeasureStatus.BUILD_TIMEOUT, error="killed after 15 s")
FIRST = Totals(4.5e-3, 1, 12e-3, 4.5e-3, 1, 0.4)
BOTH = Totals(5.5e-3, 2, 14e-3, 5.5e-3, 2, 0.675)
WHOLE = Totals(5.5e-3, 3, 14e-3, 5.5e-3, 3, 1.0)


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
        SessionStarted("r2", progress, budget, 16, 65.0, FIRST),
        TaskSelected("key64", 1e-3),
        BatchMeasured("key64", (GOOD, BAD), 1e-3, 2, 18, 71.5, BOTH),
        TaskFinished("key32", None, TaskStop.INVALID),
        TaskSelected("key256", 1e-4),
    ]


END = SessionFinished(
    StopReason.TIME,
    64,
    3725.0,
    BOTH,
    ("key32",),
    (),
    {"build_timeout": 1, "run_crash": 1},
    {"search": 10.0, "model": 10.0, "measure": 80.0, "building": 64.0, "build": 99.6, "run": 12.0},
    {"key32": TaskStop.INVALID, "key64": TaskStop.BUDGET, "key256": TaskStop.BUDGET},
)


def drawn(view: View, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(display(view, 75.0, width, height))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50), (40, 10)])
def test_live_display(story: list[Event], golden: Golden, width: int, height: int) -> None:
    view = View()
    for event in [*story, CandidateMeasured("key256", 7, 16)]:
        view.apply(event)
    view.notes += ["others keep 0.7 of 2 cores busy; times are less certain: stop the others"]
    lines = drawn(view, width, height)
    golden(f"cli/live_table_{width}x{height}.txt", "".join(f"{line}\n" for line in lines))


def test_building_is_told_until_the_first_is_measured(story: list[Event]) -> None:
    view = View()
    for event in [*story, CandidateMeasured("key256", 0, 9)]:
        view.apply(event)
    assert status_lines(view, 75.0)[3].startswith("building 0 of 9 candidates of task 0, Conv")
    view.apply(CandidateBuilt("key256", 4, 9, 75.0))
    assert status_lines(view, 75.0)[3].startswith("building 4 of 9 candidates of task 0, Conv")
    view.apply(CandidateBuilt("key256", 9, 9, 80.0))
    assert status_lines(view, 80.0)[3].startswith("measuring 0 of 9 candidates of task 0, Conv")
    view.apply(CandidateMeasured("key256", 1, 9))
    assert status_lines(view, 80.0)[3].startswith("measuring 1 of 9 candidates of task 0, Conv")


def test_building_for_long_has_lines_now_and_then(story: list[Event]) -> None:
    lines: list[str] = []
    plain = Plain(lines.append)
    for event in story:
        plain.show(event)
    n_before = len(lines)
    for n in range(1, 10):
        plain.show(CandidateBuilt("key256", n, 9, 71.5 + 4.0 * n))
    assert [" ".join(line.split()) for line in lines[n_before:]] == [
        "1m24s 28 % building 3 of 9 candidates of task 0",
        "1m36s 28 % building 6 of 9 candidates of task 0",
    ]


@pytest.fixture
def many(matmul_of: Callable[[int], ComputeDAG]) -> View:
    """Forty measured tasks, a later one heavier than the ones before; a light one is at work."""
    dag = matmul_of(8)
    rows = tuple(
        TaskProgress(TuningTask(f"k{i}", dag, i + 1, f"t{i}"), 1, 1e-3, 1e-3) for i in range(40)
    )
    view = View()
    view.apply(SessionStarted("r", rows, Budget(trials=1), 0, 0.0, WHOLE))
    view.apply(TaskSelected("k3", 1e-3))
    return view


def test_the_final_table_drops_the_lightest_of_many_tasks(many: View) -> None:
    table = task_table(many)
    assert (table.row_count, more_text(many, table)) == (30, "and 10 lighter tasks")


@pytest.mark.parametrize("width", [120, 80, 40, 20])
@pytest.mark.parametrize("height", [40, 24, 10, 7])
def test_status_comes_first_and_the_rest_fits_the_terminal(
    many: View, width: int, height: int
) -> None:
    lines = drawn(many, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert [line[:6] for line in lines[:4]] == ["Σ weig", "╌╌╌╌╌╌", "1m15s ", "measur"]
    has_legend = height >= 16
    more, legend = lines[-2:] if has_legend else [*lines[-1:], ""]
    ids = [int(line.split()[0]) for line in lines[5 : -1 - has_legend]]
    n = min(height - 7 - has_legend, 30)
    assert ids == ([] if n < 1 else [3, *range(41 - n, 40)])
    assert n < 1 or more[:6] == f"and {40 - n}"[:6]
    assert legend == "" or legend.startswith("Σ: of all calls"[: width - 1])


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 24), (3, 3), (80, 1), (80, 3), (2, 5)])
def test_a_tiny_terminal_shows_what_fits(many: View, width: int, height: int) -> None:
    lines = drawn(many, width, height)
    assert 1 <= len(lines) <= max(1, height - 1)
    assert max(map(len, lines)) <= width


def test_an_interrupted_session_says_that_it_finishes_the_measurement(many: View) -> None:
    many.is_stopping = True
    assert drawn(many, 80, 24)[3].startswith("finishing the current measurement; Ctrl-C")


def test_finalists_are_measured_again_in_every_output(
    story: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    again = FinalistsMeasured("key256", 1.6e-3, 80.0, BOTH)
    view, plain, lines = View(), Plain(say), JsonLines()
    for event in [*story, again, again]:
        view.apply(event)
        plain.show(event)
        lines.show(event)
    assert status_lines(view, 80.0)[3] == "finalists measured again: task 0, Conv+Relu"
    assert view.rows["key256"].best_s == 1.6e-3
    told = capsys.readouterr()
    assert told.err.count("measuring the finalists again") == 1
    assert json.loads(told.out.splitlines()[-1]) == {
        "event": "finalists_measured",
        "task": "key256",
        "best_s": 1.6e-3,
        "elapsed_s": 80.0,
        "totals": {
            "total_s": 5.5e-3,
            "n_known": 2,
            "untuned_s": 14e-3,
            "tuned_s": 5.5e-3,
            "n_compared": 2,
            "share": 0.675,
        },
    }


@pytest.mark.parametrize(
    ("totals", "n_remeasured", "line"),
    [
        (WHOLE, 0, "estimate, Σ weight·latency: 14.00 ms untuned → 5.500 ms tuned (2.55x)"),
        (
            WHOLE,
            3,
            "estimate, Σ weight·latency: 14.00 ms untuned → 5.500 ms tuned "
            "(2.55x, finalists measured again)",
        ),
        (Totals(), 0, "estimate, Σ weight·latency: -"),
        (
            Totals(5e-3, 3),
            0,
            "estimate, Σ weight·latency of 3 tasks: 5.000 ms, no default program was measured",
        ),
        (
            Totals(5e-3, 3, 4e-3, 2e-3, 2, 0.999),
            0,
            "estimate, Σ weight·latency of 2 tasks (99 % of the FLOPs): "
            "4.000 ms untuned → 2.000 ms tuned (2.00x)",
        ),
    ],
)
def test_like_is_compared_with_like(totals: Totals, n_remeasured: int, line: str) -> None:
    end = replace(END, totals=totals, n_remeasured=n_remeasured)
    assert list(summary_lines(end))[1] == line


def test_a_total_of_more_than_what_is_compared_stands_alone(many: View) -> None:
    many.totals = Totals(9e-3, 40, 4e-3, 2e-3, 2, 0.2)
    assert status_lines(many, 0.0)[0] == "Σ weight·latency 9.000 ms"


def test_plain_lines(
    story: list[Event], golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    renderer = Plain(say)
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
    *last, legend = [line.rstrip() for line in console.file.getvalue().splitlines()[-5:]]
    assert legend.startswith("Σ: of all calls")
    assert last[0].endswith("trials  task")
    assert [line.split()[0] for line in last[1:]] == ["0", "1", "2"]


def test_live_display_of_several_cpus_has_the_tables_of_all(story: list[Event]) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with LiveTable(console, lambda: 0.0) as live:
        for event in story:
            for target in ("here", "board"):
                live.show(OfTarget(target, event))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    for target in ("here", "board"):
        at = max(i for i, line in enumerate(lines) if line.endswith(target))
        assert [line.split()[0] for line in lines[at + 2 : at + 5]] == ["0", "1", "2"]


def test_a_search_for_several_cpus_ends_with_all(story: list[Event], tmp_path: Path) -> None:
    end = replace(END, invalid=())

    def events() -> Generator[Event, None, None]:
        for event in (*story, end):
            yield from (OfTarget(target, event) for target in ("here", "board"))

    seen: list[Event] = []
    result = run_to_end(events, tmp_path / "a.jsonl", seen.append)
    assert len(seen) == 2 * len(story) + 2
    assert (result.finished, result.others) == (end, (end,))


def test_summary(golden: Golden) -> None:
    golden("cli/summary.txt", "\n".join(summary_lines(END)) + "\n")


def test_a_session_that_ends_early_says_why() -> None:
    stops = {"a": TaskStop.AT_BOUND, "b": TaskStop.NO_GAIN, "c": TaskStop.AT_BOUND}
    first, _, second, *_ = summary_lines(replace(END, reason=StopReason.CONVERGED, stops=stops))
    assert first == "stopped: converged after 64 trials, 1h02m: no task has anything left to gain"
    assert second == "tasks: 2 at bound, 1 no gain"


def test_nothing_measured_yet() -> None:
    view = View()
    view.apply(SessionStarted("r", (), Budget(trials=5), 0, 0.0, Totals()))
    assert status_lines(view, 0.0) == [
        "Σ weight·latency -",
        "╌" * 30 + "   0 % of the budget",
        "0s used, 5 trials left  ·  0 trials",
        "starting: a default program for each task",
    ]


def test_before_a_session_nothing_is_said_of_its_budget() -> None:
    assert status_lines(View(), 1.0) == ["starting: a default program for each task"]


def test_a_budget_without_limits_says_so() -> None:
    view = View()
    view.apply(SessionStarted("r", (), Budget(), 1, 0.0, Totals()))
    assert status_lines(view, 1.0)[1] == "1s used, no limit of time or trials  ·  1 trial"


@pytest.mark.parametrize(("width", "height", "n_lines"), [(80, 24, 3), (40, 24, 3), (80, 10, 1)])
def test_a_note_is_folded_between_words_and_leaves_room_for_the_table(
    many: View, width: int, height: int, n_lines: int
) -> None:
    many.notes.append("the weights are read again and again, " * 20)
    lines = drawn(many, width, height)
    begin = next(i for i, line in enumerate(lines) if line.startswith("note: the weights"))
    note = lines[begin : begin + n_lines]
    assert all(line.startswith("  ") for line in note[1:])
    assert note[-1].endswith(" …")
    assert lines[begin + n_lines].startswith("id")
    assert max(map(len, lines)) <= width


def test_a_short_note_is_whole_on_a_narrow_terminal(many: View) -> None:
    many.notes.append("others keep 0.7 of 2 cores busy; times are less certain: stop the others")
    begin = drawn(many, 60, 24).index("note: others keep 0.7 of 2 cores busy; times are less")
    assert drawn(many, 60, 24)[begin + 1] == "  certain: stop the others"


def test_batch_line_without_a_valid_program(story: list[Event]) -> None:
    view = View()
    view.apply(story[0])
    event = BatchMeasured("key32", (BAD, BAD), None, 2, 18, 70.0, FIRST)
    view.apply(event)
    assert "        -" in batch_line(view, event)
    assert batch_line(view, event).endswith("2x build_timeout")
