"""How far long work has come."""

from __future__ import annotations

import pytest

from autotune.cli.console import counting


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
