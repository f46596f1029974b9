"""⑪ `autotune target`: a CPU as the compiler sees it, for `--target-file` on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.console import columns, debug_option, put, put_path
from autotune.cli.options import FILE, TargetName
from autotune.errors import UsageError
from autotune.files import replacing, require_place
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.target import Target


@click.command("target")
@click.argument("name", required=False, type=TargetName())
@click.option("-o", "--output", type=FILE, help="File to write.  [print it]")
@click.option("--list", "is_list", is_flag=True, help="List the names of CPUs.")
@click.option("--measure", is_flag=True, help="Measure the peak rates of this CPU as well.")
@debug_option
def command(name: str | None, output: Path | None, is_list: bool, measure: bool) -> None:
    """Describe the CPU NAME as JSON, without it this one.

    Another machine compiles for this one by the file: `compile MODEL --target-file FILE`.
    """
    from autotune.target import parse_target, runs_here, target_text

    if is_list:
        put(_names_text())
        return
    target = parse_target(name or "native")
    if measure and not runs_here(target):
        raise UsageError(f"this CPU cannot run code for '{name}'", "leave --measure out")
    text = target_text(target, _peaks(target) if measure else None)
    if output is None:
        put(text.rstrip())
        return
    require_place(output)
    with replacing(output) as file:
        file.write(text.encode())
    put_path(output)


def _names_text() -> str:
    """The table of names: vectors, multiply-adds, caches; of levels the caches of this machine."""
    from autotune.target import parse_target, target_names

    rows = []
    for name in target_names():
        target = parse_target(name)
        forms = ", ".join(form.name for form in target.isa.forms)
        sizes = [format_bytes(n) for n in (target.l2_bytes, target.l3_bytes)]
        also = "" if target.cpu == name else target.cpu
        rows.append((name, also, str(target.vector_bits), *sizes, forms))
    head = ("name", "is", "bits", "L2", "L3", "multiply-adds")
    return columns(head, rows, right=("bits", "L2", "L3"))


def _peaks(target: Target) -> dict[str, float]:
    """Peak rates of all cores that are usable, per second."""
    from autotune.measure.peak import measure_peaks
    from autotune.measure.threads import default_threads

    n_threads = default_threads()
    dots = [form for form in target.isa.forms if form.terms > 1]
    peaks = measure_peaks(target, n_threads, evict=True, dots=dots)
    rates = {f"{form.name}_flops_per_s": rate for form, rate in peaks.dots}
    return {
        "threads": n_threads,
        "flops_per_s": peaks.flops_per_s,
        **rates,
        "l2_bytes_per_s": peaks.warm_bytes_per_s,
        "memory_bytes_per_s": peaks.cold_bytes_per_s,
    }
