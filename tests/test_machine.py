"""Control groups of both versions, nested and in containers, as files below a root of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.machine import Limits, available_bytes, read_limits
from autotune.measure.memory_plan import plan_memory, private_bytes, require_memory

MB = 1 << 20
GB = 1 << 30
N_CORES = len(os.sched_getaffinity(0))
TOTAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine(root: Path, groups: str, files: dict[str, str]) -> Limits:
    files = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{k}": v for k, v in files.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_limits(root)


@pytest.mark.parametrize(
    ("groups", "files", "memory_bytes"),
    [
        ("", {}, TOTAL),
        ("0::/\n", {"memory.max": "max\n"}, TOTAL),
        ("0::/\n", {"memory.max": f"{350 * MB}\n"}, 350 * MB),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": f"{300 * MB}"}, 300 * MB),
        ("0::/a/b\n", {"a/b/memory.max": f"{9 * MB}", "a/memory.max": f"{300 * MB}"}, 9 * MB),
        ("0::/a\n", {"a/memory.max": f"{300 * MB}", "a/memory.high": f"{200 * MB}"}, 200 * MB),
        ("0::/outside/of/container\n", {"memory.max": f"{350 * MB}"}, 350 * MB),
        ("0::/../sibling\n", {"memory.max": f"{350 * MB}"}, 350 * MB),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{100 * MB}"}, 100 * MB),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": f"{100 * MB}"}, 100 * MB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, TOTAL),
        (
            "4:memory:/a\n0::/a\n",
            {
                "memory/a/memory.limit_in_bytes": f"{200 * MB}",
                "unified/a/memory.max": f"{100 * MB}",
            },
            100 * MB,
        ),
        ("0::/a\n", {"b/memory.max": f"{9 * MB}"}, TOTAL),
        ("garbage", {"memory.max": "1"}, TOTAL),
        ("0::/\n", {"memory.max": "much"}, TOTAL),
        ("0::/\n", {"memory.max": ""}, TOTAL),
    ],
)
def test_memory_is_the_least_limit_on_the_way_out(
    tmp_path: Path, groups: str, files: dict[str, str], memory_bytes: int
) -> None:
    assert machine(tmp_path, groups, files).memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, N_CORES),
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/a\n", {"a/cpu.max": "64000000 100000"}, N_CORES),
        (
            "1:cpu,cpuacct:/a\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            "1:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "75000", "cpu/a/cpu.cfs_period_us": "100000"},
            0.75,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            N_CORES,
        ),
        ("0::/a\n", {"a/cpu.max": "0 0"}, N_CORES),
    ],
)
def test_cpus_are_the_least_quota_on_the_way_out(
    tmp_path: Path, groups: str, files: dict[str, str], cpus: float
) -> None:
    found = machine(tmp_path, groups, files)
    assert found.cpus == cpus
    assert found.n_cores == N_CORES
    assert found.n_busy == max(1, int(cpus))


def test_builders_follow_the_quota_and_the_memory() -> None:
    assert plan_memory(Limits(64, 64.0, 64 * GB), 80 * MB).n_builders == 64
    assert plan_memory(Limits(64, 2.5, 64 * GB), 80 * MB).n_builders == 2
    assert plan_memory(Limits(64, 0.2, 64 * GB), 80 * MB).n_builders == 1
    assert plan_memory(Limits(64, 64.0, 1 * GB), 80 * MB).n_builders == 9
    assert plan_memory(Limits(64, 64.0, 350 * MB), 80 * MB).n_builders == 1


@pytest.mark.parametrize("n_bytes", [280 * MB, 350 * MB, 512 * MB, GB, 3 * GB, 24 * GB, 1 << 42])
@pytest.mark.parametrize("n_cores", [1, 2, 64, 512])
def test_what_is_held_at_rest_fits(n_bytes: int, n_cores: int) -> None:
    session = 80 * MB
    plan = plan_memory(Limits(n_cores, float(n_cores), n_bytes), session)
    builders = plan.n_builders * 88 * MB
    assert session + builders + plan.worker_bytes - 72 * MB <= n_bytes
    assert plan.worker_bytes >= 72 * MB
    assert plan.builder_bytes >= 256 * MB


def test_too_little_memory_is_said_with_how_much_it_takes() -> None:
    with pytest.raises(UsageError, match=r"takes about \d+ MB .* may use 200 MB") as caught:
        plan_memory(Limits(2, 2.0, 200 * MB), 80 * MB)
    assert "memory" in caught.value.hint
    plan_memory(Limits(2, 2.0, 2 * GB), 80 * MB, task_bytes=GB)
    with pytest.raises(UsageError):
        plan_memory(Limits(2, 2.0, 2 * GB), 80 * MB, task_bytes=2 * GB)


def test_a_model_that_is_too_large_is_refused_before_it_is_read() -> None:
    require_memory(Limits(2, 2.0, 350 * MB), 60 * MB, 1 * MB)
    with pytest.raises(UsageError, match="may use 350 MB"):
        require_memory(Limits(2, 2.0, 350 * MB), 60 * MB, 100 * MB)


def test_private_memory_is_read(tmp_path: Path) -> None:
    assert private_bytes() > MB
    assert private_bytes(tmp_path / "none") == 0


def test_memory_that_is_available_leaves_out_what_the_group_has_taken(tmp_path: Path) -> None:
    files = {
        "memory.max": f"{300 * MB}",
        "memory.current": f"{200 * MB}",
        "memory.stat": f"anon 5\nfile {90 * MB}\ninactive_file {50 * MB}\n",
    }
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:   1048576 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert available_bytes(tmp_path) == 1 << 30
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "sys/fs/cgroup" / name).write_text(text)
    assert available_bytes(tmp_path) == 150 * MB
