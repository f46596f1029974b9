"""Gates of files with themselves, and with such that do a twentieth more.

    python -m benchmarks.gates --machine Z             # 80 gates, ten minutes
    python -m benchmarks.gates --machine Z --busy 2    # beside two processes that compute

Five kinds of networks of twenty blocks, compiled without tuning. Each file is compared with itself,
where the interval is to hold 1 and a limit of 1.05 not to fail, and one of twenty-one blocks with
it, which a limit of 1.02 is to catch. Rows are added to `docs/results/gates.csv`; the sums are
printed, and the exit code is 1 where they are not as they should be: of 40 gates with themselves 36
intervals hold 1 and none fails, of 40 with more work 38 are caught.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

import autotune
from autotune.api.compile.gating import compare_bench
from autotune.measure.timing.noise import judge, read_usage
from autotune.network.bench.gate import GateVerdict
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "gates.csv"
FIELDS = ["machine", "network", "threads", "others", "gates", "hold_1", "failed_at_1.05", "ratios",
          "more_work", "caught_at_1.02", "ratios_of_more", "seconds"]  # fmt: skip
PASSES_BELOW, CAUGHT_ABOVE = 1.05, 1.02
N_BLOCKS = 20
"""One more is a twentieth."""
_HELD, _CAUGHT = 0.9, 0.95
"""Shares that are to hold 1, and to be caught."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Networks of equal blocks. `block`: nodes from `{x}` to `{y}` with the weights `{w}a`, …, of
    these shapes; `{n}` makes other names its own."""

    shape: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    block: str
    n_threads: int = 1


KINDS = {
    "products": Kind(
        (64, 512), ((512, 512),), "p{n} = MatMul({x}, {w}a) {y} = Relu(p{n})", n_threads=2
    ),
    "one sample": Kind((1, 384), ((384, 384),), "p{n} = MatMul({x}, {w}a) {y} = Tanh(p{n})"),
    "residual": Kind(
        (1, 64, 28, 28),
        ((64, 64, 3, 3),),
        "c{n} = Conv <pads = [1, 1, 1, 1]> ({x}, {w}a) s{n} = Add(c{n}, {x}) {y} = Relu(s{n})",
        n_threads=2,
    ),
    "depthwise": Kind(
        (1, 96, 28, 28),
        ((96, 1, 3, 3), (96, 96, 1, 1)),
        "d{n} = Conv <group = 96, pads = [1, 1, 1, 1]> ({x}, {w}a) r{n} = Relu(d{n}) "
        "c{n} = Conv(r{n}, {w}b) {y} = Add(c{n}, {x})",
    ),
    "encoder": Kind(
        (32, 128),
        ((128, 128), (128, 128), (128, 128), (128, 512), (512, 128)),
        "q{n} = MatMul({x}, {w}a) k{n} = MatMul({x}, {w}b) v{n} = MatMul({x}, {w}c) "
        "t{n} = Transpose(k{n}) s{n} = MatMul(q{n}, t{n}) a{n} = Softmax(s{n}) "
        "o{n} = MatMul(a{n}, v{n}) h{n} = Add(o{n}, {x}) f{n} = MatMul(h{n}, {w}d) "
        "g{n} = Relu(f{n}) e{n} = MatMul(g{n}, {w}e) {y} = Add(e{n}, h{n})",
    ),
}


@click.command()
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--gates", default=8, show_default=True, help="Of each file, with either.")
@click.option("--only", multiple=True, type=click.Choice(list(KINDS)), help="Networks.  [all]")
@click.option("--busy", default=0, show_default=True, help="Processes that compute meanwhile.")
@click.option("--time", "time_s", default=2.0, show_default=True, help="Of each gate's sides.")
def main(machine: str, gates: int, only: tuple[str, ...], busy: int, time_s: float) -> None:
    """Measure, add a row for each network, and say whether the sums are as they should be."""
    sums = np.zeros(4, int)
    with tempfile.TemporaryDirectory() as name, _busy(busy):
        for kind in only or KINDS:
            row, counts = measured(kind, Path(name), gates, time_s)
            sums += counts
            append_row(FILE, FIELDS, {"machine": machine, **row})
            click.echo(", ".join(f"{key} {value}" for key, value in row.items()))
    n_gates, n_hold, n_failed, n_caught = sums.tolist()
    click.echo(
        f"with themselves: {n_hold} of {n_gates} intervals hold 1, {n_failed} fail at "
        f"{PASSES_BELOW}; a twentieth more: {n_caught} of {n_gates} caught at {CAUGHT_ABOVE}"
    )
    if n_hold < _HELD * n_gates or n_failed or n_caught < _CAUGHT * n_gates:
        sys.exit(1)


def measured(
    name: str, folder: Path, n_gates: int, time_s: float
) -> tuple[dict[str, str], list[int]]:
    """The row of a network; its gates, intervals that hold 1, failures, and more work caught."""
    kind, begun_s, before = KINDS[name], time.monotonic(), read_usage()
    base, more = (_artifact(kind, n, folder / f"{name}-{n}.atn") for n in (N_BLOCKS, N_BLOCKS + 1))
    same = [_judged(base, base, PASSES_BELOW, time_s) for _ in range(n_gates)]
    slower = [_judged(more, base, CAUGHT_ABOVE, time_s) for _ in range(n_gates)]
    noise = judge(before, read_usage())
    n_hold = sum(v.low <= 1 <= v.high for v in same)
    n_failed, n_caught = (sum(v.fails for v in some) for some in (same, slower))
    row = {
        "network": name,
        "threads": str(kind.n_threads),
        "others": f"{noise.other_cpus if noise else 0.0:.1f}",
        "gates": str(n_gates),
        "hold_1": str(n_hold),
        "failed_at_1.05": str(n_failed),
        "ratios": _span(same),
        "more_work": str(n_gates),
        "caught_at_1.02": str(n_caught),
        "ratios_of_more": _span(slower),
        "seconds": f"{time.monotonic() - begun_s:.0f}",
    }
    return row, [n_gates, n_hold, n_failed, n_caught]


def _judged(now: Path, before: Path, limit: float, time_s: float) -> GateVerdict:
    found = compare_bench(autotune.load(now), before, limit, time_s)[0]
    click.echo(f"{now.stem}: {found}, {found.n_rounds} rounds: {found.outcome}", err=True)
    return found


def _span(found: list[GateVerdict]) -> str:
    ratios = [v.ratio for v in found]
    return f"{min(ratios):.3f} to {max(ratios):.3f}"


def _artifact(kind: Kind, n_blocks: int, path: Path) -> Path:
    """The path of a network of so many blocks, compiled."""
    model = network(kind, n_blocks)
    autotune.compile(model, threads=kind.n_threads, check=False).artifact.save(path)
    return path


def network(kind: Kind, n_blocks: int) -> onnx.ModelProto:
    """Blocks one behind the other, with random weights of their own."""
    names = ["x", *(f"x{n}" for n in range(1, n_blocks)), "y"]
    nodes = " ".join(
        kind.block.format(x=names[n], y=names[n + 1], w=f"w{n}", n=n) for n in range(n_blocks)
    )
    port = f"float[{', '.join(map(str, kind.shape))}]"
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    model = onnx.parser.parse_model(f"{head} blocks ({port} x) => ({port} y) {{ {nodes} }}")
    rng = np.random.default_rng(0)
    for n in range(n_blocks):
        for letter, shape in zip("abcde", kind.weights, strict=False):
            n_terms = int(np.prod(shape[1:] if len(shape) == 4 else shape[:1]))
            weight = rng.standard_normal(shape, np.float32) / np.sqrt(np.float32(n_terms))
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{n}{letter}"))
    return model


@contextmanager
def _busy(n: int) -> Iterator[None]:
    """As many processes that compute, until the end of the block."""
    command = [sys.executable, "-c", "while True: sum(range(1000))"]
    others = [subprocess.Popen(command) for _ in range(n)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
