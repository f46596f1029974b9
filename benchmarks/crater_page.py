"""The tables of docs/results/crater.md: ONNX files of packages, this version beside the last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.tables import geometric_mean, markdown

Row = dict[str, str]

INTRO = """
ONNX files that packages of PyPI and npm carry, by the bare command: `autotune compile MODEL`, with
its check beside ONNX Runtime, in a process of its own with a limit of time and memory. *Ratio*: our
time over ONNX Runtime's in turns, on one thread, untuned, for half a second on a machine that
others use: a regression shows in it, a few per cent do not. What several packages carry is tried
once. *Lost*: the process ended or took too long; *fault*: an error without a type; both, and
*wrong*, are faults of autotune. The packages, by name and version, are in
`benchmarks/crater.csv`.

The rows so far are of a machine on whose two cores ten to twenty other processes ran: seconds of
compiling, ratios, and ends by time say little.

    python -m benchmarks.crater && python -m benchmarks.results
"""

_GOOD = ("ok", "slower")


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Outcomes by version, what changed with the last one, and what is not compiled.

    Each file by the last version that tried it: a run of a few files says nothing of the others.
    """
    if not rows:
        yield "Nothing is measured yet."
        return
    found = {version: _last(rows, version) for version in _versions(rows)}
    kinds = sorted({row["outcome"] for kept in found.values() for row in kept.values()})
    heads = ["version", "files", *kinds, "mean ratio"]
    yield markdown(heads, [_counts(version, kept, kinds) for version, kept in found.items()])
    *before, last = found.values()
    earlier = {key: row for kept in before for key, row in kept.items()}
    known = dict(sorted((earlier | last).items()))
    if before:
        yield "## What changed"
        yield _changes(earlier, last)
    yield "## Not compiled, or slower"
    bad = [[*key, row["outcome"], row["text"] or row["ratio"]] for key, row in known.items()
           if row["outcome"] != "ok"]  # fmt: skip
    yield markdown(["package", "file", "outcome", "why, or ratio"], bad) if bad else "None."
    yield "## All files"
    heads = ["package", "file", "version", "outcome", "compile s", "error", "ratio"]
    keys = ("version", "outcome", "compile_s", "error", "ratio")
    yield markdown(heads, [[*key, *(row[k] for k in keys)] for key, row in known.items()])


def _versions(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["version"] for row in rows))


def _last(rows: Sequence[Row], version: str) -> dict[tuple[str, str], Row]:
    """The last row of each file."""
    mine = [row for row in rows if row["version"] == version]
    kept = {(row["package"], row["file"]): row for row in mine}
    return dict(sorted(kept.items()))


def _counts(version: str, kept: dict[tuple[str, str], Row], kinds: Sequence[str]) -> list[str]:
    counts = Counter(row["outcome"] for row in kept.values())
    ratios = [float(row["ratio"]) for row in kept.values() if row["ratio"]]
    mean = f"{geometric_mean(ratios):.2f}" if ratios else ""
    return [version, str(len(kept)), *(str(counts[kind]) for kind in kinds), mean]


def _changes(old: dict[tuple[str, str], Row], new: dict[tuple[str, str], Row]) -> str:
    """Files of both, that one of them alone compiles; and how many are as before."""
    both = [key for key in new if key in old]
    changed = [
        [*key, old[key]["outcome"], new[key]["outcome"], new[key]["text"]]
        for key in both
        if (old[key]["outcome"] in _GOOD) != (new[key]["outcome"] in _GOOD)
    ]
    heads = ["package", "file", "before", "now", "why"]
    same = f"{len(both) - len(changed)} end as before."
    return f"{markdown(heads, changed)}\n\n{same}" if changed else same
