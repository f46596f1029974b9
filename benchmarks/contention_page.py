"""The tables of docs/results/contention.md: one for each section, a column for each runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.tables import markdown

Row = dict[str, str]

INTRO = """
Latencies where others want the cores, of callers that come at once, in quotas and at rest, of
untuned networks, beside ONNX Runtime and OpenVINO in turns, each a process of its own with as many
threads as there are cores. Cells are mean / p50 / p99 in milliseconds, where nothing else is said.
*ratio*: of each of our figures to the best of the others (for callers, of seconds per inference
first; at ten requests a second, of latencies alone); below 1 we are better. *on 1*: on so many
threads; without it, ours chooses.

    python -m benchmarks.contention --machine NAME
"""
_TITLES = {
    "neighbours": "Beside other processes that compute without end",
    "quota": "In a quota of CPUs",
    "callers": "Callers at once: inferences per second / p50 / p99",
    "paced": "Ten requests a second: CPU beyond the work in % / p50 / p99",
    "memory": "Memory of one process / of four with the same file, MB",
}
_LEVELS = {"neighbours": "processes", "quota": "CPUs", "callers": "callers"}
_CELLS = {
    "callers": ("per_s", "p50_ms", "p99_ms"),
    "paced": ("share_pct", "p50_ms", "p99_ms"),
    "memory": ("one_mb", "four_mb"),
}
_OURS = "autotune"


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """A table per machine and section, of what was measured last."""
    if not rows:
        yield "Nothing is measured yet."
    for machine in dict.fromkeys(row["machine"] for row in rows):
        yield f"## Machine {machine}"
        for section, title in _TITLES.items():
            mine = [r for r in rows if (r["machine"], r["section"]) == (machine, section)]
            if mine:
                yield f"### {title}"
                yield from _table(section, mine)


def _table(section: str, rows: Sequence[Row]) -> Iterator[str]:
    runtimes = list(dict.fromkeys(row["runtime"] for row in rows))
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["level"]), {})[row["runtime"]] = row
    head = ["model", _LEVELS.get(section, ""), *runtimes, "ratio"]
    keys = _CELLS.get(section, ("mean_ms", "p50_ms", "p99_ms"))
    cells = [
        [*place, *(_cell(sides.get(name), keys) for name in runtimes), _ratio(sides, keys)]
        for place, sides in found.items()
    ]
    yield markdown(head, cells)
    if notes := dict.fromkeys(row["note"] for row in rows if row["note"]):
        yield f"By {', '.join(notes)}."


def _cell(row: Row | None, keys: Sequence[str]) -> str:
    return "" if row is None else " / ".join(_short(row[key]) for key in keys)


def _short(figure: str) -> str:
    """Three significant digits."""
    value = float(figure)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(sides: dict[str, Row], keys: Sequence[str]) -> str:
    """Of our figures to the better ones of the others."""
    peers = [row for name, row in sides.items() if not name.startswith(_OURS)]
    if _OURS not in sides or not peers:
        return ""
    pairs = [(float(sides[_OURS][key]), [float(row[key]) for row in peers]) for key in keys]
    ratios = [
        max(others) / ours if key == "per_s" else ours / min(others)
        for key, (ours, others) in zip(keys, pairs, strict=True)
        if key != "share_pct"  # may be nothing
    ]
    return " / ".join(f"{ratio:.2f}" for ratio in ratios)
