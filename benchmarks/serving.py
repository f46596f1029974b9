"""Streams of tokens of one model: this compiler beside servers' engines, each in its own process.

    python -m benchmarks.serving RUNTIME MODEL --machine G [--past 16] [--threads 2]

RUNTIME and MODEL: `autotune` and an artifact of several sessions; `genai` and a folder of
onnxruntime-genai's builder; `llama.cpp` and a file in GGUF (`--modules`: a folder with
`node-llama-cpp`); `mistral.rs` and a folder with `config.json`, `model-q4_0.gguf` of
`benchmarks.llama_cpp` and a `tokenizer.json` of its tokens, one a word. A prompt of `past` tokens,
then single tokens of 1, 4 and 8 texts at once. Rows are added to `docs/results/serving.csv`.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np

import autotune
from autotune.cli.option_types import COUNT
from benchmarks.results import FOLDER, append_row

FILE = FOLDER / "serving.csv"
FIELDS = ["machine", "runtime", "threads", "past", "streams", "first_ms", "tokens_per_s", "mib"]
_STREAMS = (1, 4, 8)
_SCRIPT = Path(__file__).with_suffix(".mjs")


@dataclass(frozen=True)
class Setting:
    """What is measured. `modules`: a folder with node's."""

    model: Path
    threads: int
    past: int
    tokens: int
    streams: Sequence[int]
    modules: Path

    def words(self, k: int) -> list[int]:
        """The tokens of text `k`."""
        return [1 + (n * 37 + k * 11) % 9999 for n in range(self.past)]


@dataclass(frozen=True)
class Streams:
    """Seconds of the first prompt and of steps of all streams; MiB that the process had at most."""

    streams: int
    first: float
    steps: Sequence[float]
    mib: int


@click.command()
@click.argument("runtime", type=click.Choice(["autotune", "genai", "llama.cpp", "mistral.rs"]))
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--modules", type=click.Path(path_type=Path), default=Path(), help="With node's.")
@click.option("--past", type=COUNT, default=16, show_default=True, help="Tokens of each prompt.")
@click.option("--tokens", type=COUNT, default=32, show_default=True, help="Single ones behind it.")
@click.option("--streams", type=COUNT, multiple=True, help="Texts at once.  [1, 4 and 8]")
@click.option("--threads", type=COUNT, default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=FILE, show_default=True)
def main(
    runtime: str,
    model: Path,
    machine: str,
    modules: Path,
    past: int,
    tokens: int,
    streams: tuple[int, ...],
    threads: int,
    out: Path,
) -> None:
    """Measure texts at once, and add a row for each number of them."""
    setting = Setting(model, threads, past, tokens, streams or _STREAMS, modules)
    for found in RUNTIMES[runtime](setting):
        speed = found.streams / median(found.steps)
        cells = (machine, runtime, threads, past, found.streams)
        figures = (f"{found.first * 1e3:.1f}", f"{speed:.1f}", str(found.mib))
        row = dict(zip(FIELDS, [*map(str, cells), *figures], strict=True))
        append_row(out, FIELDS, row)
        click.echo(json.dumps(row))


def of_autotune(setting: Setting) -> Iterator[Streams]:
    """Turns of a scheduler; texts differ in their last token, and share what they begin with."""
    model = autotune.load(setting.model, setting.threads)
    model.session().step([setting.words(0)[:8]])
    for streams in setting.streams:
        session = model.session()
        first = _seconds(partial(session.step, [setting.words(0)]))
        scheduler = autotune.TurnScheduler(model, sessions=streams, prefixes=autotune.Prefixes())
        texts = [[*setting.words(0)[:-1], 7 + k] for k in range(streams)]
        requests = [autotune.TextRequest(text, setting.tokens) for text in texts]
        for request in requests:
            scheduler.submit(request)
        while not all(request.found for request in requests):
            scheduler.turn()
        steps = []
        while not any(request.end for request in requests):
            steps.append(_seconds(scheduler.turn))
        yield Streams(streams, first, steps, _most_mib())


def of_genai(setting: Setting) -> Iterator[Streams]:
    """A batch of texts; the first prompt of several is a share of all of them."""
    og: Any = import_module("onnxruntime_genai")

    config = og.Config(str(setting.model))
    options = {"session_options": {"intra_op_num_threads": setting.threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    model = og.Model(config)
    for streams in setting.streams:
        most = setting.past + setting.tokens + 1
        params = og.GeneratorParams(model)
        params.set_search_options(
            max_length=most, min_length=most, do_sample=False, batch_size=streams
        )
        generator = og.Generator(model, params)
        texts = np.array([setting.words(k) for k in range(streams)], np.int32)
        begun = perf_counter()
        generator.append_tokens(texts if streams > 1 else texts[0])
        generator.generate_next_token()
        first = (perf_counter() - begun) / streams
        steps = [_seconds(generator.generate_next_token) for _ in range(setting.tokens - 2)]
        yield Streams(streams, first, steps, _most_mib())


def of_llama_cpp(setting: Setting) -> Iterator[Streams]:
    """Sequences of one context, in batches as the binding of node makes them."""
    script = setting.modules.resolve() / _SCRIPT.name  # node looks up from there
    script.write_text(_SCRIPT.read_text("utf-8"), "utf-8")
    streams = ",".join(map(str, setting.streams))
    told = map(str, (setting.threads, setting.past, streams, setting.tokens))
    words = ["node", str(script), str(setting.model.resolve()), *told]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield Streams(**json.loads(line))


def of_mistral_rs(setting: Setting) -> Iterator[Streams]:
    """Requests of as many threads; steps are what it tells of the time of completions."""
    os.environ["RAYON_NUM_THREADS"] = str(setting.threads)
    os.sched_setaffinity(0, range(setting.threads))
    mistralrs: Any = import_module("mistralrs")

    files = {"quantized_filename": "model-q4_0.gguf", "quantized_model_id": str(setting.model)}
    which = mistralrs.Which.GGUF(**files, tokenizer_json=str(setting.model / "tokenizer.json"))
    runner = mistralrs.Runner(which=which, prefix_cache_n=0)
    for streams in setting.streams:
        found: list[Any] = []

        def ask(k: int, found: list[Any] = found) -> None:
            prompt = " ".join(f"t{n}" for n in setting.words(k))
            most = {"max_tokens": setting.tokens, "ignore_eos": True, "temperature": 0.0}
            asked = mistralrs.CompletionRequest(model="default", prompt=prompt, **most)
            found.append(runner.send_completion_request(asked).usage)

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = min(usage.total_prompt_time_sec for usage in found)
        steps = [usage.total_completion_time_sec / (setting.tokens - 1) for usage in found]
        yield Streams(streams, first, steps, _most_mib())


RUNTIMES: Mapping[str, Callable[[Setting], Iterator[Streams]]] = {
    "autotune": of_autotune,
    "genai": of_genai,
    "llama.cpp": of_llama_cpp,
    "mistral.rs": of_mistral_rs,
}


def _seconds(call: Callable[[], object]) -> float:
    begun = perf_counter()
    call()
    return perf_counter() - begun


def _most_mib() -> int:
    """MiB of this process in memory, at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


if __name__ == "__main__":
    main()
