"""The tables of docs/results/store.md: what sessions find after how many trials, by their store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from benchmarks.tables import markdown

Row = dict[str, str]

INTRO = """
How many trials a [store](../store.md) saves. Tasks of each network, from the heaviest to the
lightest, are tuned without a store; with a store of what such sessions measured for the *other*
networks; and with one of the other networks on *another CPU*, one with AVX2 alone: there the
learned ranker is all that it gives. Every session has as many trials and the same seed. After each
trial a session has four finalists; those of all sessions are measured again, in turns: the best of
the four is its choice. The *end* is the best choice of any session.

    python -m benchmarks.store --machine NAME && python -m benchmarks.results
"""


def tables(rows: Sequence[Row], rankers: Sequence[Row]) -> Iterator[str]:
    """Three tables per machine, of what was measured last."""
    if not rows:
        yield "Nothing is measured yet."
    for machine in dict.fromkeys(row["machine"] for row in rows):
        names = ("network", "key", "sessions")
        mine = _last([row for row in rows if row["machine"] == machine], names)
        of_rankers = [row for row in rankers if row["machine"] == machine]
        yield f"## Machine {machine}"
        yield (
            "Trials of a task after which the choice stays within 5 % of the end (one more than "
            "all where it never does), in the mean over tasks. *Same form*: tasks whose form, "
            "*same*: tasks that the store itself has."
        )
        yield _trials(mine)
        yield "Σ weight·latency of the choices over that of the ends, after so many trials of each."
        yield _totals(mine)
        yield (
            "Pairs of candidates of this CPU that a ranker orders rightly before it has seen any "
            "of their network, by what it was trained on; chance gives 0.50."
        )
        yield _pairs(_last(of_rankers, ("network", "key", "ranker")))


def _last(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return list({tuple(row[name] for name in names): row for row in rows}.values())


def _by(rows: Sequence[Row], name: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def _trials(rows: Sequence[Row]) -> str:
    sessions = list(_by(rows, "sessions"))
    cells = []
    for network, some in [*_by(rows, "network").items(), ("all", list(rows))]:
        kinds = _by(some, "sessions")
        known = [row["known"] for row in kinds[sessions[0]]]
        counts = [len(known), known.count("form"), known.count("task")]
        means = [fmean(float(row["to_5_pct"]) for row in kinds[name]) for name in sessions]
        cells.append([network, *map(str, counts), *(f"{mean:.1f}" for mean in means)])
    return markdown(["network", "tasks", "same form", "same", *sessions], cells)


def _totals(rows: Sequence[Row]) -> str:
    kinds = _by(rows, "sessions")
    after = list(_after(rows[0]))
    head = ["network", *(f"{name}: {n}" for name in kinds for n in after)]
    cells = []
    for network, some in _by(rows, "network").items():
        own = _by(some, "sessions")
        ratios = [_ratio(own[name], n) for name in kinds for n in after]
        cells.append([network, *(f"{r:.2f}" if math.isfinite(r) else "–" for r in ratios)])
    return markdown(head, cells)


def _ratio(rows: Sequence[Row], n: int) -> float:
    ends = [float(row["weight"]) * float(row["end_us"]) for row in rows]
    chosen = [end * _after(row)[n] for end, row in zip(ends, rows, strict=True)]
    return sum(chosen) / sum(ends)


def _after(row: Row) -> Mapping[int, float]:
    pairs = (part.split(":") for part in row["after"].split())
    return {int(n): float(ratio) for n, ratio in pairs}


def _pairs(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row["pairs"] != "nan"]
    rankers = list(_by(known, "ranker"))
    cells = []
    for network, some in [*_by(known, "network").items(), ("all", known)]:
        own = _by(some, "ranker")
        cells.append(
            [network, *(f"{fmean(float(r['pairs']) for r in own[n]):.2f}" for n in rankers)]
        )
    return markdown(["network", *rankers], cells)
