"""Batches of texts over their tokens beside ONNX Runtime: padded, and sorted into buckets.

    python -m benchmarks.ragged MODEL.onnx … --machine NAME [--rows 8]… [--kind documents]…

`MODEL.atn` beside a file is what `compile --ragged` makes of it for 32 rows, and is made where it
is missing. Lengths are drawn: of documents (lognormal, mean 87) and of queries (lognormal, median
12), at most 512. A batch of more than 32 rows is calls of 32 everywhere; buckets are sorted rows of
which the longest has at most twice the tokens of the shortest. Rows are added to
`docs/results/ragged.csv`: medians, summed over the draws.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import onnxruntime
from numpy.typing import NDArray

import autotune
from autotune.cli.option_types import COUNT
from autotune.network.bench.bench import PAUSE_S
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "ragged.csv"
FIELDS = ["machine", "model", "lengths", "rows", "threads", "tokens", "padded_tokens", "ours_ms",
          "padded_ms", "buckets_ms", "padded_ratio", "buckets_ratio", "error"]  # fmt: skip
Array = NDArray[Any]
Feeds = dict[str, Array]
_MOST_ROWS, _LONGEST = 32, 512
_WORDS = 1000, 20000
"""Tokens that every vocabulary has, none of which is special."""
_SHORT_S = 2.0
_SPREAD_OF = {"documents": 0.9, "queries": 0.6}


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--machine", required=True)
@click.option("--rows", type=COUNT, multiple=True, default=(8, 32))
@click.option("--kind", type=click.Choice([*_SPREAD_OF]), multiple=True, default=[*_SPREAD_OF])
@click.option("--threads", type=COUNT, default=2)
@click.option("--draws", type=COUNT, default=1)
@click.option("--rounds", type=COUNT, default=3, help="Calls of each side; the first "
              "of several is not counted.")  # fmt: skip
@click.option("--prepare", is_flag=True, help="Compile what is missing, and time nothing.")
def main(
    files: tuple[Path, ...],
    machine: str,
    rows: tuple[int, ...],
    kind: tuple[str, ...],
    threads: int,
    draws: int,
    rounds: int,
    prepare: bool,
) -> None:
    """Time batches of texts."""
    for path in files:
        artifact = _artifact(path)
        if prepare:
            continue
        sides = _Sides.of(path, artifact, threads)
        for one in kind:
            for n in rows:
                row = _measured(sides, one, n, draws, rounds)
                whole = {"machine": machine, "model": path.stem, "threads": threads, **row}
                append_row(FILE, FIELDS, {field: whole[field] for field in FIELDS})
                click.echo(" ".join(map(str, whole.values())))


def _artifact(path: Path) -> Path:
    made = path.with_suffix(".atn")
    if not made.exists():
        dims = {"batch": f"..{_MOST_ROWS}", "sequence": f"..{_LONGEST}"}
        autotune.compile(path, dims=dims, ragged=True, check=False).artifact.save(made)
    return made


@dataclass(frozen=True)
class _Sides:
    """The same model in both runtimes."""

    model: autotune.Model
    session: onnxruntime.InferenceSession

    @classmethod
    def of(cls, path: Path, artifact: Path, n_threads: int) -> _Sides:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        return cls(autotune.load(artifact, n_threads), session)

    def ours(self, rows: Sequence[Array]) -> Any:
        return next(iter(self.model.run_ragged(rows).values()))

    def theirs(self, batches: Sequence[Feeds]) -> list[Array]:
        return [self.session.run(None, feeds)[0] for feeds in batches]


def _measured(sides: _Sides, kind: str, n: int, draws: int, rounds: int) -> dict[str, Any]:
    totals, n_tokens, n_places, error = [0.0, 0.0, 0.0], 0, 0, 0.0
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        rows = [rng.integers(*_WORDS, k) for k in _lengths(rng, kind, n)]
        padded = [_padded(rows[k : k + _MOST_ROWS]) for k in range(0, n, _MOST_ROWS)]
        ordered = [_padded(bucket) for bucket in _buckets(rows)]
        calls: list[Callable[[], Any]] = [
            partial(sides.ours, rows),
            partial(sides.theirs, padded),
            partial(sides.theirs, ordered),
        ]
        found, times = _timed(calls, rounds)
        totals = [total + 1e3 * seconds for total, seconds in zip(totals, times, strict=True)]
        error = max(error, _difference(rows, *found[:2]))
        n_tokens += sum(map(len, rows))
        n_places += sum(feeds["input_ids"].size for feeds in padded)
    ours, of_padded, of_buckets = totals
    return {
        "lengths": kind,
        "rows": n,
        "tokens": n_tokens,
        "padded_tokens": n_places,
        "ours_ms": f"{ours:.1f}",
        "padded_ms": f"{of_padded:.1f}",
        "buckets_ms": f"{of_buckets:.1f}",
        "padded_ratio": f"{ours / of_padded:.3f}",
        "buckets_ratio": f"{ours / of_buckets:.3f}",
        "error": f"{error:.1e}",
    }


def _lengths(rng: np.random.Generator, kind: str, n: int) -> list[int]:
    spread = _SPREAD_OF[kind]
    middle = math.log(12) if kind == "queries" else math.log(87) - spread**2 / 2
    drawn = np.rint(rng.lognormal(middle, spread, n))
    return [int(k) for k in np.clip(drawn, 1, _LONGEST)]


def _padded(rows: Sequence[Array]) -> Feeds:
    counts = np.array([len(row) for row in rows])
    mask = (np.arange(counts.max()) < counts[:, None]).astype(np.int64)
    ids = np.ones_like(mask)  # what RoBERTa pads with
    ids[mask != 0] = np.concatenate(rows)
    return {"input_ids": ids, "attention_mask": mask}


def _buckets(rows: Sequence[Array]) -> Iterator[list[Array]]:
    bucket: list[Array] = []
    for row in sorted(rows, key=len):
        if bucket and (len(row) > 2 * len(bucket[0]) or len(bucket) == _MOST_ROWS):
            yield bucket
            bucket = []
        bucket.append(row)
    yield bucket


def _timed(calls: Sequence[Callable[[], Any]], rounds: int) -> tuple[list[Any], list[float]]:
    """What each side gives, and its median seconds, in turns."""
    times: list[list[float]] = [[] for _ in calls]
    found: list[Any] = [None for _ in calls]
    for turn in range(rounds):
        for n in range(len(calls)):
            side = (n + turn) % len(calls)
            time.sleep(PAUSE_S)
            if times[side] and times[side][-1] < _SHORT_S:
                calls[side]()  # threads of the other runtime spin for a while
            begin = time.perf_counter()
            found[side] = calls[side]()
            times[side].append(time.perf_counter() - begin)
    return found, [median(t[1:] or t) for t in times]


def _difference(rows: Sequence[Array], ours: Any, theirs: Sequence[Array]) -> float:
    """The largest difference of a result, over the largest value."""
    flat = [row for batch in theirs for row in batch]
    if np.ndim(flat[0]) > 1:  # of each token
        flat = [row[: len(one)] for row, one in zip(flat, rows, strict=True)]
    pairs = [(np.asarray(a), b) for a, b in zip(ours, flat, strict=True)]
    largest = max(float(np.abs(b).max()) for _, b in pairs)
    return max(float(np.abs(a - b).max()) for a, b in pairs) / largest


if __name__ == "__main__":
    main()
