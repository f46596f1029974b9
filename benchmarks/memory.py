"""Memory of a process that loads a model and runs it, beside ONNX Runtime.

    python -m benchmarks.memory MODEL.onnx … [--threads 2]

Every model is compiled without tuning, without a bound and with `--max-size 1.2x`, and loaded and
run ten times in a process of its own; ONNX Runtime likewise. The table is proportional set size
(what is shared with other processes counts in parts) after the last run, in MB, of processes that
import nothing else: `docs/results/memory.md`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from autotune.api.compile.compiling import compile as compile_model
from autotune.errors import UsageError

RESULT = Path(__file__).parents[1] / "docs" / "results" / "memory.md"
BOUND = 1.2

PSS = """
import re
print(re.search(r"Pss:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1])
"""
AUTOTUNE = """
import sys
import autotune
from autotune.network.runtime.runtime import random_inputs
model = autotune.load(sys.argv[1], int(sys.argv[2]))
inputs = random_inputs(model.input_info)
for _ in range(10):
    model.run(inputs)
"""
ONNXRUNTIME = """
import os
import sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
kinds = {"float": np.float32, "int64": np.int64, "int32": np.int32, "bool": bool}
inputs = {}
for port in session.get_inputs():
    shape = [n if isinstance(n, int) else 1 for n in port.shape]
    inputs[port.name] = np.zeros(shape, kinds[port.type[7:-1]])
for _ in range(10):
    session.run(None, inputs)
"""


def memory_mb(program: str, path: Path, threads: int) -> float:
    """Proportional set size of a process that runs `program` on a file, in MB."""
    command = [sys.executable, "-c", program + PSS, str(path), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024e-6


def row(model: Path, folder: Path, threads: int) -> str:
    """A line of the table: the model's file, artifacts without and with a bound, memory of all."""
    cells = [model.stem, f"{model.stat().st_size * 1e-6:.0f}"]
    for bound in (None, BOUND):
        path = folder / "m.atn"
        try:
            compile_model(model, threads=threads, check=False, max_size=bound).artifact.save(path)
        except UsageError:  # such small weights are not known
            cells += ["", ""]
            continue
        n_mb, held_mb = path.stat().st_size * 1e-6, memory_mb(AUTOTUNE, path, threads)
        cells += [f"{n_mb:.0f}", f"{held_mb:.0f}"]
    cells.append(f"{memory_mb(ONNXRUNTIME, model, threads):.0f}")
    return f"| {' | '.join(cells)} |"


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--threads", default=2, show_default=True)
def main(models: tuple[Path, ...], threads: int) -> None:
    """Write the table of MODELS."""
    lines = [
        "# Memory while running",
        "",
        "MB of the file, of the artifact, and of the process that runs it (`benchmarks/memory.py`:",
        f"proportional set size, untuned, {threads} threads); without a bound and with "
        f"`--max-size {BOUND}x`.",
        "",
        "| model | file | artifact | process | bound: artifact | process | ONNX Runtime: process |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            lines.append(row(model, Path(folder), threads))
            click.echo(lines[-1], err=True)
            RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
