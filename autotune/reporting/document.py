"""⑧ Figures as chapters of a page: paragraphs, tables, plots and texts, whatever renders them.

SearchFigures ─► document ─► Chapter(title, blocks) ─► html · markdown
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, starmap
from types import MappingProxyType
from typing import Any

from autotune.codec import BAD
from autotune.display.view import stop_text
from autotune.measure.timing.noise import Noise
from autotune.network.bench.profile import SLOW_RATIO, NetworkProfile
from autotune.records import InTurns
from autotune.reporting import plots
from autotune.reporting.blocks import Block, Chapter, Listing, Paragraph, Picture, Sheet
from autotune.reporting.comparison import SearchComparison
from autotune.reporting.figures import SearchFigures, TaskFigures
from autotune.reporting.file_sheets import choice_blocks, node_blocks, nodes_text
from autotune.tuner import Resource, TaskStop
from autotune.units import counted, format_duration, format_flops, format_seconds

_HEAVIEST = 12
"""Tasks that are plotted one by one."""


def document(
    figures: SearchFigures,
    profiles: Mapping[str, NetworkProfile] = MappingProxyType({}),
    other: SearchFigures | None = None,
    comparison: SearchComparison | None = None,
) -> list[Chapter]:
    """Chapters that have something to say.

    `profiles`: of the compiled network, by the shapes of its inputs. `other`: the search that
    `comparison` is with.
    """
    parts = [
        ("Result", _result(figures)),
        ("Compared", _compared(figures, other, comparison) if other and comparison else ()),
        ("Latency during the search", _progress(figures)),
        ("Where the time goes", _where(figures)),
        ("The compiled network", chain.from_iterable(starmap(_profiled, profiles.items()))),
        ("Roofline", _roofline(figures)),
        ("Tasks", _tasks(figures)),
        ("Choices that mattered", choice_blocks(figures)),
        ("Nodes of the file", node_blocks(figures)),
        ("Predicted and measured", _predicted(figures)),
        ("Failed candidates", _failures(figures)),
        ("Noise", _noise(figures)),
        ("Loops of the best programs", _loops(figures)),
    ]
    chapters = [Chapter(title, tuple(blocks)) for title, blocks in parts]
    return [chapter for chapter in chapters if chapter.blocks]


def search_blocks(figures: SearchFigures) -> list[Block]:
    """The search of a computation in brief: latency over trials, roofline, figures."""
    parts = (_progress(figures), _roofline(figures), _tasks(figures), _failures(figures))
    return [block for block in chain.from_iterable(parts) if not _is_detail(block)]


def _is_detail(block: Block) -> bool:
    return isinstance(block, Sheet) and block.is_detail


# --- result -------------------------------------------------------------------------------------


def headline(figures: SearchFigures) -> str:
    """What the search came to, in one sentence."""
    if figures.ratio is None:
        return "Nothing can be compared: no default program was measured beside its task."
    part = "" if figures.share == 1 else f" of {100 * figures.share:.0f} % of the FLOPs"
    return (
        f"Latency{part}: {format_seconds(figures.untuned_s)} untuned → "
        f"{format_seconds(figures.tuned_s)} tuned ({figures.ratio:.2f}×)."
    )


def in_turns_line(found: InTurns) -> str:
    """The compiled network beside the untuned one, in one sentence."""
    advice = " The untuned network is faster: compiling takes it." if found.is_slower else ""
    return (
        f"Compiled and timed in turns: {format_seconds(found.untuned_s)} untuned → "
        f"{format_seconds(found.tuned_s)} tuned ({1 / found.ratio:.3f}×, {1 / found.high:.3f}× to "
        f"{1 / found.low:.3f}×).{advice}"
    )


def _result(figures: SearchFigures) -> Iterator[Block]:
    if figures.in_turns is not None:
        yield Paragraph(in_turns_line(figures.in_turns))
    yield Paragraph(
        f"{headline(figures)} An estimate: the sum of the calls of all tasks, each measured alone."
        if figures.ratio
        else headline(figures)
    )
    rows = [
        ("CPU", f"{figures.cpu}, {counted(figures.n_threads, 'thread')}"),
        ("Begun", figures.created),
        ("Search", _search_text(figures)),
    ]
    if figures.seconds:
        rows.append(("Time spent on", _seconds_text(figures.seconds)))
    rows.append(("Versions", ", ".join(f"{n} {v}" for n, v in figures.versions.items())))
    rows.append(("Log", figures.log))
    yield Sheet("The search", ("", ""), tuple(rows))
    for note in figures.notes:
        yield Paragraph(f"Note: {note}.")


def _search_text(figures: SearchFigures) -> str:
    reason = f"stopped: {figures.stopped}" if figures.stopped else "without an end"
    runs = f" in {figures.n_runs} runs" if figures.n_runs > 1 else ""
    trials = counted(figures.n_trials, "trial")
    return (
        f"{counted(len(figures.tasks), 'task')}, {trials}, {format_duration(figures.elapsed_s)}"
        f"{runs}; {reason}"
    )


def _seconds_text(seconds: dict[str, float]) -> str:
    wall: dict[str, float] = {
        n: seconds[n] for n in ("building", "search", "model", "measure") if n in seconds
    }
    if "building" in wall:
        wall["running"] = wall.pop("measure") - wall["building"]
    total = sum(wall.values()) or 1.0
    return ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in wall.items())


# --- latency over the search --------------------------------------------------------------------


def _progress(figures: SearchFigures) -> Iterator[Block]:
    points = figures.progress
    if not points:
        return
    first, last = points[0], points[-1]
    middle_s = (first.latency_s + last.latency_s) / 2
    half = next(p for p in points if p.latency_s <= middle_s)
    has_gain = last.latency_s < first.latency_s
    yield Picture(
        "Latency over trials",
        f"From {format_seconds(first.latency_s)} to {format_seconds(last.latency_s)} in "
        f"{counted(last.n_trials, 'trial')}"
        + (f"; half of the gain after {half.n_trials}." if has_gain else "."),
        plots.progress(figures, "trials"),
    )
    yield Picture(
        "Latency over time",
        f"The same in {format_duration(last.elapsed_s)}"
        + (f"; half of the gain after {format_duration(half.elapsed_s)}." if has_gain else "."),
        plots.progress(figures, "time"),
    )
    heavy = [t for t in heaviest(figures.tasks, _HEAVIEST) if t.progress]
    if len(heavy) > 1:
        yield Picture(
            "The tasks that take longest, over their trials",
            "",
            plots.task_progress(heavy),
            "Lowest latency so far of each. The dashed line is the bound, where one is known. "
            "The table of tasks has first and last.",
        )
    rows = tuple(
        (str(p.n_trials), format_duration(p.elapsed_s), format_seconds(p.latency_s))
        for p in _few(points, 20)
    )
    head = ("trials", "time", "latency")
    yield Sheet("Latency in numbers", head, rows, frozenset(head), True)


def heaviest(tasks: Sequence[TaskFigures], n: int) -> list[TaskFigures]:
    """The tasks that take most of an inference, in model order."""
    measured = [t for t in tasks if t.tuned_s]
    return sorted(
        sorted(measured, key=lambda t: -t.weight * (t.tuned_s or 0.0))[:n], key=lambda t: t.id
    )


def _few(points: Sequence[Any], most: int) -> list[Any]:
    step = max(1, math.ceil(len(points) / most))
    return [*points[:-1:step], points[-1]]


# --- where the time goes ------------------------------------------------------------------------


def _where(figures: SearchFigures) -> Iterator[Block]:
    calls = [c for c in figures.calls if c.tuned_s and c.untuned_s]
    calls.sort(key=lambda c: -(c.untuned_s or 0.0))
    if not calls:
        return
    top = calls[:_HEAVIEST]
    total = sum(c.tuned_s or 0.0 for c in calls)
    share = sum(c.tuned_s or 0.0 for c in top) / total
    gain = max(calls, key=lambda c: (c.untuned_s or 0.0) - (c.tuned_s or 0.0))
    saved = (gain.untuned_s or 0.0) - (gain.tuned_s or 0.0)
    text = (
        f"{counted(len(top), 'group')} of calls {'take' if len(top) > 1 else 'takes'} "
        f"{100 * share:.0f} % of the tuned latency. Most was saved by "
        f"{gain.label} (task {' and '.join(map(str, gain.tasks))}): "
        f"{format_seconds(saved if saved > 0 else None)}."
    )
    yield Picture("Untuned and tuned", text, plots.before_after(top))
    rows = tuple(
        (
            _ids(c.tasks),
            c.label,
            format_seconds(c.untuned_s),
            format_seconds(c.tuned_s),
            f"{100 * (c.tuned_s or 0.0) / total:.1f} %",
            f"{(c.untuned_s or 0.0) / (c.tuned_s or 1.0):.2f}×",
        )
        for c in calls
    )
    head = ("task", "computation", "untuned", "tuned", "share", "gain")
    yield Sheet("Seconds of an inference by call", head, rows, frozenset(head) - {head[1]}, True)


def _ids(tasks: Sequence[int]) -> str:
    return ", ".join(map(str, tasks))


def _profiled(shapes: str, profile: NetworkProfile) -> Iterator[Block]:
    tasks = sorted(profile.tasks, key=lambda t: -t.time_s)
    whole = (
        f"Measured here, {shapes}: one inference takes {format_seconds(profile.inference_s)} "
        f"({counted(profile.n_runs, 'run')}, {counted(profile.n_threads, 'thread')})."
    )
    noise = f" Meanwhile {profile.noise.causes}." if profile.noise else ""
    if not profile.adds_up:
        yield Paragraph(
            f"{whole}{noise} Its tasks add up to {format_seconds(profile.tasks_s)}, so their times "
            "say nothing: make the report on a quieter machine."
        )
        return
    n_slow = sum(t.is_slow for t in tasks)
    who = counted(n_slow, "task") if n_slow else "No task"
    slow = f"{who} {'take' if n_slow > 1 else 'takes'}"
    yield Paragraph(
        f"{whole}{noise} {slow} more than {SLOW_RATIO} times as long in the network as alone."
    )
    rows = tuple(
        (
            str(t.id),
            t.label,
            str(t.n_calls),
            format_seconds(t.time_s),
            f"{100 * t.time_s / profile.tasks_s if profile.tasks_s else 0.0:.1f} %",
            format_seconds(t.alone_s),
            "-" if t.ratio is None else f"{t.ratio:.2f}×",
        )
        for t in tasks
    )
    head = ("task", "computation", "calls", "in the network", "share", "alone", "ratio")
    yield Sheet("Tasks in the network and alone", head, rows, frozenset(head) - {head[1]})


# --- roofline and tasks -------------------------------------------------------------------------


BINDS = {
    "": "-",
    Resource.ARITHMETIC: "arithmetic",
    Resource.WEIGHTS: "reading weights",
    Resource.ACTIVATIONS: "L2 traffic",
}


def _roofline(figures: SearchFigures) -> Iterator[Block]:
    placed = [t for t in figures.tasks if t.gflops and t.n_bytes and t.bound_s]
    if not placed or not figures.peaks:
        return
    peaks = figures.peaks
    counts = [(name, sum(t.binds == kind for t in placed)) for kind, name in BINDS.items() if kind]
    bound = ", ".join(f"{n} by {name}" for name, n in counts if n)
    median = statistics.median(t.share_of_bound or 0.0 for t in placed)
    text = (
        f"Measured peaks: {peaks['flops_per_s'] * 1e-9:.0f} GFLOPS of float32, "
        f"{peaks['warm_bytes_per_s'] * 1e-9:.0f} GB/s from L2, "
        f"{peaks['cold_bytes_per_s'] * 1e-9:.0f} GB/s for weights. Tasks are bound: {bound}. "
        f"The median task reaches {100 * median:.0f} % of its bound."
    )
    key = (
        "A dot is a task, the mark above it its bound. Bounds may lie above the peak where minimal "
        "filtering saves multiplications."
    )
    yield Picture("Rate of each task over its intensity", text, plots.roofline(placed, peaks), key)


_TASK_HEAD = (
    "task", "computation", "shapes", "calls", "work", "untuned", "tuned", "GFLOPS", "% of bound",
    "bound by", "trials", "failed", "stopped", "structure",
)  # fmt: skip
_TASK_NUMBERS = frozenset(
    ("task", "calls", "work", "untuned", "tuned", "GFLOPS", "% of bound", "trials", "failed")
)


def _tasks(figures: SearchFigures) -> Iterator[Block]:
    sheet = task_sheet(figures.tasks)
    if figures.nodes:
        nodes = ((nodes_text(figures, task.id),) for task in figures.tasks)
        rows = tuple(row + more for row, more in zip(sheet.rows, nodes, strict=True))
        sheet = replace(sheet, head=(*sheet.head, "nodes"), rows=rows)
    yield sheet


def task_sheet(tasks: Sequence[TaskFigures]) -> Sheet:
    """The table of tasks, in model order."""
    rows = tuple(map(_task_row, tasks))
    return Sheet("Tasks, in model order", _TASK_HEAD, rows, _TASK_NUMBERS, rows_are="task")


def _task_row(task: TaskFigures) -> tuple[str, ...]:
    replaced = f" (for {_ids(task.replaces)})" if task.replaces else ""
    share = task.share_of_bound
    return (
        str(task.id),
        task.label + replaced,
        _arrows(task.shapes),
        f"{task.weight:.4g}",
        format_flops(task.flops),
        format_seconds(task.untuned_s),
        format_seconds(task.tuned_s),
        f"{task.gflops:.1f}" if task.gflops else "-",
        f"{100 * share:.0f}" if share else "-",
        BINDS.get(task.binds, task.binds),
        str(task.n_trials),
        str(task.n_failed),
        _stop(task.stop),
        task.structure or "-",
    )


def _arrows(text: str) -> str:
    return text.replace("->", "→")


def _stop(reason: str) -> str:
    known = {stop.value: stop for stop in TaskStop}
    return stop_text(known.get(reason)) or reason or "-"


def _loops(figures: SearchFigures) -> Iterator[Block]:
    for task in figures.tasks:
        if task.loops:
            title = f"Task {task.id}: {task.label}, {task.structure}"
            yield Listing(title, task.loops, task=task.id)


# --- predictions, failures, noise ---------------------------------------------------------------


def _predicted(figures: SearchFigures) -> Iterator[Block]:
    points = figures.predictions
    if len(points) < 2:
        return
    off = [abs(math.log2(p.measured_s / p.predicted_s)) for p in points]
    typical = 2 ** statistics.median(off)
    within = sum(o <= 1 for o in off) / len(off)
    text = (
        f"What the analytical cost model expects of {len(points)} measured candidates: off by a "
        f"factor of {typical:.2f} in the median, {100 * within:.0f} % within a factor of 2."
    )
    key = "On the line, prediction and measurement agree."
    yield Picture("Predicted and measured latency", text, plots.predictions(figures), key)


def _failures(figures: SearchFigures) -> Iterator[Block]:
    if not figures.failures:
        if figures.n_trials:
            yield Paragraph(f"None of {counted(figures.n_trials, 'trial')} failed.")
        return
    total = sum(f.n for f in figures.failures)
    kinds = ", ".join(f"{f.n} {f.status}" for f in figures.failures)
    share = f"{total} of {counted(figures.n_trials, 'candidate')} failed: {kinds}."
    yield Picture("Failed candidates by kind", share, plots.failures(figures))
    rows = tuple((f.status, str(f.n), _ids(f.tasks), f.example) for f in figures.failures)
    head = ("status", "candidates", "tasks", "one of the messages")
    yield Sheet("Failed candidates", head, rows, frozenset({"candidates"}))


def _noise(figures: SearchFigures) -> Iterator[Block]:
    noise = sorted(p.noise for p in figures.noise)
    if len(noise) >= 2:
        late = noise[min(len(noise) - 1, round(0.95 * len(noise)))]
        text = (
            "Standard error of the median of a measurement's repeats: "
            f"{100 * statistics.median(noise):.1f} % in the median, {100 * late:.1f} % at the 95th "
            "percentile."
        )
        yield Picture("Uncertainty of measurements over time", text, plots.noise(figures))
    for found in figures.disturbances:
        yield Paragraph(f"Note: {disturbance_text(found)}.")
    if noise and not figures.disturbances:
        yield Paragraph("No run noticed that others used the machine.")


def disturbance_text(found: Mapping[str, Any]) -> str:
    """The noise that the end of a run tells, in words."""
    try:
        noise = Noise(
            int(found["n_cores"]),
            float(found["other_cpus"]),
            float(found["steal"]),
            tuple(found["sessions"]),
            found.get("round_trip_ratio"),
        )
        often = f" ({100 * found['share']:.0f} % of the time)" if "share" in found else ""
        return f"{noise.causes}{often}"
    except BAD:  # another version wrote it
        return "others used the machine"


# --- two searches -------------------------------------------------------------------------------


def _compared(
    figures: SearchFigures, other: SearchFigures, comparison: SearchComparison
) -> Iterator[Block]:
    changed = [t for t in comparison.tasks if not t.is_alike]
    n_faster, n_slower = (sum((t.ratio < 1) == up for t in changed) for up in (True, False))
    ratio = comparison.ratio
    sums = (
        f"{format_seconds(comparison.before_s)} in {other.log} → "
        f"{format_seconds(comparison.after_s)} in {figures.log} (×{ratio:.3f}). "
        if ratio
        else ""
    )
    n_alike = len(comparison.tasks) - len(changed)
    text = (
        f"{sums}Of {counted(len(comparison.tasks), 'task')} that both know, {n_faster} are "
        f"faster, {n_slower} slower, {n_alike} the same within twice their noise."
    )
    yield Paragraph(text)
    for note in comparison.notes:
        yield Paragraph(f"Note: {note}.")
    if figures.progress and other.progress and figures.share == other.share:
        yield Picture(
            "Both searches over time",
            f"{other.log} ends at {format_seconds(other.progress[-1].latency_s)}, {figures.log} at "
            f"{format_seconds(figures.progress[-1].latency_s)}.",
            plots.both_progress(other, figures),
        )
    worst = max(comparison.tasks, key=lambda t: abs(math.log(t.ratio)))
    yield Picture(
        "Time of each task over its time before",
        f"Task {worst.id}, {worst.label}, changed most: ×{worst.ratio:.3f}.",
        plots.ratios(comparison),
        "Below 1 is faster.",
    )
    rows = tuple(
        (
            str(t.id),
            t.label,
            _arrows(t.shapes),
            format_seconds(t.before_s),
            format_seconds(t.after_s),
            f"{t.ratio:.3f}",
            "same" if t.is_alike else "faster" if t.ratio < 1 else "slower",
        )
        for t in sorted(comparison.tasks, key=lambda t: -t.weight * abs(t.after_s - t.before_s))
    )
    head = ("task", "computation", "shapes", "before", "after", "ratio", "verdict")
    numbers = frozenset({"task", "before", "after", "ratio"})
    yield Sheet("Tasks of both logs, the largest change first", head, rows, numbers)
