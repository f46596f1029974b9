"""A terminal is never silent for long, and is not drawn on where it cannot be."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from autotune.cli.waiting import Waiting, has_colours
from tests.forking import environment

COMMAND = """
import importlib, sys, time, click
main = importlib.import_module("autotune.cli.main")
from autotune.cli.console import put, say_note, stage

@click.command()
def slow():
    with stage("thinking hard"):
        time.sleep(4.0)
    say_note("done")
    put("data")

main.app.add_command(slow, "tasks")
main._Commands.get_command = lambda self, ctx, name: slow
sys.exit(main.run(["tasks"]))
"""


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def on_a_terminal(folder: Path, **env: str) -> tuple[str, str]:
    """What a slow command writes to a terminal that is its stderr, and to stdout, a pipe."""
    script = folder / "slow.py"
    script.write_text(COMMAND)
    ours, theirs = pty.openpty()
    kept = {k: v for k, v in environment().items() if k not in ("NO_COLOR", "TERM", "FORCE_COLOR")}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=kept | env) as done:
        os.close(theirs)
        said, end_s = b"", time.monotonic() + 120
        while time.monotonic() < end_s:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                found = os.read(ours, 4096)
            except OSError:  # the terminal has no writer any more
                break
            if not found:
                break
            said += found
        assert done.stdout is not None
        return said.decode(), done.stdout.read().decode()


@pytest.mark.slow
def test_a_slow_stage_is_told_on_a_terminal_and_taken_away(tmp_path: Path) -> None:
    said, out = on_a_terminal(tmp_path, TERM="xterm-256color")
    assert "thinking hard, " in said
    assert "\x1b[2K" in said.partition("thinking hard")[2]
    assert "\x1b[33m" in said.partition("note:")[0] or "\x1b[1m" in said.partition("note:")[0]
    assert out == "data\n"


@pytest.mark.slow
def test_a_dumb_terminal_gets_lines_that_stay_without_colours(tmp_path: Path) -> None:
    said, out = on_a_terminal(tmp_path, TERM="dumb")
    assert said.splitlines() == ["thinking hard …", "note: done"]
    assert out == "data\n"


def test_the_line_comes_after_a_silent_second_and_goes_before_words(clock: list[float]) -> None:
    line = Waiting(True, clock=lambda: clock[0])
    out = io.StringIO()
    line.console = Console(file=out, width=40, force_terminal=True)
    with line.stage("compile"), line.stage("choosing programs"):
        line.look()
        assert out.getvalue() == ""
        clock[0] = 1.5
        line.look()
        assert "choosing programs, 2 s" in out.getvalue()
        line.pause()
        n = len(out.getvalue())
        line.look()
        assert len(out.getvalue()) == n
        clock[0] = 3.0
        with line.held():
            line.look()
        assert len(out.getvalue()) == n


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": ""}, False),
        ({"NO_COLOR": ""}, False),
    ],
)
def test_variables_decide_on_colours_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert has_colours() is expected
