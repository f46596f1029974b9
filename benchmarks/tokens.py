"""Prompts and single tokens of a decoder with a cache: this compiler and others, in turns.

    python -m benchmarks.tokens MODEL --machine C [--artifact X.atn] [--past 128] [--threads 1]

MODEL is an ONNX file of a decoder with past and present, as optimum and the builder of
onnxruntime-genai write it; beside a `genai_config.json` it is a model of that runtime too, which is
measured where it is installed. Without an artifact it is compiled untuned. An artifact for several
sessions has a row for a token of each of them, in turns with a session alone. Rows are added to
`docs/results/tokens.csv`.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy as np

import autotune
from autotune.cli.option_types import COUNT
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
        else autotune.load(artifact, threads=threads)
    )
    found = autotune.bench_tokens(compiled, past, tokens, against, model, seconds)
    times = {
        n: (t.prompt_s, t.token_s)
        for n, t in {"autotune": found.autotune, **found.baselines}.items()
    }
    if isinstance(compiled, autotune.Model):
        times |= {
            f"autotune, {k} sessions": (math.nan, s) for k, s in together(compiled, past, tokens)
        }
    for name, pair in times.items():
        cells = (machine, model.parent.name, name, threads, past)
        figures = ["" if math.isnan(x) else f"{x * 1e3:.3f}" for x in pair]
        row = dict(zip(FIELDS, [*map(str, cells), *figures], strict=True))
        append_row(out, FIELDS, row)
        click.echo(json.dumps(row))


def together(model: autotune.Model, past: int, tokens: int) -> Iterator[tuple[int, float]]:
    """For each number of sessions that a step may advance: itself, and seconds per token."""
    for k in sorted({v.artifact.state.sessions for v in model.variants if v.artifact.state} - {1}):
        first = model.session()
        first.step(np.ones((1, past), np.int64))
        sessions = [first, *(first.fork() for _ in range(k - 1))]
        times = []
        for n in range(tokens):
            begun = perf_counter()
            model.step_together(sessions, np.full((k, 1), n % 100))
            times.append((perf_counter() - begun) / k)
        yield k, median(times)


if __name__ == "__main__":
    main()
