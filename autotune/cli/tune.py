"""⑪ `autotune tune`: start a log and search."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from autotune.cli.console import debug_option, put, say
from autotune.cli.options import (
    FILE,
    SEED,
    THREADS,
    Preset,
    args_option,
    const_option,
    constants_of,
    dim_option,
    dims_of,
    events_option,
    max_error_option,
    operators_option,
    random_weights_option,
    rules_option,
    shape_option,
    shapes_of,
    time_option,
    trials_option,
    warm_start_option,
)


@click.command("tune")
@click.argument("model", required=False, type=FILE)
@click.option("--log", "log_path", type=FILE, help="Log to write.  [logs/MODEL-DATE.jsonl]")
@trials_option
@time_option
@click.option("--threads", type=THREADS, help="Threads that the model will run on.  [all cores]")
@shape_option
@dim_option
@const_option
@random_weights_option
@args_option
@click.option("--preset", type=Preset(), help="quick, full, ci, or a TOML file.")
@click.option("--seed", type=SEED, help="Same seed, same search.  [0]")
@click.option("--target", help="CPU to generate code for.  [native]")
@max_error_option
@warm_start_option
@rules_option
@operators_option
@click.option("--dry-run", is_flag=True, help="Show tasks and settings; measure nothing.")
@events_option
@debug_option
def command(
    model: Path | None,
    log_path: Path | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    dims: tuple[tuple[str, dict[int, float]], ...],
    constants: tuple[tuple[str, Any], ...],
    random_weights: bool,
    arguments: str | None,
    preset: str | None,
    warm_start: tuple[Path, ...],
    rules: tuple[Path, ...],
    operators: tuple[Path, ...],
    dry_run: bool,
    events: str | None,
    **options: Any,
) -> int:
    """Search for the fastest program of every part of MODEL, and log every measurement.

    MODEL is an ONNX file, or FILE.py:FUNCTION for a computation of `autotune.te`, which is called
    with --args.

    Without MODEL, tunes the ResNet-50 that comes with the onnx package, with random weights.
    Without a budget, searches for ten minutes. Stops at the first limit that is reached; a log can
    be resumed at any time.
    """
    from autotune.api.bindings import only, variants
    from autotune.cli.models import (
        local_target,
        model_bytes,
        model_path,
        read_network,
        read_workload,
    )
    from autotune.cli.warm import rules_paths, warm_paths
    from autotune.config import resolve
    from autotune.machine import read_limits
    from autotune.measure.memory_plan import private_bytes, require_memory
    from autotune.records import require_new_log
    from autotune.target import require_cores

    files = {"warm_start": warm_paths(warm_start), "rules": rules_paths(rules)}
    files["operators"] = tuple(str(path.resolve()) for path in operators) or None
    resolved = resolve(preset, options | files)
    config = resolved.config
    require_cores(config.threads)
    task = read_workload(model, arguments, config.threads)
    path = model_path(model)
    target = local_target(config.target)
    log_path = log_path or default_log(task.name if task else path.stem)
    if not dry_run:
        require_new_log(log_path)
        require_memory(read_limits(), private_bytes(), model_bytes(path))
    if task is not None:
        network, origin, bound = task.network(), task.source, {}
    else:
        is_random = random_weights or model is None
        fixed = constants_of(constants)
        bound = only(variants(path, shapes_of(shapes), dims_of(dims), fixed), "tuning")
        network = read_network(path, bound, is_random, config.operators, fixed)
        origin = str(path.resolve())
    if dry_run:
        from autotune.cli.tasks import settings_text, task_text

        put(task_text(network))
        put("")
        put(settings_text(resolved))
        return 0

    from autotune.api.tuning import network_workloads, new_header
    from autotune.cli.sessions import run_session
    from autotune.records import Journal, Log
    from autotune.tuner import Budget

    header = new_header(network, origin, bound, target, config)
    workloads = network_workloads(network)
    with Journal.create(log_path, header, workloads) as journal:
        if events is None:
            say(
                f"{network.name if task else path.name}: {len(workloads)} tasks, {target.cpu}, "
                f"{header.n_threads} threads, seed {config.seed}, log {journal.path}"
            )
        log = Log(headers=(header,), workloads={w.key: w for w in workloads})
        budget = Budget(config.trials, config.time_s)
        return run_session(journal, log, header, budget, events)


def default_log(stem: str) -> Path:
    """`logs/<stem>-<date>.jsonl`, made unique by a number where it exists already."""
    name = f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    path = Path("logs") / f"{name}.jsonl"
    n = 1
    while path.exists():
        n += 1
        path = Path("logs") / f"{name}-{n}.jsonl"
    return path
