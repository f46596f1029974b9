"""⑪ `autotune explain`: the best program of a task, at every stage on its way to machine code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import columns, common_options, put, put_json, say_note
from autotune.cli.models import find_task
from autotune.cli.option_types import FILE, Parsed
from autotune.cli.options import format_option
from autotune.cli.stages import STAGES, loopir_text
from autotune.errors import LogMismatch, UsageError
from autotune.te.at_numbers import usual
from autotune.te.dag import shape_text
from autotune.units import counted, format_flops, format_seconds, gflops

if TYPE_CHECKING:
    from autotune.records import Log, MeasureRecord
    from autotune.schedule.steps import Steps
    from autotune.target import Target
    from autotune.te.dag import ComputeDAG

_N_ERRORS = 3


def _stage(value: str) -> tuple[str, str]:
    """`loopir`, or `loopir:peel`: a stage, and the pass of lowering to stop after, or ""."""
    stage, colon, name = value.partition(":")
    if stage not in STAGES or (colon and (stage != "loopir" or not name)):
        hint = f"choose of {', '.join(STAGES)}, loopir:PASS"
        raise UsageError(f"there is no stage '{value}'", hint)
    return stage, name


@click.command("explain")
@click.argument("log_path", metavar="[LOG]", type=FILE, required=False)
@click.option("--task", required=True, help="Id as `autotune tasks` prints it, or part of a key.")
@click.option(
    "--store",
    is_flag=False,
    flag_value="",
    metavar="[DIR|URL]",
    help="A task of this store, by its key, instead of one of a LOG.  [AUTOTUNE_STORE, else that "
    "of the cache folder]",
)
@click.option("--stage", type=Parsed("stage", _stage), help="Print this stage, nothing else.")
@click.option("--target", help="Key of a CPU, of those in the log.  [this one, else the first]")
@click.option("--verify", is_flag=True, help="Check the loop IR after every pass of lowering.")
@format_option
@common_options
def command(
    log_path: Path | None,
    task: str,
    store: str | None,
    stage: tuple[str, str] | None,
    target: str | None,
    verify: bool,
    style: str,
) -> None:
    """Show the best program of a task in LOG, or in a store.

    Without --stage: what was measured, the computation, and the loops. Stages: te (what is
    computed), schedule (its loops), steps (the Python text that makes it, for `autotune measure`),
    python (a program that does the same), loopir, llvm, asm. loopir:PASS is the loop IR after one
    pass of lowering: nests, hoist-predicates, peel, prefetch-activations, pack, prefetch-constants,
    restore, instructions, terms-outside.
    """
    from autotune.records import best_records

    log, key = _found(log_path, store, task)
    log = log.within(log.max_error)
    dag = _dag(log, key)
    cpu = _cpu(log, target)
    records = [r for r in log.records if r.workload == key and cpu in (None, r.target_key)]
    best = min(
        best_records(records).values(), key=lambda r: r.result.latency_s or 0.0, default=None
    )
    machine, steps = _program(log, dag, best)
    if verify:
        from autotune.loopir.lower import lower

        lower(dag, steps, verify=True)
    if style == "json":
        shown = [stage] if stage else [("te", ""), ("schedule", "")]
        put_json(
            {
                "key": key,
                "subgraph": log.workloads[key].label,
                "flops": usual(dag).flops,
                "measured": len(records),
                "valid": sum(r.result.ok for r in records),
                "best": None if best is None else _best_json(dag, best),
                "stages": {":".join(filter(None, s)): _text(s, dag, steps, machine) for s in shown},
            }
        )
        return
    if stage is not None:
        put(_text(stage, dag, steps, machine).rstrip("\n"))
        return
    put(_overview(log, key, records, best))
    for name in ("te", "schedule"):
        put(f"\n# {name}\n{STAGES[name](dag, steps, machine)}")


def _found(log_path: Path | None, store: str | None, task: str) -> tuple[Log, str]:
    """A log with the records of a task, and its key."""
    from autotune.records import read_log

    if (log_path is None) == (store is None):
        hint = "give one of the two: LOG, or --store"
        raise UsageError("a task is explained by a log or by a store", hint)
    if log_path is not None:
        log = read_log(log_path)
        return log, find_task(log, task)
    return _stored(store or None, task)


def _stored(where: str | None, task: str) -> tuple[Log, str]:
    """All that a store has of the task whose key begins so."""
    from autotune.records.store import store_to_read

    store = store_to_read(where)
    if store is None:
        raise UsageError("there is no store yet", "make one: autotune distill LOG --store")
    found = store.read(lambda name: name.group.task.startswith(task))
    keys = {name.group.task for name in found.logs}
    if len(keys) != 1:
        what = f"{len(keys)} tasks fit '{task}'" if keys else f"no task of it is '{task}'"
        raise UsageError(
            f"{store.title}: {what}", "give the beginning of a key: autotune store list"
        )
    log = found.log()
    if log is None:
        raise LogMismatch(f"{store.title} has no records of {task}", "tune the model again")
    return log, keys.pop()


def _best_json(dag: ComputeDAG, best: MeasureRecord) -> dict[str, Any]:
    return {
        "latency_s": best.result.latency_s,
        "gflops": gflops(usual(dag).flops, best.result.latency_s),
        "max_error": best.result.max_error,
        "target": best.target_key,
        "threads": best.n_threads,
        "sketch": best.sketch,
        "record": best.sequence,
    }


def _cpu(log: Log, asked: str | None) -> str | None:
    """The key of the CPU to explain for; None where the log is of one alone."""
    keys = list(log.targets)
    if asked is not None and asked not in keys:
        raise UsageError(f"the log is not of '{asked}'", f"it is of {', '.join(keys)}")
    if asked is not None or len(keys) < 2:
        return asked
    from autotune.target import host_target

    host = host_target().key
    return host if host in keys else keys[0]


def _text(stage: tuple[str, str], dag: ComputeDAG, steps: Steps, target: Target) -> str:
    name, after = stage
    return loopir_text(dag, steps, target, after) if after else STAGES[name](dag, steps, target)


def _dag(log: Log, key: str) -> ComputeDAG:
    if key not in log.workloads:
        raise LogMismatch(f"the log lacks the computation of task {key}", "tune the model again")
    return log.workloads[key].dag


def _program(log: Log, dag: ComputeDAG, best: MeasureRecord | None) -> tuple[Target, Steps]:
    targets = {header.target.key: header.target for header in log.headers}
    if best is not None and best.target_key in targets:
        return targets[best.target_key], best.steps
    from autotune.search.defaults import default_steps
    from autotune.target import host_target

    target = next(iter(targets.values()), None) or host_target()
    if best is not None:
        return target, best.steps
    say_note("no valid record: this is the analytic default")
    n_threads = log.header.n_threads if log.headers else 1
    return target, default_steps(dag, target, n_threads)


def _overview(log: Log, key: str, records: list[MeasureRecord], best: MeasureRecord | None) -> str:
    dag = log.workloads[key].dag
    n_ok = sum(r.result.ok for r in records)
    rows = [
        ("task", f"{log.workloads[key].label}  {shape_text(dag)}"),
        ("key", key),
        ("work", format_flops(usual(dag).flops)),
        ("measured", f"{counted(len(records), 'candidate')}, {n_ok} valid"),
    ]
    if best is not None:
        rate = gflops(usual(dag).flops, best.result.latency_s) or 0.0
        rows += [
            ("best", f"{format_seconds(best.result.latency_s)}, {rate:.1f} GFLOPS"),
            ("on", f"{best.target_key}, {counted(best.n_threads, 'thread')}"),
            ("error", f"{best.result.max_error or 0.0:.1e} of the largest value"),
            ("sketch", f"{best.sketch} (record {best.sequence})"),
        ]
    errors = dict.fromkeys(
        f"{r.result.status.value}: {r.result.last_line}" for r in records if not r.result.ok
    )
    rows += [("failed", text) for text in list(errors)[:_N_ERRORS]]
    return columns(("", ""), rows).lstrip("\n")
