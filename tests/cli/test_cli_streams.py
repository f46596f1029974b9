"""Streams that are closed, full or read by nobody, and signals at any moment. In real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kills
import pytest

from autotune.cli.main import run
from autotune.records import read_log

ROOT = Path(__file__).parent.parent.parent
Cli = Callable[..., Any]


def shell(line: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run `autotune` with the redirections of `line`, in which `$@` stands for the command."""
    command = [sys.executable, "-m", "autotune", *map(str, arguments)]
    return subprocess.run(
        ["bash", "-c", line, "bash", *command],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | env,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("where", "why"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
)
def test_data_that_stdout_does_not_take_is_an_error(model: Path, where: str, why: str) -> None:
    for arguments in (["--help"], ["tasks", model], ["tasks", model, "--format", "json"]):
        done = shell(f'"$@" {where}', *arguments)
        lines = done.stderr.decode().splitlines()
        assert (done.returncode, len(lines)) == (1, 2), lines
        assert lines[0] == f"error: cannot write to stdout: {why}"
        assert lines[1].startswith("hint:")


def test_a_file_that_is_whole_is_no_failure_because_of_stdout(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.jsonl"
    done = shell('"$@" >/dev/full', "distill", tuned, "-o", path)
    assert done.returncode == 0
    assert f"{path} is written" in done.stderr.decode()
    assert read_log(path).records


@pytest.mark.parametrize("where", ["2>/dev/full", "<&- 2>&-"])
def test_a_session_does_not_need_its_terminal(tuned: Path, tmp_path: Path, where: str) -> None:
    """Nor is the log written to by what is said, where it was opened as the first free file."""
    log = tmp_path / "log.jsonl"
    log.write_bytes(tuned.read_bytes())
    done = shell(f'"$@" {where}', "resume", log, "--trials", 1, "--events", "jsonl")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "session_finished"
    assert read_log(log).n_skipped == 0


def test_events_that_nobody_reads_end_the_session_with_a_whole_log(
    tuned: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(tuned.read_bytes())
    for line, code in (
        ('"$@" | head -1; exit ${PIPESTATUS[0]}', 141),
        ('"$@" >/dev/full', 1),
    ):
        done = shell(line, "resume", log, "--trials", 400, "--events", "jsonl")
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        found = read_log(log)
        assert (found.n_skipped, found.torn, found.ends[-1].reason) == (0, False, "interrupted")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_text_can_be_written(tmp_path: Path, encoding: str) -> None:
    name = tmp_path / os.fsdecode("Σ→\x1b[31m\xff.onnx".encode() + b"\xff")
    done = shell('"$@"', "tasks", name, PYTHONIOENCODING=encoding)
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (2, 2), done.stderr
    assert b"\x1b" not in done.stderr


def test_autotune_alone_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Usage: autotune")
    assert told.err == ""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_any_command_with_their_code(tuned: Path, tmp_path: Path, kind: int) -> None:
    """From the moment at which they are handled, before anything large is imported."""
    command = ["compile", "--log", str(tuned), "--no-cache", "-o", str(tmp_path / "m.atn")]
    for wait_s in (0.0, 0.1, 0.3):
        with subprocess.Popen(
            [sys.executable, "-m", "autotune", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(kind, signal.SIG_DFL),  # under nohup, it is ignored
            env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        ) as process:
            while not kills.heeds_signals(process.pid):
                time.sleep(0.002)
            time.sleep(wait_s)
            process.send_signal(kind)
            out, told = process.communicate(timeout=60)
        assert (process.returncode, out) == (128 + kind, ""), told
        assert told.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


def test_sighup_that_nohup_has_turned_off_stays_so(tuned: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(tuned.read_bytes())
    done = shell('trap "" HUP; "$@" & kill -HUP $!; wait $!', "resume", log, "--trials", 1)
    assert done.returncode == 0, done.stderr


def test_kills_lose_nothing_and_leave_nothing_behind() -> None:
    """`make soak` does the same some hundred times."""
    tally = kills.run_kills(1, seed=1)
    assert (tally.tried, tally.problems) == (1, [])
    assert (tally.right, tally.lost, tally.left_behind) == (1, 0, 0)


def test_a_signal_in_the_middle_of_an_import_ends_with_its_code() -> None:
    code = (
        "import os, signal, sys, types\n"
        "from autotune.cli.signals import end_at_signals\n"
        "end_at_signals()\n"
        "sys.modules['autotune.files'] = types.ModuleType('autotune.files')\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "error: terminated\n")
