"""Others on the machine are noticed, once; our own processes and a quiet machine are not noise."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.timing.noise import Noise, NoiseWatch, Usage, judge, read_usage

START = Usage(at_s=100.0, n_cores=4, busy_s=1000.0, steal_s=5.0, own_s=50.0)


def later(
    time_s: float = 2.0, busy_s: float = 0.0, own_s: float = 0.0, steal_s: float = 0.0
) -> Usage:
    return replace(
        START,
        at_s=START.at_s + time_s,
        busy_s=START.busy_s + busy_s,
        own_s=START.own_s + own_s,
        steal_s=START.steal_s + steal_s,
    )


@pytest.mark.parametrize(
    "after",
    [
        later(),
        later(busy_s=8.0, own_s=8.0),  # our builders on every core
        later(busy_s=4.3, own_s=4.0),  # the kernel and a daemon
        later(busy_s=3.9, own_s=4.0),  # ticks are counted in another way
        later(busy_s=0.0, own_s=4.0),  # a system that does not tell
        later(steal_s=0.05, busy_s=4.0, own_s=4.0),
    ],
)
def test_a_quiet_machine_is_no_noise(after: Usage) -> None:
    assert judge(START, after) is None


@pytest.mark.parametrize(
    ("after", "trips_s", "text"),
    [
        (later(busy_s=6.0, own_s=4.0), (), "others keep 1.0 of 4 cores busy;"),
        (later(busy_s=2.0), (), "others keep 1.0 of 4 cores busy;"),
        (later(busy_s=4.0, own_s=4.0, steal_s=1.0), (), "the host takes 20 % of the time away;"),
        (replace(later(), sessions=(7, 9)), (), "another autotune is working (process 7, 9);"),
        (later(), (3e-7, 1e-5, 2e-5), "threads wait 33 times as long as at best;"),
    ],
)
def test_noise_names_its_cause_with_advice(
    after: Usage, trips_s: tuple[float, ...], text: str
) -> None:
    noise = judge(START, after, trips_s)
    assert noise is not None
    assert str(noise).startswith(text)
    assert "measure again" in str(noise)
    assert "\n" not in str(noise)


def test_usual_variation_of_round_trips_is_no_noise() -> None:
    assert judge(START, later(), (3e-7, 4e-7, 9e-7)) is None
    assert judge(START, later(), (1e-7, 9e-7, 1.5e-6)) is None
    assert judge(START, later(), (3e-5, 3e-5, 4e-5)) is None


def test_many_cores_have_daemons_too() -> None:
    many = replace(START, n_cores=64)
    after = replace(later(busy_s=4.0), n_cores=64)
    assert judge(many, after) is None
    assert judge(many, replace(after, busy_s=many.busy_s + 10.0)) is not None


def watch_of(usages: list[Usage]) -> NoiseWatch:
    left = iter(usages)
    return NoiseWatch(lambda: next(left))


def test_noise_is_reported_once_and_its_share_at_the_end() -> None:
    busy = [0.0, 2.0, 2.0, 4.0, 6.0, 6.0]
    watch = watch_of([later(2.0 * n, b) for n, b in enumerate(busy)])
    told = [watch.look() for _ in busy[1:]]
    assert [n is not None for n in told] == [False, False, True, False, False]
    assert watch.to_json()["share"] == 0.6
    assert watch.to_json()["other_cpus"] == 1.0


def test_one_noisy_interval_is_not_reported() -> None:
    watch = watch_of([later(2.0 * n, b) for n, b in enumerate([0.0, 2.0, 2.0, 2.0])])
    assert [watch.look() for _ in range(3)] == [None] * 3
    assert watch.to_json() == {}


def test_readings_that_are_too_near_are_not_compared() -> None:
    watch = watch_of([later(0.1 * n, 1.0 * n) for n in range(10)])
    assert [watch.look() for _ in range(9)] == [None] * 9


def fake_proc(root: Path, processes: dict[int, tuple[int, int, str]], cores: int) -> Path:
    """`processes`: parent, ticks, command line by id."""
    for pid, (parent, ticks, command) in processes.items():
        (root / str(pid)).mkdir(parents=True)
        tail = " ".join(["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0", *["0"] * 30])
        (root / str(pid) / "stat").write_text(f"{pid} (a ) odd (name) {tail}")
        (root / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode())
    every = "".join(f"cpu{n} 100 0 0 500 0 0 0 10 0 0\n" for n in range(cores))
    (root / "stat").write_text(f"cpu 1 1 1 1 1 1 1 1 0 0\n{every}intr 5\n")
    return root


def test_processes_are_ours_or_of_another_session(tmp_path: Path) -> None:
    me, child = os.getpid(), "python -c import.autotune.measure.processes.supervisor [] 3 4 {} 0"
    proc = fake_proc(
        tmp_path / "proc",
        {
            me: (1, 100, "autotune tune"),
            9_000_001: (me, 10, child.format(me)),
            9_000_002: (9_000_001, 1, child.format(me)),
            9_000_003: (1, 1000, child.format(77)),
            9_000_004: (1, 1000, "bash"),
            9_000_005: (1, 1000, "python -c"),
        },
        cores=1 + max(os.sched_getaffinity(0)),
    )
    usage = read_usage(proc, lambda: 3.0)
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    assert usage.own_s == pytest.approx(111 * tick_s)
    assert usage.sessions == (77,)
    assert usage.busy_s == pytest.approx(100 * tick_s * usage.n_cores)
    assert usage.steal_s == pytest.approx(10 * tick_s * usage.n_cores)


def test_a_system_without_proc_reports_no_noise(tmp_path: Path) -> None:
    before, after = read_usage(tmp_path), read_usage(tmp_path)
    assert (before.busy_s, before.own_s, before.sessions) == (0.0, 0.0, ())
    assert judge(before, after) is None


SPIN = "import time\nwhile time.process_time() < 1.0: pass\nprint('done', flush=True)"
DETACHED = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        exec({SPIN!r})
    os._exit(0)
os.wait()
"""


def spin(script: str) -> Callable[[], None]:
    """Run a process that keeps a core busy for a second of its own."""

    def run() -> None:
        subprocess.run(
            [sys.executable, "-c", script], check=True, timeout=120, stdout=subprocess.PIPE
        )

    return run


@pytest.mark.parametrize(("script", "is_ours"), [(SPIN, True), (DETACHED, False)])
def test_real_processes_are_ours_or_others(script: str, is_ours: bool) -> None:
    before = read_usage()
    spin(script)()
    time.sleep(0.05)
    after = read_usage()
    if before.busy_s == after.busy_s:
        pytest.skip("this system does not count what processors do")
    assert after.busy_s - before.busy_s > 0.8
    assert (after.own_s - before.own_s > 0.8) == is_ours


def test_noise_is_plain_json() -> None:
    assert Noise(4, 1.234, 0.0, (7,), None).to_json() == {
        "n_cores": 4,
        "other_cpus": 1.23,
        "steal": 0.0,
        "sessions": [7],
        "round_trip_ratio": None,
    }
