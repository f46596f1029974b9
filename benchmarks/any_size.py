"""One artifact for every size up to a most beside artifacts of fixed sizes, in turns.

    python -m benchmarks.any_size [FOLDER] --machine C [--threads 2]… [--only encoder] [--sizes 20]

A layer of a transformer encoder, and of FOLDER (`benchmarks.exports`) what `benchmarks.shapes` has:
sizes are spread evenly on a logarithmic scale from 1 to the most, and each is compiled by itself as
well. Rows are added to `docs/results/any_size.csv`: medians of a size, seconds of compiling, bytes
of both files. Nothing is tuned, and programs are not kept. Printed are the geometric mean and the
largest of the ratios.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import click
import numpy as np
import onnx
from numpy.typing import NDArray

import autotune
from autotune.cli.options import COUNT
from autotune.network.bench.bench import interleave
from autotune.network.check.differences import max_error
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model
from benchmarks import lengths, shapes
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "any_size.csv"
FIELDS = ["machine", "model", "threads", "most", "size", "any_us", "fixed_us", "ratio",
          "any_compile_s", "fixed_compile_s", "any_bytes", "fixed_bytes", "error"]  # fmt: skip
_MIN_RUNS, _MIN_S = 15, 0.5
_ENCODER_MOST = 512

Feed = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A model file with a dimension `free` of at most `most`; `dims`: its others."""

    name: str
    path: Path
    free: str
    most: int
    dims: Mapping[str, int]
    feed: Callable[[int], Feed]


@dataclass(frozen=True)
class Made:
    """A model, the seconds of its compilation and the bytes of its file."""

    model: Model
    compile_s: float
    n_bytes: int


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--machine", required=True, help="Its letter in docs/results/machines.csv.")
@click.option("--threads", multiple=True, type=COUNT, default=(1, 2), show_default=True)
@click.option("--only", default="", help="Models whose name contains this.")
@click.option("--sizes", "n_sizes", type=COUNT, default=20, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=FILE)
def main(
    folder: Path | None,
    machine: str,
    threads: tuple[int, ...],
    only: str,
    n_sizes: int,
    out: Path,
) -> None:
    """Measure, and add a row per size."""
    with tempfile.TemporaryDirectory() as scratch:
        for case in (c for c in cases(Path(scratch), folder) if only in c.name):
            for n in threads:
                ratios = list(_measured(case, n, sizes_of(case.most, n_sizes), machine, out))
                mean, worst = geometric_mean(ratios), max(ratios)
                click.echo(f"{case.name}, {n} threads: mean {mean:.3f}, worst {worst:.3f}")


def cases(scratch: Path, folder: Path | None) -> Iterator[Case]:
    """The layer, and the models of a folder."""
    path = scratch / "encoder.onnx"
    onnx.save(lengths.encoder(), path)
    yield Case("encoder layer", path, "n", _ENCODER_MOST, {}, _rows)
    for case in shapes.CASES if folder else ():
        where = case.path(folder or scratch)
        yield Case(case.name, where, case.free, max(case.values), case.dims, case.feed)


def _rows(n: int) -> Feed:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((n, lengths.WIDTH)).astype(np.float32)}


def sizes_of(most: int, n: int) -> list[int]:
    """Up to `n` sizes from 1 to `most`, evenly spread on a logarithmic scale."""
    return sorted({round(x) for x in np.geomspace(1, most, n)})


def _measured(
    case: Case, threads: int, sizes: Sequence[int], machine: str, out: Path
) -> Iterator[float]:
    whole = _made(case, f"..{case.most}", threads)
    for size in sizes:
        fixed, feed = _made(case, size, threads), case.feed(size)
        sides = [partial(made.model.run, feed) for made in (whole, fixed)]
        wanted, found = fixed.model.run(feed), whole.model.run(feed)
        error = max(max_error(found[name], wanted[name]) for name in wanted)
        any_s, fixed_s = map(median, interleave(sides, _MIN_RUNS, _MIN_S))
        cells = (machine, case.name, threads, case.most, size, f"{1e6 * any_s:.1f}",
                 f"{1e6 * fixed_s:.1f}", f"{any_s / fixed_s:.3f}", f"{whole.compile_s:.2f}",
                 f"{fixed.compile_s:.2f}", whole.n_bytes, fixed.n_bytes,
                 f"{error:.1e}")  # fmt: skip
        append_row(out, FIELDS, dict(zip(FIELDS, map(str, cells), strict=True)))
        yield any_s / fixed_s
        del fixed, sides
        gc.collect()


def _made(case: Case, extent: int | str, threads: int) -> Made:
    dims: dict[str, Any] = {**case.dims, case.free: extent}
    start_s = time.perf_counter()
    made = autotune.compile(case.path, dims=dims, threads=threads, cache=False, store="none")
    compile_s = time.perf_counter() - start_s
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.atn"
        made.artifact.save(path)
        n_bytes = path.stat().st_size
    return Made(model_of(made.artifact), compile_s, n_bytes)


if __name__ == "__main__":
    main()
