"""Prompts and single tokens in llama.cpp, of a model of the same widths with weights of 4 bits.

    npm install node-llama-cpp && pip install gguf
    python -m benchmarks.llama_cpp FOLDER --machine C [--past 128] [--threads 1]

FOLDER is one of Hugging Face's with the `config.json` of a Qwen2 model; its weights are not read:
random ones are written as Q4_0, in blocks of 32 with a scale, the scores of tokens included. Rows
are added to `docs/results/tokens.csv`, beside those of `benchmarks.tokens`. llama.cpp runs in a
process of its own, so its rows are not measured in turns with others.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from autotune.cli.option_types import COUNT
from benchmarks.results import append_row
from benchmarks.tokens import FIELDS, FILE

SCRIPT = Path(__file__).with_suffix(".mjs")


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--machine", required=True, help="Its letter in docs/results.")
@click.option("--model", default="", help="Its name in the table.  [that of the folder]")
@click.option("--modules", type=click.Path(path_type=Path), default=Path(), help="With node's.")
@click.option("--past", type=COUNT, default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", type=COUNT, default=32, show_default=True, help="Single ones behind it.")
@click.option("--rounds", type=COUNT, default=5, show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=FILE, show_default=True)
def main(
    folder: Path,
    machine: str,
    model: str,
    modules: Path,
    past: int,
    tokens: int,
    rounds: int,
    threads: int,
    out: Path,
) -> None:
    """Measure prompts and tokens, and add a row."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = folder / "model-q4_0.gguf"
    if not weights.exists():
        write_model(config, weights)
    times = measured(weights, modules, threads, past, tokens, rounds)
    prompts, singles = [t[0] for t in times], [median(t[1:]) for t in times]
    cells = (machine, model or folder.name, "llama.cpp", threads, past)
    figures = [f"{median(x) * 1e3:.3f}" for x in (prompts, singles)]
    row = dict(zip(FIELDS, [*map(str, cells), *figures], strict=True))
    append_row(out, FIELDS, row)
    click.echo(json.dumps(row))


def measured(
    weights: Path, modules: Path, threads: int, past: int, tokens: int, rounds: int
) -> list[list[float]]:
    """Seconds of each round: of the prompt, and of each token behind it."""
    with tempfile.TemporaryDirectory(dir=modules.resolve()) as folder:  # node looks up from there
        script = Path(folder) / SCRIPT.name
        script.write_text(SCRIPT.read_text("utf-8"), "utf-8")
        counts = map(str, (threads, past, tokens, rounds))
        done = subprocess.run(
            ["node", str(script), str(weights.resolve()), *counts],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_model(config: dict[str, Any], path: Path) -> None:
    """A Qwen2 model of these widths, with random weights of 4 bits."""
    import gguf

    q4 = gguf.GGMLQuantizationType.Q4_0
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    n_tokens = config["vocab_size"]
    writer.add_token_list([f"t{n}" for n in range(n_tokens)])
    writer.add_token_types([1] * n_tokens)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(n_tokens - 1)
    for name, shape in tensors(config):
        if len(shape) == 1:
            values = rng.normal(1 if name.endswith("norm.weight") else 0, 0.02, shape)
            writer.add_tensor(name, values.astype(np.float32))
        else:
            writer.add_tensor(name, blocks(rng, *shape), raw_dtype=q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def blocks(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random weights in Q4_0: of each 32 a scale in half precision, then their halves of bytes."""
    found = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
    scales = rng.normal(0.005, 0.0005, found.shape[:2]).astype(np.float16)
    found[..., :2] = scales[..., None].view(np.uint8)
    return found.reshape(rows, -1)


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights."""
    width, inner, words = (
        config[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    of_keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "token_embd.weight", (words, width)
    yield "output.weight", (words, width)
    yield "output_norm.weight", (width,)
    for n in range(config["num_hidden_layers"]):
        for name, rows in (("q", width), ("k", of_keys), ("v", of_keys)):
            yield f"blk.{n}.attn_{name}.weight", (rows, width)
            yield f"blk.{n}.attn_{name}.bias", (rows,)
        yield f"blk.{n}.attn_output.weight", (width, width)
        yield f"blk.{n}.attn_norm.weight", (width,)
        yield f"blk.{n}.ffn_norm.weight", (width,)
        yield f"blk.{n}.ffn_gate.weight", (inner, width)
        yield f"blk.{n}.ffn_up.weight", (inner, width)
        yield f"blk.{n}.ffn_down.weight", (width, inner)


if __name__ == "__main__":
    main()
