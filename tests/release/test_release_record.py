"""A recording: the lines of a command, in their order, in a picture that browsers play."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from release.record import drawn, recorded, shortened

PICTURE = Path(__file__).parents[2] / "docs" / "demo.svg"
TEXT = "{http://www.w3.org/2000/svg}text"


def test_lines_of_both_streams_are_recorded_as_they_come() -> None:
    code = "import sys; print('$ one'); print('note: x', file=sys.stderr); print('<two>')"
    found = recorded([sys.executable, "-c", code])
    assert [text for _, text in found] == ["$ one", "<two>"]
    with pytest.raises(SystemExit, match="failed\nbad"):
        recorded([sys.executable, "-c", "print('bad'); raise SystemExit(3)"])


def test_pauses_are_cut_and_each_line_takes_its_time() -> None:
    lines = shortened([(0.0, "a"), (0.01, "b"), (30.0, "c"), (30.5, "d")])
    assert [text for _, text in lines] == ["a", "b", "c", "d"]
    times = [at for at, _ in lines]
    assert times == pytest.approx([0.08, 0.16, 1.16, 1.66])


def test_a_long_text_moves_up_line_by_line_and_stays_at_its_end() -> None:
    text = drawn([(0.1 * n, f"line {n} & <more>") for n in range(30)], "a title")
    shown = [node.text for node in ElementTree.fromstring(text).iter(TEXT)]
    assert shown == [f"line {n} & <more>" for n in range(30)]
    assert "100.00%{transform:translateY(-72px)}" in text  # 30 lines on 26 rows
    assert text.count("translateY") == 5


def test_the_picture_of_the_readme_shows_the_demo() -> None:
    shown = [node.text for node in ElementTree.parse(PICTURE).iter(TEXT)]
    assert shown[0] == "$ autotune demo"
    assert sum((line or "").startswith("$ autotune ") for line in shown) == 6
    assert PICTURE.stat().st_size < 20_000
