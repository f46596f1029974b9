"""Single operators and small subgraphs, as in the evaluation of Ansor, beside other runtimes.

    python -m benchmarks.operators --machine Z [--only C2D]… [--batch 1] [--trials 64] [--threads 1]

Shapes: Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning", OSDI
2020, appendix B. Every case is an ONNX model: tuned, compiled, measured in turns. Rows are added to
`docs/results/operators.csv`; a case that is there already is not measured again. A product of two
inputs has no constants, since neither is known before.
"""

from __future__ import annotations

import csv
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper

import autotune
from autotune.cli.options import COUNT
from benchmarks.results import FOLDER, read_rows
from benchmarks.tables import BASELINES

FILE = FOLDER / "operators.csv"
FIELDS = ["machine", "operator", "shape", "batch", "threads", "trials"]
FIELDS += ["autotune_us", "onnxruntime_us", "openvino_us", "ratio", "error"]

Shape = tuple[int, ...]
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """Nodes from inputs (name to shape) and weights to the output `y`."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: dict[str, Shape]
    weights: dict[str, Shape]

    def proto(self) -> onnx.ModelProto:
        """The model with random weights of a scale that keeps results near one."""
        rng = np.random.default_rng(0)
        initial = []
        for name, shape in self.weights.items():
            scale = 1 / np.sqrt(np.prod(shape[1:], dtype=float) or 1.0)
            array = (rng.standard_normal(shape) * scale).astype(np.float32)
            initial.append(numpy_helper.from_array(array, name))
        values = [helper.make_tensor_value_info(n, 1, s) for n, s in self.inputs.items()]
        output = helper.make_tensor_value_info("y", 1, None)
        graph = helper.make_graph(self.nodes, "operator", values, [output], initial)
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def convolution(
    n: int, spatial: Shape, sizes: Sizes, groups: int = 1, dilation: int = 1, relu: bool = False
) -> Model:
    """`sizes`: channels in and out, kernel, stride, padding."""
    inside, out, kernel, stride, pad = sizes
    rank = len(spatial)
    attrs: dict[str, Any] = {
        "strides": [stride] * rank,
        "pads": [pad] * 2 * rank,
        "dilations": [dilation] * rank,
        "group": groups,
    }
    weights = {"w": (out, inside // groups, *[kernel] * rank)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c" if relu else "y"], **attrs)]
    if relu:
        weights |= {"b": (out,)}
        nodes[0].input.append("b")
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    return Model(tuple(nodes), {"x": (n, inside, *spatial)}, weights)


def transposed(n: int, spatial: Shape, sizes: Sizes) -> Model:
    """Transposed convolution; `sizes` as of `convolution`."""
    inside, out, kernel, stride, pad = sizes
    attrs: dict[str, Any] = {"strides": [stride] * 2, "pads": [pad] * 4}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)
    return Model((node,), {"x": (n, inside, *spatial)}, {"w": (inside, out, kernel, kernel)})


def product(n: int, rows: int, columns: int, terms: int) -> Model:
    """Batched matrix product of two inputs."""
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    return Model((node,), {"a": (n, rows, terms), "b": (n, terms, columns)}, {})


def norm(n: int, rows: int, columns: int) -> Model:
    """The 2-norm of every matrix."""
    node = helper.make_node("ReduceL2", ["x"], ["y"], axes=[1, 2], keepdims=0)
    return Model((node,), {"x": (n, rows, columns)}, {})


def attention_scores(n: int, length: int, heads: int, size: int) -> Model:
    """Ansor's TBG: two transpositions and the batched product of what they give."""
    nodes = (
        helper.make_node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["qt", "kt"], ["y"]),
    )
    return Model(nodes, {"q": (n, length, heads, size), "k": (n, length, heads, size)}, {})


_C2D = [
    ((224, 224), (3, 64, 7, 2, 3)),
    ((56, 56), (64, 64, 1, 1, 0)),
    ((14, 14), (256, 256, 3, 1, 1)),
    ((7, 7), (512, 512, 3, 1, 1)),
]
_C1D = [
    ((256,), (64, 128, 3, 2, 1)),
    ((128,), (128, 256, 1, 2, 0)),
    ((64,), (256, 256, 5, 1, 2)),
    ((32,), (512, 512, 3, 1, 1)),
]
_DEP = [((112, 112), (32, 3, 1)), ((112, 112), (64, 3, 2)), ((14, 14), (512, 3, 2))]
_DEP += [((7, 7), (1024, 3, 1))]
_GRP = [((56, 56), (64, 128, 3, 2, 1)), ((28, 28), (128, 256, 3, 2, 1))]
_GRP += [((14, 14), (256, 512, 3, 2, 1)), ((7, 7), (512, 512, 3, 1, 1))]
_T2D = [((4, 4), (512, 256, 4, 2, 1)), ((8, 8), (256, 128, 4, 2, 1))]
_T2D += [((16, 16), (128, 64, 4, 2, 1)), ((32, 32), (64, 3, 4, 2, 1))]
_NRM = [(256, 256), (512, 512), (1024, 1024), (4096, 1024)]
_GMM = [(128, 128, 128), (512, 32, 512), (512, 512, 512), (1024, 1024, 1024)]
_TBG = [(128, 12, 64), (128, 16, 64), (64, 12, 128), (128, 12, 128)]

