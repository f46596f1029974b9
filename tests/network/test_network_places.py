"""Where the threads of the team run: on the cache of the caller that they were started for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STARTED = """
import pathlib, time
import numpy as np
import autotune.codegen.team.team as team
from autotune.machine import usable_cpus
from autotune.network.runtime.runtime import Model
from autotune.topology import Topology
from tests.network.hand_made import reversing

def places():
    found = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        status = (task / "status").read_text()
        found += [line.split()[1] for line in status.splitlines() if "Cpus_allowed_list" in line]
    return sorted(found)

def run(n_threads, expected):
    Model(reversing(3), n_threads).run([np.ones((2, 48), np.float32)])
    deadline = time.monotonic() + 20
    while places() != sorted(expected) and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread is bound soon after it has started
    assert places() == sorted(expected), (places(), expected)

first = min(usable_cpus())
caches = frozenset({first, 1000}), frozenset({1001, 1002})
cores = tuple(frozenset({cpu}) for cache in caches for cpu in cache)
team.team().place(2, Topology(cores, frozenset(), caches), first)
others = places()
run(2, [*others, str(first)])
team.team().place(5, Topology(cores, frozenset(), caches), first)  # they fit on neither
run(5, [*others, str(first), *3 * others[:1]])
"""


@pytest.mark.slow
def test_threads_are_bound_to_the_cache_of_a_caller_that_they_fit_on() -> None:
    """Read from the system; on a machine with one core they can only be there."""
    command = [sys.executable, "-c", STARTED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
