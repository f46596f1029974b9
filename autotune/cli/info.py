"""⑪ `autotune info`: this machine, what is installed, and what makes timings steadier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.console import common_options, counting, put, put_json
from autotune.cli.option_types import FILE, TargetName
from autotune.cli.options import format_option
from autotune.units import counted, format_bytes

if TYPE_CHECKING:
    from autotune.api.info import ArtifactInfo, MachineInfo, PeakRates

_WIDTH = 12


@click.command("info")
@click.argument("artifact", required=False, metavar="[OUT]", type=FILE)
@click.option("--target", "name", type=TargetName(), help="Another CPU, by its name or file.")
@click.option("--no-measure", is_flag=True, help="Measure no peak rates, which takes seconds.")
@format_option
@common_options
def command(artifact: Path | None, name: str | None, no_measure: bool, style: str) -> None:
    """Describe this machine: processor, limits, peak rates, versions, caches; and say what to
    change for steadier timings. Or OUT, a file that `autotune compile` wrote: the CPUs that it has
    code for, and its inputs.

    Attach it to a report of a fault, and to every figure that is compared with another.
    """
    from autotune.api.info import artifact_info, machine_info
    from autotune.target import parse_target

    if artifact is not None:
        told = artifact_info(artifact)
        if style == "json":
            put_json(told.to_json())
        else:
            put("\n".join(f"{title:<{_WIDTH}}  {text}" for title, text in _of_file(told)))
        return
    target = parse_target(name) if name else None
    with counting("peak rates measured") as tell:
        found = machine_info(target, not no_measure, _variables(), tell)
    if style == "json":
        put_json(found.to_json())
        return
    put("\n".join(_text(found)))


def put_facts() -> None:
    """What a report of a fault needs to know of this machine: all of `info` but peak rates."""
    from autotune.api.info import machine_info

    found = machine_info(measure=False, variables=_variables())
    put("\n".join(f"{title:<{_WIDTH}}  {text}" for title, text in _rows(found) if text))


def _variables() -> dict[str, str]:
    return {n: v for n, v in sorted(os.environ.items()) if n.startswith("AUTOTUNE_")}


def _of_file(found: ArtifactInfo) -> Iterator[tuple[str, str]]:
    yield "network", f"{found.name}, by autotune {found.autotune_version}"
    for cpu in found.cpus:
        parts = [cpu.cpu, f"vectors of {cpu.vector_bits} bits", counted(cpu.n_threads, "thread")]
        parts += [f"{counted(cpu.n_tuned, 'task')} tuned"] if cpu.n_tuned else []
        parts.append("not checked" if cpu.max_error is None else f"error {cpu.max_error:.1e}")
        here = "" if cpu.has_all else ", not for this CPU"
        yield "code for", ", ".join(parts) + (", taken here" if cpu.is_taken else here)
    for shapes in found.shapes:
        yield "inputs", shapes
    if found.n_segments > 1:
        yield "parts", f"{found.n_segments}, some of ONNX Runtime"
    yield "precision", found.precision
    sizes = {"weights": found.weights_bytes, "code": found.code_bytes}
    parts = [f"{format_bytes(n)} of {what}" for what, n in sizes.items()]
    yield "size", f"{format_bytes(found.bytes)}: {', '.join(parts)}"


def _text(found: MachineInfo) -> Iterator[str]:
    yield from (f"{title:<{_WIDTH}}  {text}".rstrip() for title, text in _rows(found) if text)
    if found.advice:
        yield ""
        yield "For steadier timings:"
        yield from (f"  - {line}" for line in found.advice)


def _rows(found: MachineInfo) -> Iterator[tuple[str, str]]:
    here, target = found.conditions, found.target
    sizes = zip(
        ("L1", "L2", "L3"), (target.l1_bytes, target.l2_bytes, target.l3_bytes), strict=True
    )
    yield "processor", here.processor
    yield "target", f"{target.cpu}, {target.arch}, vectors of {target.vector_bits} bits"
    yield "multiply-add", ", ".join(found.forms)
    yield "caches", ", ".join(f"{name} {format_bytes(n)}" for name, n in sizes)
    yield "cores", _cores(found)
    yield "limits", f"{here.cpus:g} CPUs, {format_bytes(here.memory_bytes)} of memory"
    yield "load", f"{here.load:.2f}"
    yield "governor", ", ".join(here.governors)
    yield "boost", {None: "", True: "on", False: "off"}[here.boost]
    yield "huge pages", here.huge_pages
    yield "system", here.system + (", a virtual machine" if here.hypervisor else "")
    for peaks in found.peaks:
        yield from _peak_rows(peaks)
    yield "versions", ", ".join(f"{name} {text}" for name, text in found.versions.items())
    yield "cache", f"{found.cache}, {format_bytes(found.cache_bytes)}"
    yield "environment", ", ".join(f"{name}={text}" for name, text in found.variables.items())


def _cores(found: MachineInfo) -> str:
    here = found.conditions
    parts = [f"{here.n_cores} of {here.n_cpus} CPUs", f"{here.n_usable} CPUs usable"]
    if here.n_domains > 1:
        parts.append(f"{here.n_domains} groups that share a cache")
    return ", ".join(parts)


def _peak_rows(peaks: PeakRates) -> Iterator[tuple[str, str]]:
    threads = counted(peaks.n_threads, "thread")
    rates = [f"{name} {rate * 1e-9:,.0f} GFLOP/s" for name, rate in peaks.flops.items()]
    rates += [
        f"L2 {peaks.l2_bytes * 1e-9:,.0f} GB/s",
        f"memory {peaks.memory_bytes * 1e-9:,.1f} GB/s",
        f"median {peaks.spread:.1%} below the best",
    ]
    yield threads, ", ".join(rates)
