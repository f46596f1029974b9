"""⑪ `autotune store`: what a store of records holds; merge, prune and verify it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import columns, common_options, put, put_json, say, say_note
from autotune.cli.option_types import DURATION
from autotune.cli.options import format_option
from autotune.errors import StoreError, UsageError
from autotune.units import counted, format_seconds

if TYPE_CHECKING:
    from autotune.records import Log
    from autotune.records.store import EntryName, RecordStore

_place_option = click.option(
    "--store",
    "where",
    metavar="DIR|URL",
    help="The store.  [AUTOTUNE_STORE, else that of the cache folder]",
)
_target_option = click.option("--target", metavar="KEY", help="Of CPUs whose key begins so.")


@click.group("store", invoke_without_command=True, no_args_is_help=False)
@common_options
@click.pass_context
def command(context: click.Context) -> None:
    """A store holds the distilled records of many sessions, by CPU, threads and task.

    `distill --store` adds to it; `tune` begins with what it knows, and `compile` takes its records
    for tasks without a log. Any number of processes may read and write one at once.
    """
    if context.invoked_subcommand is None:
        put(context.get_help())


@command.command("list")
@_place_option
@_target_option
@format_option
@common_options
def list_command(where: str | None, target: str | None, style: str) -> None:
    """List the tasks: their best records, and how many there are."""
    store = _opened(where)
    found = store.read(lambda name: _is_of(name, target))
    rows = [_facts(name, log) for name, log in found.logs.items()]
    if found.damaged:
        say_note(f"{counted(len(found.damaged), 'entry')} damaged: see autotune store verify")
    if style == "json":
        put_json(_by_task(rows))
        return
    head = ("cpu", "threads", "task", "entries", "records", "best", "model", "subgraph")
    lines = [
        (
            *(row["target"], str(row["threads"]), row["task"], str(row["entries"])),
            *(str(row["records"]), format_seconds(row["best_s"]), row["model"], row["label"]),
        )
        for row in _by_task(rows)
    ]
    put(columns(head, lines, right=("threads", "entries", "records", "best")))


@command.command("merge")
@click.argument("others", nargs=-1, metavar="[DIR|URL]...")
@_place_option
@format_option
@common_options
def merge_command(others: tuple[str, ...], where: str | None, style: str) -> None:
    """Take in what OTHERS hold, then write one entry in the place of several of a task.

    Others are read, never changed.
    """
    from autotune.records.store import store_to_read, store_to_write

    sources = [store for other in others if (store := store_to_read(other))]
    store = store_to_write(where) if sources else _opened(where)
    n_taken = sum(map(store.take, sources))
    n_fewer = store.merge()
    say(f"{counted(n_taken, 'entry')} taken in; {n_fewer} fewer after merging")
    if style == "json":
        put_json({"store": store.title, "taken": n_taken, "fewer": n_fewer})
    else:
        put(store.title)


@command.command("prune")
@_place_option
@_target_option
@click.option("--older", "age_s", type=DURATION, help="Of which no run began since, such as 90d.")
@click.option("--damaged", is_flag=True, help="Files that `verify` finds damaged.")
@click.option("--dry-run", is_flag=True, help="Print their names; remove nothing.")
@format_option
@common_options
def prune_command(
    where: str | None,
    target: str | None,
    age_s: float | None,
    damaged: bool,
    dry_run: bool,
    style: str,
) -> None:
    """Remove entries: of --target, those that are --older, or both; and what is --damaged."""
    if target is None and age_s is None and not damaged:
        raise UsageError("nothing is named to remove", "give --target, --older or --damaged")
    store = _opened(where)
    found = store.verify()
    paths = [d.path for d in found.damaged if damaged and d.is_entry]
    if target is not None or age_s is not None:
        now = datetime.now(UTC)
        old = _is_older(now.timestamp() - age_s) if age_s is not None else _always
        chosen = (n for n, log in found.logs.items() if _is_of(n, target) and old(log))
        paths += [name.path for name in chosen]
    if style == "json":
        put_json({"store": store.title, "entries": paths, "removed": not dry_run})
    for path in paths if style == "text" else ():
        put(path)
    if not dry_run:
        store.remove(paths)
    say(f"{counted(len(paths), 'entry')} {'would be removed' if dry_run else 'removed'}")


@command.command("verify")
@_place_option
@format_option
@common_options
def verify_command(where: str | None, style: str) -> None:
    """Read every entry, and list those that are damaged; exit code 4 where some are."""
    store = _opened(where)
    found = store.verify()
    n_records = sum(len(log.records) for log in found.logs.values())
    n_tasks = len({name.group for name in found.logs})
    damaged = [d for d in found.damaged if d.is_entry]
    foreign = [d for d in found.damaged if not d.is_entry]
    if style == "json":
        put_json(
            {
                "store": store.title,
                "entries": len(found.logs),
                "tasks": n_tasks,
                "records": n_records,
                "damaged": [{"path": d.path, "reason": d.reason} for d in damaged],
                "foreign": [d.path for d in foreign],
            }
        )
    else:
        for one in (*damaged, *foreign):
            put(f"{one.path} {one.reason}")
        whole = f"{counted(len(found.logs), 'entry')} of {counted(n_tasks, 'task')}"
        put(f"{whole} whole: {counted(n_records, 'record')}")
    if damaged:
        raise StoreError(
            f"{counted(len(damaged), 'entry')} of {store.title} damaged",
            "remove them: autotune store prune --damaged",
        )


def _opened(where: str | None) -> RecordStore:
    from autotune.records.store import store_to_read

    store = store_to_read(where)
    if store is None:
        raise UsageError("there is no store yet", "make one: autotune distill LOG --store")
    return store


def _is_of(name: EntryName, target: str | None) -> bool:
    return target is None or name.group.target_key.startswith(target)


def _always(log: Log) -> bool:
    return True


def _is_older(end_s: float) -> Callable[[Log], bool]:
    """Whether all runs of a log began before then."""

    def is_older(log: Log) -> bool:
        return max(map(_begun_s, (h.created for h in log.headers)), default=0.0) < end_s

    return is_older


def _begun_s(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0


def _facts(name: EntryName, log: Log) -> dict[str, Any]:
    """An entry as a row of the list."""
    times = [r.result.latency_s for r in log.records if r.result.latency_s]
    return {
        "target": name.group.target_key,
        "threads": name.group.n_threads,
        "task": name.group.task,
        "entries": 1,
        "records": len(log.records),
        "best_s": min(times, default=None),
        "model": log.header.model_path,
        "label": log.workloads[name.group.task].label,
    }


def _by_task(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per task, CPU and number of threads; the fastest names the model."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        slot = row["target"], row["threads"], row["task"]
        known = found.get(slot)
        found[slot] = row if known is None else _together(known, row)
    return list(found.values())


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    first, _ = sorted((one, other), key=lambda row: row["best_s"] or float("inf"))
    counts = {name: one[name] + other[name] for name in ("entries", "records")}
    return first | counts
