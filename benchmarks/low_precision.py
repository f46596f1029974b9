"""Products of narrow types beside the peaks of their forms, quantised networks beside others.

    python -m benchmarks.low_precision --machine Z [--threads 1] [--budget 40m] [--model FILE]…
    python -m benchmarks.low_precision --machine Z --trials 0 --only "in bf16" --bf16 FILE…

* GEMM and convolutions of ResNet-50 in every narrow form that the CPU has, tuned, as a share of the
  peak of the form, which is measured before and after each.
* MatMulNBits of 4 bits with one row and with 32, data as they are or rounded to bytes
  (`accuracy_level` 4), beside ONNX Runtime; with one row as a share of the rate at which its
  weights can be read.
* Networks as ONNX Runtime quantises them (QDQ and dynamic), and files of `--model`, beside ONNX
  Runtime and OpenVINO, in turns.
* Files of `--bf16`, compiled with products in bf16, beside OpenVINO as its user gets it.

Every case is a row of `docs/results/low_precision.csv` as soon as it is done and is not measured
again; what is left of the budget is shared by what is left to measure.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper

import autotune
from autotune import te
from autotune.cli.option_types import COUNT, DURATION
from autotune.dtypes import DTYPES
from autotune.measure.timing.peak import form_peaks, measure_peaks, stay_cached
from autotune.network.bench.bench import BenchResult, bench
from autotune.records import read_log
from autotune.target import Target, host_target
from autotune.target.isa import MultiplyAdd
from benchmarks.budget import within
from benchmarks.models import model_file
from benchmarks.quantised_models import quantised
from benchmarks.results import FOLDER, append_row, read_rows
from benchmarks.sparse import DENSE, encoder
from benchmarks.tables import BASELINES

FILE = FOLDER / "low_precision.csv"
HEAD = ("machine", "kind", "case", "form", "threads")
FIELDS = (
    *HEAD, "trials", "autotune_us", "before_us", "share_pct", "onnxruntime_us", "openvino_us",
    "torch_us", "ratio",
)  # fmt: skip

GEMMS = ((512, 512, 512), (1024, 1024, 1024), (128, 3072, 768))
"""Rows, columns, terms."""
CONVOLUTIONS = (
    (56, 64, 64, 1), (56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (14, 1024, 256, 1),
    (7, 512, 512, 3),
)  # fmt: skip
"""Extent, channels, output channels, kernel; of stride 1."""
_ARTIFACT = "low_precision.atn"
WEIGHTS_K, WEIGHTS_N, BLOCK = 4096, 11008, 32
ROWS, LEVELS = (1, 32), {"4 bits": 0, "4 bits, data in bytes": 4}
"""Of products with weights of 4 bits: rows of data, and `accuracy_level` by name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a case is given: at most `tune_s` seconds and `trials` per task; `time_s` a side."""

    target: Target
    threads: int
    trials: int
    tune_s: float | None
    time_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """One row: its first cells, and what measures the others."""

    head: Mapping[str, str]
    measure: Callable[[Plan], dict[str, str]]

    @property
    def identity(self) -> tuple[str, ...]:
        """What no other row has."""
        return tuple(self.head[key] for key in HEAD)


@click.command()
@click.option("--machine", required=True, help="Name in docs/results/machines.csv.")
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--trials", type=click.IntRange(0), default=256, show_default=True)
@click.option("--time", "time_s", type=DURATION, default="2s", help="Per side.  [2s]")
@click.option("--budget", "budget_s", type=DURATION, help="For all that is left.  [no limit]")
@click.option("--model", "models", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--bf16", "halved", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--only", default="", help="Cases whose kind, name or form contains this.")
@click.option("--out", type=click.Path(path_type=Path), default=FILE, help="The table.")
def main(
    machine: str,
    threads: int,
    trials: int,
    time_s: float,
    budget_s: float | None,
    models: Sequence[Path],
    halved: Sequence[Path],
    only: str,
    out: Path,
) -> None:
    """Measure what is not in the table yet."""
    target = host_target()
    done = {tuple(row[key] for key in HEAD) for row in read_rows(out)}
    named = [c for c in cases_of(target, models, halved) if only in " ".join(c.head.values())]
    whole = [
        Case({"machine": machine, "threads": str(threads), **c.head}, c.measure) for c in named
    ]
    left = (case for case in whole if case.identity not in done)
    for case, tune_s in within(budget_s, left, time_s):
        row = {**case.head, **case.measure(Plan(target, threads, trials, tune_s, time_s))}
        append_row(out, FIELDS, row)
        click.echo(", ".join(row.get(key, "") for key in FIELDS[1:]))


def cases_of(
    target: Target, models: Sequence[Path] = (), halved: Sequence[Path] = ()
) -> Iterator[Case]:
    """All cases that the CPU has a form for, kernels first."""
    for form in target.isa.forms:
        if form.terms == 1 or form.operands[0] == "int16":
            continue  # no model has products of int16
        for shape in GEMMS:
            yield _kernel(f"GEMM {'x'.join(map(str, shape))}", form, partial(gemm, form, *shape))
        for conv in CONVOLUTIONS:
            text = "Conv {0}x{0} {1}->{2} {3}x{3}".format(*conv)
            yield _kernel(text, form, partial(convolution, form, *conv))
    for rows, (form_name, level) in product(ROWS, LEVELS.items()):
        case = f"{rows}x{WEIGHTS_K}->{WEIGHTS_N}"
        head = {"kind": "weights", "case": case, "form": form_name}
        yield Case(head, partial(_few_bits, rows=rows, level=level))
    for name, form_name in NETWORKS:
        head = {"kind": "network", "case": name, "form": form_name}
        yield Case(head, partial(_built_network, name=name, form=form_name))
    for path in models:
        head = {"kind": "network", "case": path.stem, "form": "file"}
        yield Case(head, partial(_network, path=path))
    for path in halved:
        head = {"kind": "network", "case": path.stem, "form": "in bf16"}
        yield Case(head, partial(_halved, path=path))


# --- kernels ------------------------------------------------------------------------------------


def _kernel(text: str, form: MultiplyAdd, make: Callable[[], te.Tensor]) -> Case:
    head = {"kind": "kernel", "case": text, "form": form.name}
    return Case(head, partial(_measured_kernel, form=form, make=make))


def gemm(form: MultiplyAdd, m: int, n: int, k: int) -> te.Tensor:
    """c[m, n] = Σ a[m, k]·b[k, n] of the types of a form, with constant b."""
    a = te.placeholder((m, k), "a", form.operands[0])
    b = te.placeholder((k, n), "b", form.operands[1], constant=True)
    r, to = te.reduce_axis(k, "r"), form.accumulator
    return te.compute((m, n), lambda i, j: te.sum(a[i, r].astype(to) * b[r, j].astype(to), r), "c")


def convolution(form: MultiplyAdd, extent: int, c: int, n: int, kernel: int) -> te.Tensor:
    """A convolution of stride 1, channels last; what it reads around the picture is there."""
    size = extent + kernel - 1
    x = te.placeholder((size, size, c), "x", form.operands[0])
    w = te.placeholder((kernel, kernel, c, n), "w", form.operands[1], constant=True)
    u, v = te.reduce_axis(kernel, "u"), te.reduce_axis(kernel, "v")
    r, to = te.reduce_axis(c, "r"), form.accumulator
    return te.compute(
        (extent, extent, n),
        lambda i, j, o: te.sum(x[i + u, j + v, r].astype(to) * w[u, v, r, o].astype(to), [u, v, r]),
        "y",
    )


def _measured_kernel(
    plan: Plan, form: MultiplyAdd, make: Callable[[], te.Tensor]
) -> dict[str, str]:
    """Latency of the best program with warm data, and its share of the peak of the form."""
    task = autotune.Task(make(), threads=plan.threads)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "kernel.jsonl"
        task.tune(trials=plan.trials, time_s=plan.tune_s, log=log, show="nothing")
        n_trials = len(read_log(log).records)
        constants = {
            p.name: _random(p.tensor.shape, p.tensor.dtype)
            for p in task.dag.placeholders
            if p.constant
        }
        model = task.build(constants=constants).model
    ((_, before),) = form_peaks(plan.target, plan.threads, [form])
    result = bench(model, {}, min_s=plan.time_s)
    ((_, after),) = form_peaks(plan.target, plan.threads, [form])
    share = task.dag.flops / result.autotune.median_s / max(before, after)
    return {"trials": str(n_trials), **_cells(result), "share_pct": f"{100 * share:.1f}"}


def _random(shape: Sequence[int], dtype: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Small whole numbers, which every type holds."""
    rng = np.random.default_rng(0)
    return rng.integers(-3, 4, shape).astype(DTYPES[dtype].numpy)


