"""Layers and a BERT-base encoder with pruned weights, beside the same with dense ones, in turns.

    python -m benchmarks.sparse --machine Z [--threads 1] [--trials 0] [--encoder-layers 12]

A layer is a product of 128 rows, 768 → 3072; its baseline is our own dense layer, as dense weights
give it. The baseline of the encoder (12 layers, 128 tokens, all of its dense layers pruned) is ONNX
Runtime, for which zeros are numbers like others. `--trials`: per task, 0 for untuned programs. Rows
are added to `docs/results/sparse.csv`; a case that is there already is not measured again.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import autotune
from autotune.cli.option_types import COUNT, DURATION
from autotune.network.bench.bench import interleave
from autotune.network.runtime.runtime import random_inputs
from benchmarks.results import FOLDER, append_row, read_rows

FILE = FOLDER / "sparse.csv"
HEAD = ["machine", "model", "zeros", "block", "threads", "trials"]
FIELDS = [*HEAD, "dense_us", "sparse_us", "dense_min_us", "sparse_min_us", "times_faster"]

ROWS, WIDTH, INNER, HEADS = 128, 768, 3072, 12
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which weights of a matrix [terms, results] are zero: `zeros` of its blocks.

    `pattern`: two of four terms in a row instead, whatever `zeros` says.
    """

    zeros: float
    block: tuple[int, int] = (1, 1)
    pattern: bool = False

    @property
    def block_text(self) -> str:
        """`4x16`, or `2:4`."""
        return "2:4" if self.pattern else "x".join(map(str, self.block))

    def weights(self, terms: int, results: int, seed: int) -> Array:
        """Random weights, those that are left scaled to keep the magnitude of the data."""
        rng = np.random.default_rng(seed)
        if self.pattern:
            order = rng.random((terms // 4, 4, results)).argsort(axis=1)
            kept = (order < 2).reshape(terms, results)
        else:
            height, width = self.block
            blocks = rng.random((terms // height, results // width)) >= self.zeros
            kept = blocks.repeat(height, axis=0).repeat(width, axis=1)
        scale = 1 / np.sqrt(terms * max(1 - self.zeros, 0.05))
        values: Array = (rng.standard_normal((terms, results)) * kept * scale).astype(np.float32)
        return values


DENSE = Pruning(0.0)
LAYERS = (
    Pruning(0.9, (4, 16)),
    Pruning(0.8, (4, 16)),
    Pruning(0.9, (1, 16)),
    Pruning(0.9, (16, 4)),
    Pruning(0.9),
    Pruning(0.85),
    Pruning(0.8),
    Pruning(0.5, pattern=True),
)
ENCODERS = (Pruning(0.9, (4, 16)), Pruning(0.8, (4, 16)))


class Graph:
    """Nodes and weights of a model; methods return the name of a value."""

    def __init__(self, pruning: Pruning) -> None:
        self.pruning = pruning
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, array: NDArray[Any]) -> str:
        """A weight."""
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def dense(self, x: str, terms: int, results: int) -> str:
        """A dense layer with pruned weights, and a bias."""
        seed = len(self.weights)
        product = self.add("MatMul", x, self.constant(self.pruning.weights(terms, results, seed)))
        return self.add("Add", product, self.constant(np.zeros(results, np.float32)))

    def norm(self, x: str) -> str:
        """Normalisation of rows."""
        ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        return self.add("LayerNormalization", x, self.constant(ones), self.constant(zeros))

    def heads(self, x: str, perm: list[int]) -> str:
        """Rows of all heads as one matrix per head."""
        shape = self.constant(np.array([1, ROWS, HEADS, WIDTH // HEADS], np.int64))
        return self.add("Transpose", self.add("Reshape", x, shape), perm=perm)

    def encoder_layer(self, x: str) -> str:
        """Attention and two dense layers, each with a way around it."""
        q, k, v = (self.dense(x, WIDTH, WIDTH) for _ in range(3))
        keys = self.heads(k, [0, 2, 3, 1])
        scale = self.constant(np.array((WIDTH // HEADS) ** -0.5, np.float32))
        scores = self.add("Mul", self.add("MatMul", self.heads(q, [0, 2, 1, 3]), keys), scale)
        shares = self.add("Softmax", scores, axis=-1)
        found = self.add("MatMul", shares, self.heads(v, [0, 2, 1, 3]))
        found = self.add("Transpose", found, perm=[0, 2, 1, 3])
        shape = self.constant(np.array([1, ROWS, WIDTH], np.int64))
        found = self.dense(self.add("Reshape", found, shape), WIDTH, WIDTH)
        x = self.norm(self.add("Add", x, found))
        inner = self.add("Gelu", self.dense(x, WIDTH, INNER))
        return self.norm(self.add("Add", x, self.dense(inner, INNER, WIDTH)))

    def model(self, x: str, y: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        """The model from input `x` of `shape` to value `y`."""
        ends = [helper.make_tensor_value_info(x, 1, shape)]
        outputs = [helper.make_tensor_value_info(y, 1, None)]
        graph = helper.make_graph(self.nodes, "pruned", ends, outputs, self.weights)
        imports = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def layer(pruning: Pruning) -> onnx.ModelProto:
    """One product, 768 → 3072."""
    graph = Graph(pruning)
    y = graph.add("MatMul", "x", graph.constant(pruning.weights(WIDTH, INNER, 0)))
    return graph.model("x", y, (ROWS, WIDTH))


def encoder(pruning: Pruning, n_layers: int) -> onnx.ModelProto:
    """The encoder of BERT-base behind its embeddings."""
    graph, y = Graph(pruning), "x"
    for _ in range(n_layers):
        y = graph.encoder_layer(y)
    return graph.model("x", y, (1, ROWS, WIDTH))


@dataclass(frozen=True, slots=True)
class Plan:
    """What every case is given."""

    threads: int
    trials: int
    time_s: float


@click.command()
@click.option("--machine", required=True, help="Name in docs/results/machines.csv.")
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--trials", type=click.IntRange(0), default=0, show_default=True, help="Per task.")
@click.option("--time", "time_s", type=DURATION, default="5s", help="Per side.  [5s]")
@click.option("--encoder-layers", type=click.IntRange(0), default=12, show_default=True)
def main(machine: str, threads: int, trials: int, time_s: float, encoder_layers: int) -> None:
    """Measure what is not in the table yet."""
    done = [_identity(row) for row in read_rows(FILE)]
    plan = Plan(threads, trials, time_s)
    cases = [("layer", pruning) for pruning in LAYERS]
    cases += [(f"encoder{encoder_layers}", p) for p in ENCODERS if encoder_layers]
    for name, pruning in cases:
        head = {"machine": machine, "model": name, "zeros": f"{100 * pruning.zeros:.0f} %"}
        head |= {"block": pruning.block_text, "threads": str(threads), "trials": str(trials)}
        if _identity(head) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            measure = _layer if name == "layer" else partial(_encoder, n_layers=encoder_layers)
            row = head | measure(pruning, Path(folder), plan)
        append_row(FILE, FIELDS, row)
        click.echo(", ".join(row[key] for key in FIELDS[1:]))


def _layer(pruning: Pruning, folder: Path, plan: Plan) -> dict[str, str]:
    models = [
        _compiled(layer(p), folder / name, plan)
        for name, p in (("dense", DENSE), ("sparse", pruning))
    ]
    inputs = random_inputs(models[0].input_info)
    times = interleave([partial(m.run, inputs) for m in models], 20, plan.time_s)
    (dense, dense_min), (sparse, sparse_min) = ((float(np.median(t)), min(t)) for t in times)
    return _cells(dense, sparse, dense_min, sparse_min)


def _encoder(pruning: Pruning, folder: Path, plan: Plan, n_layers: int) -> dict[str, str]:
    ours = _compiled(encoder(pruning, n_layers), folder / "encoder", plan)
    found = autotune.bench(ours, ("onnxruntime",), folder / "encoder.onnx", plan.time_s).to_json()
    theirs, mine = found["onnxruntime"], found["autotune"]
    return _cells(theirs["median_s"], mine["median_s"], theirs["min_s"], mine["min_s"])


def _compiled(model: onnx.ModelProto, place: Path, plan: Plan) -> autotune.Model:
    path, log = place.with_suffix(".onnx"), place.with_suffix(".jsonl")
    onnx.save(model, path)
    if plan.trials:
        n_tasks = len(autotune.build_network(path).tasks)
        trials = plan.trials * n_tasks
        autotune.tune(path, log, trials=trials, threads=plan.threads, show="nothing", compare=False)
    compiled = autotune.compile(path, log if plan.trials else None, threads=plan.threads)
    return autotune.Model(compiled.artifact, plan.threads)


def _cells(
    dense_s: float, sparse_s: float, dense_min_s: float, sparse_min_s: float
) -> dict[str, str]:
    times = dict(zip(FIELDS[6:10], (dense_s, sparse_s, dense_min_s, sparse_min_s), strict=True))
    cells = {name: f"{time_s * 1e6:.1f}" for name, time_s in times.items()}
    faster = min(dense_s / sparse_s, dense_min_s / sparse_min_s)  # what disturbs, disturbs one
    return cells | {"times_faster": f"{faster:.2f}"}


def _identity(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[key] for key in HEAD)


if __name__ == "__main__":
    main()
