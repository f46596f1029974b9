"""⑪ `autotune measure`: a schedule written by hand, in turns with the best of a log."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.console import columns, common_options, put, put_json
from autotune.cli.models import find_task
from autotune.cli.option_types import FILE
from autotune.cli.options import format_option
from autotune.errors import LogMismatch, UsageError
from autotune.te.at_numbers import usual
from autotune.units import format_seconds, gflops


@click.command("measure")
@click.argument("schedule", metavar="FILE.py[:FUNCTION]")
@click.option("--log", "log_path", type=FILE, required=True, help="Log with the task.")
@click.option("--task", default="0", show_default=True, help="Id, or part of a key.")
@format_option
@common_options
def command(schedule: str, log_path: Path, task: str, style: str) -> None:
    """Measure a schedule that FUNCTION (schedule) of FILE.py writes, in turns with the log's best.

    FUNCTION gets a schedule without steps, as `explain --stage steps` prints one: print, edit,
    measure. The outputs are compared with an oracle first. Nothing is written to the log.
    """
    from autotune.api.te.measuring import measure_in_turns, schedule_of
    from autotune.api.tune.machines import local_target
    from autotune.config import TuneConfig
    from autotune.records import best_for, read_log

    file, _, name = schedule.partition(":") if ".py:" in schedule else (schedule, "", "")
    if not file.endswith(".py"):
        raise UsageError(f"'{schedule}' is no Python file", "write FILE.py or FILE.py:FUNCTION")
    log = read_log(log_path)
    key = find_task(log, task)
    if key not in log.workloads or not log.headers:
        raise LogMismatch(f"the log lacks the computation of task {key}", "tune the model again")
    dag, n_threads = log.workloads[key].dag, log.header.n_threads
    target = local_target("native")
    theirs = schedule_of(Path(file), name or "schedule", dag, target)
    best = best_for(log.within(log.max_error), target.key, n_threads).get(key)
    steps = [theirs.steps, *([best.steps] if best else [])]
    limit = log.max_error or TuneConfig().max_error
    results = measure_in_turns(dag, steps, target, n_threads, limit, log.header.dense)
    names = ("yours", "best of the log")[: len(results)]
    if style == "json":
        put_json({n: {"latency_s": r.latency_s} for n, r in zip(names, results, strict=True)})
        return
    rows = []
    for label, result in zip(names, results, strict=True):
        rate = gflops(usual(dag).flops, result.latency_s) or 0.0
        error = f"{result.max_error or 0.0:.1e}"
        rows.append((label, format_seconds(result.latency_s), f"{rate:.1f}", error))
    put(columns(("", "median", "GFLOPS", "error"), rows, right=("median", "GFLOPS", "error")))
    mine, *others = (r.latency_s for r in results)
    if others and mine and others[0]:
        put(f"ratio: {mine / others[0]:.3f} (below 1: yours is faster)")
