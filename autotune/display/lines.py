"""⑨ A session as text: the live display, one line per batch, and the summary."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.display.view import TaskRow, View, stop_text
from autotune.printable import LEAST_WIDTH, one_line
from autotune.records import InTurns
from autotune.result import MeasureResult, MeasureStatus
from autotune.tuner import (
    BatchMeasured,
    CandidateBuilt,
    Outlook,
    SessionFinished,
    StopReason,
    TaskStop,
    Totals,
)
from autotune.units import counted, format_duration, format_seconds

_MAX_ROWS = 30
_MORE_LINES = 2  # the head of the table, and how many tasks are not in it
_MOST_NOTES = 3
_LINES_PER_NOTE = 8  # one line of a note for so many of the terminal
_INDENT = "  "
_LEGEND_FROM = 16  # lines of a terminal
_BAR = 30
LEGEND = "Σ: of all calls, an estimate; % bound: least possible time by peak rates / best"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table, on terminals that are at least so wide."""

    title: str
    text: Callable[[TaskRow], str]
    least_width: int = 0


_COLUMNS = (
    _Column("id", lambda row: str(row.id)),
    _Column("weight", lambda row: f"{row.task.weight:.4g}", 50),
    _Column("best", lambda row: format_seconds(row.best_s)),
    _Column("GFLOPS", lambda row: row.gflops_text, 70),
    _Column("% bound", lambda row: row.bound_text, 60),
    _Column("trials", lambda row: str(row.n_trials), 30),
)


def display(view: View, elapsed_s: float, width: int, height: int) -> RenderableType:
    """The status, notes, and as many of the heaviest tasks as fit; the terminal wraps no line."""
    told = [*status_lines(view, elapsed_s), *note_lines(view, width, height)]
    status = [_fitted(line, width) for line in told]
    legend = [_fitted(LEGEND, width)] if height >= _LEGEND_FROM else []
    n_rows = height - 1 - len(status) - _MORE_LINES - len(legend)
    if n_rows < 1 or width < LEAST_WIDTH:
        return Group(*status[: max(1, height - 1)])
    table = task_table(view, n_rows, width)
    more = more_text(view, table)
    return Group(*status, table, *([_fitted(more, width)] if more else []), *legend)


def _fitted(line: str, width: int) -> Text:
    text = Text(one_line(line), no_wrap=True, end="\n")
    text.truncate(width, overflow="ellipsis")
    return text


