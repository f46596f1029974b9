"""⑪ A session's events on the screen: a live table, one line per batch, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.cli.console import say
from autotune.measure.result import MeasureResult, MeasureStatus
from autotune.tuner import (
    BatchMeasured,
    Budget,
    Event,
    SessionFinished,
    SessionStarted,
    StopReason,
    TaskFinished,
    TaskSelected,
    TaskStop,
    TuningTask,
    event_to_json,
    weighted_s,
)
from autotune.units import format_duration, format_seconds, gflops

_MAX_ROWS = 30


@dataclass(slots=True)
class TaskRow:
    """What the screen knows of a task."""

    id: int
    task: TuningTask
    n_trials: int = 0
    first_s: float | None = None
    best_s: float | None = None
    finished: str = ""

    @property
    def gflops_text(self) -> str:
        """Rate of the best program."""
        rate = gflops(self.task.flops, self.best_s)
        return f"{rate:.1f}" if rate else "-"

    @property
    def bound_text(self) -> str:
        """How much of the physical limit the best program reaches, in percent."""
        bound = self.task.bound_s
        return f"{100 * bound / self.best_s:.0f}" if bound and self.best_s else "-"


@dataclass(slots=True)
class View:
    """A session as its events tell it. Everything on the screen comes from here."""

    rows: dict[str, TaskRow] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    current: str = ""
    elapsed_s: float = 0.0
    n_trials: int = 0
    statuses: Counter[MeasureStatus] = field(default_factory=Counter)

    def apply(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case SessionStarted():
                rows = [
                    TaskRow(i, p.task, p.n_trials, p.first_s, p.best_s, _stop_text(p.stop))
                    for i, p in enumerate(event.tasks)
                ]
                self.rows = {row.task.key: row for row in rows}
                self.budget, self.elapsed_s = event.budget, event.elapsed_s
                self.n_trials = event.n_replayed
            case TaskSelected(task=task):
                self.current = task
            case BatchMeasured():
                self._batch(event)
            case TaskFinished(task=task, reason=reason):
                self.rows[task].finished = _stop_text(reason)

    def _batch(self, event: BatchMeasured) -> None:
        row = self.rows[event.task]
        row.best_s, row.n_trials = event.best_s, event.n_trials
        self.elapsed_s, self.n_trials = event.elapsed_s, event.session_trials
        self.statuses.update(r.status for r in event.results)
        if row.first_s is None:
            row.first_s = next((r.latency_s for r in event.results if r.latency_s), None)

    @property
    def n_known(self) -> int:
        """Tasks with a valid program."""
        return sum(row.best_s is not None for row in self.rows.values())

    def total_s(self) -> float:
        """Σ weight·latency now, over the tasks that have a program, each chain counted once."""
        return self._weighted_s({key: row.best_s for key, row in self.rows.items()})

    def start_s(self) -> float:
        """The same with the first valid program of each task."""
        return self._weighted_s({key: row.first_s for key, row in self.rows.items()})

    def _weighted_s(self, latency_s: Mapping[str, float | None]) -> float:
        return weighted_s((row.task for row in self.rows.values()), latency_s)

    def left_text(self, elapsed_s: float) -> str:
        """What is left of the budget."""
        parts = []
        if self.budget.time_s is not None:
            parts.append(format_duration(self.budget.time_s - elapsed_s))
        if self.budget.trials is not None:
            parts.append(f"{max(0, self.budget.trials - self.n_trials)} trials")
        return " or ".join(parts) or "no limit"


class Renderer:
    """Shows events as they come; a context manager around the whole session."""

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up."""

    def show(self, event: Event) -> None:
        """Show one event."""
        raise NotImplementedError


class JsonLines(Renderer):
    """Every event as one JSON object per line on stdout."""

    def show(self, event: Event) -> None:
        """Write and flush, so that a reader can follow."""
        click.echo(json.dumps(event_to_json(event), ensure_ascii=False))
        sys.stdout.flush()


class Plain(Renderer):
    """One line per batch on stderr: for pipes, files and CI."""

    def __init__(self) -> None:
        self.view = View()

    def show(self, event: Event) -> None:
        """One line for a batch, none for what adds nothing to it."""
        self.view.apply(event)
        if isinstance(event, BatchMeasured):
            say(batch_line(self.view, event))


