"""Five seconds of `make soak`'s many callers, in a process of their own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.network.runtime.runtime import Model
from tests.fuzz.callers import MOST_GROWTH, Soak, n_threads_of_process, reversing_case

ROOT = Path(__file__).parents[2]
KINDS = ("calls", "forks", "models", "signals", "threads")


@pytest.mark.slow
def test_callers_come_and_go_beside_forks_signals_and_models_that_are_deleted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.callers", "--time", "2s"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert all(f" {kind}" in done.stdout for kind in KINDS)


def test_what_is_wrong_is_said() -> None:
    case = reversing_case(25)
    wrong = replace(case, wants=tuple(bytes([w[0] ^ 1]) + w[1:] for w in case.wants))
    with pytest.raises(AssertionError, match="wrong bits"):
        wrong.check(Model(case.artifact), random.Random(0))
    soak = Soak([case], 0, failures=["of a call"], held_bytes=[9**9, *[1] * 8, 2 + MOST_GROWTH])
    told = soak.complaints(n_threads_of_process() - 1, wait_s=0)
    assert told == ["of a call", "1 threads are left"]
    soak.held_bytes += [2 + MOST_GROWTH] * 3
    assert "memory grew" in soak.complaints(n_threads_of_process(), wait_s=0)[1]
