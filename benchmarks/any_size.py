"""One artifact for every size up to a most beside artifacts of fixed sizes, in turns.

    python -m benchmarks.any_size --machine C [--threads 2]… [--sizes 20]
    python -m benchmarks.any_size bert_base.onnx --dim sequence=..512 --dim batch=1 --machine C

A layer of a transformer encoder, or a file (`benchmarks.exports` makes some): sizes of its one open
dimension are spread evenly on a logarithmic scale from the least to the most, and each is compiled
by itself as well. Rows are added to `docs/results/any_size.csv`: medians of a size, seconds of
compiling, bytes of both files. Nothing is tuned, and programs are not kept. Printed are the
geometric mean and the largest of the ratios.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

import click
import numpy as np
import onnx

import autotune
from autotune.cli.option_types import COUNT
from autotune.extent import Length
from autotune.network.bench.bench import interleave
from autotune.network.check.differences import max_error
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model, random_inputs
from benchmarks import lengths
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "any_size.csv"
FIELDS = ["machine", "model", "threads", "most", "size", "any_us", "fixed_us", "ratio",
          "any_compile_s", "fixed_compile_s", "any_bytes", "fixed_bytes", "error"]  # fmt: skip
_MIN_RUNS, _MIN_S = 15, 0.5
_ENCODER_MOST = 512


@dataclass(frozen=True)
class Case:
    """A model file; `dims`: of its dimensions, one of which is open."""

    name: str
    path: Path
    dims: Mapping[str, str | int]

    @property
    def free(self) -> str:
        """The one that is open."""
        (found,) = (name for name, size in self.dims.items() if isinstance(size, str))
        return found


@dataclass(frozen=True)
class Made:
    """A model, the seconds of its compilation and the bytes of its file."""

    model: Model
    compile_s: float
    n_bytes: int


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Of FILE; one is open.")
@click.option("--machine", required=True, help="Its letter in docs/results/machines.csv.")
@click.option("--threads", multiple=True, type=COUNT, default=(1, 2), show_default=True)
@click.option("--sizes", "n_sizes", type=COUNT, default=20, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=FILE)
def main(
    file: Path | None,
    dims: tuple[str, ...],
    machine: str,
    threads: tuple[int, ...],
    n_sizes: int,
    out: Path,
) -> None:
    """Measure, and add a row per size."""
    with tempfile.TemporaryDirectory() as scratch:
        case = _layer(Path(scratch)) if file is None else _case(file, dims)
        for n in threads:
            ratios = list(_measured(case, n, n_sizes, machine, out))
            mean, worst = geometric_mean(ratios), max(ratios)
            click.echo(f"{case.name}, {n} threads: mean {mean:.3f}, worst {worst:.3f}")


def _layer(scratch: Path) -> Case:
    path = scratch / "encoder.onnx"
    onnx.save(lengths.encoder(), path)
    return Case("encoder layer", path, {"n": f"..{_ENCODER_MOST}"})


def _case(file: Path, dims: Sequence[str]) -> Case:
    pairs = (dim.split("=", 1) for dim in dims)
    return Case(file.stem, file, {k: int(v) if v.isdigit() else v for k, v in pairs})


def sizes_of(possible: range, n: int) -> list[int]:
    """Up to `n` of the possible sizes, evenly spread on a logarithmic scale."""
    wanted = (round(x) for x in np.geomspace(possible[0], possible[-1], n))
    return sorted({possible[round((x - possible[0]) / possible.step)] for x in wanted})


def _measured(case: Case, threads: int, n_sizes: int, machine: str, out: Path) -> Iterator[float]:
    whole = _made(case, threads)
    length = next(e for p in whole.model.input_info for e in p.extents if isinstance(e, Length))
    possible = range(length.at(length.least), length.longest + 1, length.factor)
    for size in sizes_of(possible, n_sizes):
        fixed = _made(replace(case, dims={**case.dims, case.free: size}), threads)
        feed = random_inputs(fixed.model.input_info, 0)
        sides = [partial(made.model.run, feed) for made in (whole, fixed)]
        wanted, found = fixed.model.run(feed), whole.model.run(feed)
        error = max(max_error(found[name], wanted[name]) for name in wanted)
        any_s, fixed_s = map(median, interleave(sides, _MIN_RUNS, _MIN_S))
        cells = (machine, case.name, threads, possible[-1], size, f"{1e6 * any_s:.1f}",
                 f"{1e6 * fixed_s:.1f}", f"{any_s / fixed_s:.3f}", f"{whole.compile_s:.2f}",
                 f"{fixed.compile_s:.2f}", whole.n_bytes, fixed.n_bytes,
                 f"{error:.1e}")  # fmt: skip
        append_row(out, FIELDS, dict(zip(FIELDS, map(str, cells), strict=True)))
        yield any_s / fixed_s
        del fixed, sides
        gc.collect()


def _made(case: Case, threads: int) -> Made:
    start_s = time.perf_counter()
    made = autotune.compile(case.path, dims=case.dims, threads=threads, cache=False, store="none")
    compile_s = time.perf_counter() - start_s
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.atn"
        made.artifact.save(path)
        n_bytes = path.stat().st_size
    return Made(model_of(made.artifact), compile_s, n_bytes)


if __name__ == "__main__":
    main()
