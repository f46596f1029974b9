"""Lengths that were not tuned: programs carried over from others, beside those of a search.

    python -m benchmarks.lengths --machine C [--trials 24] [--threads 1]

A layer of a transformer encoder is tuned at three lengths, and at each of four others by itself,
with so many trials per task. At those it is compiled without a log, from the log of the three
lengths (no trial of its own), and from its own; the three artifacts take turns. Rows are added to
`docs/results/lengths.csv`; logs stay in `--folder`, and are not made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import onnx
import onnx.helper as oh
from onnx import NodeProto, TensorProto, numpy_helper

import autotune
from autotune.cli.option_types import COUNT
from autotune.network.bench.bench import interleave
from autotune.network.runtime.loading import model_of
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "lengths.csv"
FIELDS = ["machine", "model", "threads", "trials", "length", "untuned_us", "carried_us", "own_us"]
TUNED, OTHERS = (32, 128, 384), (48, 96, 200, 320)
WIDTH, HEADS, HIDDEN = 256, 4, 1024
_MIN_RUNS, _MIN_S = 30, 2.0


@click.command()
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--trials", type=COUNT, default=24, show_default=True, help="Of each task.")
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("logs/lengths"))
def main(machine: str, trials: int, threads: int, folder: Path) -> None:
    """Tune what is not tuned yet, measure, and add a row per length."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "encoder.onnx"
    onnx.save(encoder(), path)
    three = _tuned(path, TUNED, trials, threads)
    for length in OTHERS:
        own = _tuned(path, (length,), trials, threads)
        times = _times(path, length, (None, three, own), threads)
        names = ("untuned_us", "carried_us", "own_us")
        cells = {name: f"{1e6 * t:.1f}" for name, t in zip(names, times, strict=True)}
        head = {"machine": machine, "model": "encoder layer", "threads": str(threads)}
        append_row(FILE, FIELDS, {**head, "trials": str(trials), "length": str(length), **cells})
        click.echo(f"{length}: {cells}")


def _tuned(path: Path, lengths: tuple[int, ...], trials: int, threads: int) -> Path:
    """The log of a session over these lengths."""
    log = path.with_name(f"{'-'.join(map(str, lengths))}-{trials}-{threads}.jsonl")
    if not log.exists():
        n_tasks = len({key for n in lengths for key in _tasks(path, n)})
        dims = {"n": list(lengths)}
        n = trials * n_tasks
        done = autotune.tune(
            path,
            log,
            dims=dims,
            trials=n,
            threads=threads,
            store="none",
            show="nothing",
            compare=False,
        )
        click.echo(f"{lengths}: {done}", err=True)
    return log


def _tasks(path: Path, length: int) -> Iterator[str]:
    yield from autotune.build_network(path, shapes={"x": (length, WIDTH)}).tasks


def _times(path: Path, length: int, logs: tuple[Path | None, ...], threads: int) -> Iterator[float]:
    """Median seconds of the artifacts of these logs, which take turns."""
    feed = {"x": np.random.default_rng(0).standard_normal((length, WIDTH)).astype(np.float32)}
    dims = {"n": length}
    made = [
        autotune.compile(path, log, dims=dims, threads=threads, cache=False, store="none")
        for log in logs
    ]
    sides = [partial(model_of(one.artifact).run, feed) for one in made]
    for side in interleave(sides, _MIN_RUNS, _MIN_S):
        yield median(side)


def encoder() -> onnx.ModelProto:
    """Attention of four heads and a feed-forward network with their normalisations, [n, 256]."""
    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def constant(values: Any, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.array(values, dtype), f"c{len(weights)}"))
        return weights[-1].name

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(nodes)}"
        nodes.append(oh.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def dense(x: str, n_in: int, n_out: int) -> str:
        weight = constant(rng.standard_normal((n_in, n_out)) / np.sqrt(n_in))
        return node("Add", node("MatMul", x, weight), constant(0.1 * rng.standard_normal(n_out)))

    def norm(x: str) -> str:
        return node("LayerNormalization", x, constant(np.ones(WIDTH)), constant(np.zeros(WIDTH)))

    def heads(x: str, order: tuple[int, ...]) -> str:
        parts = constant([0, HEADS, WIDTH // HEADS], np.int64)
        return node("Transpose", node("Reshape", dense(x, WIDTH, WIDTH), parts), perm=order)

    q, k, v = heads("x", (1, 0, 2)), heads("x", (1, 2, 0)), heads("x", (1, 0, 2))
    scores = node("Mul", node("MatMul", q, k), constant((WIDTH // HEADS) ** -0.5))
    mixed = node("MatMul", node("Softmax", scores, axis=-1), v)
    flat = node(
        "Reshape", node("Transpose", mixed, perm=(1, 0, 2)), constant([-1, WIDTH], np.int64)
    )
    first = norm(node("Add", "x", dense(flat, WIDTH, WIDTH)))
    hidden = node("Relu", dense(first, WIDTH, HIDDEN))
    norm(node("Add", first, dense(hidden, HIDDEN, WIDTH)))
    nodes[-1].output[0] = "y"
    ports = [oh.make_tensor_value_info(n, TensorProto.FLOAT, ["n", WIDTH]) for n in ("x", "y")]
    graph = oh.make_graph(nodes, "encoder", ports[:1], ports[1:], weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    main()
