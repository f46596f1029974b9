"""A forked child of a process that has run a network works, whoever forks and whatever runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60

# Every scenario is a process of its own: the parent must have run on several threads, and a
# hanging child must not hang the tests. `check` raises where the numbers are wrong. `each` forks
# them from a process that has imported, and run nothing: that takes longer than all of them.
PRELUDE = """
import os, signal, sys, threading, time
sys.path.insert(0, {root!r})
import numpy as np
from autotune.network.runtime.runtime import Model
from autotune.network.bench.core_latency import CoreLatency
from tests.network.hand_made import N, reversing

X = np.random.default_rng(0).integers(0, 99, (2, N // 2)).astype(np.float32)

def check(model, n=25):
    found = model.run({{"x": X}})["y"].reshape(-1)
    flat = X.reshape(-1)
    want = (flat[::-1] if n % 2 else flat) + np.float32(n)
    assert np.array_equal(found, want), (found, want)

def in_child(work, leave=os._exit):
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        return
    try:
        work()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    leave(0)

def in_thread(work):
    failed = []
    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed, failed

def each(scenarios, deadline_s):
    for name, script in scenarios.items():
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            signal.alarm(deadline_s)
            exec(script, globals())
            sys.exit()
        _, status = os.waitpid(pid, 0)
        if status:
            print(f"{{name}}: status {{status}}", file=sys.stderr)
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

model = Model(reversing(25), 2)
"""

SCENARIOS = {
    "after a run": """
check(model)
in_child(lambda: [check(model) for _ in range(20)])
check(model)
""",
    "normal exit": """
check(model)
in_child(lambda: check(model), sys.exit)
""",
    "grandchild": """
check(model)
def child():
    check(model)
    in_child(lambda: check(model))
    check(model)
in_child(child, sys.exit)
""",
    "from another thread": """
check(model)
def forks():
    check(model)
    in_child(lambda: check(model))
in_thread(forks)
in_child(lambda: check(model))
""",
    "threads of the child": """
check(model)
def child():
    check(model)
    threads = [threading.Thread(target=check, args=(model,)) for _ in range(4)]
    for t in threads: t.start()
    check(model)
    for t in threads: t.join()
in_child(child, sys.exit)
""",
    "while another thread runs": """
stop = False
def busy():
    while not stop:
        check(model)
thread = threading.Thread(target=busy)
thread.start()
check(model)
for _ in range(20):
    in_child(lambda: check(model))
stop = True
thread.join()
""",
    "several models": """
models = [Model(reversing(25), n) for n in (1, 2, 3)]
for each in models: check(each)
def child():
    for each in [*models, Model(reversing(25), 2)]: check(each)
in_child(child, sys.exit)
""",
    "profile and round trip": """
check(model)
trip = CoreLatency(model.artifact.target, 2)
trip.measure()
def child():
    assert len(model.profile({"x": X})) == 25
    assert trip.measure()
    assert CoreLatency(model.artifact.target, 2).measure()
in_child(child)
""",
    "a measuring driver": """
from autotune.measure.timing.peak import fma_peak
from autotune.target import host_target
check(model)
in_child(lambda: fma_peak(host_target(), 2))
""",
    "a network that is made in the child only": """
check(model)
import autotune.codegen.team.team as team
def child():
    team.team.cache_clear()  # as if nothing of autotune had been used before the fork
    check(Model(reversing(25), 2))
in_child(child)
""",
}


def finish(script: str, deadline_s: int = DEADLINE_S) -> str:
    """The error output of a script that must end in time; "" where all is well."""
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE.format(root=str(ROOT)) + script],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            _, said = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"still running after {deadline_s} s"
    return said or (f"exit code {process.returncode}" if process.returncode else "")


@pytest.mark.slow
def test_a_forked_child_runs_networks() -> None:
    script = f"each({SCENARIOS!r}, {DEADLINE_S})"
    assert finish(script, DEADLINE_S * len(SCENARIOS)) == ""


@pytest.mark.slow
def test_libgomp_that_somebody_else_used_before_the_fork() -> None:
    pytest.importorskip("lightgbm")
    script = """
import lightgbm
rows = np.random.default_rng(0).random((4000, 20))
def train(n):
    data = lightgbm.Dataset(rows, rows[:, 0])
    lightgbm.train({"num_threads": n, "verbose": -1}, data, 3)
train(2)
def child():
    check(model)
    train(1)  # as a tuning session does
in_child(child, sys.exit)
"""
    assert finish(script) == ""


@pytest.mark.slow
def test_a_pool_of_forked_processes() -> None:
    script = """
import multiprocessing
def work(): check(model)
check(model)
with multiprocessing.get_context("fork").Pool(2) as pool:
    for result in [pool.apply_async(work) for _ in range(4)]:
        result.get(60)
"""
    assert finish(script) == ""
