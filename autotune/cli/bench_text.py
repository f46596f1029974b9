"""⑪ Figures of `autotune bench` as text: a row per side, a row per task, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.cli.console import columns
from autotune.units import counted, format_seconds

if TYPE_CHECKING:
    from autotune.network.bench.bench import BenchResult, Comparison
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


def _sides(
    result: Comparison[Any],
    shown: Mapping[str, str],
    compared: Mapping[str, Callable[[str, Any], str]],
    least: Sequence[str] = (),
) -> str:
    """A row per side: of its JSON what is `shown`, by the names of columns, and beside others
    what is `compared`."""
    more = compared if result.baselines else {}
    rows = []
    for name, timing in result.sides.items():
        data = timing.to_json()
        cells = (_cell(key, data[key]) for key in shown.values())
        rows.append((name, *cells, *(text(name, timing) for text in more.values())))
    head = ("", *shown, *more)
    return columns(head, rows, head[1:], least=least)


def _cell(key: str, value: float) -> str:
    if key.endswith("per_s"):
        return f"{value:.1f}"
    return format_seconds(value or 1e-12) if key.endswith("_s") else str(value)


def _ratio_of(ratios: Mapping[str, float]) -> Callable[[str, Any], str]:
    return lambda name, timing: f"{ratios[name]:.3f}" if name in ratios else ""


def _beside(result: Comparison[Any]) -> dict[str, Callable[[str, Any], str]]:
    """The ratio and the error of a baseline."""

    def error(name: str, timing: Any) -> str:
        return "" if timing is result.autotune else f"{timing.max_error or 0.0:.1e}"

    return {"ratio": _ratio_of(result.ratios), "error": error}


_COUNTS = {"runs": "runs", "threads": "threads"}


def result_text(result: BenchResult) -> str:
    """A row per side, and below it how many times as long ours takes as the best of the others."""
    names = ("min", "median", "mean", "p95", "p99", "max", "std")
    shown = {name: f"{name}_s" for name in names} | {"per second": "inferences_per_s"} | _COUNTS
    lines = [_sides(result, shown, _beside(result), _LEAST)]
    if result.ratio is not None:
        best = f" to {result.best}, the fastest other" if len(result.baselines) > 1 else ""
        lines.append(f"ratio of medians{best}: {result.ratio:.3f} (below 1: autotune is faster)")
    if result.round_trip_s is not None:
        trip = format_seconds(result.round_trip_s)
        lines.append(f"round trip of a cache line between two threads: {trip}")
    return "\n".join(lines)


def tokens_text(result: TokensResult) -> str:
    """A row per side: seconds of a prompt and of a single token, and tokens per second."""
    shown = {"prompt": "prompt_s", "prompt tokens/s": "prompt_tokens_per_s", "token": "token_s"}
    shown |= {"tokens/s": "tokens_per_s", "rounds": "rounds", "threads": "threads"}
    ratios = {"prompt ratio": result.prompt_ratios, "token ratio": result.ratios}
    text = _sides(result, shown, {name: _ratio_of(known) for name, known in ratios.items()})
    return f"{text}\nprompts of {result.autotune.n_prompt} tokens"


def callers_text(result: CallersResult) -> str:
    """A row per side: inferences per second of all callers, and latencies of single inferences."""
    names = ("mean", "p50", "p95", "p99", "max")
    shown = {"per second": "inferences_per_s"} | {name: f"{name}_s" for name in names} | _COUNTS
    lines = [_sides(result, shown, _beside(result), _LEAST)]
    lines.append(f"callers: {result.autotune.n_callers}")
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
