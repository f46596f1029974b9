"""Conditions of a machine, as files below a root of our own state them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.conditions import Conditions, read_conditions

CPU = "sys/devices/system/cpu"
QUIET = {
    "proc/cpuinfo": "model name\t: Fast CPU 9\nflags\t\t: fpu avx2\n",
    "proc/loadavg": "0.05 0.1 0.2 1/99 1234\n",
    f"{CPU}/online": "0\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpufreq/boost": "0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}


def machine(root: Path, **changes: str) -> Conditions:
    files = QUIET | {name.replace("__", "/"): text for name, text in changes.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_conditions(root)


def test_a_quiet_machine_needs_no_advice(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert found.advice == ()
    assert (found.processor, found.governors, found.boost) == (
        "Fast CPU 9",
        ("performance",),
        False,
    )
    assert (found.hypervisor, found.huge_pages, found.load) == (False, "madvise", 0.05)


@pytest.mark.parametrize(
    ("path", "text", "word"),
    [
        ("proc/loadavg", "7e3 1 1 1/1 1", "close what else"),
        ("sys/fs/cgroup/cpu.max", "65000 100000", "0.65 CPUs"),
        (f"{CPU}/cpu0/cpufreq/scaling_governor", "powersave\n", "'powersave'"),
        (f"{CPU}/cpufreq/boost", "1\n", "boost"),
        (f"{CPU}/cpu0/topology/core_cpus_list", "0-1\n", "two CPUs are one core"),
        (f"{CPU}/cpu1/cpu_capacity", "400\n", "slower than the others"),
        ("proc/cpuinfo", "flags : hypervisor avx2\n", "neighbours"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", "huge pages"),
    ],
)
def test_each_unsteady_condition_is_advised_on(
    path: str, text: str, word: str, tmp_path: Path
) -> None:
    files = {path: text, "proc/self/cgroup": "0::/\n"}
    if "cpu1" in path or "topology" in path:
        files |= {f"{CPU}/online": "0-1\n", f"{CPU}/cpu0/cpu_capacity": "1024\n"}
    found = machine(tmp_path, **files)
    (line,) = (a for a in found.advice if word in a)
    assert "\n" not in line


def test_what_the_system_hides_is_empty(tmp_path: Path) -> None:
    found = read_conditions(tmp_path)
    assert (found.processor, found.governors, found.boost, found.huge_pages) == ("", (), None, "")
