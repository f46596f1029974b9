"""`torch.compile` with `backend="autotune"` beside inductor, on networks with random weights.

    pip install torch torchvision timm transformers onnxscript        # in a venv, with autotune
    python -m benchmarks.torch_compile [NETWORK]… --threads 1,2       # writes torch_compile.csv
    python -m benchmarks.torch_compile --check                        # outputs alone, no times

Every network has a process of its own. Outputs are compared with those of PyTorch without a
compiler; then the three are called in turns, for a second each in every round, and the median of
each is told. Inductor has its default mode.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from benchmarks.results import FOLDER, append_row

FIELDS = (
    "network", "library", "threads", "eager_ms", "inductor_ms", "autotune_ms", "ratio", "error",
    "inductor_first_s", "autotune_first_s", "in_pytorch",
)  # fmt: skip
_ROUNDS, _BLOCK_S = 7, 1.0
_MOST_APART = 1e-4
"""Of the largest output."""


@dataclass(frozen=True)
class Zoo:
    """Makes networks of one library by name, and inputs of a network."""

    names: tuple[str, ...]
    make: Callable[[str], tuple[Any, tuple[Any, ...]]]


def _timm(name: str) -> tuple[Any, tuple[Any, ...]]:
    model = import_module("timm").create_model(name, pretrained=False)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, (_torch().randn(1, *size),)


def _torchvision(name: str) -> tuple[Any, tuple[Any, ...]]:
    models: Any = import_module("torchvision.models")
    model = models.get_model(name, weights=None, **_QUIET.get(name, {}))
    return model, (_torch().randn(1, 3, 224, 224),)


_QUIET = {"googlenet": {"init_weights": True, "aux_logits": False}}


def _transformers(name: str) -> tuple[Any, tuple[Any, ...]]:
    transformers: Any = import_module("transformers")
    torch = _torch()
    model_class, config_class, settings, kind = _CONFIGS[name]
    config = getattr(transformers, config_class)(**settings)
    model = getattr(transformers, model_class)(config)
    if kind == "image":
        return model, (torch.randn(1, 3, config.image_size, config.image_size),)
    if kind == "mel":
        return model, (torch.randn(1, 80, 2 * config.max_source_positions),)
    return model, (torch.randint(0, 1000, (1, 128)),)


_WIDE = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6,
         "intermediate_size": 1536}  # fmt: skip
_CONFIGS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("BertModel", "BertConfig", _WIDE, "text"),
    "roberta": ("RobertaModel", "RobertaConfig", _WIDE, "text"),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": 384, "n_layers": 4, "n_heads": 6, "hidden_dim": 1536},
        "text",
    ),
    "gpt2": ("GPT2Model", "GPT2Config", {"n_embd": 384, "n_layer": 4, "n_head": 6}, "text"),
    "llama": (
        "LlamaModel",
        "LlamaConfig",
        _WIDE | {"vocab_size": 1000, "num_key_value_heads": 2},
        "text",
    ),
    "vit": ("ViTModel", "ViTConfig", _WIDE, "image"),
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", _WIDE, "image"),
    "whisper_encoder": (
        "WhisperModel",
        "WhisperConfig",
        {
            **{"d_model": 256, "encoder_layers": 3, "decoder_layers": 1},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
            "max_source_positions": 500,
        },
        "mel",
    ),
}
ZOO = {
    "timm": Zoo(
        (
            *("resnet34", "mobilenetv3_small_100", "efficientnet_b0", "convnext_atto"),
            *("densenet121", "regnety_004", "ghostnetv2_100", "mobilenetv4_conv_small"),
            *("deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s16_224"),
            *("edgenext_x_small", "repvit_m0_9"),
        ),
        _timm,
    ),
    "torchvision": Zoo(
        ("resnet18", "squeezenet1_1", "shufflenet_v2_x1_0", "googlenet"), _torchvision
    ),
    "transformers": Zoo(tuple(_CONFIGS), _transformers),
}
NETWORKS = {name: library for library, zoo in ZOO.items() for name in zoo.names}


def _torch() -> Any:
    return import_module("torch")


def _whole(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A network in evaluation, and its inputs."""
    _torch().manual_seed(0)
    model, inputs = ZOO[NETWORKS[name]].make(name)
    model = model.eval()
    return (model.encoder if name == "whisper_encoder" else model), inputs


