"""⑪ `autotune target`: a CPU as the compiler sees it, for `--target-file` on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import columns, common_options, put, put_json, put_path
from autotune.cli.option_types import FILE, TargetName
from autotune.cli.options import force_option, format_option
from autotune.errors import UsageError
from autotune.file_kinds import CPU
from autotune.files import replacing, require_place
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.measure.protocols import Device


@click.command("target")
@click.argument("name", required=False, type=TargetName())
@click.option("-o", "--output", type=FILE, help="File to write.  [print it]")
@force_option
@click.option("--list", "is_list", is_flag=True, help="List the names of CPUs.")
@click.option("--measure", is_flag=True, help="Measure the peak rates of this CPU as well.")
@click.option(
    "--runner",
    metavar="COMMAND",
    help="Describe the machine behind this command, of the CPU NAME: 'ssh BOARD', 'adb shell'.",
)
@format_option
@common_options
def command(
    name: str | None,
    output: Path | None,
    force: bool,
    is_list: bool,
    measure: bool,
    runner: str | None,
    style: str,
) -> None:
    """Describe the CPU NAME as JSON, without it this one. --format is for --list.

    Another machine compiles for this one by the file: `compile MODEL --target-file FILE`.
    """
    from autotune.target import runs_here, target_text

    if is_list and style == "json":
        put_json(_names_json())
        return
    if is_list:
        put(_names_text())
        return
    if output is not None:
        require_place(output, kind=None if force else CPU)
    device = _device(name or "native", runner)
    if measure and runner is None and not runs_here(device.target):
        raise UsageError(f"this CPU cannot run code for '{name}'", "leave --measure out")
    text = target_text(device.target, _facts(device, measure))
    if output is None:
        put(text.rstrip())
        return
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


def _names_json() -> list[dict[str, Any]]:
    """The list for scripts."""
    from autotune.target import parse_target, target_names

    found = [(name, parse_target(name)) for name in target_names()]
    return [
        {
            "name": name,
            "cpu": target.cpu,
            "vector_bits": target.vector_bits,
            "l2_bytes": target.l2_bytes,
            "l3_bytes": target.l3_bytes,
            "forms": [form.name for form in target.isa.forms],
        }
        for name, target in found
    ]


def _device(name: str, runner: str | None) -> Device:
    from autotune.measure.far.program_device import program_device
    from autotune.measure.local import LocalDevice
    from autotune.measure.threads import default_threads
    from autotune.target import parse_target

    target = parse_target(name)
    return program_device(runner, target) if runner else LocalDevice(target, default_threads())


def _facts(device: Device, measure: bool) -> dict[str, object]:
    """Of the machine, for people."""
    from autotune.measure.far.program_device import ProgramDevice

    facts: dict[str, object] = {}
    if isinstance(device, ProgramDevice) and device.engine:
        facts["engine"] = device.engine
    if measure:
        facts["peaks"] = _peaks(device)
    return facts


def _peaks(device: Device) -> dict[str, float]:
    """Peak rates of all cores that are usable, per second."""
    forms = [form for form in device.target.isa.forms if form.terms > 1]
    peaks = device.peaks(evict=True, dots=forms)
    return {
        "threads": device.n_threads,
        "flops_per_s": peaks.flops_per_s,
        **{f"{form.name}_flops_per_s": rate for form, rate in peaks.dots},
        "l2_bytes_per_s": peaks.warm_bytes_per_s,
        "memory_bytes_per_s": peaks.cold_bytes_per_s,
    }
