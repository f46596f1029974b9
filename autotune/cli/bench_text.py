"""⑪ Figures of `autotune bench` as text: a row per side, a row per task, a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cli.console import columns
from autotune.units import counted, format_seconds

if TYPE_CHECKING:
    from autotune.network.bench.bench import BenchResult
    from autotune.network.bench.callers import CallersResult
    from autotune.network.bench.gate import GateVerdict
    from autotune.network.bench.profile import NetworkProfile, TaskTime
    from autotune.network.bench.tokens import TokensResult


def verdict_text(found: GateVerdict, base: str) -> str:
    """`1.012 (0.998 to 1.023) times as long as base.json, 20 rounds: passes at 1.05`."""
    at = "" if found.limit is None else f" at {found.limit:g}"
    says = f"{found.outcome}{at}"
    if found.outcome == "undecided" and not at:
        says = "no difference that is sure"
    return f"{found} times as long as {base}, {counted(found.n_rounds, 'round')}: {says}"


_LEAST = ("std", "min", "max", "mean", "threads", "p99", "error", "per second", "runs")
"""Columns that a narrow terminal does without, by rising worth."""


def result_text(result: BenchResult) -> str:
    """A row per side, and below it how many times as long ours takes as the best of the others."""
    times = ("min", "median", "mean", "p95", "p99", "max", "std", "per second", "runs", "threads")
    versus = ("ratio", "error") if result.baselines else ()
    head = ("", *times, *versus)
    rows = [("autotune", *_times(result.autotune.to_json()), *("" for _ in versus))]
    for name, timing in result.baselines.items():
        compared = (f"{result.ratios[name]:.3f}", f"{timing.max_error or 0.0:.1e}")
        rows.append((name, *_times(timing.to_json()), *compared))
    lines = [columns(head, rows, head[1:], least=_LEAST)]
    if result.ratio is not None:
        best = f" to {result.best}, the fastest other" if len(result.baselines) > 1 else ""
        lines.append(f"ratio of medians{best}: {result.ratio:.3f} (below 1: autotune is faster)")
    if result.round_trip_s is not None:
        trip = format_seconds(result.round_trip_s)
        lines.append(f"round trip of a cache line between two threads: {trip}")
    return "\n".join(lines)


def _times(timing: dict[str, Any]) -> tuple[str, ...]:
    names = ("min_s", "median_s", "mean_s", "p95_s", "p99_s", "max_s", "std_s")
    times = (format_seconds(timing[name] or 1e-12) for name in names)
    return (
        *times,
        f"{timing['inferences_per_s']:.1f}",
        str(timing["runs"]),
        str(timing["threads"]),
    )


def tokens_text(result: TokensResult) -> str:
    """A row per side: seconds of a prompt and of a single token, and tokens per second."""
    head = ("", "prompt", "prompt tokens/s", "token", "tokens/s", "rounds", "threads")
    versus = ("prompt ratio", "token ratio") if result.baselines else ()
    rows = []
    for name, timing in {"autotune": result.autotune, **result.baselines}.items():
        data: dict[str, Any] = timing.to_json()
        ratios = [r.get(name) for r in (result.prompt_ratios, result.ratios)]
        compared = tuple("" if r is None else f"{r:.3f}" for r in ratios)
        prompt, token = (format_seconds(data[f"{kind}_s"]) for kind in ("prompt", "token"))
        each = (f"{data[f'{kind}tokens_per_s']:.1f}" for kind in ("prompt_", ""))
        row = (name, prompt, next(each), token, next(each), str(data["rounds"]))
        rows.append((*row, str(data["threads"]), *compared[: len(versus)]))
    lines = [columns((*head, *versus), rows, (*head[1:], *versus))]
    lines.append(f"prompts of {result.autotune.n_prompt} tokens")
    return "\n".join(lines)


def callers_text(result: CallersResult) -> str:
    """A row per side: inferences per second of all callers, and latencies of single inferences."""
    times = ("mean", "p50", "p95", "p99", "max")
    versus = ("ratio", "error") if result.baselines else ()
    head = ("", "per second", *times, "runs", "threads", *versus)
    rows = []
    for name, timing in {"autotune": result.autotune, **result.baselines}.items():
        data: dict[str, Any] = timing.to_json()
        row = (name, f"{timing.per_s:.1f}", *(format_seconds(data[f"{t}_s"]) for t in times))
        ratio = f"{result.ratios[name]:.3f}" if name in result.ratios else ""
        error = f"{timing.max_error:.1e}" if timing.max_error is not None else ""
        rows.append((*row, str(data["runs"]), str(data["threads"]), *(ratio, error)[: len(versus)]))
    n_callers = result.autotune.n_callers
    lines = [columns(head, rows, head[1:], least=_LEAST), f"callers: {n_callers}"]
    if result.ratio is not None:
        lines.append(
            f"ratio of seconds per inference to {result.best}: {result.ratio:.3f} "
            "(below 1: autotune computes more)"
        )
    return "\n".join(lines)


def parted_text(profile: NetworkProfile) -> str:
    """Why there is no table of a profile whose tasks do not add up."""
    times = (format_seconds(seconds) for seconds in (profile.tasks_s, profile.inference_s))
    return "no table of tasks, for they add up to {} of an inference of {}".format(*times)


def profile_text(profile: NetworkProfile) -> str:
    """A row per task by falling time, their sum, and the whole inference; that alone where they do
    not add up."""
    from autotune.network.bench.profile import SLOW_RATIO

    whole = (
        f"inference: {format_seconds(profile.inference_s)} without profiling "
        f"(runs: {profile.n_runs}, threads: {profile.n_threads})"
    )
    if not profile.adds_up:
        return whole
    head = ("id", "key", "calls", "time", "share", "limit", "alone", "ratio", "", "subgraph")
    tasks = sorted(profile.tasks, key=lambda t: -t.time_s)
    rows = [_task_row(t, profile.tasks_s) for t in tasks]
    n_calls = sum(t.n_calls for t in tasks)
    total, alone = format_seconds(profile.tasks_s), format_seconds(profile.alone_s)
    ratio = _ratio(profile.tasks_s / profile.alone_s if profile.alone_s else None)
    rows.append(
        ("Σ", "", str(n_calls), total, "100.0 %", "", alone, ratio, "", counted(len(tasks), "task"))
    )
    between = profile.inference_s - profile.tasks_s
    lines = [
        columns(head, rows, right=("id", *head[2:8]), least=("key", "share", "calls", "alone")),
        f"{whole}, outside of the tasks: {_signed(between)}",
    ]
    if any(t.is_slow for t in tasks):
        lines.append(f"*: takes more than {SLOW_RATIO} times as long in the network as alone")
    return "\n".join(lines)


def _task_row(task: TaskTime, tasks_s: float) -> tuple[str, ...]:
    return (
        str(task.id),
        task.key,
        str(task.n_calls),
        format_seconds(task.time_s),
        f"{100 * task.time_s / tasks_s if tasks_s else 0.0:.1f} %",
        "-" if task.limit_share is None else f"{100 * task.limit_share:.0f} %",
        format_seconds(task.alone_s),
        _ratio(task.ratio),
        "*" if task.is_slow else "",
        task.label,
    )


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_seconds(abs(seconds))}"