def _leaves(outputs: Any) -> list[Any]:
    torch = _torch()
    leaves = torch.utils._pytree.tree_leaves(_plain(outputs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _plain(outputs: Any) -> Any:
    return outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs


def _error(ours: Any, theirs: Any) -> float:
    """The largest difference of any output, over its largest value."""
    pairs = zip(_leaves(ours), _leaves(theirs), strict=True)
    apart = [float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs]
    return max(apart)


def _timed(call: Callable[[], Any]) -> list[float]:
    times: list[float] = []
    end_s = time.perf_counter() + _BLOCK_S
    while time.perf_counter() < end_s:
        start_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - start_s)
    return times


class _Told(logging.Handler):
    """Lines of the backend."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def measured(name: str, threads: int, is_check: bool) -> dict[str, Any]:
    """One row, in this process."""
    torch = _torch()
    torch.set_num_threads(threads)
    told = _Told()
    logging.getLogger("autotune").addHandler(told)
    model, inputs = _whole(name)
    row: dict[str, Any] = {"network": name, "library": NETWORKS[name], "threads": threads}
    with torch.inference_mode():
        sides = {"eager": lambda: model(*inputs)}
        expected = sides["eager"]()
        for side in ("autotune",) if is_check else ("inductor", "autotune"):
            torch.compiler.reset()
            compiled = torch.compile(model, backend=side)
            start_s = time.perf_counter()
            found = compiled(*inputs)
            row[f"{side}_first_s"] = round(time.perf_counter() - start_s, 1)
            sides[side] = lambda compiled=compiled: compiled(*inputs)  # type: ignore[misc]
        row["error"] = f"{_error(found, expected):.1e}"
        row["in_pytorch"] = len(told.lines)
        if not is_check:
            row |= _medians(sides)
    return row | {"told": told.lines}


def _medians(sides: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    for call in sides.values():
        _timed(call)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(_ROUNDS):
        for side, call in sides.items():
            times[side].append(statistics.median(_timed(call)))
    medians = {side: statistics.median(found) for side, found in times.items()}
    pairs = zip(times["autotune"], times["inductor"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return {f"{s}_ms": f"{1e3 * t:.4g}" for s, t in medians.items()} | {"ratio": f"{ratio:.3f}"}


def _in_a_process(name: str, threads: int, is_check: bool) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.torch_compile", name, "--child"]
    command += ["--threads", str(threads), *(["--check"] if is_check else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    found: dict[str, Any] | None = json.loads(lines[-1]) if not done.returncode and lines else None
    return found


def _numbers(text: str) -> Sequence[int]:
    return [int(word) for word in text.split(",")]


@click.command()
@click.argument("networks", nargs=-1, type=click.Choice(tuple(NETWORKS)))
@click.option("--threads", default="1,2", show_default=True)
@click.option("--check", "is_check", is_flag=True, help="Compare outputs; time nothing.")
@click.option("--child", "is_child", is_flag=True, hidden=True)
def main(networks: Sequence[str], threads: str, is_check: bool, is_child: bool) -> None:
    """Compare the backend with inductor on NETWORKS, all by default."""
    if is_child:
        print(json.dumps(measured(networks[0], _numbers(threads)[0], is_check)))
        return
    n_wrong = 0
    for name in networks or NETWORKS:
        for n_threads in _numbers(threads):
            row = _in_a_process(name, n_threads, is_check)
            if row is None:
                click.echo(f"{name}: failed")
                n_wrong += 1
                continue
            n_wrong += float(row["error"]) > _MOST_APART
            click.echo(" ".join(f"{k}={row[k]}" for k in FIELDS if k in row))
            for line in row.pop("told"):
                click.echo(f"  {line}")
            if not is_check:
                append_row(FOLDER / "torch_compile.csv", FIELDS, row)
    sys.exit(1 if n_wrong else 0)


if __name__ == "__main__":
    main()
