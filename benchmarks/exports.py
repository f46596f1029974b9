"""Models of architectures that no package ships, as PyTorch and scikit-learn export them.

    pip install torch torchvision transformers onnxscript scikit-learn skl2onnx   # in a venv
    python -m benchmarks.exports FOLDER [--only llama_static]…

Weights are random and seeded. Normalisations of detectors have the statistics of a few random
images and their last layers are scaled up, so that they find something. Autotune is not needed for
this and depends on none of these packages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

OPSET = 18
VOCABULARY = 1000
CACHE = 64
"""Positions of the static cache."""
N_POINTS, N_EDGES, N_FEATURES = 100, 400, 32
"""The graph of the graph networks."""


def _module(forward: Callable[..., Any], **parts: Any) -> Any:
    """A torch.nn.Module with `parts` as attributes; `forward` gets it first."""
    torch: Any = import_module("torch")
    module = type("Exported", (torch.nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module.eval()


def _export(
    path: Path,
    module: Any,
    arguments: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    **more: Any,
) -> None:
    torch: Any = import_module("torch")
    settings = {"opset_version": OPSET, "dynamo": True, "external_data": False} | more
    if not settings["dynamo"]:
        del settings["external_data"]
    torch.onnx.export(
        module, arguments, str(path), input_names=inputs, output_names=outputs, **settings
    )


def minilm(path: Path) -> None:
    """Six layers of BERT, 384 wide, mean over the tokens of the mask, normalised."""
    _bert(path, layers=6, width=384, heads=12, pooled=True)


def bert_base(path: Path) -> None:
    """BERT-base: ids and mask to the last hidden state, of any batch and length."""
    _bert(path, layers=12, width=768, heads=12, pooled=False)


def _bert(path: Path, layers: int, width: int, heads: int, pooled: bool) -> None:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )

    def forward(self: Any, ids: Any, mask: Any) -> Any:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if not pooled:
            return hidden
        weights = mask[..., None].to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)

    bert = transformers.BertModel(config, add_pooling_layer=False)
    ids = torch.randint(0, 30000, (2, 16))
    batch, length = torch.export.Dim("batch"), torch.export.Dim("sequence", max=512)
    free = {0: batch, 1: length}
    names = ["ids", "mask"], ["vectors"]
    _export(
        path,
        _module(forward, bert=bert),
        (ids, torch.ones_like(ids)),
        *names,
        dynamic_shapes=(free, free),
    )


def _llama() -> Any:
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


_CACHES = ["k0", "v0", "k1", "v1"]
_MADE = ["logits", "new_k0", "new_v0", "new_k1", "new_v1"]


def _grown(self: Any, keys_and_values: tuple[Any, ...]) -> Any:
    """A cache of `transformers` that holds these."""
    transformers: Any = import_module("transformers")
    cache = transformers.DynamicCache()
    for n in range(0, len(keys_and_values), 2):
        cache.update(keys_and_values[n], keys_and_values[n + 1], n // 2)
    return cache


def _layers_of(cache: Any) -> list[Any]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def llama_growing(path: Path) -> None:
    """One token of a small Llama whose cache grows by a Concat."""
    torch: Any = import_module("torch")

    def forward(self: Any, ids: Any, position: Any, mask: Any, *past: Any) -> Any:
        cache = _grown(self, past)
        out = self.model(
            input_ids=ids,
            position_ids=position,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        return (out.logits, *_layers_of(cache))

    past = torch.export.Dim("past", min=1, max=200)
    arguments = (torch.randint(0, VOCABULARY, (1, 1)), torch.tensor([[16]]))
    mask = torch.ones(1, 17, dtype=torch.int64)
    caches = [torch.randn(1, 2, 16, 32) for _ in _CACHES]
    _export(
        path,
        _module(forward, model=_llama()),
        (*arguments, mask, *caches),
        ["ids", "position", "mask", *_CACHES],
        _MADE,
        dynamic_shapes=({}, {}, {1: past + 1}, ({2: past},) * len(caches)),
    )


def llama_static(path: Path) -> None:
    """One token of a small Llama that writes its place of a cache of fixed size (`index_copy`)."""
    torch: Any = import_module("torch")
    rotated = import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb

    def attended(self: Any, layer: Any, x: Any, at: Any, angles: Any, past: Any) -> Any:
        of = layer.self_attn
        heads = [p(x).view(1, 1, -1, of.head_dim).transpose(1, 2) for p in
                 (of.q_proj, of.k_proj, of.v_proj)]  # fmt: skip
        query, key = rotated(heads[0], heads[1], *angles)
        keys, values = past[0].index_copy(2, at, key), past[1].index_copy(2, at, heads[2])
        repeated = [t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (keys, values)]
        is_past = torch.arange(CACHE)[None, :] <= at[:, None]
        scores = query @ repeated[0].transpose(2, 3) * of.scaling
        weights = torch.where(is_past, scores, -1e9).softmax(-1)
        return of.o_proj((weights @ repeated[1]).transpose(1, 2).reshape(1, 1, -1)), keys, values

    def forward(self: Any, ids: Any, at: Any, *past: Any) -> Any:
        hidden = self.model.model.embed_tokens(ids)
        angles = self.model.model.rotary_emb(hidden, at[None])
        made: list[Any] = []
        for n, layer in enumerate(self.model.model.layers):
            x = layer.input_layernorm(hidden)
            out, *new = attended(self, layer, x, at, angles, past[2 * n : 2 * n + 2])
            made += new
            hidden = hidden + out
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return (self.model.lm_head(self.model.model.norm(hidden)), *made)

    caches = [torch.randn(1, 2, CACHE, 32) for _ in _CACHES]
    arguments = (torch.randint(0, VOCABULARY, (1, 1)), torch.tensor([16]), *caches)
    _export(path, _module(forward, model=_llama()), arguments, ["ids", "at", *_CACHES], _MADE)


def _whisper() -> Any:
    transformers: Any = import_module("transformers")
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=200,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation="eager",
    )
    return transformers.WhisperForConditionalGeneration(config)


def whisper_encoder(path: Path) -> None:
    """A small Whisper's encoder over four seconds of spectrogram."""
    torch: Any = import_module("torch")

    def forward(self: Any, mel: Any) -> Any:
        return self.model.model.encoder(mel).last_hidden_state

    module = _module(forward, model=_whisper())
    _export(path, module, (torch.randn(1, 80, 400),), ["mel"], ["encoded"])


