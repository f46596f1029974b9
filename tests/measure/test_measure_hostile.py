"""Whatever a candidate does, it gets a status, the next one works, and nothing is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import hostile
import measure_fakes as fakes
import pytest

from autotune.measure.local import local_measurer
from autotune.measure.measurer import Measurer
from autotune.result import MeasureStatus

OPTIONS = dataclasses.replace(
    fakes.QUICK, n_builders=1, run_timeout_s=1.5, build_timeout_s=60.0, worker_bytes=1 << 30
)
QUICK = (
    "writes to address 0",
    "exit(0)",
    "half a reply",
    "garbage to all files",
    "kills its parent",
    "leaves a session and dies",
)
SLOW = tuple(name for name in hostile.HOSTILE if name not in QUICK)
LEAVERS = ("leaves 20 children and hangs", "leaves a session and hangs")


def descendants(session: int, others: Collection[int] = ()) -> list[int]:
    """Processes that were started by the measurer of `session`, or by what that has started.

    `others`: those of other tests in this process, whose checks share one.
    """
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_ours = any(b"autotune.measure.processes.supervisor" in w for w in words)
            if is_ours and str(session).encode() in words:
                found.append(int(entry.name))
    return [pid for pid in found if pid not in others]


def none_left(session: int, others: Collection[int] = (), within_s: float = 15.0) -> bool:
    end_s = time.monotonic() + within_s
    while descendants(session, others) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not descendants(session, others)


@pytest.fixture(scope="module")
def others() -> Collection[int]:
    return descendants(os.getpid())


@pytest.fixture(scope="module")
def measurer(others: Collection[int]) -> Iterator[Measurer]:
    with local_measurer(fakes.TARGET, 1, OPTIONS, hostile.build) as m:
        yield m
    assert none_left(os.getpid(), others)


def check(measurer: Measurer, others: Collection[int], name: str) -> None:
    steps = [fakes.does(what) for what in ("good", name, "good")]
    before, result, after = measurer.measure(fakes.double_dag(), steps)
    assert result.status in hostile.EXPECTED[name], result
    assert (before.status, after.status) == (MeasureStatus.OK, MeasureStatus.OK)
    # the worker of now and its supervisor, and those of the builder
    assert len(descendants(os.getpid(), others)) <= 4


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_candidate_is_a_status(
    measurer: Measurer, others: Collection[int], name: str
) -> None:
    check(measurer, others, name)


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_hostile_candidate_is_a_status(
    measurer: Measurer, others: Collection[int], name: str
) -> None:
    check(measurer, others, name)


SESSION = """
import sys
sys.path[:0] = {path!r}
import dataclasses
import hostile, measure_fakes as fakes
from autotune.measure.local import local_measurer
options = dataclasses.replace(fakes.QUICK, run_timeout_s=600)
m = local_measurer(fakes.TARGET, 1, options, hostile.build)
m.measure(fakes.double_dag(), [fakes.does("good")])
print(flush=True)
m.measure(fakes.double_dag(), [fakes.does({what!r})])
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", LEAVERS)
def test_children_of_a_candidate_do_not_outlive_a_killed_session(what: str) -> None:
    script = SESSION.format(path=sys.path, what=what)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        session.stdout.readline()
        end_s = time.monotonic() + 30
        while len(descendants(session.pid)) < 7 + 2 and time.monotonic() < end_s:
            time.sleep(0.05)
        assert len(descendants(session.pid)) >= 9  # three pairs, and children of the candidate
        os.kill(session.pid, signal.SIGKILL)
    assert none_left(session.pid)
