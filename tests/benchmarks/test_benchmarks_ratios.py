"""The picture of the first page shows the figures of the results."""

from __future__ import annotations

import re

from benchmarks.ratios import PICTURE, THREADS
from benchmarks.results import FOLDER, read_rows


def test_the_picture_has_every_ratio_of_the_results() -> None:
    machines = {r["machine"]: r["processor"] for r in read_rows(FOLDER / "machines.csv")}
    rows = [r for r in read_rows(FOLDER / "networks.csv") if r["threads"] == THREADS]
    wanted = sorted((machines[r["machine"]], float(r["ratio"])) for r in rows)
    text = PICTURE.read_text(encoding="utf-8")
    found = re.findall(r'one thread: ([\d.]+); machine: ([^"]+)"', text)
    assert sorted((machine, float(ratio)) for ratio, machine in found) == wanted
    assert "currentColor" not in text