def whisper_decoder(path: Path) -> None:
    """One token of its decoder, with a growing cache of its own attention."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")

    def forward(self: Any, ids: Any, encoded: Any, *past: Any) -> Any:
        cache = _grown(self, past)
        both = transformers.EncoderDecoderCache(cache, transformers.DynamicCache())
        out = self.model.model.decoder(
            input_ids=ids, encoder_hidden_states=encoded, past_key_values=both, use_cache=True
        )
        return (self.model.proj_out(out.last_hidden_state), *_layers_of(cache))

    past = torch.export.Dim("past", min=1, max=60)
    caches = [torch.randn(1, 4, 8, 32) for _ in _CACHES]
    arguments = (torch.randint(0, VOCABULARY, (1, 1)), torch.randn(1, 200, 128), *caches)
    _export(
        path,
        _module(forward, model=_whisper()),
        arguments,
        ["ids", "encoded", *_CACHES],
        _MADE,
        dynamic_shapes=({}, {}, ({2: past},) * len(caches)),
    )


def _detector(
    path: Path, name: str, size: int, outputs: list[str], gain: float = 10.0, **settings: Any
) -> None:
    """A detector of torchvision, with its NMS; `gain`: of the weights of its last layers."""
    torch: Any = import_module("torch")
    detection: Any = import_module("torchvision.models.detection")
    model = getattr(detection, name)(weights=None, weights_backbone=None, **settings)
    _warm_up(model, size, gain)
    model.eval()
    legacy = {"dynamo": False, "opset_version": 17}
    _export(path, model, ([torch.rand(3, size, size)],), ["image"], outputs, **legacy)


def _warm_up(model: Any, size: int, gain: float) -> None:
    """Statistics of a few images for its normalisations; larger weights of its last layers."""
    torch: Any = import_module("torch")
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train()
            module.momentum = 0.5
    with torch.no_grad():
        for _ in range(6):
            model.backbone(torch.randn(4, 3, size, size))
        for part in (getattr(model, n, None) for n in ("head", "rpn", "roi_heads")):
            for name, weight in part.named_parameters() if part is not None else ():
                last = any(
                    word in name for word in ("cls_", "bbox_", "box_predictor", "module_list")
                )
                if last and weight.ndim > 1:
                    weight.mul_(gain)


def ssdlite(path: Path) -> None:
    """SSDLite on MobileNet v3, 320²: 91 classes, NMS of each."""
    _detector(
        path,
        "ssdlite320_mobilenet_v3_large",
        320,
        ["boxes", "scores", "labels"],
        score_thresh=0.015,
    )


def faster_rcnn(path: Path) -> None:
    """Faster R-CNN on MobileNet v3 with a feature pyramid."""
    outputs = ["boxes", "labels", "scores"]
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    _detector(path, name, 320, outputs, box_score_thresh=0.02, rpn_post_nms_top_n_test=100)


def mask_rcnn(path: Path) -> None:
    """Mask R-CNN on ResNet-50 with a feature pyramid, images of 192²."""
    outputs = ["boxes", "labels", "scores", "masks"]
    sizes = {"min_size": 192, "max_size": 192, "rpn_post_nms_top_n_test": 50}
    _detector(
        path, "maskrcnn_resnet50_fpn", 192, outputs, gain=3.0, box_detections_per_img=5, **sizes
    )


def _graph_network(path: Path, gathered: Callable[..., Any]) -> None:
    """Two layers in which every point sums what its neighbours send; `gathered` sums."""
    torch: Any = import_module("torch")
    nn = torch.nn

    def forward(self: Any, x: Any, edges: Any) -> Any:
        source, target = edges[0], edges[1]
        x = self.first(x).relu()
        x = (self.second(gathered(torch, self, x, source, target)) + x).relu()
        return self.last(gathered(torch, self, x, source, target)).log_softmax(-1)

    layers = {"first": nn.Linear(N_FEATURES, 64), "second": nn.Linear(64, 64)}
    module = _module(forward, last=nn.Linear(64, 7), score=nn.Linear(128, 1), **layers)
    edges = torch.randint(0, N_POINTS, (2, N_EDGES))
    _export(path, module, (torch.randn(N_POINTS, N_FEATURES), edges), ["x", "edges"], ["y"])


def gnn_mean(path: Path) -> None:
    """Means of neighbours by `index_add` (GraphSAGE)."""

    def gathered(torch: Any, self: Any, x: Any, source: Any, target: Any) -> Any:
        ones = torch.ones_like(target, dtype=x.dtype)
        degree = torch.zeros(x.shape[0]).index_add(0, target, ones).clamp(min=1)
        return torch.zeros_like(x).index_add(0, target, x[source]) / degree[:, None]

    _graph_network(path, gathered)


def gnn_max(path: Path) -> None:
    """Sums and maxima of neighbours by `scatter_add` and `scatter_reduce`."""

    def gathered(torch: Any, self: Any, x: Any, source: Any, target: Any) -> Any:
        at = target[:, None].expand(-1, x.shape[1])
        largest = torch.full_like(x, -1e9).scatter_reduce(0, at, x[source], "amax")
        return torch.zeros_like(x).scatter_add(0, at, x[source]) + largest.clamp(min=-1)

    _graph_network(path, gathered)


def gnn_attention(path: Path) -> None:
    """A softmax over the edges of each point (graph attention)."""

    def gathered(torch: Any, self: Any, x: Any, source: Any, target: Any) -> Any:
        pairs = torch.cat([x[source], x[target]], -1)
        score = torch.nn.functional.leaky_relu(self.score(pairs))[:, 0]
        largest = torch.full((x.shape[0],), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - largest[target]).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, target, weight)
        sent = x[source] * (weight / total[target])[:, None]
        return torch.zeros_like(x).index_add(0, target, sent)

    _graph_network(path, gathered)


def forest(path: Path) -> None:
    """A scikit-learn pipeline: scaling and a random forest, labels and probabilities."""
    ensemble: Any = import_module("sklearn.ensemble")
    _pipeline(path, ensemble.RandomForestClassifier(n_estimators=50, random_state=0))


def perceptron(path: Path) -> None:
    """A scikit-learn pipeline: scaling, principal components and a perceptron."""
    network: Any = import_module("sklearn.neural_network")
    decomposition: Any = import_module("sklearn.decomposition")
    layers = network.MLPClassifier((256, 256), max_iter=20, random_state=0)
    _pipeline(path, decomposition.PCA(32), layers)


def _pipeline(path: Path, *steps: Any) -> None:
    sets: Any = import_module("sklearn.datasets")
    made: Any = import_module("sklearn.pipeline").make_pipeline
    scaler: Any = import_module("sklearn.preprocessing").StandardScaler()
    skl2onnx: Any = import_module("skl2onnx")
    kinds: Any = import_module("skl2onnx.common.data_types")
    x, y = sets.load_digits(return_X_y=True)
    pipeline = made(scaler, *steps).fit(x, y)
    inputs = [("x", kinds.FloatTensorType([None, x.shape[1]]))]
    model = skl2onnx.convert_sklearn(
        pipeline, initial_types=inputs, target_opset=OPSET, options={"zipmap": False}
    )
    path.write_bytes(model.SerializeToString())


EXPORTS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        *(minilm, bert_base, llama_growing, llama_static, whisper_encoder, whisper_decoder),
        *(ssdlite, faster_rcnn, mask_rcnn, gnn_mean, gnn_max, gnn_attention, forest, perceptron),
    )
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, type=click.Choice(tuple(EXPORTS)), help="[all]")
def main(folder: Path, only: tuple[str, ...]) -> None:
    """Export the models to FOLDER; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or EXPORTS:
        path = folder / f"{name}.onnx"
        if not path.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module("torch").manual_seed(0)
                EXPORTS[name](path)
        click.echo(path)


if __name__ == "__main__":
    main()
