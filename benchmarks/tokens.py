"""Prompts and single tokens of a decoder with a cache: this compiler and others, in turns.

    python -m benchmarks.tokens MODEL --machine C [--artifact X.atn] [--past 128] [--threads 1]

MODEL is an ONNX file of a decoder with past and present, as optimum and the builder of
onnxruntime-genai write it; beside a `genai_config.json` it is a model of that runtime too, which is
measured where it is installed. Without an artifact it is compiled untuned. Rows are added to
`docs/results/tokens.csv`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import click

import autotune
from autotune.cli.options import COUNT
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "tokens.csv"
FIELDS = ["machine", "model", "runtime", "threads", "past", "prompt_ms", "token_ms"]


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--artifact", type=click.Path(exists=True, path_type=Path), help="Of MODEL.")
@click.option("--past", type=COUNT, default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", type=COUNT, default=32, show_default=True, help="Single ones behind it.")
@click.option("--seconds", type=float, default=5, show_default=True, help="Of each side.")
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=FILE, show_default=True)
def main(
    model: Path,
    machine: str,
    artifact: Path | None,
    past: int,
    tokens: int,
    seconds: float,
    threads: int,
    out: Path,
) -> None:
    """Measure prompts and tokens, and add a row for each runtime."""
    against = ["onnxruntime"]
    is_builders = (model.parent / "genai_config.json").exists()
    if is_builders and importlib.util.find_spec("onnxruntime_genai"):
        against.append("onnxruntime-genai")
    compiled = (
        autotune.compile(model, capacity=past + tokens, threads=threads, check=False)
        if artifact is None
        else autotune.load(artifact, n_threads=threads)
    )
    found = autotune.bench_tokens(compiled, past, tokens, against, model, seconds)
    for name, timing in {"autotune": found.autotune, **found.baselines}.items():
        cells = (machine, model.parent.name, name, threads, past)
        figures = [f"{x * 1e3:.3f}" for x in (timing.prompt_s, timing.token_s)]
        row = dict(zip(FIELDS, [*map(str, cells), *figures], strict=True))
        append_row(out, FIELDS, row)
        click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
