"""How far long work has come."""

from __future__ import annotations

import sys

import pytest

from autotune.cli.console import columns, counting, say_error, tell_note


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = iter((0.0, 1.0, 11.0, 11.0, 12.0, 22.0, 22.0))
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


def test_a_note_is_folded_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "one of the inputs decides what is computed, and is looked at in every inference"
    monkeypatch.setenv("COLUMNS", "40")
    tell_note(text)
    assert capsys.readouterr().err == f"note: {text}\n"
    monkeypatch.setattr("autotune.cli.console.is_screen", lambda: True)
    for tell, head in ((tell_note, "note: "), (say_error, "error: ")):
        tell(text)
        first, *others = capsys.readouterr().err.splitlines()
        assert max(map(len, [first, *others])) <= 40
        assert all(line.startswith("  ") for line in others)
        assert " ".join([first, *map(str.strip, others)]) == head + text