def task_table(view: View, n_rows: int = _MAX_ROWS, width: int = 80) -> Table:
    """One row per task in model order, of `n_rows` tasks: the one at work and the heaviest.

    Columns that say least are left out where there is no room for them.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    kept = [c for c in _COLUMNS if width >= c.least_width]
    for column in kept:
        table.add_column(column.title, justify="right", no_wrap=True)
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    rows = sorted(view.rows.values(), key=partial(_row_order, view.current))
    shown = sorted(rows[: min(n_rows, _MAX_ROWS)], key=lambda r: r.id)
    for row in shown:
        mark = "▶ " if row.task.key == view.current else ""
        label = mark + row.task.label + (f" ({row.finished})" if row.finished else "")
        table.add_row(
            *(c.text(row) for c in kept), Text(one_line(label)), style="bold" if mark else None
        )
    return table


def more_text(view: View, table: Table) -> str:
    """Number of tasks that are not in a table, as text; empty where it has all of them."""
    n = len(view.rows) - table.row_count
    return f"and {counted(n, 'lighter task')}" if n else ""


def _row_order(current: str, row: TaskRow) -> tuple[bool, bool, float]:
    """The current task, then those that take longest, then the unmeasured with the most FLOPs."""
    weight = row.task.weight * (row.task.flops if row.best_s is None else row.best_s)
    return row.task.key != current, row.best_s is None, -weight


def status_lines(view: View, elapsed_s: float) -> list[str]:
    """Weighted latency now and untuned; the budget, used and left; the task at work.

    Before a session begins, only what it does: neither its tasks nor its budget are known.
    """
    if not view.has_begun:
        return [_work_text(view)]
    share = view.share_done(elapsed_s)
    return [
        total_text(view, "Σ weight·latency"),
        *([] if share is None else [bar_text(share)]),
        f"{format_duration(elapsed_s)} used, {view.left_text(elapsed_s)}"
        f"  ·  {counted(view.n_trials, 'trial')}{failure_text(view)}",
        _work_text(view),
        *([outlook_text(view.outlook)] if view.outlook else ()),
        *([gained_text(view.gained)] if view.gained else ()),
        *([_device_text(view)] if view.devices else []),
    ]


def note_lines(view: View, width: int, height: int) -> list[str]:
    """The last notes, folded between words; one that would take the room of the table is cut."""
    most = max(1, height // _LINES_PER_NOTE)
    lines = []
    for note in view.notes[-_MOST_NOTES:]:
        text = f"note: {one_line(note)}"
        lines += textwrap.wrap(
            text,
            max(width, LEAST_WIDTH),
            subsequent_indent=_INDENT,
            max_lines=most,
            placeholder=" …",
        )
    return lines


def bar_text(share: float) -> str:
    """`━━━━━━╌╌╌╌  60 % of the budget`."""
    n = math.floor(_BAR * share)
    return f"{'━' * n}{'╌' * (_BAR - n)} {math.floor(100 * share):3} % of the budget"


def outlook_text(found: Outlook) -> str:
    """`untuned 31.00 ms by its tasks as measured, 62 % of the speed that peak and bandwidth …`."""
    little = ": so much that tuning may not pay" if found.is_little else ""
    untuned = f"untuned {format_seconds(found.untuned_s)} by its tasks as measured"
    return f"{untuned}, {reached_text(found.bound_s, found.untuned_s)}{little}"


def reached_text(bound_s: float, latency_s: float) -> str:
    """`62 % of the speed that peak and bandwidth permit`."""
    return f"{100 * bound_s / latency_s:.0f} % of the speed that peak and bandwidth permit"


def gained_text(found: InTurns) -> str:
    """`an earlier session gained 1.115x: 5.031 ms untuned → 4.512 ms tuned`."""
    times = f"{format_seconds(found.untuned_s)} untuned → {format_seconds(found.tuned_s)} tuned"
    return f"an earlier session gained {1 / found.ratio:.3f}x: {times}, measured in turns"


def _work_text(view: View) -> str:
    if view.is_stopping:
        return "finishing the current measurement; Ctrl-C once more to stop at once"
    if view.in_network:
        return view.in_network
    if view.current not in view.rows:
        return "starting: a default program for each task"
    row = view.rows[view.current]
    if view.is_final:
        return f"finalists measured again: task {row.id}, {row.task.label}"
    n_done, n_batch = view.batch
    doing, n = ("building", view.n_built) if view.is_building else ("measuring", n_done)
    batch = f"{n} of {n_batch} candidates of " if n_batch else ""
    return f"{doing} {batch}task {row.id}, {row.task.label}"


def built_line(view: View, event: CandidateBuilt) -> str:
    """`  1m05s   12 %  building 4 of 9 candidates of task 3`."""
    return (
        f"{format_duration(event.elapsed_s):>7}  {share_text(view, event.elapsed_s)}"
        f"building {event.n_done} of {event.n_batch} candidates of task {view.rows[event.task].id}"
    )


def _device_text(view: View) -> str:
    """`2 devices, trials: board-1 120, board-2 96`."""
    counts = ", ".join(f"{name} {n_trials}" for name, n_trials in view.devices.items())
    return f"{counted(len(view.devices), 'device')}, trials: {counts}"


def total_text(view: View, what: str) -> str:
    """`total 24.1 ms (31.0 ms untuned)`; `total of 2 of 3 tasks: 9.8 ms` while tasks are missing.

    Nothing is compared that is not of the same calls. A sum of a part says so before its number,
    for the end of a line may be cut.
    """
    found = view.totals
    if not found.n_known:
        return f"{what} -"
    is_alike = found.total_s == found.tuned_s
    now = format_seconds(found.total_s or None)
    now += f" ({format_seconds(found.untuned_s)} untuned)" if is_alike and found.untuned_s else ""
    missing = len(view.rows) - found.n_known
    part = f" of {found.n_known} of {counted(len(view.rows), 'task')}:" if missing else ""
    return f"{what}{part} {now}"


def failure_text(view: View) -> str:
    """`, 3 failed`, or nothing."""
    n_failed = view.statuses.total() - view.statuses[MeasureStatus.OK]
    return f", {n_failed} failed" if n_failed else ""


def batch_line(view: View, event: BatchMeasured) -> str:
    """A batch in one line."""
    row = view.rows[event.task]
    failed = _failures(event.results)
    devices = sorted({r.device for r in event.results} - {""})
    on = f"  on {', '.join(devices)}" if devices else ""
    return (
        f"{format_duration(event.elapsed_s):>7}  {share_text(view, event.elapsed_s)}"
        f"{event.session_trials:>6} {'trial ' if event.session_trials == 1 else 'trials'}  "
        f"task {row.id:<3} {format_seconds(row.best_s):>9}  {row.gflops_text:>7} GFLOPS  "
        f"{total_text(view, 'total')}{failed}{on}"
    )


def share_text(view: View, elapsed_s: float) -> str:
    """` 28 %  `: the share of the budget that is spent; nothing without a limit."""
    share = view.share_done(elapsed_s)
    return "" if share is None else f"{math.floor(100 * share):3} %  "


def _failures(results: tuple[MeasureResult, ...]) -> str:
    counts = Counter(r.status.value for r in results if not r.ok)
    return "".join(f"  {n}x {status}" for status, n in sorted(counts.items()))


def stops_text(stops: Mapping[str, TaskStop]) -> str:
    """`3 at bound, 20 no gain, 5 budget`."""
    counts = Counter(stop_text(stop) for stop in stops.values())
    return ", ".join(f"{n} {text}" for text, n in counts.most_common())


def comparison_text(event: SessionFinished) -> str:
    """`estimate, Σ weight·latency: 14.00 ms untuned → 5.500 ms tuned (2.55x)`, of the same calls.

    Where that is not the whole network, how much of it; where nothing can be compared, only what
    is known.
    """
    found = event.totals
    if found.ratio is None:
        if not found.n_known:
            return f"{_ESTIMATE}: -"
        of = f" of {counted(found.n_known, 'task')}"
        return f"{_ESTIMATE}{of}: {format_seconds(found.total_s)}, no default program was measured"
    tasks = counted(found.n_compared, "task")
    part = "" if found.is_complete else f" of {tasks} ({_share_text(found)})"
    again = ", finalists measured again" if event.n_remeasured else ""
    return (
        f"{_ESTIMATE}{part}: {format_seconds(found.untuned_s)} untuned → "
        f"{format_seconds(found.tuned_s)} tuned ({found.ratio:.2f}x{again})"
    )


_ESTIMATE = "estimate, Σ weight·latency"


def in_turns_text(found: InTurns, bound_s: float | None = None) -> str:
    """`measured in turns: 5.031 ms untuned → 4.512 ms tuned (1.115x, 1.110x to 1.120x)`, and what
    `compile` makes of it; with the bound of the network, how near it is."""
    ratios = f"{1 / found.ratio:.3f}x, {1 / found.high:.3f}x to {1 / found.low:.3f}x"
    times = f"{format_seconds(found.untuned_s)} untuned → {format_seconds(found.tuned_s)} tuned"
    advice = ": compile takes the untuned programs" if found.is_slower else ""
    least_s = min(found.untuned_s, found.tuned_s)
    reached = f"; {reached_text(bound_s, least_s)}" if bound_s else ""
    return f"measured in turns: {times} ({ratios}){advice}{reached}"


def _share_text(found: Totals) -> str:
    return f"{math.floor(100 * found.share)} % of the FLOPs"


def summary_lines(event: SessionFinished) -> Iterator[str]:
    """Summary of the session, for people."""
    early = event.reason in (StopReason.CONVERGED, StopReason.EXHAUSTED)
    yield (
        f"stopped: {event.reason.value} after {counted(event.n_trials, 'trial')}, "
        f"{format_duration(event.elapsed_s)}"
        + (": no task has anything left to gain" if early else "")
    )
    yield comparison_text(event)
    if event.stops:
        yield f"tasks: {stops_text(event.stops)}"
    if event.failures:
        parts = ", ".join(f"{n} {status}" for status, n in event.failures.items())
        yield f"failed candidates: {parts}"
    yield seconds_text(event.seconds)


def seconds_text(seconds: Mapping[str, float]) -> str:
    """`time: building 93 %, running 4 %, search 3 %, model 0 % (…)`: shares of the wall clock."""
    wall = {name: seconds[name] for name in ("search", "model", "measure")}
    built_s = seconds.get("building", 0.0)
    if built_s:
        wall = {"building": built_s, "running": wall.pop("measure") - built_s} | wall
    total = sum(wall.values()) or 1.0
    shares = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in wall.items())
    return (
        f"time: {shares} (candidates: {seconds['build']:.0f} s of building, "
        f"{seconds['run']:.0f} s of running)"
    )
