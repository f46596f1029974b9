"""A gate under load: a tenth more work is to be caught, a rerun of the same is to pass.

    python -m benchmarks.gating                    # 20 of each, beside what else runs
    python -m benchmarks.gating --busy 4           # beside four processes that compute

Ten products of matrices, and eleven. Prints how many of each the gate of 1.05 let pass, in turns
with the artifact, and by the figures alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import onnx
import onnx.parser

import autotune
from autotune.api.compile.gating import compare_bench, save_bench

LIMIT = 1.05


@click.command()
@click.option("--runs", default=20, show_default=True)
@click.option("--busy", default=0, show_default=True, help="Processes that compute meanwhile.")
@click.option("--threads", default=1, show_default=True)
def main(runs: int, busy: int, threads: int) -> None:
    """Count what the gate let pass."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {n: _artifact(folder, n, threads) for n in (10, 11)}
        base = folder / "base.json"
        save_bench(base, autotune.load(paths[10]), paths[10])
        alone = folder / "alone" / "base.json"
        alone.parent.mkdir()
        alone.write_text(base.read_text().replace(str(paths[10]), str(folder / "gone.atn")))
        with _busy(busy):
            for kind, file in (("in turns", base), ("by the figures", alone)):
                for n, path in paths.items():
                    model = autotune.load(path)
                    found = [compare_bench(model, file, LIMIT)[0] for _ in range(runs)]
                    passed = sum(not v.fails for v in found)
                    span = f"{min(v.ratio for v in found):.3f} to {max(v.ratio for v in found):.3f}"
                    click.echo(f"{kind}, {n} products: {passed} of {runs} passed ({span})")


def _artifact(folder: Path, n: int, threads: int) -> Path:
    """The path of a compiled chain of `n` products."""
    names = ["x", *(f"r{i}" for i in range(1, n)), "y"]
    steps = [f"p{i} = MatMul({names[i]}, w) {names[i + 1]} = Relu(p{i})" for i in range(n)]
    ports = "(float[256, 512] x, float[512, 512] w) => (float[256, 512] y)"
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    model = onnx.parser.parse_model(f"{head} chain {ports} {{ {' '.join(steps)} }}")
    path = folder / f"{n}.atn"
    autotune.compile(model, threads=threads, check=False).artifact.save(path)
    return path


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
