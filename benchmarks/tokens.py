"""Prompts and single tokens of a decoder with a cache: this compiler and others, in turns.

    python -m benchmarks.tokens MODEL --machine C [--artifact X.atn] [--past 128] [--threads 1]

MODEL is an ONNX file of a decoder with past and present, as optimum and the builder of
onnxruntime-genai write it; beside a `genai_config.json` it is a model of that runtime too, which is
measured where it is installed. ONNX Runtime runs the plain loop, which feeds outputs back. A prompt
of `--past` tokens fills the cache, then come single tokens; each round does so for every runtime.
Rows are added to `docs/results/tokens.csv`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import autotune
from autotune.cli.options import COUNT
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.reader.states import DecoderInputs, StatePair, decoder_inputs, find_states
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "tokens.csv"
FIELDS = ["machine", "model", "runtime", "threads", "past", "prompt_ms", "token_ms"]

Tokens = NDArray[np.int64]
Step = Callable[[Tokens], object]
"""New tokens of one sequence, (1, n), to whatever the runtime gives; earlier ones are kept."""
Runtime = Callable[[], Step]
"""Begins a sequence."""


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--artifact", type=click.Path(exists=True, path_type=Path), help="Of MODEL.")
@click.option("--past", type=COUNT, default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", type=COUNT, default=32, show_default=True, help="Single ones behind it.")
@click.option("--rounds", type=COUNT, default=5, show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=FILE, show_default=True)
def main(
    model: Path,
    machine: str,
    artifact: Path | None,
    past: int,
    tokens: int,
    rounds: int,
    threads: int,
    out: Path,
) -> None:
    """Measure prompts and tokens, and add a row for each runtime."""
    prompt = np.random.default_rng(0).integers(1, 100, (1, past))
    times: dict[str, list[tuple[float, float]]] = {}
    runtimes = runtimes_of(model, artifact, past + tokens, threads)
    for _ in range(rounds + 1):  # the first warms up
        for name, begin in runtimes.items():
            times.setdefault(name, []).append(timed(begin(), prompt, tokens))
    for name, found in times.items():
        prompts, singles = zip(*found[1:], strict=True)
        cells = (machine, model.parent.name, name, threads, past)
        figures = [f"{median(x) * 1e3:.3f}" for x in (prompts, singles)]
        row = dict(zip(FIELDS, [*map(str, cells), *figures], strict=True))
        append_row(out, FIELDS, row)
        click.echo(json.dumps(row))


def timed(step: Step, prompt: Tokens, n_tokens: int) -> tuple[float, float]:
    """Seconds of a prompt, and the median of single tokens behind it."""
    return _seconds(step, prompt), median(
        _seconds(step, prompt[:, n % prompt.size : n % prompt.size + 1]) for n in range(n_tokens)
    )


def _seconds(step: Step, tokens: Tokens) -> float:
    begun = perf_counter()
    step(tokens)
    return perf_counter() - begun


def runtimes_of(
    model: Path, artifact: Path | None, capacity: int, threads: int
) -> dict[str, Runtime]:
    """Runtimes that can run a model here, by name."""
    found: dict[str, Runtime] = {"onnxruntime": plain_loop(model, threads)}
    if artifact is not None:
        found["autotune"] = own_session(artifact, threads)
    is_builders = (model.parent / "genai_config.json").exists()
    if is_builders and importlib.util.find_spec("onnxruntime_genai"):
        found["onnxruntime-genai"] = genai(model.parent, capacity, threads)
    return found


def own_session(artifact: Path, threads: int) -> Runtime:
    """A session of this compiler, whose artifact was made with a capacity."""
    loaded = autotune.load(artifact, n_threads=threads)

    def begin() -> Step:
        return loaded.session().step

    return begin


def plain_loop(
    path: Path, threads: int
) -> Callable[[], Callable[[Tokens], Mapping[str, NDArray[Any]]]]:
    """ONNX Runtime, with each present fed back as the next past."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outline = read_outline(path)
    states = find_states(outline)
    inputs = decoder_inputs(outline, states)
    outputs = [value.name for value in session.get_outputs()]
    types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
             for v in outline.graph.input}  # fmt: skip

    def begin() -> Callable[[Tokens], Mapping[str, NDArray[Any]]]:
        past = {pair.input: _empty(session, pair, path.parent) for pair in states}
        length = 0

        def step(tokens: Tokens) -> Mapping[str, NDArray[Any]]:
            nonlocal past, length
            feeds = {"input_ids": tokens, **_computed(inputs, length, tokens.shape[1])}
            cast = {name: array.astype(types[name]) for name, array in feeds.items()}
            results = dict(zip(outputs, session.run(outputs, cast | past), strict=True))
            past = {pair.input: results[pair.output] for pair in states}
            length += tokens.shape[1]
            return results

        return step

    return begin


def _computed(inputs: DecoderInputs, length: int, n_new: int) -> Mapping[str, NDArray[Any]]:
    total = length + n_new
    return (
        dict.fromkeys(inputs.masks, np.ones((1, total)))
        | dict.fromkeys(inputs.positions, np.arange(length, total)[None])
        | dict.fromkeys(inputs.lasts, np.array([total - 1]))
        | dict.fromkeys(inputs.totals, np.array(total))
    )


def _empty(session: ort.InferenceSession, pair: StatePair, folder: Path) -> NDArray[np.float32]:
    """A cache without places; the builder writes the width of heads into its configuration."""
    shape = next(v.shape for v in session.get_inputs() if v.name == pair.input)
    config = folder / "genai_config.json"
    width = (
        json.loads(config.read_text())["model"]["decoder"]["head_size"] if config.exists() else 1
    )
    extents = [
        0 if n == pair.axis else width if n == len(shape) - 1 else 1 for n in range(len(shape))
    ]
    return np.zeros([d if isinstance(d, int) else extents[n] for n, d in enumerate(shape)], "f4")


def genai(folder: Path, capacity: int, threads: int) -> Runtime:
    """onnxruntime-genai, with its cache in place."""
    import onnxruntime_genai as og

    config = og.Config(str(folder))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {
        "intra_op_num_threads": threads}}}}))  # fmt: skip
    model = og.Model(config)

    def begin() -> Step:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=capacity + 1, min_length=capacity + 1, do_sample=False)
        generator = og.Generator(model, params)
        return lambda tokens: generator.append_tokens(tokens[0].astype(np.int32))

    return begin


if __name__ == "__main__":
    main()
