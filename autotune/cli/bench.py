"""⑪ `autotune bench`: latency of a compiled model, alone, beside others, or task by task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import columns, debug_option, put, put_json, say_note
from autotune.cli.models import say_random_weights
from autotune.cli.options import DURATION, FILE, THREADS, Names, format_option
from autotune.config import AUTO
from autotune.errors import UsageError
from autotune.units import format_seconds, format_shapes

if TYPE_CHECKING:
    from autotune.network.bench.bench import BenchResult
    from autotune.network.bench.callers import CallersResult
    from autotune.network.bench.profile import NetworkProfile, TaskTime
    from autotune.network.runtime.runtime import Model

BASELINES = ("onnxruntime", "openvino", "openvino:default")


@click.command("bench")
@click.argument("artifact", metavar="OUT", type=FILE)
@click.option(
    "--against",
    type=Names(BASELINES),
    multiple=True,
    help="Measure these as well, in turns: onnxruntime, openvino, openvino:default. Repeatable.",
)
@click.option("--callers", type=int, help="Inferences per second of so many threads that call it.")
@click.option("--per-task", is_flag=True, help="Show where the time goes, task by task.")
@click.option(
    "--log", "log_path", type=FILE, help="Log with the latencies of tasks.  [as compiled]"
)
@click.option("--threads", type=THREADS, help="Threads to run on.  [as compiled]")
@click.option("--model", type=FILE, help="ONNX file for --against.  [the one compiled]")
@click.option("--time", "time_s", type=DURATION, default="2s", help="Time per side.  [2s]")
@format_option
@debug_option
def command(
    artifact: Path,
    against: tuple[tuple[str, ...], ...],
    callers: int | None,
    per_task: bool,
    log_path: Path | None,
    threads: int | None,
    model: Path | None,
    time_s: float,
    style: str,
) -> None:
    """Measure the latency of OUT, a file that `autotune compile` wrote.

    With --against, all run the same weights on the same random inputs with the same number of
    threads, in float32, and take turns, so that what disturbs the machine disturbs all.

    With --callers, so many Python threads call one model at once, and others in the way that they
    compute the most: OpenVINO in streams, ONNX Runtime with one session for all callers and with a
    session of one thread for each.

    With --per-task, every kernel of the running network is timed, and each task is put beside the
    latency that tuning measured of it alone.

    A model that was compiled for several shapes is measured at each of them.
    """
    from autotune.api.compile.benching import bench
    from autotune.network.runtime.loading import load

    names = tuple(dict.fromkeys(name for part in against for name in part))
    if per_task and names:
        raise UsageError("--per-task cannot look into others", "leave --against out")
    if per_task and callers is not None:
        raise UsageError("--per-task looks into single inferences", "leave --callers out")
    if log_path and not per_task:
        raise UsageError("--log is for --per-task", "add --per-task, or leave --log out")
    compiled = load(artifact, threads)
    if compiled.artifact.random_weights:
        say_random_weights(compiled.artifact.name)
    if names and compiled.artifact.precision != "f32":
        others = "others compute in float32"
        if "openvino:default" in names:
            others += ", openvino:default in what it chooses"
        say_note(f"{_products_text(compiled.artifact.precision)} here; {others}")
    results: list[BenchResult | CallersResult | NetworkProfile] = []
    for variant in compiled.variants:
        if len(compiled.variants) > 1 and style == "text":
            put(f"{format_shapes({end.name: end.shape for end in variant.input_info})}:")
        if per_task:
            results.append(_profile(variant, log_path, time_s))
        elif callers is not None:
            results.append(bench(variant, names, model, time_s, callers=callers))
        else:
            results.append(bench(variant, names, model, time_s))
        _put_text(results[-1], style)
    if style == "json":
        found = [result.to_json() for result in results]
        several = [
            {"inputs": {end.name: list(end.shape) for end in v.input_info}} | data
            for v, data in zip(compiled.variants, found, strict=True)
        ]
        put_json(found[0] if len(found) == 1 else {"variants": several})


def _products_text(precision: str) -> str:
    if precision == AUTO:
        return "some products in float32, some in half precision"
    return f"products in {precision}"


def _put_text(result: BenchResult | CallersResult | NetworkProfile, style: str) -> None:
    """Say what disturbed the measurement, and print it unless JSON is wanted."""
    from autotune.network.bench.bench import BenchResult
    from autotune.network.bench.profile import NetworkProfile

    if isinstance(result, NetworkProfile):
        text = profile_text(result)
    else:
        if result.noise is not None:
            say_note(str(result.noise))
        text = result_text(result) if isinstance(result, BenchResult) else callers_text(result)
    if style == "text":
        put(text)


def result_text(result: BenchResult) -> str:
    """A row per side, and below it how many times as long ours takes as the best of the others."""
    times = ("min", "median", "mean", "p95", "p99", "max", "std", "runs", "threads")
    versus = ("ratio", "error") if result.baselines else ()
    head = ("", *times, *versus)
    rows = [("autotune", *_times(result.autotune.to_json()), *("" for _ in versus))]
    for name, timing in result.baselines.items():
        compared = (f"{result.ratios[name]:.3f}", f"{timing.max_error or 0.0:.1e}")
        rows.append((name, *_times(timing.to_json()), *compared))
    lines = [columns(head, rows, right=head[1:])]
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
    return (*times, str(timing["runs"]), str(timing["threads"]))


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
    lines = [columns(head, rows, right=head[1:]), f"callers: {n_callers}"]
    if result.ratio is not None:
        lines.append(
            f"ratio of seconds per inference to {result.best}: {result.ratio:.3f} "
            "(below 1: autotune computes more)"
        )
    return "\n".join(lines)


def _profile(compiled: Model, log_path: Path | None, time_s: float) -> NetworkProfile:
    from autotune.api.compile.benching import tuned_alone
    from autotune.network.bench.profile import profile_tasks

    tuned = tuned_alone(compiled, log_path)
    profile = profile_tasks(compiled, tuned, min_s=time_s)
    if not tuned:
        say_note("no task was compiled from a record; --log names a log with latencies")
    elif not any(t.n_threads == compiled.n_threads for t in tuned.values()):
        counts = ", ".join(map(str, sorted({t.n_threads for t in tuned.values()})))
        say_note(f"latencies alone are left out: they are for another number of threads ({counts})")
    return profile


def profile_text(profile: NetworkProfile) -> str:
    """A row per task by falling time, their sum, and the whole inference."""
    from autotune.network.bench.profile import SLOW_RATIO

    head = ("id", "key", "calls", "time", "share", "alone", "ratio", "", "subgraph")
    tasks = sorted(profile.tasks, key=lambda t: -t.time_s)
    rows = [_task_row(t, profile.tasks_s) for t in tasks]
    n_calls = sum(t.n_calls for t in tasks)
    total, alone = format_seconds(profile.tasks_s), format_seconds(profile.alone_s)
    ratio = _ratio(profile.tasks_s / profile.alone_s if profile.alone_s else None)
    rows.append(("Σ", "", str(n_calls), total, "100.0 %", alone, ratio, "", f"{len(tasks)} tasks"))
    between = profile.inference_s - profile.tasks_s
    lines = [
        columns(head, rows, right=("id", *head[2:7])),
        f"inference: {format_seconds(profile.inference_s)} without profiling "
        f"(runs: {profile.n_runs}, threads: {profile.n_threads}), "
        f"outside of the tasks: {_signed(between)}",
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
        format_seconds(task.alone_s),
        _ratio(task.ratio),
        "*" if task.is_slow else "",
        task.label,
    )


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_seconds(abs(seconds))}"
