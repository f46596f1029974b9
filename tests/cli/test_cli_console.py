"""How far long work has come."""

from __future__ import annotations

import sys

import pytest

from autotune.cli.console import columns, counting


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = iter((0.0, 1.0, 6.0, 6.0, 7.0, 12.0, 12.0))
    monkeypatch.setattr("autotune.cli.console.time.monotonic", lambda: next(now_s))
    with counting("choosing programs") as tell:
        for n in range(4):
            tell(n + 1, 4)
    printed = capsys.readouterr()
    assert printed.err == "choosing programs: 2 of 4\nchoosing programs: 4 of 4\n"
    assert not printed.out


def test_a_narrow_terminal_gets_fewer_columns_and_a_file_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, rows = ("", "median", "std", "error"), [("autotune", "1.000 ms", "9.9 µs", "1e-7")]
    whole = columns(head, rows, head[1:], least=("std", "error", "median"))
    assert whole.splitlines()[0].split() == ["median", "std", "error"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width, kept in (
        (40, ["median", "std", "error"]),
        (28, ["median", "error"]),
        (19, ["median"]),
    ):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = columns(head, rows, head[1:], least=("std", "error", "median")).splitlines()
        assert lines[0].split() == kept
        assert max(map(len, lines)) <= width
