"""One artifact for several shapes beside ONNX Runtime and OpenVINO with dynamic shapes, in turns.

    python -m benchmarks.exports FOLDER --only bert_base      # in a venv with PyTorch: see there
    python -m benchmarks.shapes FOLDER --machine Z [--budget 60m] [--threads 2]…

BERT-base with eight lengths, MobileNet v2 with batches of 1, 4 and 8. The model file keeps its free
dimension: the others get it as it is and see every shape many times before they are measured. With
`--budget` the variants are tuned together for as long as it allows; the log stays in `--out`, and
the next call goes on with it. Rows are added to `docs/results/shapes.csv`, and for the artifacts
(bytes and seconds of compiling, beside those of one shape) to `shapes_artifacts.csv`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import onnx
from numpy.typing import NDArray

import autotune
from autotune.cli.option_types import COUNT, DURATION
from autotune.network.bench.bench import interleave
from autotune.network.check.differences import max_error
from autotune.network.runtime.baselines import baseline
from autotune.network.runtime.runtime import Model
from benchmarks import models
from benchmarks.budget import within
from benchmarks.results import FOLDER, append_row, read_rows
from benchmarks.tables import BASELINES

FILE, ARTIFACTS = FOLDER / "shapes.csv", FOLDER / "shapes_artifacts.csv"
HEAD = ["machine", "model", "threads", "tune_s", "shape"]
FIELDS = [*HEAD, "autotune_ms", "onnxruntime_ms", "openvino_ms", "ratio", "error"]
ARTIFACT_FIELDS = ["machine", "model", "threads", "tune_s", "variants", "model_bytes", "one_bytes",
                   "bytes", "one_compile_s", "compile_s"]  # fmt: skip
LENGTHS = (16, 32, 64, 96, 128, 256, 384, 512)
BATCHES = (1, 4, 8)
MIN_RUNS = 7

Array = NDArray[Any]
Feed = dict[str, Array]


@dataclass(frozen=True)
class Case:
    """`free`: the dimension that varies, with its values; `dims`: those that do not."""

    name: str
    path: Callable[[Path], Path]
    free: str
    values: tuple[int, ...]
    dims: Mapping[str, int]
    feed: Callable[[int], Feed]

    def bound(self, values: tuple[int, ...]) -> dict[str, Any]:
        """As `dims` of `autotune.compile`."""
        return {**self.dims, self.free: list(values) if len(values) > 1 else values[0]}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--machine", required=True, help="Its letter in docs/results/machines.csv.")
@click.option("--threads", multiple=True, type=COUNT, default=(1, 2), show_default=True)
@click.option("--only", default="", help="Models whose name contains this.")
@click.option("--time", "time_s", type=DURATION, default="1s", help="Per side and shape.  [1s]")
@click.option("--budget", "budget_s", type=DURATION, help="Tune, and end in so long.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("logs/shapes"))
def main(
    folder: Path,
    machine: str,
    threads: tuple[int, ...],
    only: str,
    time_s: float,
    budget_s: float | None,
    out: Path,
) -> None:
    """Measure what has no row yet."""
    out.mkdir(parents=True, exist_ok=True)
    known = {(r["machine"], r["model"], r["threads"], r["shape"]) for r in read_rows(FILE)}
    cases = [(case, n) for case in CASES if only in case.name for n in threads]
    left = [
        (case, n)
        for case, n in cases
        if any((machine, case.name, str(n), _shape(case, v)) not in known for v in case.values)
    ]
    per_side_s = time_s * max(len(case.values) for case in CASES)
    for (case, n), tune_s in within(budget_s, left, per_side_s):
        row = {"machine": machine, "model": case.name, "threads": str(n)}
        path = case.path(folder)
        log = out / f"{case.name}-{n}t.jsonl"
        tuned_s = _tune(case, path, log, n, tune_s)
        row |= {"tune_s": f"{tuned_s:.0f}"}
        model, made = _compiled(case, path, log if tuned_s else None, n, out)
        append_row(ARTIFACTS, ARTIFACT_FIELDS, row | made)
        for cells in _measured(case, model, path, n, time_s):
            append_row(FILE, FIELDS, row | cells)
            click.echo(f"{case.name}, {n} threads: {cells}")


def _shape(case: Case, value: int) -> str:
    return f"{case.free}={value}"


def _tune(case: Case, path: Path, log: Path, threads: int, tune_s: float | None) -> float:
    """Seconds that the log holds in the end; 0 where nothing is tuned and there is no log."""
    from autotune.records import read_log
    from autotune.tuner import spent

    if tune_s is not None and log.exists():
        autotune.resume(log, time_s=tune_s, show="nothing", compare=False)
    elif tune_s is not None:
        dims = case.bound(case.values)
        autotune.tune(
            path, log, time_s=tune_s, threads=threads, dims=dims, show="nothing", compare=False
        )
    return spent(read_log(log)).elapsed_s if log.exists() else 0.0


def _compiled(
    case: Case, path: Path, log: Path | None, threads: int, out: Path
) -> tuple[Model, dict[str, str]]:
    """The model for all shapes, and its bytes and seconds beside those of the largest alone."""
    cells = {"variants": str(len(case.values)), "model_bytes": str(path.stat().st_size)}
    for prefix, values in (("one_", case.values[-1:]), ("", case.values)):
        target = out / f"{case.name}-{len(values)}.atn"
        begin = time.perf_counter()
        dims = case.bound(values)
        made = autotune.compile(path, log, threads=threads, dims=dims, check=False)
        made.artifact.save(target)
        cells[f"{prefix}compile_s"] = f"{time.perf_counter() - begin:.1f}"
        cells[f"{prefix}bytes"] = str(target.stat().st_size)
    return autotune.load(target), cells


def _measured(
    case: Case, model: Model, path: Path, threads: int, time_s: float
) -> Iterator[dict[str, str]]:
    """A row per shape: medians of all sides in turns, and our error against ONNX Runtime."""
    others = {name: baseline(name, path, threads) for name in BASELINES}
    feeds = {value: case.feed(value) for value in case.values}
    errors: dict[int, float] = {}
    for value, feed in feeds.items():  # everybody has seen every shape before any is measured
        ours, theirs = model.run(feed), [run(feed) for run in others.values()]
        errors[value] = max(max_error(ours[n], theirs[0][n]) for n in ours)
    for value, feed in feeds.items():
        sides = [partial(model.run, feed), *(partial(run, feed) for run in others.values())]
        times = [median(side) for side in interleave(sides, MIN_RUNS, time_s)]
        named = zip(("autotune", *BASELINES), times, strict=True)
        cells = {f"{name}_ms": f"{1e3 * t:.3f}" for name, t in named}
        ratio = f"{times[0] / min(times[1:]):.3f}"
        yield cells | {
            "shape": _shape(case, value),
            "ratio": ratio,
            "error": f"{errors[value]:.1e}",
        }


def _tokens(length: int) -> Feed:
    ids = np.random.default_rng(0).integers(0, 30000, (1, length))
    return {"ids": ids, "mask": np.ones_like(ids)}


def _images(batch: int) -> Feed:
    shape = (batch, 3, 224, 224)
    return {"input": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


def _free_batch(folder: Path) -> Path:
    """MobileNet v2 of `benchmarks.models` with a batch that has a name."""
    path = folder / "mobilenet_v2_batch.onnx"
    if not path.exists():
        proto = models.build("mobilenet_v2")
        for end in (proto.graph.input[0], proto.graph.output[0]):
            end.type.tensor_type.shape.dim[0].dim_param = "batch"
        onnx.save(proto, path)
    return path


CASES = (
    Case("bert_base", lambda folder: folder / "bert_base.onnx", "sequence", LENGTHS,
         {"batch": 1}, _tokens),
    Case("mobilenet_v2", _free_batch, "batch", BATCHES, {}, _images),
)  # fmt: skip


if __name__ == "__main__":
    main()
