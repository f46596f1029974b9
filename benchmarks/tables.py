"""Results of the benchmarks as data and as Markdown: no measuring, no console."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BASELINES = ("onnxruntime", "openvino")

Bench = dict[str, Any]
"""What `autotune bench --format json` prints: per side a `median_s`, and more."""


@dataclass(frozen=True, slots=True)
class Result:
    """A network on so many threads: one line of the results.

    `tuned`, `untuned`: one `Bench` per round. Errors: the largest difference from ONNX Runtime over
    its largest output; `direct_error`: the same of the best programs without Winograd's algorithm,
    None where no task could use it.
    """

    model: str
    threads: int
    tuned: list[Bench]
    untuned: list[Bench]
    max_error: float
    untuned_error: float
    direct_error: float | None
    tune_s: float
    trials: int
    cpu: str = ""
    created: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Our latency over the best baseline's, the median of all rounds: below 1 we are faster."""
        return _median_ratio(self.tuned, BASELINES)

    @property
    def untuned_ratio(self) -> float | None:
        """Latency without any tuning over ONNX Runtime's."""
        return _median_ratio(self.untuned, ("onnxruntime",))


def _median_ratio(rounds: Sequence[Bench], baselines: tuple[str, ...]) -> float | None:
    ratios: list[float] = []
    for bench in rounds:
        theirs = [bench[side]["median_s"] for side in baselines if bench.get(side)]
        if not theirs:
            return None
        ratios.append(bench["autotune"]["median_s"] / min(theirs))
    return statistics.median(ratios)


def median_s(rounds: Sequence[Bench], side: str) -> float | None:
    """Median of the medians of all rounds; None where a side was not measured."""
    times = [bench[side]["median_s"] for bench in rounds if bench.get(side)]
    return statistics.median(times) if times else None


def append_result(path: Path, result: Result) -> None:
    """Add a line to the results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read_results(path: Path) -> dict[tuple[str, int], Result]:
    """The last result of every (model, threads)."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    results = [Result(**json.loads(line)) for line in lines]
    return {(r.model, r.threads): r for r in results}


def geometric_mean(values: Iterable[float]) -> float:
    """The mean for ratios: one half and two average to one."""
    return math.exp(statistics.fmean(math.log(v) for v in values))


Column = tuple[str, Callable[[Result], str | None]]

_COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: r.model),
    ("threads", lambda r: str(r.threads)),
    ("autotune ms", lambda r: _ms(median_s(r.tuned, "autotune"))),
    *((f"{side} ms", lambda r, side=side: _ms(median_s(r.tuned, side))) for side in BASELINES),
    ("ratio to the best", lambda r: _two(r.ratio)),
    ("untuned ms", lambda r: _ms(median_s(r.untuned, "autotune"))),
    ("untuned / onnxruntime", lambda r: _two(r.untuned_ratio)),
    ("max error", lambda r: _error(r.max_error)),
    ("untuned error", lambda r: _error(r.untuned_error)),
    ("error without Winograd", lambda r: _error(r.direct_error)),
    ("tuning s", lambda r: f"{r.tune_s:.0f}"),
    ("trials", lambda r: str(r.trials)),
)
_TUNED = ("autotune ms", *(f"{side} ms" for side in BASELINES), "ratio to the best")
VIEWS: dict[str, tuple[str, ...]] = {
    "all": tuple(head for head, _ in _COLUMNS),
    "tuned": ("model", "threads", *_TUNED, "tuning s", "trials"),
    "untuned": ("model", "threads", "untuned ms", "untuned / onnxruntime"),
    "errors": ("model", "threads", "max error", "error without Winograd", "untuned error"),
}
"""Columns by the name of a table."""


def networks_table(results: Iterable[Result], view: str = "all") -> str:
    """Rows by thread count; a column that no result fills is left out. Then the summary."""
    rows = sorted(results, key=lambda r: r.threads)
    columns = [
        (head, cell)
        for head, cell in _COLUMNS
        if head in VIEWS[view] and any(cell(r) is not None for r in rows)
    ]
    cells = [[cell(r) or "–" for _, cell in columns] for r in rows]
    counts = sorted({r.threads for r in rows})
    lines = [_summary(n, [r for r in rows if r.threads == n]) for n in counts]
    return "\n".join([markdown([head for head, _ in columns], cells), "", *lines])


def _summary(threads: int, rows: Sequence[Result]) -> str:
    """Geometric means and the worst ratio at one thread count."""
    parts = []
    for what, ratios in (
        ("to the best baseline", {r.model: r.ratio for r in rows}),
        ("untuned to ONNX Runtime", {r.model: r.untuned_ratio for r in rows}),
    ):
        known = {model: ratio for model, ratio in ratios.items() if ratio is not None}
        if known:
            worst = max(known, key=lambda model: known[model])
            mean = geometric_mean(known.values())
            parts.append(f"{what}: geometric mean {mean:.3f}, worst {known[worst]:.3f} ({worst})")
    trips = [trip for r in rows for b in r.tuned if (trip := b.get("round_trip_s"))]
    if trips:
        trip_ns = statistics.median(trips) * 1e9
        parts.append(f"a cache line between two threads and back: {trip_ns:.0f} ns")
    return "; ".join([f"* {counted(threads, 'thread')}, {counted(len(rows), 'network')}", *parts])


def counted(n: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{n} {what}{'s' * (n != 1)}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column left, the others right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e3:.2f}"


def _two(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.2f}"


def _error(error: float | None) -> str | None:
    return None if error is None else f"{error:.1e}"
