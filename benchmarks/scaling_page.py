"""The table of docs/results/scaling.md: trials per second of simulated fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.tables import markdown

Row = dict[str, str]

INTRO = """
Trials per second of a session over the tasks of ResNet-50 by the [devices](../howto/fleet.md) that
measure. The fleet is simulated: how long a candidate is built (0.15 s) and measured (0.25 s, both
lognormal), whether it fails (5 %) or hangs (0.2 %, for 10 s) and its latency are drawn; search,
scheduler and ranker are those of `autotune tune` and take the processor time that they take.
*Of linear*: over that of one device, times the devices. *Idle*: share of the time of the devices,
from the first proposal on. *Building*: of the builders. *Searching*: of the session.

    python -m benchmarks.scaling --record && python -m benchmarks.results
"""
_HEAD = ("devices", "builders", "trials/s", "of linear", "idle", "building", "searching")


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """A table of sessions with as many builders as devices, and one of sessions with two."""
    if not rows:
        yield "Nothing is measured yet."
        return
    for title, per_device in (("A builder for each device", "1"), ("Two builders in all", "0")):
        some = [row for row in rows if row["builders_per_device"] == per_device]
        if some:
            yield f"## {title}"
            yield _table(some)


def _table(rows: Sequence[Row]) -> str:
    least = min(rows, key=lambda row: int(row["devices"]))
    alone = _rate(least) / int(least["devices"])
    cells = [
        [
            row["devices"],
            row["builders"],
            f"{_rate(row):.1f}",
            f"{_rate(row) / alone / int(row['devices']):.2f}",
            *(f"{float(row[name]):.0%}" for name in ("idle", "building", "searching")),
        ]
        for row in rows
    ]
    return markdown(_HEAD, cells)


def _rate(row: Row) -> float:
    return float(row["trials"]) / float(row["seconds"])
