"""Language models of 2026 as small random ones, and whether their files compile to the same tokens.

    pip install torch transformers onnxscript                          # in a venv
    python -m benchmarks.architectures export FOLDER [--only mixtral --route dynamo]…
    python -m benchmarks.architectures check FOLDER [--only mixtral]…  # without PyTorch

A model is exported with flat inputs: tokens, a mask, and the states of each layer, caches that grow
and states of a fixed shape. `expected.json` beside it has the greedy tokens of PyTorch, and of ONNX
Runtime, which feeds outputs back.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.exportable import exportable
from benchmarks.rwkv7 import rwkv7

VOCABULARY = 96
PROMPT = (3, 17, 29, 5, 41, 7, 11)
N_PAST, N_NEW = 5, 3
"""Places of the call that is exported."""
ROUTES = ("dynamo", "script", "loop", "hf", "step")
"""PyTorch's exporters, the older of them, it with a loop over all experts as models of 2024 have
it, the exporter of transformers, and the first one with a step of one token."""
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class Architecture:
    """A causal language model of `transformers`, or of `rwkv7`: the name of its classes, and
    settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    model: str = ""

    def build(self, n_layers: int) -> Any:
        """The model, with seeded weights."""
        torch, transformers = import_module("torch"), import_module("transformers")
        torch.manual_seed(0)
        if self.name == "Rwkv7":
            return rwkv7(VOCABULARY, n_layers).eval()
        config = getattr(transformers, self.config or f"{self.name}Config")
        config = config(**_deep(_SMALL | dict(self.settings), n_layers))
        config._attn_implementation = "eager"
        model = getattr(transformers, self.model or f"{self.name}ForCausalLM")(config)
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1 and p.std() < 0.05:
                    p.normal_(std=0.2)
        return model.float().eval()


