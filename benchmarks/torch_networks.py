"""Networks in bf16 as PyTorch computes them, where somebody has installed it.

    pip install torch torchvision timm transformers    # beside autotune

The networks whose exports `benchmarks.low_precision --bf16` measures, with random weights: run
eager, without gradients, weights and data in bfloat16, convolutional networks channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_IMAGE, _PICTURE = (1, 3, 224, 224), (1, 3, 256, 256)


def torch_network(name: str, n_threads: int) -> Callable[[], object]:
    """One inference of a network of `NETWORKS` on random data. Raises ImportError."""
    torch: Any = import_module("torch")
    torch.set_num_threads(n_threads)
    module, inputs = NETWORKS[name]()
    module = module.eval().to(torch.bfloat16)
    if name in _CONVOLUTIONAL:
        module = module.to(memory_format=torch.channels_last)
        inputs = tuple(x.to(memory_format=torch.channels_last) for x in inputs)
    inputs = tuple(x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs)

    def run() -> object:
        with torch.inference_mode():
            return module(*inputs)

    return run


def _of_torchvision(name: str) -> tuple[Any, tuple[Any, ...]]:
    model = getattr(import_module("torchvision.models"), name)(weights=None)
    return model, (import_module("torch").randn(_IMAGE),)


def _vit_small() -> tuple[Any, tuple[Any, ...]]:
    timm, torch = import_module("timm"), import_module("torch")
    return timm.create_model("vit_small_patch16_224"), (torch.randn(_IMAGE),)


def _bert_base() -> tuple[Any, tuple[Any, ...]]:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    ids = torch.randint(0, 30000, (1, 128))
    bert = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)
    return bert, (ids, torch.ones_like(ids))


def _gpt2() -> tuple[Any, tuple[Any, ...]]:
    transformers: Any = import_module("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return model, (import_module("torch").randint(0, 50000, (1, 32)),)


def _unet() -> tuple[Any, tuple[Any, ...]]:
    """Two convolutions at each of five extents, 32 to 512 channels."""
    torch: Any = import_module("torch")
    nn, widths = torch.nn, (32, 64, 128, 256, 512)

    def block(n_in: int, n_out: int) -> Any:
        first, second = (nn.Conv2d(n, n_out, 3, padding=1) for n in (n_in, n_out))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    class UNet(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            pairs = list(zip((3, *widths), widths, strict=False))
            self.down = nn.ModuleList(block(*pair) for pair in pairs)
            steps = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.up = nn.ModuleList(nn.ConvTranspose2d(*pair, 2, 2) for pair in steps)
            self.joined = nn.ModuleList(block(*pair) for pair in steps)
            self.head = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for n, layer in enumerate(self.down):
                x = layer(nn.functional.max_pool2d(x, 2) if n else x)
                kept.append(x)
            for up, layer, other in zip(self.up, self.joined, kept[-2::-1], strict=True):
                x = layer(torch.cat((other, up(x)), 1))
            return self.head(x)

    return UNet(), (torch.randn(_PICTURE),)


_CONVOLUTIONAL = ("resnet50", "mobilenet_v2", "unet")
NETWORKS: Mapping[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "resnet50": lambda: _of_torchvision("resnet50"),
    "mobilenet_v2": lambda: _of_torchvision("mobilenet_v2"),
    "swin_tiny": lambda: _of_torchvision("swin_t"),
    "vit_small": _vit_small,
    "bert_base": _bert_base,
    "gpt2": _gpt2,
    "unet": _unet,
}