Case = tuple[str, Callable[[int], Model]]


def _convolutions(table: Sequence[tuple[Shape, Sizes]], **more: Any) -> list[Case]:
    return [(str((*s, *z)), partial(convolution, spatial=s, sizes=z, **more)) for s, z in table]


def _depthwise(spatial: Shape, sizes: Sizes) -> Case:
    channels, kernel, stride = sizes
    full = (channels, channels, kernel, stride, kernel // 2)
    model = partial(convolution, spatial=spatial, sizes=full, groups=channels)
    return str((*spatial, *sizes)), model


CASES: dict[str, list[Case]] = {
    "C1D": _convolutions(_C1D),
    "C2D": _convolutions(_C2D),
    "C3D": _convolutions([((16, *s), z) for s, z in _C2D]),
    "GMM": [(str(z), partial(product, rows=z[0], columns=z[1], terms=z[2])) for z in _GMM],
    "GRP": _convolutions(_GRP, groups=4),
    "DIL": _convolutions(_C2D, dilation=2),
    "DEP": [_depthwise(s, z) for s, z in _DEP],
    "T2D": [(str((*s, *z)), partial(transposed, spatial=s, sizes=z)) for s, z in _T2D],
    "NRM": [(str(z), partial(norm, rows=z[0], columns=z[1])) for z in _NRM],
    "ConvLayer": _convolutions(_C2D, relu=True),
    "TBG": [(str(z), partial(attention_scores, length=z[0], heads=z[1], size=z[2])) for z in _TBG],
}
"""Shapes in the order of the paper: extents, channels, kernel, stride, padding."""


@click.command()
@click.option("--machine", required=True, help="Name in docs/results/machines.csv.")
@click.option("--only", multiple=True, type=click.Choice(tuple(CASES)), help="Operators.  [all]")
@click.option("--batch", multiple=True, type=COUNT, default=(1, 16), show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--trials", type=COUNT, default=64, show_default=True)
@click.option("--shapes", type=COUNT, default=4, show_default=True, help="Per operator at most.")
@click.option("--time", "time_s", type=float, default=1.0, show_default=True, help="Per side.")
def main(
    machine: str,
    only: Sequence[str],
    batch: Sequence[int],
    threads: int,
    trials: int,
    shapes: int,
    time_s: float,
) -> None:
    """Measure what is not in the table yet."""
    done = {_identity(row) for row in read_rows(FILE)} if FILE.exists() else set()
    for operator, text, n, make in _cases(only or tuple(CASES), batch, shapes):
        head = {"machine": machine, "operator": operator, "shape": text, "batch": str(n)}
        head |= {"threads": str(threads), "trials": str(trials)}
        if _identity(head) in done:
            continue
        row = head | measure(make(n), threads, trials, time_s)
        _append(row)
        click.echo(", ".join(row[key] for key in FIELDS[1:]))


def _cases(
    operators: Sequence[str], batch: Sequence[int], shapes: int
) -> Iterator[tuple[str, str, int, Callable[[int], Model]]]:
    for operator in operators:
        for text, make in CASES[operator][:shapes]:
            for n in batch:
                yield operator, text.replace(", ", " ").strip("()"), n, make


def _identity(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[key] for key in ("machine", "operator", "shape", "batch", "threads"))


def measure(model: Model, threads: int, trials: int, time_s: float) -> dict[str, str]:
    """Tune, compile and measure one model; microseconds, and our time over the best of others."""
    with tempfile.TemporaryDirectory() as name:
        path, log = Path(name) / "operator.onnx", Path(name) / "operator.jsonl"
        onnx.save(model.proto(), path)
        deque(autotune.tune(path, log, trials=trials, threads=threads), maxlen=0)
        compiled = autotune.compile(path, log, threads=threads)
        compiled.artifact.save(Path(name) / "operator.atn")
        result = autotune.bench(Path(name) / "operator.atn", BASELINES, path, time_s).to_json()
    return _cells(result, compiled.artifact.max_error)


def _cells(result: dict[str, Any], error: float | None) -> dict[str, str]:
    times = {name: f"{result[name]['median_s'] * 1e6:.1f}" for name in ("autotune", *BASELINES)}
    cells = {f"{name}_us": text for name, text in times.items()}
    return cells | {"ratio": f"{result['ratio']:.3f}", "error": f"{error or 0.0:.1e}"}


def _append(row: dict[str, str]) -> None:
    is_new = not FILE.exists()
    with FILE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
