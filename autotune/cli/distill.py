"""⑪ `autotune distill`: from all measurements to the best of every task."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.console import debug_option, put_path, say, say_note
from autotune.cli.options import FILE
from autotune.errors import UsageError
from autotune.files import require_place, same_file


@click.command("distill")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=FILE)
@click.option("-o", "--output", "best", type=FILE, help="Log to write.  [LOG-best.jsonl]")
@click.option(
    "--store",
    is_flag=True,
    help="Keep the records in the user's cache folder too, where compile and sessions find them.",
)
@debug_option
def command(logs: tuple[Path, ...], best: Path | None, store: bool) -> None:
    """Write a small log with only the best record of every task, CPU and thread count.

    Repeated measurements of a schedule count together. The result is a log like any other: it can
    be compiled, explained and distilled again, and needs nothing else.
    """
    from autotune.records import distill, write_log
    from autotune.records.kept import keep, record_store

    path = best or logs[0].with_name(f"{logs[0].stem}-best.jsonl")
    if any(same_file(path, log) for log in logs):
        raise UsageError(f"{path} is one of the logs to read", "choose another file with -o")
    require_place(path, makes_folders=True)
    log = distill(logs)
    write_log(path, log)
    if log.n_skipped:
        say_note(f"{log.n_skipped} lines are foreign or corrupt; skipped")
    missing = {key for header in log.headers for key, _ in header.tasks} - set(log.workloads)
    if missing:
        say_note(f"{len(missing)} tasks have no valid record; compile takes their default")
    if store:
        n_kept = keep(record_store(), log)
        say(f"{n_kept} records kept in {record_store().folder}")
    say(f"{len(log.records)} records of {len(log.workloads)} tasks")
    put_path(path)