# --- weights of few bits ------------------------------------------------------------------------


def few_bits_model(rows: int, k: int, n: int, level: int) -> onnx.ModelProto:
    """MatMulNBits: 4 bits a weight, a float32 scale for 32 of them."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2)).astype(np.uint8)
    scales = (0.01 + 0.01 * rng.random(n * k // BLOCK)).astype(np.float32)
    attributes: Any = {"K": k, "N": n, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], "p", domain="com.microsoft", **attributes
    )
    graph = helper.make_graph(
        [node],
        "few_bits",
        [helper.make_tensor_value_info("x", 1, (rows, k))],
        [helper.make_tensor_value_info("y", 1, (rows, n))],
        [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _few_bits(plan: Plan, rows: int, level: int) -> dict[str, str]:
    """Latency, and of one row the share of the rate of what keeps the weights, L3 or memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "few_bits.onnx"
        onnx.save(few_bits_model(rows, WEIGHTS_K, WEIGHTS_N, level), path)
        cells, result = _tuned(path, Path(folder), plan, ("onnxruntime",))
    if rows > 1:
        return cells
    flops, n_bytes = 2 * WEIGHTS_K * WEIGHTS_N, WEIGHTS_K * WEIGHTS_N * (BLOCK // 2 + 4) // BLOCK
    evict = not stay_cached(plan.target, plan.threads, n_bytes, flops)
    peaks = measure_peaks(plan.target, plan.threads, evict)
    share = n_bytes / result.autotune.median_s / peaks.cold_bytes_per_s
    return {**cells, "share_pct": f"{100 * share:.1f}"}


# --- networks -----------------------------------------------------------------------------------

NETWORKS = (
    ("resnet18", "QDQ"),
    ("mobilenet_v2", "QDQ"),
    ("encoder of BERT-base", "QDQ"),
    ("encoder of BERT-base", "dynamic"),
)
"""What is quantised here; others are files."""
_LAYERS = 12


def _built_network(plan: Plan, name: str, form: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        if name.startswith("encoder"):
            onnx.save(encoder(DENSE, _LAYERS), path)
        else:
            path = model_file(name, Path(folder))
        return _network(plan, quantised(path, Path(folder) / "quantised.onnx", form))


def _network(plan: Plan, path: Path) -> dict[str, str]:
    sides = tuple(n for n in BASELINES if importlib.util.find_spec(n))
    with tempfile.TemporaryDirectory() as folder:
        return _tuned(path, Path(folder), plan, sides)[0]


def _halved(plan: Plan, path: Path) -> dict[str, str]:
    """Beside OpenVINO as its user gets it."""
    sides = ("openvino:default",) if importlib.util.find_spec("openvino") else ()
    with tempfile.TemporaryDirectory() as folder:
        return _tuned(path, Path(folder), plan, sides, "bf16")[0]


def _tuned(
    path: Path, folder: Path, plan: Plan, against: Sequence[str], precision: str = "f32"
) -> tuple[dict[str, str], BenchResult]:
    """Tune, compile and measure a model; untuned where there are no trials."""
    log, trials = None, 0
    n_tasks = len(autotune.build_network(path).tasks)
    if plan.trials:
        log = folder / "low_precision.jsonl"
        n_trials = plan.trials * n_tasks
        autotune.tune(
            path,
            log,
            trials=n_trials,
            time_s=plan.tune_s,
            threads=plan.threads,
            precision=precision,
            show="nothing",
            compare=False,
        )
        trials = len(read_log(log).records)
    artifact = folder / _ARTIFACT
    done = autotune.compile(path, log, threads=plan.threads, precision=precision)
    done.artifact.save(artifact)
    result = autotune.bench(artifact, against, path, plan.time_s)
    return {"trials": str(trials), **_cells(result)}, result


def _cells(result: BenchResult) -> dict[str, str]:
    times = {"autotune": result.autotune, **result.baselines}
    cells = {f"{n.split(':')[0]}_us": f"{t.median_s * 1e6:.1f}" for n, t in times.items()}
    return cells if result.ratio is None else {**cells, "ratio": f"{result.ratio:.3f}"}


if __name__ == "__main__":
    main()