class LiveTable(Renderer):
    """A table that is redrawn in place, with a clock that runs between events."""

    def __init__(self, console: Console, clock: Any) -> None:
        self.view = View()
        self._clock = clock
        self._shown_at = clock()
        self._live: AbstractContextManager[Any] = nullcontext()
        self._console = console

    def __enter__(self) -> LiveTable:
        self._live = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=4, transient=True
        )
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)
        if self.view.rows:
            self._console.print(task_table(self.view))

    def show(self, event: Event) -> None:
        """Remember; the next redraw shows it."""
        self.view.apply(event)
        self._shown_at = self._clock()

    def _draw(self) -> RenderableType:
        elapsed_s = self.view.elapsed_s + self._clock() - self._shown_at
        return Group(task_table(self.view), Text(status_line(self.view, elapsed_s)))


def task_table(view: View) -> Table:
    """One row per task, those that weigh most first when there are too many for the screen."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("id", "weight", "best", "GFLOPS", "% bound", "trials"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    rows = sorted(view.rows.values(), key=lambda r: -r.task.weight * (r.best_s or 1e9))
    shown = sorted(rows[:_MAX_ROWS], key=lambda r: r.id)
    for row in shown:
        mark = "▶ " if row.task.key == view.current else ""
        table.add_row(
            str(row.id),
            str(row.task.weight),
            format_seconds(row.best_s),
            row.gflops_text,
            row.bound_text,
            str(row.n_trials),
            mark + row.task.label + (f" ({row.finished})" if row.finished else ""),
            style="bold" if mark else None,
        )
    if len(rows) > len(shown):
        table.caption = f"and {len(rows) - len(shown)} lighter tasks"
    return table


def status_line(view: View, elapsed_s: float) -> str:
    """Weighted latency now and at start, trials, time used and left."""
    return (
        f"Σ weight·latency {total_text(view)}  ·  {view.n_trials} trials{failure_text(view)}"
        f"  ·  {format_duration(elapsed_s)} used, {view.left_text(elapsed_s)} left"
    )


def total_text(view: View) -> str:
    """`24.1 ms (31.0 ms at start)`, and how many tasks it covers while some are missing."""
    if not view.n_known:
        return "-"
    now = f"{format_seconds(view.total_s())} ({format_seconds(view.start_s())} at start)"
    missing = len(view.rows) - view.n_known
    return now if not missing else f"{now}, {view.n_known} of {len(view.rows)} tasks"


def failure_text(view: View) -> str:
    """`, 3 failed`, or nothing."""
    n_failed = view.statuses.total() - view.statuses[MeasureStatus.OK]
    return f", {n_failed} failed" if n_failed else ""


def batch_line(view: View, event: BatchMeasured) -> str:
    """A batch in one line."""
    row = view.rows[event.task]
    failed = _failures(event.results)
    return (
        f"{format_duration(event.elapsed_s):>7}  {event.session_trials:>6} trials  "
        f"task {row.id:<3} {format_seconds(row.best_s):>9}  {row.gflops_text:>7} GFLOPS  "
        f"total {total_text(view)}{failed}"
    )


def _failures(results: tuple[MeasureResult, ...]) -> str:
    counts = Counter(r.status.value for r in results if not r.ok)
    return "".join(f"  {n}x {status}" for status, n in sorted(counts.items()))


def _stop_text(stop: TaskStop | None) -> str:
    return stop.value.replace("_", " ") if stop is not None else ""


def stops_text(stops: Mapping[str, TaskStop]) -> str:
    """`3 at bound, 20 no gain, 5 budget`."""
    counts = Counter(_stop_text(stop) for stop in stops.values())
    return ", ".join(f"{n} {text}" for text, n in counts.most_common())


def summary_lines(event: SessionFinished) -> Iterator[str]:
    """What came out of the session, for people."""
    ratio = event.start_s / event.total_s if event.total_s else 1.0
    early = event.reason in (StopReason.CONVERGED, StopReason.EXHAUSTED)
    yield (
        f"stopped: {event.reason.value} after {event.n_trials} trials, "
        f"{format_duration(event.elapsed_s)}"
        + (": no task has anything left to gain" if early else "")
    )
    yield (
        f"Σ weight·latency: {format_seconds(event.start_s or None)} → "
        f"{format_seconds(event.total_s or None)} ({ratio:.2f}x)"
    )
    if event.stops:
        yield f"tasks: {stops_text(event.stops)}"
    if event.failures:
        parts = ", ".join(f"{n} {status}" for status, n in event.failures.items())
        yield f"failed candidates: {parts}"
    wall = {name: event.seconds[name] for name in ("search", "model", "measure")}
    total = sum(wall.values()) or 1.0
    shares = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in wall.items())
    yield (
        f"time: {shares} (candidates: {event.seconds['build']:.0f} s of building, "
        f"{event.seconds['run']:.0f} s of running)"
    )