def _deep(settings: Mapping[str, Any], n_layers: int) -> dict[str, Any]:
    """Settings of two layers for an even number of them, whose kinds take turns."""
    found = dict(settings)
    for name, value in settings.items():
        if isinstance(value, list) and len(value) == 2:
            found[name] = value * (n_layers // 2)
        elif name in ("hybrid_layer_ids", "attn_layer_indices"):
            found[name] = [*range(1, n_layers, 2)]
        elif name in ("n_layer", "num_hidden_layers"):
            found[name] = n_layers
    return found


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_EXPERTS = {"num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2}
_MOE = {**_EXPERTS, "moe_intermediate_size": 24, "norm_topk_prob": True}
_MAMBA = {
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_FULL_AND_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}

ARCHITECTURES: Mapping[str, Architecture] = {
    # --- experts ---
    "mixtral": Architecture("Mixtral", _EXPERTS),
    "qwen2_moe": Architecture(
        "Qwen2Moe", {**_MOE, "shared_expert_intermediate_size": 24, "decoder_sparse_step": 1}
    ),
    "qwen3_moe": Architecture("Qwen3Moe", {**_MOE, "head_dim": 8, "decoder_sparse_step": 1}),
    "olmoe": Architecture("Olmoe", _MOE),
    "gpt_oss": Architecture("GptOss", {**_EXPERTS, **_WINDOW, "head_dim": 8}),
    "granite_moe": Architecture("GraniteMoe", _EXPERTS),
    "phimoe": Architecture("Phimoe", _EXPERTS),
    "deepseek_v3": Architecture(
        "DeepseekV3",
        {
            **_MOE,
            **_LATENT,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "num_key_value_heads": 4,
        },
    ),
    "llama4": Architecture(
        "Llama4",
        {
            **_EXPERTS,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 48,
            "head_dim": 8,
            "attention_chunk_size": 8,
            "no_rope_layers": [1, 0],
            "interleave_moe_layer_step": 1,
        },
        "Llama4TextConfig",
    ),
    "lfm2_moe": Architecture(
        "Lfm2Moe", {**_MOE, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
    ),
    # --- linear attention, recurrences and short convolutions ---
    "lfm2": Architecture(
        "Lfm2", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}
    ),
    "granite_hybrid": Architecture(
        "GraniteMoeHybrid",
        {
            **_EXPERTS,
            **_MAMBA,
            "layer_types": ["mamba", "attention"],
            "shared_intermediate_size": 24,
        },
    ),
    "qwen3_next": Architecture(
        "Qwen3Next",
        {
            **_MOE,
            **_DELTA,
            **_FULL_AND_LINEAR,
            "head_dim": 8,
            "shared_expert_intermediate_size": 24,
            "decoder_sparse_step": 1,
        },
    ),
    "qwen3_5": Architecture(
        "Qwen3_5", {**_DELTA, **_FULL_AND_LINEAR, "head_dim": 8}, "Qwen3_5TextConfig"
    ),
    "jamba": Architecture(
        "Jamba",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "zamba2": Architecture(
        "Zamba2",
        {
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "n_mamba_heads": 8,
            "mamba_headdim": 8,
            "chunk_size": 8,
            "layers_block_type": ["mamba", "hybrid"],
            "hybrid_layer_ids": [1],
            "num_mem_blocks": 1,
            "use_mem_eff_path": False,
        },
    ),
    "bamba": Architecture("Bamba", {**_MAMBA, "attn_layer_indices": [1]}),
    "falcon_h1": Architecture("FalconH1", {**_MAMBA, "mamba_d_ssm": 64}),
    "nemotron_h": Architecture(
        "NemotronH",
        {
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "head_dim": 8,
        },
    ),
    "mamba2": Architecture(
        "Mamba2",
        {
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "expand": 2,
        },
    ),
    "mamba2_chunks": Architecture(
        "Mamba2",
        {
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 256,
            "expand": 2,
        },
    ),
    "mamba": Architecture("Mamba", {"state_size": 8, "time_step_rank": 4}),
    "rwkv7": Architecture("Rwkv7"),
    "olmo_hybrid": Architecture("OlmoHybrid", {**_DELTA, **_FULL_AND_LINEAR}),
    "recurrent_gemma": Architecture(
        "RecurrentGemma",
        {
            "lru_width": 32,
            "attention_window_size": 64,
            "head_dim": 8,
            "block_types": ["recurrent", "attention"],
        },
    ),
    # --- attention ---
    "llama": Architecture("Llama"),
    "llama_yarn": Architecture(
        "Llama", _rope("yarn", factor=4.0, original_max_position_embeddings=128)
    ),
    "llama_dynamic": Architecture(
        "Llama", {**_rope("dynamic", factor=2.0), "max_position_embeddings": 16}
    ),
    "llama_llama3": Architecture(
        "Llama",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "phi3_long": Architecture(
        "Phi3",
        {
            **_rope(
                "longrope",
                short_factor=[1.0] * 4,
                long_factor=[4.0] * 4,
                original_max_position_embeddings=16,
            ),
            "original_max_position_embeddings": 16,
        },
    ),
    "deepseek_v2": Architecture(
        "DeepseekV2",
        {
            **_MOE,
            **_LATENT,
            "n_routed_experts": 8,
            "first_k_dense_replace": 2,
            "num_key_value_heads": 4,
        },
    ),
    "minicpm3": Architecture("MiniCPM3", {**_LATENT, "num_key_value_heads": 4}),
    "gemma2": Architecture("Gemma2", {**_WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "gemma3": Architecture(
        "Gemma3", {**_WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8}, "Gemma3TextConfig"
    ),
    "gemma3n": Architecture(
        "Gemma3n",
        {
            **_WINDOW,
            "head_dim": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.0, 0.0],
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "intermediate_size": [48, 48],
        },
        "Gemma3nTextConfig",
    ),
    "cohere2": Architecture("Cohere2", _WINDOW),
    "smollm3": Architecture("SmolLM3", {"no_rope_layers": [1, 0]}),
    "qwen3": Architecture("Qwen3", {"head_dim": 8}),
    "olmo2": Architecture("Olmo2"),
    "qwen2_vl": Architecture(
        "Qwen2VL",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [1, 1, 2],
            }
        },
        "Qwen2VLTextConfig",
        "Qwen2VLTextModel",
    ),
    "ministral": Architecture("Ministral", {**_WINDOW, "head_dim": 8}),
    "gpt2": Architecture("GPT2", {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 128}),
    "bloom": Architecture("Bloom", {"n_layer": 2, "n_head": 4}),
    "nanochat": Architecture("NanoChat"),
}


# --- caches as flat tensors ---


def _fresh(model: Any) -> Any:
    """An empty cache: all places of each layer, also where a window would do."""
    if hasattr(model, "fresh"):
        return model.fresh()
    transformers = import_module("transformers")
    utils = import_module("transformers.cache_utils")
    cache = transformers.DynamicCache(config=model.config)
    for n, layer in enumerate(cache.layers):
        if type(layer) is utils.DynamicSlidingWindowLayer:
            cache.layers[n] = utils.DynamicLayer()
        elif type(layer).__name__ == "LinearAttentionAndSlidingWindowAttentionLayer":
            cache.layers[n] = utils.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return cache


def _states(cache: Any) -> dict[str, Any]:
    """Tensors of a cache by name: `past_key_values.0.key`, `past_conv.0`, `past_recurrent.0`."""
    found = {}
    for n, layer in enumerate(cache.layers):
        for name, kind in (("key", "keys"), ("value", "values")):
            tensor = getattr(layer, kind, None)
            if tensor is not None:
                found[f"past_key_values.{n}.{name}"] = tensor
        for word in ("conv", "recurrent"):
            for k, tensor in getattr(layer, f"{word}_states", {}).items():
                if tensor is not None:
                    found[f"past_{word}.{n}" + (f".{k}" if k else "")] = tensor
    return found


def _filled(model: Any, names: Sequence[str], tensors: Sequence[Any]) -> Any:
    cache = _fresh(model)
    for name, tensor in zip(names, tensors, strict=True):
        if name.startswith("past_key_values."):
            _, n, kind = name.split(".")
            layer = cache.layers[int(n)]
            setattr(layer, f"{kind}s", tensor)
            layer.is_initialized = True
            layer.dtype, layer.device = tensor.dtype, tensor.device
        else:
            kind, n, *rest = name.removeprefix("past_").split(".")
            layer, k = cache.layers[int(n)], int(rest[0]) if rest else 0
            getattr(layer, f"{kind}_states")[k] = tensor.clone()
            getattr(layer, f"is_{kind}_states_initialized")[k] = True
            layer.has_previous_state[k] = True
            if kind == "conv":
                layer.conv_kernel_size[k] = tensor.shape[-1]
            layer.dtype, layer.device = tensor.dtype, tensor.device
    return cache


def _step(model: Any, ids: Any, mask: Any, cache: Any) -> tuple[Any, Any]:
    """Scores of places, and the cache behind them, which models call by several names."""
    name = next(n for n in _CACHES if n in inspect.signature(model.forward).parameters)
    out = model(input_ids=ids, attention_mask=mask, use_cache=True, **{name: cache})
    kept = next(out[n] for n in _CACHES if n in out)
    return out.logits if "logits" in out else out.last_hidden_state, kept


_CACHES = ("cache_params", "cache", "past_key_values")


def _module(model: Any, names: Sequence[str]) -> Any:
    torch: Any = import_module("torch")

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> Any:
            cache = _filled(self.model, names, past)
            scores, cache = _step(self.model, input_ids, attention_mask, cache)
            return (scores, *_states(cache).values())

    return Step().eval()


def prompt_of(n: int) -> list[int]:
    """So many tokens."""
    rest = np.random.default_rng(0).integers(3, VOCABULARY, max(0, n - len(PROMPT)))
    return [*PROMPT[:n], *rest.tolist()]


def _tokens_of_torch(model: Any, prompt: Sequence[int], n_tokens: int) -> list[int]:
    """Greedy tokens behind the prompt, one step for each."""
    torch: Any = import_module("torch")
    cache, ids, found = _fresh(model), torch.tensor([prompt]), []
    total = 0
    with torch.no_grad():
        for _ in range(n_tokens):
            total += ids.shape[1]
            mask = torch.ones(1, total, dtype=torch.int64)
            scores, cache = _step(model, ids, mask, cache)
            found.append(int(scores[0, -1].argmax()))
            ids = torch.tensor([[found[-1] % VOCABULARY]])
    return found


def _looped(self: Any, hidden: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """Experts one after the other, each for the rows that it is chosen for."""
    torch: Any = import_module("torch")
    result = torch.zeros_like(hidden)
    mask = torch.nn.functional.one_hot(top_k_index, self.num_experts).permute(2, 1, 0)
    for n in range(self.num_experts):
        slot, rows = torch.where(mask[n])
        x = hidden[rows]
        names = ("gate_up_proj" if self.has_gate else "up_proj", "down_proj")
        for k, name in enumerate(names):
            weight = getattr(self, name)[n]
            x = x @ (weight if self.is_transposed else weight.T)
            if self.has_bias:
                x = x + getattr(self, f"{name}_bias")[n]
            if k == 0:
                x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
        x = x * top_k_weights[rows, slot, None]
        result.index_add_(0, rows, x.to(hidden.dtype))
    return result


def _with_experts(model: Any, route: str) -> Any:
    """The model with an implementation of experts that an exporter takes."""
    if route != "hf" and getattr(model, "_can_set_experts_implementation", lambda: False)():
        moe = import_module("transformers.integrations.moe")
        moe.ALL_EXPERTS_FUNCTIONS.register("loop", _looped)
        model.set_experts_implementation("loop" if route == "loop" else "batched_mm")
    return model


def _present(name: str) -> str:
    return name.replace("past_key_values", "present").replace("past_", "present_")


def export(
    name: str, route: str, path: Path, n_layers: int, prompt: Sequence[int], n_tokens: int
) -> dict[str, Any]:
    """Write the model; what PyTorch makes of the prompt."""
    torch: Any = import_module("torch")
    model = ARCHITECTURES[name].build(n_layers)
    tokens = _tokens_of_torch(model, prompt, n_tokens)
    expected = {"prompt": [*prompt], "tokens": tokens}
    model = exportable(_with_experts(model, route))
    cache = _fresh(model)
    with torch.no_grad():
        ids = torch.tensor([PROMPT[:N_PAST]])
        _step(model, ids, torch.ones_like(ids), cache)
    states = {k: v.clone() for k, v in _states(cache).items()}
    n_new = 1 if route == "step" else N_NEW
    ids = torch.tensor([PROMPT[:n_new]])
    mask = torch.ones(1, N_PAST + n_new, dtype=torch.int64)
    if route == "hf":
        _by_transformers(model, ids, mask, cache, path)
        return expected
    arguments = (ids, mask, *states.values())
    names = ["input_ids", "attention_mask", *states]
    outputs = ["logits", *map(_present, states)]
    grows = [k for k in states if "key_values" in k]
    with torch.no_grad():
        how: dict[str, Any]
        if route in ("script", "loop"):
            axes = {
                "input_ids": {1: "sequence"},
                "attention_mask": {1: "total"},
                "logits": {1: "sequence"},
            }
            axes |= {k: {2: "past"} for k in grows} | {_present(k): {2: "total"} for k in grows}
            how = {"dynamic_axes": axes, "opset_version": 17, "dynamo": False}
        else:
            auto = torch.export.Dim.DYNAMIC
            new = {} if route == "step" else {1: auto}
            shapes = (new, {1: auto}, tuple({2: auto} if k in grows else {} for k in states))
            how = {"dynamic_shapes": shapes, "dynamo": True, "external_data": False}
        ports = {"input_names": names, "output_names": outputs}
        torch.onnx.export(_module(model, [*states]), arguments, str(path), **ports, **how)
    return expected


def _by_transformers(model: Any, ids: Any, mask: Any, cache: Any, path: Path) -> None:
    onnx_ir = import_module("onnx_ir")
    exporters = import_module("transformers.exporters.exporter_onnx")
    inputs = {"input_ids": ids, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
    made = exporters.OnnxExporter().export(model, inputs, config=exporters.OnnxConfig(dynamic=True))
    onnx_ir.save(made.program, str(path))


@click.group()
def main() -> None:
    """Architectures of language models, exported and compiled."""


@main.command("export")
@click.argument("folder", type=Path)
@click.option("--only", multiple=True)
@click.option("--route", multiple=True)
@click.option("--layers", default=2, help="An even number.")
@click.option("--prompt", default=len(PROMPT), help="Its tokens.")
@click.option("--tokens", default=32)
def export_all(
    folder: Path,
    only: tuple[str, ...],
    route: tuple[str, ...],
    layers: int,
    prompt: int,
    tokens: int,
) -> None:
    """Write models with what PyTorch makes of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or ARCHITECTURES:
        for one in route or ROUTES:
            path = folder / f"{name}.{one}.onnx"
            if path.exists():
                continue
            try:
                expected = export(name, one, path, layers, prompt_of(prompt), tokens)
                path.with_suffix(".json").write_text(json.dumps(expected))
                click.echo(f"{path.name}: written")
            except Exception as error:
                path.unlink(missing_ok=True)
                text = "".join(traceback.format_exception(error))
                path.with_suffix(".txt").write_text(text)
                first = str(error).strip().splitlines() or [""]
                click.echo(f"{path.name}: {type(error).__name__}: {first[0][:150]}")
            sys.stdout.flush()


# --- without PyTorch ---

ROOM = 25
"""Places of the capacity beside the tokens."""


def _of_onnxruntime(path: Path, prompt: Sequence[int], n_tokens: int) -> list[int]:
    """Greedy tokens by ONNX Runtime, which gets its outputs back."""
    ort: Any = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = [i for i in session.get_inputs() if i.name not in ("input_ids", "attention_mask")]
    feed = {}
    for i in inputs:
        shape = [int(n) if str(n).isdigit() else (0 if d else 1) for d, n in enumerate(i.shape)]
        feed[i.name] = np.zeros(shape, np.float32 if "float" in i.type else np.int64)
    names = {i.name for i in session.get_inputs()}
    tokens = next(i for i in session.get_inputs() if i.name == "input_ids")
    by_one = tokens.shape[1] == 1
    parts, found, total = [[n] for n in prompt] if by_one else [[*prompt]], list[int](), 0
    while len(found) < n_tokens:
        ids = parts.pop(0)
        total += len(ids)
        known = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, total), np.int64)}
        result = session.run(None, {k: v for k, v in known.items() if k in names} | feed)
        feed = dict(zip(feed, result[1:], strict=True))
        if not parts:
            found.append(int(result[0][0, -1].argmax()))
            parts = [[found[-1] % VOCABULARY]]
    return found


def check(path: Path) -> str:
    """Whether a session of the compiled file gives the tokens of ONNX Runtime and of PyTorch."""
    autotune: Any = import_module("autotune")
    expected = json.loads(path.with_suffix(".json").read_text())
    prompt, torch_tokens = expected["prompt"], expected["tokens"]
    try:
        wanted = _of_onnxruntime(path, prompt, len(torch_tokens))
    except Exception as error:
        return f"ONNX Runtime: {str(error).splitlines()[0][:200]}"
    note = "" if wanted == torch_tokens else "; the file differs from PyTorch"
    try:
        capacity = len(prompt) + len(torch_tokens) + ROOM
        compiled = autotune.compile(str(path), capacity=capacity, threads=2)
        file = path.with_suffix(".atn")
        compiled.artifact.save(file)
        session = autotune.load(file).session()
        found = list(session.generate([prompt], max_new=len(wanted)))
    except autotune.AutotuneError as error:
        return f"refused: {error.message} | {error.hint}{note}"
    if found != wanted:
        n = next(n for n, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1])
        return f"wrong at token {n}{note}"
    return f"works{note}"


@main.command("check")
@click.argument("folder", type=Path)
@click.option("--only", multiple=True)
@click.option("--again", is_flag=True)
def check_all(folder: Path, only: tuple[str, ...], again: bool) -> None:
    """Compile all models of a folder and compare their tokens; `results.json` keeps what came."""
    results = folder / "results.json"
    known = json.loads(results.read_text()) if results.exists() else {}
    for path in sorted(folder.glob("*.onnx")):
        name = path.stem
        chosen = not only or any(name == o or name.startswith(f"{o}.") for o in only)
        if not chosen or (name in known and not again):
            continue
        try:
            known[name] = check(path)
        except Exception as error:
            known[name] = f"internal: {type(error).__name__}: {error}"
        click.echo(f"{name}: {known[name]}")
        results.write_text(json.dumps(known, indent=1))


if __name__ == "__main__":
    main()
