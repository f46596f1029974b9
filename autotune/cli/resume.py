"""⑪ `autotune resume`: replay a log, and go on."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.console import debug_option, say, say_note
from autotune.cli.options import (
    FILE,
    events_option,
    max_error_option,
    time_option,
    trials_option,
    warm_start_option,
)


@click.command("resume")
@click.argument("log_path", metavar="LOG", type=FILE)
@trials_option
@time_option
@max_error_option
@warm_start_option
@events_option
@debug_option
def command(
    log_path: Path,
    trials: int | None,
    time_s: float | None,
    max_error: float | None,
    warm_start: tuple[Path, ...],
    events: str | None,
) -> int:
    """Go on with the session of LOG: same model, settings and seed, nothing measured twice.

    What is left of its budget is spent. With --trials or --time, so much more is spent instead.
    With --max-error, everything measured so far is judged anew.
    """
    from autotune.api.tuning import next_header, require_same_machine, require_tasks
    from autotune.cli.models import say_random_weights
    from autotune.cli.sessions import run_session
    from autotune.cli.warm import warm_paths
    from autotune.config import TuneConfig
    from autotune.records import Journal
    from autotune.target import parse_target, require_cores
    from autotune.tuner import Budget, spent

    with Journal.open(log_path) as journal:
        log = journal.log
        require_tasks(log_path, log)
        config = TuneConfig.from_json(log.settings)
        paths = warm_paths(warm_start, config.warm_start)
        header = next_header(log, {"max_error": max_error, "warm_start": paths})
        config = TuneConfig.from_json(header.config)
        require_same_machine(log.header, parse_target(config.target))
        require_cores(header.n_threads)
        if journal.n_repaired_bytes:
            say_note(f"removed a line that was cut off ({journal.n_repaired_bytes} bytes)")
        if header.random_weights:
            say_random_weights(Path(header.model_path).name)
        if log.n_skipped:
            say_note(f"{log.n_skipped} lines of the log are foreign or corrupt; skipped")
        if log.headers[-1].versions != header.versions:
            say_note("the log was written with other versions of autotune or its libraries")
        budget = Budget(config.trials, config.time_s)
        if trials is not None or time_s is not None:
            budget = spent(log).plus(trials, time_s)
        if events is None:
            say(f"{log_path}: {len(log.records)} measurements taken over")
        journal.append([header])
        return run_session(journal, log, header, budget, events)
