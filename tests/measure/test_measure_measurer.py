from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import measure_fakes as fakes
import pytest

from autotune.measure.local import local_measurer
from autotune.measure.measurer import Measurer
from autotune.measure.processes.messages import Message
from autotune.measure.processes.process import WorkerError, said_by_worker
from autotune.measure.processes.run_worker import Hold, Time
from autotune.measure.processes.runner import LocalRunner
from autotune.result import MeasureResult, MeasureStatus

S = MeasureStatus


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with local_measurer(fakes.TARGET, 1, fakes.QUICK, fakes.build) as m:
        yield m


def measure(measurer: Measurer, *what: str) -> list[MeasureResult]:
    return measurer.measure(fakes.double_dag(), [fakes.does(w) for w in what])


def is_running(pid: int) -> bool:
    """Whether a process has not ended; a child has when its parent can wait for all its threads."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_end(pids: list[int], within_s: float = 10.0) -> bool:
    deadline_s = time.monotonic() + within_s
    while any(is_running(p) for p in pids) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not any(is_running(p) for p in pids)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("what", "status", "text"),
    [
        ("bad_schedule", S.SCHEDULE_ERROR, "no stage 'c'"),
        ("bad_code", S.BUILD_ERROR, "too many registers"),
        ("bug", S.BUILD_ERROR, "ZeroDivisionError: deep inside"),
        ("build_abort", S.BUILD_ERROR, "LLVM ERROR: cannot select"),
        ("build_segfault", S.BUILD_ERROR, "SIGSEGV"),
        ("build_sleep", S.BUILD_TIMEOUT, "within 1 s"),
        ("build_hang", S.BUILD_TIMEOUT, "within 1 s"),
        ("build_exit", S.BUILD_ERROR, "exit code 0"),
        ("build_stop", S.BUILD_TIMEOUT, "within 1 s"),
        ("build_killed", S.BUILD_ERROR, "SIGKILL"),
        ("build_garbage", S.BUILD_ERROR, "no reply"),
        ("build_closes", S.BUILD_ERROR, "builder ended"),
        ("crash", S.RUN_CRASH, "SIGSEGV"),
        ("unknown_symbol", S.RUN_ERROR, "no library of this system has"),
        ("hang", S.RUN_TIMEOUT, "within 1 s"),
        ("exhaust_memory", S.RUN_ERROR, "out of memory"),
        ("wrong_later", S.WRONG_ANSWER, "in a later evaluation: 1000 of 1000 elements"),
        ("wrong", S.WRONG_ANSWER, "1000 of 1000 elements of y are wrong"),
        ("off_by_a_little", S.WRONG_ANSWER, "elements of y are wrong"),
        ("forgets_last", S.WRONG_ANSWER, "1 of 1000 elements of y are NaN, infinite or never"),
        ("reads_past_end", S.WRONG_ANSWER, "the first at (999,)"),
        ("too_far", S.WRONG_ANSWER, "out-of-bounds write: 4 bytes after the end of y"),
        ("too_early", S.WRONG_ANSWER, "out-of-bounds write: 4 bytes before the first buffer"),
        ("changes_input", S.WRONG_ANSWER, "changed its input x"),
    ],
)
def test_failure_is_a_status_and_the_next_candidate_works(
    measurer: Measurer, what: str, status: MeasureStatus, text: str
) -> None:
    failed, good = measure(measurer, what, "good")
    assert failed.status is status, failed.error
    assert text in failed.error
    assert failed.times_s == ()
    assert good.status is S.OK, good.error


def test_good_candidate_has_times_and_error(measurer: Measurer) -> None:
    (result,) = measure(measurer, "good")
    assert fakes.QUICK.min_repeats <= len(result.times_s) <= fakes.QUICK.max_repeats
    assert all(0 < t < 1 for t in result.times_s)
    assert result.max_error is not None
    assert result.max_error <= 1e-6
    assert result.build_s > 0
    assert result.run_s > 0


def test_wrong_answer_reports_its_error(measurer: Measurer) -> None:
    (result,) = measure(measurer, "wrong")
    assert result.max_error == pytest.approx(0.5)
    (result,) = measure(measurer, "forgets_last")
    assert result.max_error == math.inf


@pytest.mark.slow
def test_what_rounds_too_much_is_timed_but_not_ok(measurer: Measurer) -> None:
    (allowed,) = measure(measurer, "inaccurate")
    assert allowed.ok
    assert allowed.max_error == pytest.approx(2**-14, rel=1e-3)
    options = dataclasses.replace(fakes.QUICK, max_error=5e-5)
    with local_measurer(fakes.TARGET, 1, options, fakes.build) as strict:
        (found, good) = measure(strict, "inaccurate", "good")
        again, _ = strict.measure_interleaved(
            fakes.double_dag(), [fakes.does(w) for w in ("inaccurate", "good")], rounds=2
        )
    assert (found.status, again.status, good.status) == (S.INACCURATE, S.INACCURATE, S.OK)
    assert found.error == "off by 6.1e-05 of the largest value, allowed is 5e-05"
    assert found.latency_s is None
    assert (len(found.times_s) >= 3, len(again.times_s)) == (True, 2)


def test_max_error_applies_to_programs_that_ran() -> None:
    result = MeasureResult(S.OK, (1.0,), max_error=1e-5)
    assert result.within(1e-5) is not None
    assert result.within(1e-5) == result
    assert result.within(9e-6).status is S.INACCURATE
    assert result.within(9e-6).within(1e-4) == result
    for other in (MeasureResult(S.OK, (1.0,)), MeasureResult(S.WRONG_ANSWER, max_error=math.inf)):
        assert other.within(1e-9) is other


def test_results_are_in_order(measurer: Measurer) -> None:
    what = ["good", "bad_code", "wrong", "good", "crash", "bad_schedule", "good"]
    expected = [S.OK, S.BUILD_ERROR, S.WRONG_ANSWER, S.OK, S.RUN_CRASH, S.SCHEDULE_ERROR, S.OK]
    assert [r.status for r in measure(measurer, *what)] == expected
    assert measure(measurer) == []


@pytest.mark.slow
def test_processes_are_reused_and_replaced_only_when_they_end(measurer: Measurer) -> None:
    measure(measurer, "good", "good")
    before = measurer.pids
    measure(measurer, "good", "wrong", "bad_code", "exhaust_memory")
    assert measurer.pids == before
    measure(measurer, "crash", "build_segfault")
    measure(measurer, "good", "good")
    assert measurer.pids[-1] != before[-1]
    assert len(set(measurer.pids[:-1]) & set(before[:-1])) == 1


def test_killed_idle_worker_is_replaced(measurer: Measurer) -> None:
    measure(measurer, "good")
    pids = measurer.pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert all_end(pids)
    assert measure(measurer, "good")[0].ok


def test_other_task_of_the_same_measurer(measurer: Measurer) -> None:
    good = [fakes.does("good")]
    assert measurer.measure(fakes.double_dag(64), good)[0].ok
    assert measure(measurer, "good")[0].ok


def test_hopeless_candidate_gets_few_repeats(measurer: Measurer) -> None:
    dag, good = fakes.double_dag(), [fakes.does("good")]
    assert len(measurer.measure(dag, good, best_s=1e-12)[0].times_s) <= 2
    assert len(measurer.measure(dag, good, best_s=1.0)[0].times_s) > 2


def test_interleaved(measurer: Measurer) -> None:
    steps = [fakes.does(w) for w in ("good", "bad_code", "wrong", "good")]
    results = measurer.measure_interleaved(fakes.double_dag(), steps, rounds=7)
    assert [r.status for r in results] == [S.OK, S.BUILD_ERROR, S.WRONG_ANSWER, S.OK]
    assert [len(r.times_s) for r in results] == [7, 0, 0, 7]


@pytest.mark.slow
def test_interleaved_crash_is_a_status_of_who_crashed(measurer: Measurer) -> None:
    what = ("good", "crash", "good", "hang", "good")
    steps = [fakes.does(w) for w in what]
    results = measurer.measure_interleaved(fakes.double_dag(), steps, rounds=2)
    assert [r.status for r in results] == [S.OK, S.RUN_CRASH, S.OK, S.RUN_TIMEOUT, S.OK]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [None, 3])
def test_a_crash_while_timing_is_attributed_to_its_candidate(
    measurer: Measurer, rounds: int | None
) -> None:
    dag, steps = fakes.double_dag(), [fakes.does(w) for w in ("good", "crash_later", "good")]
    if rounds is None:
        results = measurer.measure(dag, steps)
    else:
        results = measurer.measure_interleaved(dag, steps, rounds)
    assert [r.status for r in results] == [S.OK, S.RUN_CRASH, S.OK]


def test_programs_that_exceed_memory_together_are_timed_in_groups(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ask = LocalRunner._ask

    def spy(self: LocalRunner, request: Hold | Time, timeout_s: float) -> object:
        asked.append(type(request))
        return ask(self, request, timeout_s)

    monkeypatch.setattr(LocalRunner, "_ask", spy)
    assert all(r.ok for r in measure(measurer, "good", "good", "good"))
    assert asked == [Hold, Hold, Hold, Time]
    monkeypatch.setattr("autotune.measure.processes.runner._HELD_BYTES", 2 * 2 * 4 * fakes.N)
    asked.clear()
    assert all(r.ok for r in measure(measurer, "good", "good", "good"))
    assert asked == [Hold, Hold, Time, Hold, Time]


def test_workers_print_nothing_and_ignore_interrupts(
    measurer: Measurer, capfd: pytest.CaptureFixture[str]
) -> None:
    measure(measurer, "good", "build_abort")
    measure(measurer, "good", "good")
    for pid in measurer.pids:
        assert os.getpgid(pid) != os.getpgrp()
        os.kill(pid, signal.SIGINT)
    before = measurer.pids
    assert measure(measurer, "good")[0].ok
    assert measurer.pids == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_interrupted_batch_leaves_no_stale_reply(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    measure(measurer, "good")
    with monkeypatch.context() as patch:
        patch.setattr("autotune.measure.processes.builder.wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure(measurer, "wrong", "wrong")
    assert [r.status for r in measure(measurer, "good", "bad_code")] == [S.OK, S.BUILD_ERROR]


@pytest.mark.slow
def test_close_ends_all_processes() -> None:
    with local_measurer(fakes.TARGET, 1, fakes.QUICK, fakes.build) as m:
        measure(m, "good")
        pids = m.pids
        assert len(pids) == 3
        assert all(is_running(p) for p in pids)
    assert not any(is_running(p) for p in pids)


@pytest.mark.slow
def test_worker_that_cannot_start_raises() -> None:
    options = dataclasses.replace(fakes.QUICK, cores=(100_000,))
    with (
        local_measurer(fakes.TARGET, 1, options, fakes.build) as m,
        pytest.raises(WorkerError, match=r"cannot work here: .*100000"),
    ):
        measure(m, "good")


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_threads() -> None:
    with local_measurer(fakes.TARGET, 2, fakes.QUICK, fakes.build) as m:
        results = measure(m, "good", "wrong", "crash", "good")
    expected = [S.OK, S.WRONG_ANSWER, S.RUN_CRASH, S.OK]
    assert [r.status for r in results] == expected


ORPHAN_MAKER = """
import sys
sys.path[:0] = {path!r}
import dataclasses
import measure_fakes as fakes
from autotune.measure.local import local_measurer
options = dataclasses.replace(fakes.QUICK, run_timeout_s=600, build_timeout_s=600)
m = local_measurer(fakes.TARGET, 1, options, fakes.build)
m.measure(fakes.double_dag(), [fakes.does("good")] * 2)
print(*m.pids, flush=True)
m.measure(fakes.double_dag(), [fakes.does(w) for w in {what!r}])
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", [["hang"], ["build_hang", "build_sleep"]])
def test_no_process_outlives_a_killed_session(what: list[str]) -> None:
    script = ORPHAN_MAKER.format(path=sys.path, what=what)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout is not None
        pids = [int(p) for p in session.stdout.readline().split()]
        assert len(pids) == 3
        time.sleep(0.3)  # let the workers get stuck
        assert all(is_running(p) for p in pids)
        session.kill()
    assert all_end(pids)


def test_of_a_workers_traceback_its_last_line_is_told() -> None:
    text = "Traceback:\n  File ...\nMemoryError: no memory\nhint: close some\n"
    error = said_by_worker("no oracle", Message("failed", {"text": text}))
    assert (error.message, error.hint) == ("no oracle: MemoryError: no memory", "close some")
    assert "File" in str(error.__cause__)
