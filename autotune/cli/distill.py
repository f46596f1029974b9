"""⑪ `autotune distill`: from all measurements to the best of every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autotune.cli.console import common_options, put, put_json, put_path, say, say_note
from autotune.cli.option_types import FILE
from autotune.cli.options import force_option, format_option
from autotune.errors import LogMismatch, UsageError
from autotune.file_kinds import LOG
from autotune.files import require_place, same_file
from autotune.units import counted


@click.command("distill")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=FILE)
@click.option("-o", "--output", "best", type=FILE, help="Log to write.  [LOG-best.jsonl]")
@force_option
@click.option(
    "--store",
    is_flag=False,
    flag_value="",
    metavar="[DIR|URL]",
    help="Add the records to a store, for tune, compile and sessions: a folder, or a URL of fsspec "
    "such as s3://BUCKET/PATH.  [AUTOTUNE_STORE, else that of the cache folder]",
)
@format_option
@common_options
def command(
    logs: tuple[Path, ...], best: Path | None, force: bool, store: str | None, style: str
) -> None:
    """Write a small log with only the best record of every task, CPU and thread count.

    Repeated measurements of a schedule count together. The result is a log like any other: it can
    be compiled, explained and distilled again, and needs nothing else. With --store and without
    -o, no log is written: a store takes more than the best records, for it is learnt from.
    """
    from autotune.records import distill, write_log

    done: dict[str, Any] = {"log": None, "store": None, "records": 0, "tasks": 0}
    if store is not None:
        done = _add(logs, store)
        if best is None:
            _put(done, style)
            return
    path = best or logs[0].with_name(f"{logs[0].stem}-best.jsonl")
    if any(same_file(path, log) for log in logs):
        raise UsageError(f"{path} is one of the logs to read", "choose another file with -o")
    require_place(path, makes_folders=True, kind=None if force else LOG)
    log = distill(logs)
    write_log(path, log)
    if log.n_skipped:
        say_note(f"{counted(log.n_skipped, 'line')} skipped: foreign or corrupt")
    missing = {key for header in log.headers for key, _ in header.tasks} - set(log.workloads)
    if missing:
        say_note(
            f"{counted(len(missing), 'task')} without a valid record; compile takes the default"
        )
    say(f"{counted(len(log.records), 'record')} of {counted(len(log.workloads), 'task')}")
    done = {**done, "log": str(path), "records": len(log.records), "tasks": len(log.workloads)}
    _put(done, style)


def _put(done: dict[str, Any], style: str) -> None:
    """All of it, or where the records are."""
    if style == "json":
        put_json(done)
    elif done["log"] is not None:
        put_path(Path(done["log"]))
    else:
        put(str(done["store"]))


def _add(paths: tuple[Path, ...], where: str) -> dict[str, Any]:
    """Add logs to a store, once all of them are read."""
    from autotune.records import read_log
    from autotune.records.store import store_to_write

    logs = [log.within(log.max_error) for log in map(read_log, paths)]
    tasks = {r.workload for log in logs for r in log.records if r.result.ok}
    if not tasks:
        raise LogMismatch("no log holds a valid measurement", "tune first: autotune tune MODEL")
    store = store_to_write(where or None)
    n_added = sum(map(store.add, logs))
    added = f"{counted(n_added, 'entry')} of {counted(len(tasks), 'task')}"
    say(f"{added} added to the store {store.title}")
    n_records = sum(r.result.ok for log in logs for r in log.records)
    return {"log": None, "store": store.title, "records": n_records, "tasks": len(tasks)}
